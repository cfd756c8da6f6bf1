"""The placebo: what a learned tuner does, without what it has learned.

Same loop, same decisions, same action space; every choice is drawn at random. What a learned tuner
gains over it, it gains by its choices, not by changing thresholds often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.model.records import Action, Observation, Setup
from tuners.base import BaseTuner
from tuners.ecn.templates import acc_templates, graphcc_templates, pet_templates

if TYPE_CHECKING:
    from inventory.topology import Testbed

TEMPLATES = {"acc": acc_templates, "graphcc": graphcc_templates, "pet": pet_templates}


@dataclass(eq=False)
class RandomEcn(BaseTuner):
    """At each decision every queue gets one of the templates, each as likely as any other."""

    observes = ()

    templates: str = "graphcc"

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        if self.templates not in TEMPLATES:
            yield f"no templates are called {self.templates!r}: use {', '.join(TEMPLATES)}"

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Start the draws anew from `seed`, and return the first."""
        self._templates = TEMPLATES[self.templates]()
        self._draws = np.random.default_rng(seed)
        self._queues = np.arange(len(testbed.queues), dtype=np.int64)
        return Setup(self._draw())

    def act(self, observation: Observation) -> Action:
        """Draw a template for every queue."""
        return self._draw()

    def _draw(self) -> Action:
        choice = self._draws.integers(len(self._templates), size=len(self._queues))
        return (self._templates.settings(self._queues, choice),)
