"""What a training by the protocol came to: which network is kept, of one seed, and of all seeds."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.analysis.statistics import Estimate, t_interval
from orchestration.core.files import write_whole
from orchestration.core.records import Floats
from tuners.learning.networks import Arrays

FILE = "result.json"


@dataclass(frozen=True)
class Gain:
    """A relative gain with its 95 % interval over seeds; the bounds are NaN for a single seed."""

    mean: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(ours: Floats, theirs: Floats) -> Gain:
        """Return the gain of log figures (seeds, conditions) over those of another tuner.

        Seeds are the observations: the mean over conditions of each, with Student's t.
        """
        return Gain.over((ours - theirs).mean(axis=1))

    @staticmethod
    def over(differences: Sequence[float] | Floats) -> Gain:
        """Return the gain from differences of log figures, one per observation."""
        found: Estimate = t_interval(differences)
        # less is better, so the bounds change places
        mean, low, high = (float(-np.expm1(v)) for v in (found.mean, found.high, found.low))
        return Gain(mean, low, high, found.n)


@dataclass(frozen=True)
class Result:
    """One training: what it used, what ended it, and the kept network on the judging seeds.

    `decisions` are queue decisions, `kept_at` those after which the kept network was saved.
    `stopped` is `budget` or `patience`. The gains are over the placebo, and over the held-out
    scenario's best static setting, which `best_static` names. `share` is how far the network is on
    the way from the placebo to that; NaN where that is no better than the placebo.
    """

    seed: int
    decisions: int
    episodes: int
    stopped: str
    kept_at: int
    over_placebo: Gain
    over_static: Gain
    best_static: str
    share: float
    wall_s: float

    @property
    def above(self) -> bool:
        """Whether the network is better than the placebo."""
        return self.over_placebo.mean > 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-ready data; a number that there is not is null."""
        data: dict[str, Any] = _plain(dataclasses.asdict(self))
        return data


def write_result(folder: Path, result: Result) -> None:
    """Write a training's result into its folder."""
    write_whole(folder / FILE, _text(dataclasses.asdict(result)) + "\n")


def read_result(folder: Path) -> Result:
    """Read a training's result."""
    data = json.loads((folder / FILE).read_text(encoding="utf-8"))
    for key in ("over_placebo", "over_static"):
        data[key] = Gain(**_numbers(data[key]))
    return Result(**_numbers(data))


@dataclass(frozen=True)
class Verdict:
    """All training seeds of a network together.

    `over_placebo` and `over_static` are means over training seeds, with Student's interval: they
    hold for another training seed. `wanted` of them must be `above` the placebo.
    """

    seeds: int
    above: int
    wanted: int
    min_seeds: int
    over_placebo: Gain
    over_static: Gain

    @property
    def holds(self) -> bool:
        """Whether there are enough seeds, and enough of them above the placebo."""
        return self.seeds >= self.min_seeds and self.above >= self.wanted

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON-ready data; a number that there is not is null."""
        data: dict[str, Any] = _plain(dataclasses.asdict(self))
        data["least_seeds"] = data.pop("min_seeds")
        return {**data, "holds": self.holds}

    def in_words(self) -> str:
        """Return the verdict as a sentence."""
        few = f"; the protocol wants {self.min_seeds} seeds" * (self.seeds < self.min_seeds)
        return (
            f"{self.above} of {self.seeds} training seeds end above the placebo, "
            f"{self.wanted} are wanted: {'holds' if self.holds else 'does not hold'}{few}"
        )


def verdict(results: Sequence[Result], share_above: float, min_seeds: int) -> Verdict:
    """Judge the training seeds of a network; `share_above` of them must beat the placebo.

    Of five, nine tenths are all five.
    """

    def over(name: str) -> Gain:
        return Gain.over([math.log1p(-getattr(one, name).mean) for one in results])

    return Verdict(
        len(results),
        sum(one.above for one in results),
        math.ceil(round(share_above * len(results), 9)),
        min_seeds,
        over("over_placebo"),
        over("over_static"),
    )


def _text(data: object) -> str:
    return json.dumps(_plain(data), indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(data: dict[str, Any]) -> dict[str, Any]:
    return {key: math.nan if value is None else value for key, value in data.items()}


_BEST = "best."
_ROWS = "evaluations"
# A figure must be this much lower to be better: the log of a slowdown that differs by 0.01 %.
_MIN = 1e-4


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
            if one.log_slowdown < best - _MIN:
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
