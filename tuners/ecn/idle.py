"""ACC's rule for idle queues (section 4.2), which get no decision."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.model.records import Observation


class IdleRule:
    """A queue not above the lowest kmin that can be set is idle, and gets no decision.

    The paper says "Kmin" and not which. By that in force, a queue whose kmin is above all that its
    senders' windows hold would be idle for ever, whatever it then costs: with random settings of 20
    KB to 10 MB most queues were. There the rule saved a tenth of the CPU's work, so it cannot have
    been so. Its other condition, a reward that has not changed for three slots, is cancelled above
    kmin at once, and plays no part.
    """

    def __init__(self, kmin_bytes: NDArray[Any]) -> None:
        self._least_bytes = int(kmin_bytes.min())

    def busy(self, observation: Observation) -> NDArray[np.int64]:
        """Return the queues that get a decision."""
        return np.flatnonzero(observation["qlen_bytes"] > self._least_bytes)
