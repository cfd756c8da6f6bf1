"""One static setting, then another from a given time on: the step response of a fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestration.model.records import Action, Observation, Setup
from tuners.base import BaseTuner
from tuners.ecn.static import StaticEcn

if TYPE_CHECKING:
    from inventory.topology import Testbed


class StepEcn(BaseTuner):
    """Holds `before` until an observation at or after `at_ns`, then sets `after`, once."""

    observes = ()

    def __init__(self, at_ns: int, before: StaticEcn, after: StaticEcn) -> None:
        self._at_ns = at_ns
        self._before = before
        self._after = after
        self._next: Action = ()

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the first setting."""
        self._next = self._after.reset(testbed, seed).action
        return self._before.reset(testbed, seed)

    def act(self, observation: Observation) -> Action:
        """Return the second setting when its time has come."""
        if observation.t_ns < self._at_ns:
            return ()
        action, self._next = self._next, ()
        return action
