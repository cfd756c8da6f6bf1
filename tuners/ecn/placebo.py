"""The placebo of a learned tuner: it decides when that tuner does, but at random.

Loop, starting point, set of actions, what happens to an action before it is applied, and the rule
by which queues are skipped are the learned tuner's own. An advantage of a learned tuner over its
placebo comes from its choices, not from changing thresholds often, and not from the set that it
chooses from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.core.records import Action, Observation, Setup
from tuners.base import BaseTuner

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed
    from tuners.ecn.learned import Actions

OF = ("acc", "graphcc", "pet")


@dataclass(eq=False)
class RandomEcn(BaseTuner):
    """At each decision, every queue gets one of the actions of the tuner `of`, drawn uniformly.

    `templates` is the name that `of` had in 0.2.
    """

    of: str = "graphcc"
    templates: str = ""

    def __post_init__(self) -> None:
        if self.templates:
            self.of = self.templates
        if self.of in OF:
            from tuners.registry import tuner_class

            self._own: Actions = tuner_class(self.of).ACTIONS
            self.observes = ("qlen_bytes",) if self._own.idle_bytes else ()

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        if self.of not in OF:
            yield f"no learned tuner of thresholds is called {self.of!r}: use {', '.join(OF)}"

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Seed the draws, and return what the learned tuner starts from."""
        self._draws = np.random.default_rng(seed)
        self._queues = np.arange(len(testbed.queues), dtype=np.int64)
        return Setup((self._own.start(self._queues),))

    def act(self, observation: Observation) -> Action:
        """Draw an action for every queue that the learned tuner would decide on."""
        queues = self._own.busy(observation) if self._own.idle_bytes else self._queues
        return (self._own.draw(self._draws, queues),) if len(queues) else ()
