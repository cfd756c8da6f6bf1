"""The placebo of flowlet timeouts: it decides as often as DRLet, but at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.model.records import Action, Ints, Observation, Setup
from tuners.flowlet.settings import FlowletTuner, timeout_of, timeouts

if TYPE_CHECKING:
    from inventory.topology import Testbed


@dataclass(eq=False)
class RandomTimeouts(FlowletTuner):
    """At each decision every switch gets a timeout drawn from DRLet's range, by its logarithm."""

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Seed the draws, and return the first."""
        self._draws = np.random.default_rng(seed)
        self._switches = np.arange(len(testbed.switches), dtype=np.int64)
        return self.setup(testbed, self._draw())

    def act(self, observation: Observation) -> Action:
        """Draw a timeout for every switch."""
        return (timeouts(self._switches, self._draw()),)

    def _draw(self) -> Ints:
        return timeout_of(self._draws.uniform(-1.0, 1.0, len(self._switches)))
