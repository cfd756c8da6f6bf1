"""A tuner of your own: it lowers the marking threshold of a queue that stays long.

Run it by its file,

    closloop check-tuner examples/own-tuner/gentle_tuner.py:Gentle
    closloop run examples/own-tuner/campaign.yml --on fluid

or install this folder (`pip install ./examples/own-tuner`), and name it `gentle` in any campaign.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from closloop import ECN, Action, BaseTuner, Observation, Setup

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


@dataclass
class Gentle(BaseTuner):
    """Halves a queue's threshold while its mean length is above `long_bytes`, else doubles it.

    A packet is marked if the queue is longer than the threshold, which stays between `min_bytes`
    and `max_bytes`.
    """

    long_bytes: int = 30_000
    min_bytes: int = 5_000
    max_bytes: int = 200_000

    # the signals that it observes; by default, a tuner sets the knob ECN
    observes = ("qlen_mean_bytes",)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        if not 0 < self.min_bytes <= self.max_bytes:
            yield f"min_bytes {self.min_bytes} is not in 1..max_bytes: correct it"

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Start every queue at the highest threshold."""
        self._all = np.arange(len(testbed.queues))
        self._threshold = np.full(len(self._all), self.max_bytes)
        return Setup((ECN.change(self._all, self._threshold, self._threshold, 1.0),))

    def act(self, observation: Observation) -> Action:
        """Return the new thresholds of the queues whose threshold changes."""
        long = observation["qlen_mean_bytes"] > self.long_bytes
        threshold = np.where(long, self._threshold // 2, self._threshold * 2)
        threshold = np.clip(threshold, self.min_bytes, self.max_bytes)
        changed = np.flatnonzero(threshold != self._threshold)
        self._threshold = threshold
        if not len(changed):
            return ()
        return (ECN.change(changed, threshold[changed], threshold[changed], 1.0),)
