"""The outcome of a training by the protocol: the kept network, of one seed and of all seeds."""

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
    """A relative gain with its 95 % interval over seeds. For a single seed the bounds are NaN."""

    mean: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(log_values: Floats, reference: Floats) -> Gain:
        """Return the gain of log values (seeds, conditions) over those of a reference tuner.

        The observations are the seeds' means over conditions; the interval is Student's.
        """
        return Gain.over((log_values - reference).mean(axis=1))

    @staticmethod
    def over(differences: Sequence[float] | Floats) -> Gain:
        """Return the gain from differences of log values, one per observation."""
        estimate: Estimate = t_interval(differences)
        # lower values are better, so the bounds swap
        logs = (estimate.mean, estimate.high, estimate.low)
        mean, low, high = (float(-np.expm1(value)) for value in logs)
        return Gain(mean, low, high, estimate.n)


@dataclass(frozen=True)
class Result:
    """The result of one training: what it used, why it ended, and how good the kept network is.

    `decisions` are queue decisions; the kept network was saved after `kept_at` of them. `stopped`
    is `budget` or `patience`. The gains, on the judging seeds, are over the placebo and over the
    held-out scenario's best static setting, which `best_static` names. `share` is the network's
    improvement on the placebo as a share of the best static setting's improvement; NaN where the
    static setting is no better than the placebo.
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
        """Return the result as JSON-ready data. NaN becomes null."""
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
    """The trainings of a network from several seeds, together.

    `over_placebo` and `over_static` are means over training seeds, with Student's interval, so they
    also say what to expect of another training seed. `above` counts the seeds whose network is
    better than the placebo; at least `wanted` must be.
    """

    seeds: int
    above: int
    wanted: int
    min_seeds: int
    over_placebo: Gain
    over_static: Gain

    @property
    def holds(self) -> bool:
        """Whether there are enough seeds, and enough of them are above the placebo."""
        return self.seeds >= self.min_seeds and self.above >= self.wanted

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON-ready data. NaN becomes null."""
        data: dict[str, Any] = _plain(dataclasses.asdict(self))
        data["least_seeds"] = data.pop("min_seeds")
        return {**data, "holds": self.holds}

    def in_words(self) -> str:
        """Return the verdict as a sentence."""
        few = f"; the protocol asks for {self.min_seeds} seeds" * (self.seeds < self.min_seeds)
        return (
            f"{self.above} of {self.seeds} training seeds are better than the placebo, and "
            f"{self.wanted} must be: {'holds' if self.holds else 'does not hold'}{few}"
        )


def verdict(results: Sequence[Result], share_above: float, min_seeds: int) -> Verdict:
    """Judge the trainings of a network; a share of `share_above` must beat the placebo.

    The share is rounded up: nine tenths of five seeds are five.
    """

    def mean_gain(name: str) -> Gain:
        return Gain.over([math.log1p(-getattr(result, name).mean) for result in results])

    return Verdict(
        len(results),
        sum(result.above for result in results),
        math.ceil(round(share_above * len(results), 9)),
        min_seeds,
        mean_gain("over_placebo"),
        mean_gain("over_static"),
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
# An evaluation is better only if its log slowdown is lower by this much: a slowdown 0.01 % lower.
_MIN_IMPROVEMENT = 1e-4


@dataclass(frozen=True)
class Evaluation:
    """One evaluation on the held-out scenario.

    `log_slowdown` is the mean over conditions and seeds of the logarithm of a trial's mean
    slowdown. The gains are relative to the placebo and to the scenario's best static setting: 0.1
    is a slowdown that is 10 % lower in the geometric mean.
    """

    decisions: int
    episodes: int
    log_slowdown: float
    over_placebo: float
    over_static: float


COLUMNS = ("decisions", "episodes", "log_slowdown", "over_placebo", "over_static")


class Selection:
    """The evaluations so far, and the parameters of the best network."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self.evaluations: list[Evaluation] = []
        self.best_parameters: Arrays = {}

    @property
    def best(self) -> Evaluation | None:
        """The evaluation of the best network; None before the first evaluation."""
        index = self._best_index()
        return None if index < 0 else self.evaluations[index]

    @property
    def exhausted(self) -> bool:
        """Whether the last `patience` evaluations were no better than the best before them."""
        return len(self.evaluations) - 1 - self._best_index() >= self._patience

    def add(self, evaluation: Evaluation, parameters: Mapping[str, NDArray[Any]]) -> bool:
        """Add an evaluation of a network; return whether the network is the best so far."""
        before = self.best
        self.evaluations.append(evaluation)
        better = self.best is not before
        if better:
            self.best_parameters = {name: values.copy() for name, values in parameters.items()}
        return better

    def _best_index(self) -> int:
        lowest, best_index = math.inf, -1
        for index, evaluation in enumerate(self.evaluations):
            if evaluation.log_slowdown < lowest - _MIN_IMPROVEMENT:
                lowest, best_index = evaluation.log_slowdown, index
        return best_index

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is needed to resume."""
        rows = [[float(getattr(entry, name)) for name in COLUMNS] for entry in self.evaluations]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(COLUMNS))
        return {
            _ROWS: table,
            **{_BEST + name: values for name, values in self.best_parameters.items()},
        }

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what `state` returned. Other entries are ignored."""
        self.evaluations = [
            Evaluation(int(row[0]), int(row[1]), *map(float, row[2:])) for row in state[_ROWS]
        ]
        self.best_parameters = {
            name[len(_BEST) :]: values for name, values in state.items() if name.startswith(_BEST)
        }
