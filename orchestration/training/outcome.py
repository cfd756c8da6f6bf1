"""What a training by the protocol came to: of one seed, and of all seeds of a network."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestration.core.files import write_whole
from orchestration.training.held_out import Gain

FILE = "result.json"


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
    least_seeds: int
    over_placebo: Gain
    over_static: Gain

    @property
    def holds(self) -> bool:
        """Whether there are enough seeds, and enough of them above the placebo."""
        return self.seeds >= self.least_seeds and self.above >= self.wanted

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON-ready data; a number that there is not is null."""
        data: dict[str, Any] = _plain(dataclasses.asdict(self))
        return {**data, "holds": self.holds}

    def in_words(self) -> str:
        """Return the verdict as a sentence."""
        few = f"; the protocol wants {self.least_seeds} seeds" * (self.seeds < self.least_seeds)
        return (
            f"{self.above} of {self.seeds} training seeds end above the placebo, "
            f"{self.wanted} are wanted: {'holds' if self.holds else 'does not hold'}{few}"
        )


def verdict(results: Sequence[Result], share_above: float, least_seeds: int) -> Verdict:
    """Judge the training seeds of a network; `share_above` of them must beat the placebo.

    Of five, nine tenths are all five.
    """

    def over(name: str) -> Gain:
        return Gain.over([math.log1p(-getattr(one, name).mean) for one in results])

    return Verdict(
        len(results),
        sum(one.above for one in results),
        math.ceil(round(share_above * len(results), 9)),
        least_seeds,
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
