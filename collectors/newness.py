"""Which numbers of a reading are new, where switches poll on their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orchestration.core.records import Ints, Observation

_BEFORE_THE_TRIAL_NS = -1


class Newness:
    """Compares readings with those before, by when each signal of each queue was taken."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._newest_ns: Ints | None = None

    def repeats(self, observation: Observation) -> NDArray[np.bool_] | None:
        """Return which numbers repeat earlier ones, or are from before the trial.

        The shape is (signals, queues); None if all were taken at the time of the reading.
        """
        if observation.taken_ns is None:
            return None
        usual, own = observation.taken_ns, observation.taken_by
        taken = np.stack([own.get(key, usual) for key in self._keys])
        if self._newest_ns is None:
            self._newest_ns = np.full_like(taken, _BEFORE_THE_TRIAL_NS)
        old: NDArray[np.bool_] = taken <= self._newest_ns
        np.maximum(self._newest_ns, taken, out=self._newest_ns)
        return old
