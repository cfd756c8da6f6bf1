"""Adaptive repeats: a campaign repeats its trials until its results are precise enough.

After planned numbers of repeats, an interim analysis computes confidence intervals of the primary
metrics. A condition whose intervals are narrow enough gets no more repeats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestration.core.trial import Scalar

# The ratio of the repeats at one interim analysis to those at the one before. Each analysis makes
# all intervals a little wider; with fewer of them, a condition may get more repeats than it needs.
_GROWTH = 1.5
# An analysis is omitted if the last one has less than this many times its repeats.
_MIN_RATIO_TO_LAST = 1.2

# Why a condition has no more repeats: its intervals are narrow enough, or it has the maximum.
Done = Literal["", "width", "most"]


@dataclass(frozen=True)
class StoppingRule:
    """Repeat until the confidence intervals of the metrics `of` are at most +- `until` wide.

    `until` is a share of the first arm's mean. Each condition has at least `minimum` and at most
    `maximum` repeats.
    """

    until: float
    of: tuple[str, ...]
    minimum: int
    maximum: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of repeats after which there is an interim analysis; the last is `maximum`.

        They are planned beforehand: neither results nor the order in which trials end changes them.
        """
        sizes = [self.minimum]
        while sizes[-1] < self.maximum:
            size = max(sizes[-1] + 1, math.ceil(sizes[-1] * _GROWTH))
            is_close_to_last = size * _MIN_RATIO_TO_LAST >= self.maximum
            sizes.append(self.maximum if is_close_to_last else size)
        return tuple(sizes)

    def after(self, repeats: int) -> int:
        """Return the number of repeats at the next interim analysis after that at `repeats`."""
        return next(size for size in self.sizes if size > repeats)


@dataclass(frozen=True)
class ConditionStatus:
    """The result of the last interim analysis for a condition, which `factors` describe.

    `interim_analysis` is the number of that analysis. `widths` has the half width of each interval
    by metric and arm, relative to the first arm's mean. It is None with fewer than two pairs of
    valid trials; a metric that no trial has is without arms. `done` says why there are no more
    repeats, "" if there are more.
    """

    factors: Mapping[str, Scalar]
    repeats: int
    interim_analysis: int
    done: Done
    widths: Mapping[str, Mapping[str, float | None]]

    def widest(self, metric: str) -> float | None:
        """Return the largest half width of a metric; None if any of them is unknown."""
        widths = list(self.widths[metric].values())
        known = [width for width in widths if width is not None]
        return max(known) if known and len(known) == len(widths) else None

    @property
    def label(self) -> str:
        """The condition's factors in words: `load 0.6, size 1MB`."""
        return ", ".join(f"{name} {level}" for name, level in self.factors.items())

    def in_words(self, rule: StoppingRule) -> str:
        """Return a line like `load 0.6: 8 repeats, fct known to ±2.7%; within ±3%, done`."""
        metrics = []
        for metric in self.widths:
            width = self.widest(metric)
            if not self.widths[metric]:
                metrics.append(f"no trial has {metric}")
            elif width is None:
                metrics.append(f"{metric} not known yet")
            else:
                metrics.append(f"{metric} known to ±{_percent(width)}")
        end = {
            "width": f"within ±{100 * rule.until:g}%, done",
            "most": "done, as this is the maximum",
        }.get(self.done)
        if not end:
            end = f"±{100 * rule.until:g}% is required, continuing to {rule.after(self.repeats)}"
        before = f"{self.label}: " if self.label else ""
        return f"{before}{self.repeats} repeats, {', '.join(metrics)}; {end}"

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON-ready data, in which the number of the analysis is `look`."""
        return {
            "factors": dict(self.factors),
            "repeats": self.repeats,
            "look": self.interim_analysis,
            "done": self.done,
            "widths": {metric: dict(arms) for metric, arms in self.widths.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConditionStatus:
        """Rebuild a status from `to_json`'s data. Raises KeyError or TypeError on other data."""
        values = dict(data)
        return cls(interim_analysis=values.pop("look"), **values)


def _percent(share: float) -> str:
    """Return a share in percent, with two significant digits: `2.7%`, `24%`."""
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"
