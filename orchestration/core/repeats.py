"""Adaptive repeats: when a campaign looks at its results, and what it wants to know of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestration.core.trial import Scalar

# From one look to the next. Each costs a wider interval; one that is omitted may cost repeats.
_GROWTH = 1.5
# A look this close to the last one, by their ratio, is omitted.
_CLOSE = 1.2

# Why a condition has no more repeats: precise enough, or at the most.
Done = Literal["", "width", "most"]


@dataclass(frozen=True)
class StoppingRule:
    """Repeats until the intervals of the metrics `of` are narrow enough: +- `until` at most.

    `until` is a share of the first tuner's mean. There are at least `minimum` and at most `maximum`
    repeats of each condition.
    """

    until: float
    of: tuple[str, ...]
    minimum: int
    maximum: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of repeats at which the results are looked at, the last one `maximum`.

        They are planned: neither results nor the order in which trials end change them.
        """
        sizes = [self.minimum]
        while sizes[-1] < self.maximum:
            size = max(sizes[-1] + 1, math.ceil(sizes[-1] * _GROWTH))
            sizes.append(size if size * _CLOSE < self.maximum else self.maximum)
        return tuple(sizes)

    def after(self, repeats: int) -> int:
        """Return the number of repeats at the look that follows that at `repeats`."""
        return next(size for size in self.sizes if size > repeats)


@dataclass(frozen=True)
class ConditionStatus:
    """What the last look showed of a condition, given by its `factors`.

    `widths` has the half width of each interval by metric and tuner, relative to the first tuner's
    mean; None where there are fewer than two pairs of valid trials, and no tuner for a metric that
    no trial has. `done` says why there are no
    more repeats, "" if there are.
    """

    factors: Mapping[str, Scalar]
    repeats: int
    look: int
    done: Done
    widths: Mapping[str, Mapping[str, float | None]]

    def widest(self, metric: str) -> float | None:
        """Return the largest half width of a metric; None if one is unknown."""
        found = list(self.widths[metric].values())
        known = [width for width in found if width is not None]
        return max(known) if known and len(known) == len(found) else None

    @property
    def label(self) -> str:
        """The condition's factors in words: `load 0.6, size 1MB`."""
        return ", ".join(f"{name} {level}" for name, level in self.factors.items())

    def in_words(self, rule: StoppingRule) -> str:
        """Return a line: `load 0.6: 8 repeats, slowdown_mean known to ±2.7%: done`."""
        told = []
        for metric in self.widths:
            width = self.widest(metric)
            if not self.widths[metric]:
                told.append(f"no trial has {metric}")
            elif width is None:
                told.append(f"{metric} not known yet")
            else:
                told.append(f"{metric} known to ±{_percent(width)}")
        end = {
            "width": f"within ±{100 * rule.until:g}%, done",
            "most": "done, as these are the most",
        }.get(self.done) or f"±{100 * rule.until:g}% is wanted, on to {rule.after(self.repeats)}"
        before = f"{self.label}: " if self.label else ""
        return f"{before}{self.repeats} repeats, {', '.join(told)}; {end}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {
            "factors": dict(self.factors),
            "repeats": self.repeats,
            "look": self.look,
            "done": self.done,
            "widths": {metric: dict(tuners) for metric, tuners in self.widths.items()},
        }


def _percent(share: float) -> str:
    """Return `2.7%`, `24%`."""
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"
