"""The verdict on a difference: two one-sided tests against a margin, and a test against zero.

Equivalent: both one-sided t-tests show at the 5 % level that the difference is within the margin.
Different: after Holm's correction over all metrics of the comparison, the difference is
significantly not 0, and its estimate is beyond the margin. Otherwise: not enough data.

So at most 5 % of comparisons of two runs with the same distribution find any difference, however
many metrics there are. A metric whose true difference is the margin or more is called equivalent
in at most 5 % of cases.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

import numpy as np

from orchestration.analysis import student_t
from orchestration.analysis.metric_types import Metric
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.sequential import FIXED, InterimAnalysis
from orchestration.analysis.statistics import fieller
from orchestration.core.errors import InputError
from orchestration.core.records import Floats

Verdict = Literal["equivalent", "different", "not enough data"]
EQUIVALENT: Verdict = "equivalent"
DIFFERENT: Verdict = "different"
UNDECIDED: Verdict = "not enough data"

SIGNIFICANCE, POWER = 0.05, 0.8
# Asking for more repeats than this is of no practical use.
MAX_REPEATS = 1_000
# Relative rounding error of sums of the same numbers in another order.
_ROUNDING = 1e-12
# Rounding error where variances cancel, as a share of these variances.
_CANCELLED = 1e-14


@dataclass(frozen=True)
class Means:
    """The means of A and B over `n` pairs, their covariance (2, 2), and its degrees of freedom.

    With a single pair of trials, the covariance comes from blocks of its time. It is NaN if the
    spread is unknown.
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
        """Whether A and B are the same in every pair, except for rounding."""
        return self.error() == 0 and abs(self.difference) <= self._rounding

    def error(self, ratio: float = 1.0) -> float:
        """Return the standard error of b - ratio a."""
        (aa, ab), (_, bb) = self.covariance
        variance = float(bb - 2 * ratio * ab + ratio * ratio * aa)
        # what is left of large variances that cancel is rounding error too
        minimum = max(self._rounding**2, _CANCELLED * float(bb + ratio * ratio * aa))
        return math.sqrt(variance) if variance > minimum else variance * 0.0

    @property
    def _rounding(self) -> float:
        return _ROUNDING * (abs(self.a) + abs(self.b))


def means_of(a: Floats, b: Floats) -> Means:
    """Return the means over paired values of shape (pairs,), one pair per repeat."""
    n = len(a)
    covariance = np.cov(a, b) / n if n > 1 else np.full((2, 2), math.nan)
    if np.array_equal(a, b) and n == 1:
        covariance = np.zeros((2, 2))
    return Means(float(a.mean()), float(b.mean()), covariance, n - 1, n)


@dataclass(frozen=True)
class Interval:
    """B minus A with its 95 % interval, absolute and relative to A; NaN if unknown."""

    difference: float
    low: float
    high: float
    relative: float
    relative_low: float
    relative_high: float


def interval_of(means: Means, interim: InterimAnalysis = FIXED) -> Interval:
    """Return the difference with Student's interval, and with Fieller's relative to A.

    If there are several interim analyses, they are the intervals of `interim`.
    """
    if means.identical:
        end = 0.0 if means.a else math.nan
        return Interval(0.0, 0.0, 0.0, 0.0, end, end)
    error = means.error()
    t = student_t.quantile(means.freedom, 1 - interim.level / 2)
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
    """P-values of two null hypotheses: `zero`, no difference; `beyond`, the margin or more.

    `allowed` is the margin in the metric's unit. P-values are NaN if the spread is unknown.
    """

    zero: float
    beyond: float
    allowed: float


