"""The first screen of a report: a headline, a scorecard of arms by metrics, and a line of trust.

An arm is one level of the factor that is compared. The blocks hold texts that are ready to be
shown, and the numbers of the bars.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestration.render.table import Text

Better = Literal["lower", "higher"]
# What can be said about an arm's difference from the baseline.
Verdict = Literal["better", "worse", "unclear", "same", "missing"]
Tone = Literal["plain", "warning", "bad"]

IN_WORDS: dict[Verdict, str] = {
    "better": "better",
    "worse": "worse",
    "unclear": "no clear difference",
    "same": "no difference that matters",
    "missing": "not measured",
}
# An arm whose interval reaches this many times as far as that of any other arm is cut off, so that
# the others' bars stay visible.
_MAX_STRETCH = 3


@dataclass(frozen=True)
class Headline:
    """The answer in one sentence, and the line above it, which says what was compared.

    On a page it is the main heading, so the page has no `heading` of its own.
    """

    kicker: str
    sentence: str


@dataclass(frozen=True)
class ScoreCell:
    """An arm's difference from the baseline in one row.

    `change` is in percent of the baseline's value, `low` and `high` are the ends of its interval;
    None or NaN if unknown. `text` is the change as it is shown, `interval_text` its interval.
    """

    text: str
    interval_text: str = ""
    change: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = "missing"
    best: bool = False

    @property
    def extent(self) -> float:
        """How far the interval reaches from 0, in percent; 0 if nothing is known."""
        return max((abs(value) for value in self._known()), default=0.0)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval's ends in percent, None if one is unknown."""
        if self.low is None or self.high is None:
            return None
        return (self.low, self.high) if math.isfinite(self.low + self.high) else None

    @property
    def point(self) -> float | None:
        """The change in percent, None if it is unknown."""
        return self.change if self.change is not None and math.isfinite(self.change) else None

    def _known(self) -> Iterator[float]:
        yield from self.interval or ()
        if self.point is not None:
            yield self.point


@dataclass(frozen=True)
class ScoreRow:
    """A metric, or a condition, with the baseline's value and one cell for each other arm.

    `unit_text` follows the baseline's value. A row that is `judged` decides who wins.
    """

    label: str
    unit_text: str
    better: Better
    judged: bool
    baseline_value: str
    cells: tuple[ScoreCell, ...]

    @property
    def span(self) -> float:
        """The length in percent of each half of the row's bars, at least as long as one cell's."""
        extents = sorted((cell.extent for cell in self.cells), reverse=True)
        longest = next(iter(extents), 0.0)
        second = next((extent for extent in extents[1:] if extent > 0), longest)
        return min(longest, _MAX_STRETCH * second)


@dataclass(frozen=True)
class Scorecard:
    """Arms as columns, metrics or conditions as rows; `arms` are those other than the baseline.

    Raises ValueError if a row has not one cell for each arm.
    """

    baseline: str
    arms: tuple[str, ...]
    rows: tuple[ScoreRow, ...]
    title: str = ""
    caption: Text = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.arms):
                raise ValueError(f"{row.label}: {len(row.cells)} cells for {len(self.arms)} arms")

    @property
    def better(self) -> Better | None:
        """What is better in every row, None if rows differ."""
        found = {row.better for row in self.rows}
        return found.pop() if len(found) == 1 else None


@dataclass(frozen=True)
class TrustItem:
    """One reason to believe the result or not: a figure that stands out, and what it counts."""

    strong: str
    rest: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Trust:
    """Whether to believe a result, as a line below its scorecard."""

    items: tuple[TrustItem, ...]


def on_scale(value: float, span: float) -> float:
    """Return where a change stands on its row's scale: from -1 over 0, no change, to 1."""
    return max(-1.0, min(1.0, value / span)) if span > 0 else 0.0
