"""The verdict on one difference: two one-sided tests against a margin, and a test against zero.

Equivalent: both one-sided t-tests say at 5 % that the difference is within the margin. Different:
it is not 0, after Holm's correction for all metrics of the comparison, and its estimate is beyond
the margin. Everything else is not enough data. So two runs of the same distribution are called
different in at most 5 % of comparisons, however many metrics there are, and a metric that truly
differs by the margin or more is called equivalent in at most 5 %.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestration.analysis import student_t
from orchestration.analysis.statistics import fieller
from orchestration.model.records import Floats

Verdict = Literal["equivalent", "different", "not enough data"]
EQUIVALENT: Verdict = "equivalent"
DIFFERENT: Verdict = "different"
UNDECIDED: Verdict = "not enough data"

SIGNIFICANCE, POWER = 0.05, 0.8
# More repeats than this settle nothing in practice.
MOST_REPEATS = 1_000
# Sums of the same numbers in another order differ by less than this.
_ROUNDING = 1e-12
# As a share of variances: what is left where they cancel each other.
_CANCELLED = 1e-14


@dataclass(frozen=True)
class Means:
    """The means of A and B over `n` units, the covariance (2, 2) of these means, and its freedom.

    A unit is a repeat; or, where there is one pair of trials, a block of its time. The covariance
    is NaN where the spread is not known.
    """

    a: float
    b: float
    covariance: Floats
    freedom: float
    n: int

    @property
    def difference(self) -> float:
        """B minus A."""
        return self.b - self.a

    @property
    def identical(self) -> bool:
        """Whether A and B are the same in every unit, but for rounding."""
        return self.error() == 0 and abs(self.difference) <= self._rounding

    def error(self, ratio: float = 1.0) -> float:
        """Return the standard error of b - ratio a."""
        (aa, ab), (_, bb) = self.covariance
        variance = float(bb - 2 * ratio * ab + ratio * ratio * aa)
        # what is left of large variances that cancel is rounding too
        least = max(self._rounding**2, _CANCELLED * float(bb + ratio * ratio * aa))
        return math.sqrt(variance) if variance > least else variance * 0.0

    @property
    def _rounding(self) -> float:
        return _ROUNDING * (abs(self.a) + abs(self.b))


def means_of(a: Floats, b: Floats) -> Means:
    """Return the means over paired values, shapes (pairs,), one pair a repeat."""
    n = len(a)
    covariance = np.cov(a, b) / n if n > 1 else np.full((2, 2), math.nan)
    if np.array_equal(a, b) and n == 1:
        covariance = np.zeros((2, 2))
    return Means(float(a.mean()), float(b.mean()), covariance, n - 1, n)


@dataclass(frozen=True)
class Interval:
    """B minus A with its 95 % interval, absolute and relative to A; NaN where not known."""

    difference: float
    low: float
    high: float
    relative: float
    relative_low: float
    relative_high: float


def interval_of(means: Means) -> Interval:
    """Return the difference with Student's interval, and Fieller's of the relative difference."""
    if means.identical:
        end = 0.0 if means.a else math.nan
        return Interval(0.0, 0.0, 0.0, 0.0, end, end)
    error = means.error()
    t = _quantile(1 - SIGNIFICANCE / 2, means.freedom)
    half = t * error
    relative = means.difference / means.a if means.a else math.nan
    low, high = math.nan, math.nan
    if math.isfinite(error) and means.a > 0:
        low, high = (
            (relative, relative) if error == 0 else fieller(means.a, means.b, means.covariance, t)
        )
    difference = means.difference
    return Interval(difference, difference - half, difference + half, relative, low, high)


@dataclass(frozen=True)
class PValues:
    """P-values: `zero` that there is no difference, `beyond` that it is the margin or more.

    `allowed` is the margin in the metric's unit. NaN where the spread is not known.
    """

    zero: float
    beyond: float
    allowed: float


def p_values(means: Means, margin: float, floor: float) -> PValues:
    """Test a difference against 0 and against `margin`, a share of A, or `floor` if that is more.

    The relative margin is that of the ratio b/a: A's own error counts too (as in Fieller's
    interval), which that of a fixed bound would leave out.
    """
    scaled = margin * abs(means.a)
    allowed = max(scaled, floor)
    if means.identical and allowed > 0:
        # A's own spread says nothing of how far B is from it
        return PValues(1.0, 0.0, allowed)
    zero = 2 * _tail(abs(means.difference), means.error(), means.freedom)
    if scaled >= floor:
        above = means.b - (1 - margin) * means.a, means.error(1 - margin)
        below = (1 + margin) * means.a - means.b, means.error(1 + margin)
    else:
        above = means.difference + floor, means.error()
        below = floor - means.difference, means.error()
    beyond = max(_tail(distance, error, means.freedom) for distance, error in (above, below))
    return PValues(zero if math.isnan(zero) else min(1.0, zero), beyond, allowed)


def _tail(distance: float, error: float, freedom: float) -> float:
    """Return the chance that noise alone puts an estimate `distance` beyond a bound."""
    if math.isnan(error) or math.isnan(distance):
        return math.nan
    if error == 0:
        return 0.0 if distance > 0 else 0.5 if distance == 0 else 1.0
    return student_t.cdf(freedom, -distance / error)


def verdict(difference: float, tests: PValues, zero_corrected: float) -> Verdict:
    """Return the verdict, given the p-value against 0 after Holm's correction."""
    if tests.beyond < SIGNIFICANCE:
        return EQUIVALENT
    if zero_corrected < SIGNIFICANCE and abs(difference) > tests.allowed:
        return DIFFERENT
    return UNDECIDED


def repeats_needed(difference: float, spread: float, allowed: float, family: int) -> int | None:
    """Return how many repeats would settle it with a power of 80 %, if it is as large as it seems.

    `spread` is the standard deviation of one repeat's difference. Within the margin it is the
    equivalence that is to be shown, beyond it the difference, at the strictest level that Holm's
    correction asks of one of `family` metrics. None if that is more than 1,000, or not known: the
    difference lies at the margin.
    """
    if not math.isfinite(spread):
        return None
    gap = abs(difference)
    significance = SIGNIFICANCE if gap < allowed else SIGNIFICANCE / 2 / max(1, family)

    def enough(n: int) -> bool:
        error = max(spread, _ROUNDING * allowed) / math.sqrt(n)
        critical = student_t.quantile(n - 1, 1 - significance)
        if gap < allowed:
            sides = (student_t.cdf(n - 1, (allowed + d) / error - critical) for d in (gap, -gap))
            return sum(sides) - 1 >= POWER
        return student_t.cdf(n - 1, gap / error - critical) >= POWER

    counts = range(2, MOST_REPEATS + 1)
    place = bisect_left(counts, True, key=enough)  # more repeats have more power
    return counts[place] if place < len(counts) else None


def _quantile(share: float, freedom: float) -> float:
    return student_t.quantile(freedom, share) if freedom > 0 else math.nan
