"""The placebo: it decides as often as a learned tuner, but at random.

Loop and action space are the same. An advantage of a learned tuner over the placebo comes from its
choices, not from changing thresholds often.
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
    """At each decision, every queue gets a template drawn uniformly."""

    observes = ()

    templates: str = "graphcc"

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        if self.templates not in TEMPLATES:
            yield f"no templates are called {self.templates!r}: use {', '.join(TEMPLATES)}"

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Seed the draws, and return the first."""
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