def p_values(
    means: Means, margin: float, floor: float, interim: InterimAnalysis = FIXED
) -> PValues:
    """Test a difference against 0 and against the margin.

    `margin` is a share of A; `floor`, in the metric's unit, replaces it if larger. A relative
    margin is tested on the ratio b/a, as in Fieller's interval: unlike a test against a fixed
    bound, this accounts for A's own error. P-values are those of the analysis `interim`.
    """
    scaled = margin * abs(means.a)
    allowed = max(scaled, floor)
    if means.identical and allowed > 0:
        # A and B are the same in every pair, so A's own spread does not matter
        return PValues(1.0, 0.0, allowed)
    zero = 2 * _tail(abs(means.difference), means.error(), means.freedom)
    if scaled >= floor:
        above = means.b - (1 - margin) * means.a, means.error(1 - margin)
        below = (1 + margin) * means.a - means.b, means.error(1 + margin)
    else:
        above = means.difference + floor, means.error()
        below = floor - means.difference, means.error()
    beyond = max(_tail(distance, error, means.freedom) for distance, error in (above, below))
    zero = zero if math.isnan(zero) else min(1.0, zero)
    return PValues(interim.p_value(zero), interim.one_sided(beyond), allowed)


def _tail(distance: float, error: float, freedom: float) -> float:
    """Return the probability that noise alone puts an estimate `distance` beyond a bound."""
    if math.isnan(error) or math.isnan(distance):
        return math.nan
    if error == 0:
        return 0.0 if distance > 0 else 0.5 if distance == 0 else 1.0
    return student_t.cdf(freedom, -distance / error)


def verdict(difference: float, tests: PValues, zero_corrected: float) -> Verdict:
    """Return the verdict; `zero_corrected` is the p-value against 0 after Holm's correction."""
    if tests.beyond < SIGNIFICANCE:
        return EQUIVALENT
    if zero_corrected < SIGNIFICANCE and abs(difference) > tests.allowed:
        return DIFFERENT
    return UNDECIDED


def repeats_needed(difference: float, spread: float, allowed: float, family: int) -> int | None:
    """Return how many repeats in total would settle the verdict with a power of 80 %.

    This assumes that the true difference is as estimated. `spread` is the standard deviation of one
    repeat's difference. A difference within the margin `allowed` needs enough repeats to show
    equivalence; one beyond it, to show the difference at Holm's strictest level for `family`
    metrics. None if unknown, or for more than 1,000 repeats, as where the difference is close to
    the margin.
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

    counts = range(2, MAX_REPEATS + 1)
    index = bisect_left(counts, True, key=enough)  # power grows with repeats
    return counts[index] if index < len(counts) else None


DEFAULT_MARGIN = 0.10


@dataclass(frozen=True)
class Margins:
    """The margins of a comparison: the default, and those set for families or single metrics."""

    default: float = DEFAULT_MARGIN
    of: Mapping[str, float] = field(default_factory=dict)

    def margin(self, metric: Metric) -> float:
        """Return a metric's margin as a share of A's value."""
        return self.of.get(metric.key, self.of.get(metric.family, self.default))


def parse_margins(texts: Sequence[str]) -> Margins:
    """Parse margins such as `5%` and `slowdown_mean=15%`. Raises InputError with all problems."""
    default, of, compared = DEFAULT_MARGIN, {}, METRICS.between_runs
    known = sorted({name for metric in compared for name in (metric.key, metric.family)} - {""})
    for text in texts:
        name, equals, number = text.rpartition("=")
        share = _share(number, text)
        if not equals:
            default = share
        elif name in known:
            of[name] = share
        else:
            near = get_close_matches(name, known, 3) or sorted({m.family for m in compared} - {""})
            raise InputError.single(
                "--margin", f"no metric is called {name!r}", f"known: {', '.join(near)}"
            )
    return Margins(default, of)


def _share(number: str, text: str) -> float:
    try:
        share = float(number.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not number.endswith("%") or not 0 < share < 1:
        raise InputError.single(
            "--margin",
            f"{text!r} is not a share between 0% and 100%",
            "write it like 5% or slowdown_mean=15%",
        )
    return share
