"""The placebo of flowlet timeouts: it decides as often as DRLet, but at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.model.records import Action, Observation, Setup
from tuners.flowlet.best_static import best_static_ns, host_rate
from tuners.flowlet.settings import FlowletTuner, timeout_of, timeouts
from tuners.flowlet.uplinks import Uplinks

if TYPE_CHECKING:
    from inventory.topology import Testbed


@dataclass(eq=False)
class RandomTimeouts(FlowletTuner):
    """At each decision a timeout is drawn from DRLet's range, by its logarithm.

    As with DRLet, that is so for every switch that has several paths upwards, and all start from
    the best static timeout of the lowest load.
    """

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Seed the draws, and return what DRLet starts from."""
        self._draws = np.random.default_rng(seed)
        self._switches = Uplinks(testbed).switches
        start_ns = int(best_static_ns(0.0, host_rate(testbed)))
        return self.setup(testbed, [start_ns] * len(testbed.switches))

    def act(self, observation: Observation) -> Action:
        """Draw a timeout for every switch that has a choice."""
        drawn = timeout_of(self._draws.uniform(-1.0, 1.0, len(self._switches)))
        return (timeouts(self._switches, drawn),) if len(drawn) else ()
