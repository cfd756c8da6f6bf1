"""ACC's rule for idle queues (section 4.2), which get no decision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orchestration.model.knobs import ECN
from orchestration.model.records import Observation


class IdleRule:
    """A queue below its kmin is idle, and gets no decision until it exceeds kmin.

    In the paper a queue is also idle if its reward has not changed for three slots, and an idle
    queue becomes busy once it exceeds its kmin. Above kmin the second rule cancels the first at
    once; below kmin the queue is idle anyway. So the reward plays no part here.
    """

    def __init__(self, queues: int) -> None:
        self._idle = np.zeros(queues, dtype=bool)

    def busy(self, observation: Observation) -> NDArray[np.int64]:
        """Return the queues that get a decision; call it once at each."""
        length, kmin = observation["qlen_bytes"], observation.settings[ECN.name]["kmin_bytes"]
        self._idle |= length < kmin
        self._idle &= length <= kmin
        return np.flatnonzero(~self._idle)
