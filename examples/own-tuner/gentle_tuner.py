"""A tuner of one's own: it lowers the marking threshold of a queue that stays long.

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

    The threshold stays within `min_bytes` and `max_bytes`: a queue longer than it is marked.
    """

    long_bytes: int = 30_000
    min_bytes: int = 5_000
    max_bytes: int = 200_000

    # what it looks at; it turns ECN, as tuners do that say nothing else
    observes = ("qlen_mean_bytes",)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        if not 0 < self.min_bytes <= self.max_bytes:
            yield f"least_bytes {self.min_bytes} is not in 1..max_bytes: correct it"

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Start every queue at the highest threshold."""
        self._all = np.arange(len(testbed.queues))
        self._threshold = np.full(len(self._all), self.max_bytes)
        return Setup((ECN.change(self._all, self._threshold, self._threshold, 1.0),))

    def act(self, observation: Observation) -> Action:
        """Return the queues whose threshold moves."""
        long = observation["qlen_mean_bytes"] > self.long_bytes
        wanted = np.where(long, self._threshold // 2, self._threshold * 2)
        wanted = np.clip(wanted, self.min_bytes, self.max_bytes)
        moved = np.flatnonzero(wanted != self._threshold)
        self._threshold = wanted
        return (ECN.change(moved, wanted[moved], wanted[moved], 1.0),) if len(moved) else ()
