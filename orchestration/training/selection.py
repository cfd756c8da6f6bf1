"""The stopping rule: which network is kept, and when patience is over. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuners.learning.networks import Arrays

_BEST = "best."
_ROWS = "evaluations"
# A figure must be this much lower to be better: the log of a slowdown that differs by 0.01 %.
_LEAST = 1e-4


@dataclass(frozen=True)
class Evaluation:
    """One evaluation on the held-out scenario.

    `log_slowdown` is the mean over conditions and seeds of the logarithm of a trial's mean
    slowdown. The gains are relative: 0.1 is a slowdown that is 10 % lower in the geometric mean,
    than the placebo's, or than that of the best static setting there.
    """

    decisions: int
    episodes: int
    log_slowdown: float
    over_placebo: float
    over_static: float


COLUMNS = ("decisions", "episodes", "log_slowdown", "over_placebo", "over_static")


class Selection:
    """The evaluations so far, and the parameters of the best of them."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self.evaluations: list[Evaluation] = []
        self.kept: Arrays = {}

    @property
    def best(self) -> Evaluation | None:
        """The evaluation of the network that is kept; None before the first."""
        place = self._place()
        return None if place < 0 else self.evaluations[place]

    @property
    def exhausted(self) -> bool:
        """Whether the last `patience` evaluations were no better than the best before them."""
        return len(self.evaluations) - 1 - self._place() >= self._patience

    def add(self, evaluation: Evaluation, parameters: Mapping[str, NDArray[Any]]) -> bool:
        """Add an evaluation of a network; return whether the network is the best so far."""
        before = self.best
        self.evaluations.append(evaluation)
        better = self.best is not before
        if better:
            self.kept = {name: values.copy() for name, values in parameters.items()}
        return better

    def _place(self) -> int:
        best, place = math.inf, -1
        for number, one in enumerate(self.evaluations):
            if one.log_slowdown < best - _LEAST:
                best, place = one.log_slowdown, number
        return place

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is needed to go on."""
        rows = [[float(getattr(one, name)) for name in COLUMNS] for one in self.evaluations]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(COLUMNS))
        return {_ROWS: table, **{_BEST + name: values for name, values in self.kept.items()}}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned; other entries are ignored."""
        self.evaluations = [
            Evaluation(int(row[0]), int(row[1]), *map(float, row[2:])) for row in state[_ROWS]
        ]
        self.kept = {
            name[len(_BEST) :]: values for name, values in state.items() if name.startswith(_BEST)
        }
