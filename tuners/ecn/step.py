"""One static setting, then another from a given time on, to measure a fabric's step response."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.model.records import Action, Observation, Setup
from tuners.base import BaseTuner, impossible_thresholds
from tuners.ecn.static import StaticEcn

if TYPE_CHECKING:
    from inventory.topology import Testbed


@dataclass(eq=False)
class StepEcn(BaseTuner):
    """Holds one setting until an observation at or after `at_ns`, then sets another, once."""

    observes = ()

    at_ns: int
    kmin_bytes: int
    kmax_bytes: int
    then_kmin_bytes: int
    then_kmax_bytes: int
    pmax: float = 0.01
    then_pmax: float = 0.01

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from impossible_thresholds(self.kmin_bytes, self.kmax_bytes, self.pmax)
        later = (self.then_kmin_bytes, self.then_kmax_bytes, self.then_pmax)
        yield from impossible_thresholds(*later, prefix="then_")

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the first setting."""
        later = StaticEcn(self.then_kmin_bytes, self.then_kmax_bytes, self.then_pmax)
        self._next: Action = later.reset(testbed, seed).action
        return StaticEcn(self.kmin_bytes, self.kmax_bytes, self.pmax).reset(testbed, seed)

    def act(self, observation: Observation) -> Action:
        """Return the second setting when its time has come."""
        if observation.t_ns < self.at_ns:
            return ()
        action, self._next = self._next, ()
        return action
