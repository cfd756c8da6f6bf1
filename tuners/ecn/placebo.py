"""The placebo of a learned tuner: it decides when that tuner does, but at random.

Everything else is as for the learned tuner: the control loop, the initial settings, the settings to
choose from, how a choice becomes thresholds, and which queues are skipped. So an advantage of a
learned tuner over its placebo comes from its choices. It does not come from changing thresholds
often, or from the settings that it chooses from.
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
    """At each decision, every queue gets one of the settings of the tuner `of`, drawn uniformly.

    `templates` is what 0.2 called `of`.
    """

    of: str = "graphcc"
    templates: str = ""

    def __post_init__(self) -> None:
        if self.templates:
            self.of = self.templates
        if self.of in OF:
            from tuners.registry import tuner_class

            self._actions: Actions = tuner_class(self.of).ACTIONS
            self.observes = ("qlen_bytes",) if self._actions.idle_bytes else ()

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        if self.of not in OF:
            yield f"no learned tuner of thresholds is called {self.of!r}: use {', '.join(OF)}"

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Seed the draws, and return the setup that the learned tuner starts from."""
        self._draws = np.random.default_rng(seed)
        self._queues = np.arange(len(testbed.queues), dtype=np.int64)
        return Setup((self._actions.start(self._queues),))

    def act(self, observation: Observation) -> Action:
        """Draw a setting for every queue that the learned tuner would decide on."""
        queues = self._actions.busy(observation) if self._actions.idle_bytes else self._queues
        return (self._actions.draw(self._draws, queues),) if len(queues) else ()
