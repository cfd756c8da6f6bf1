"""The placebo of a learned tuner: it decides when that tuner does, but at random.

Loop, starting point, set of actions, what happens to an action before it is applied, and the rule
by which queues are skipped are the learned tuner's own. An advantage of a learned tuner over its
placebo comes from its choices, not from changing thresholds often, and not from the set that it
chooses from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.model.records import Action, Change, Ints, Observation, Setup
from tuners.base import BaseTuner
from tuners.ecn.idle import IdleRule
from tuners.ecn.templates import Templates, acc_templates, graphcc_templates

if TYPE_CHECKING:
    from inventory.topology import Testbed

Draw = Callable[[np.random.Generator, Ints], Change]


@dataclass(frozen=True)
class OwnActions:
    """What a learned tuner can do: `start` and `draw` return settings of the queues given.

    `draw` takes each of the tuner's choices with equal probability. A queue that `idle` calls idle
    keeps its setting.
    """

    start: Callable[[Ints], Change]
    draw: Draw
    idle: IdleRule | None = None


def _of_templates(
    templates: Templates, start: tuple[float, float, float], idle: IdleRule | None = None
) -> OwnActions:
    first = templates.nearest(*start)

    def begin(queues: Ints) -> Change:
        return templates.settings(queues, np.full(len(queues), first))

    def draw(draws: np.random.Generator, queues: Ints) -> Change:
        return templates.settings(queues, draws.integers(len(templates), size=len(queues)))

    return OwnActions(begin, draw, idle)


def _acc() -> OwnActions:
    from tuners.ecn.acc import START_BYTES

    templates = acc_templates()
    return _of_templates(templates, START_BYTES, IdleRule(templates.kmin_bytes))


def _graphcc() -> OwnActions:
    from tuners.ecn.graphcc import START

    return _of_templates(graphcc_templates(), START)


def _pet() -> OwnActions:
    from tuners.ecn.pet import HEADS, START_HEADS, thresholds

    def begin(queues: Ints) -> Change:
        return thresholds(queues, np.tile(np.array(START_HEADS), (len(queues), 1)))

    def draw(draws: np.random.Generator, queues: Ints) -> Change:
        # every head by itself; the pair of thresholds is put in order afterwards, as PET's is
        return thresholds(queues, draws.integers(HEADS, size=(len(queues), len(HEADS))))

    return OwnActions(begin, draw)


OF = {"acc": _acc, "graphcc": _graphcc, "pet": _pet}


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
        idle = OF[self.of]().idle if self.of in OF else None
        self.observes = ("qlen_bytes",) if idle else ()

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        if self.of not in OF:
            yield f"no learned tuner of thresholds is called {self.of!r}: use {', '.join(OF)}"

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Seed the draws, and return what the learned tuner starts from."""
        self._own = OF[self.of]()
        self._draws = np.random.default_rng(seed)
        self._queues = np.arange(len(testbed.queues), dtype=np.int64)
        return Setup((self._own.start(self._queues),))

    def act(self, observation: Observation) -> Action:
        """Draw an action for every queue that the learned tuner would decide on."""
        idle = self._own.idle
        queues = self._queues if idle is None else idle.busy(observation)
        return (self._own.draw(self._draws, queues),) if len(queues) else ()
