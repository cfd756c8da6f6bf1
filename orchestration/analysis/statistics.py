"""Intervals and tests over repeats, and whether they are precise enough for a campaign to stop.

A repeat is one observation, because flows of one trial share queues and are not independent. So
means and differences use one value per repeat, and Student's t has one degree of freedom less than
there are repeats. Arms are compared on the same seeds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis import student_t
from orchestration.analysis.sequential import FIXED, AnalysisPlan, InterimAnalysis
from orchestration.core.records import Floats, Ints
from orchestration.core.repeats import ConditionStatus, Done, StoppingRule
from orchestration.core.trial import Scalar

# All sign patterns are tried up to this many pairs; with more pairs, patterns are sampled.
_EXACT_PAIRS = 16
_SAMPLED_SIGNS = 20_000
_MAX_REPEATS = 100_000
# Bootstrap draws: fewer for many values, whose intervals are narrow, to save time.
_MAX_BOOTSTRAPS, _MIN_BOOTSTRAPS, _BOOTSTRAP_VALUES = 500, 100, 5_000_000
# So many values are drawn together, if one draw has not more: a core's cache holds them.
_BATCH_VALUES = 100_000


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` repeats with its 95 % interval; the bounds are NaN for a single repeat."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class PairedDifference:
    """`b` minus `a` over `n` pairs, with 95 % intervals; NaN if there is none.

    `relative` is mean(b) / mean(a) - 1, with Fieller's interval: it excludes 0 exactly if the
    absolute interval does. `p_t` is from the paired t-test. `p_sign_flip` is from the exact
    permutation test, which assumes only symmetry and cannot be below 2 / 2^n.
    """

    mean: float
    low: float
    high: float
    relative: float
    relative_low: float
    relative_high: float
    p_t: float
    p_sign_flip: float
    n: int

    @property
    def identical(self) -> bool:
        """Whether `a` and `b` are the same in every pair, which is no question of chance."""
        return self.n > 0 and self.mean == 0 and (self.n == 1 or self.low == self.high == 0)


def t_interval(values: Sequence[float] | Floats, interim: InterimAnalysis = FIXED) -> Estimate:
    """Return the mean of one value per repeat, with Student's interval. NaN values are left out.

    If there are several interim analyses, it is the interval of `interim`.
    """
    sample = np.asarray(values, dtype=np.float64)
    sample = sample[np.isfinite(sample)]
    n = len(sample)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(sample.mean())
    if n == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    half = _t_quantile(n, interim) * float(sample.std(ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def paired_difference(
    a: Sequence[float] | Floats,
    b: Sequence[float] | Floats,
    interim: InterimAnalysis = FIXED,
    *,
    permuted: bool = True,
) -> PairedDifference:
    """Compare `b` with `a`, shape (pairs,), one pair per seed. Pairs with a NaN are left out.

    If there are several interim analyses, intervals and p-values are those of `interim`. Without
    `permuted` the permutation test, which takes most of the time, is left out: its p-value is NaN.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    both = np.isfinite(first) & np.isfinite(second)
    first, second = first[both], second[both]
    difference = second - first
    interval = t_interval(difference, interim)
    base = float(first.mean()) if len(first) else math.nan
    relative = interval.mean / base if base else math.nan
    low = high = math.nan
    if interval.n > 1:
        covariance = np.cov(first, second) / interval.n
        t = _t_quantile(interval.n, interim)
        low, high = fieller(base, float(second.mean()), covariance, t)
    return PairedDifference(
        mean=interval.mean,
        low=interval.low,
        high=interval.high,
        relative=relative,
        relative_low=low,
        relative_high=high,
        p_t=interim.p_value(_paired_t(difference)),
        p_sign_flip=interim.p_value(sign_flip(difference)) if permuted else math.nan,
        n=interval.n,
    )


def repeats_needed(values: Sequence[float] | Floats, half_width: float) -> int:
    """Return how many repeats give an interval of +- `half_width`, at the spread of `values`.

    0 if unknown: fewer than two values, or more repeats than are practical.
    """
    sample = np.asarray(values, dtype=np.float64)
    sample = sample[np.isfinite(sample)]
    if len(sample) < 2 or not half_width > 0:
        return 0
    deviation = float(sample.std(ddof=1))
    counts = range(2, _MAX_REPEATS)

    def enough(count: int) -> bool:
        return _t_quantile(count) * deviation <= half_width * math.sqrt(count)

    index = bisect_left(counts, True, key=enough)  # more repeats are always enough
    return counts[index] if index < len(counts) else 0


def _t_quantile(n: int, interim: InterimAnalysis = FIXED) -> float:
    return student_t.quantile(n - 1, 1 - interim.level / 2)


def _paired_t(difference: Floats) -> float:
    n = len(difference)
    if n < 2:
        return math.nan
    mean, error = float(difference.mean()), float(difference.std(ddof=1)) / math.sqrt(n)
    if error == 0:
        # two equal differences may be chance; more of them have no spread at all
        return 1.0 if mean == 0 else 0.5 if n == 2 else 0.0
    return float(2 * student_t.cdf(n - 1, -abs(mean) / error))


def fieller(a: float, b: float, covariance: Floats, t: float) -> tuple[float, float]:
    """Return Fieller's interval of b/a - 1 for means with this covariance, shape (2, 2).

    It contains the ratios r for which a paired t-test does not reject b - r a = 0 (Fieller 1954).
    `t` is the quantile of Student's t for the confidence and degrees of freedom. NaN if these are
    not an interval, which happens if a is not significantly different from 0.
    """
    k = t * t
    aa = a * a - k * float(covariance[0, 0])
    ab = a * b - k * float(covariance[0, 1])
    bb = b * b - k * float(covariance[1, 1])
    root = ab * ab - aa * bb
    if not aa > 0:
        return math.nan, math.nan
    spread = math.sqrt(max(0.0, root))
    return (ab - spread) / aa - 1, (ab + spread) / aa - 1


def sign_flip(difference: Sequence[float] | Floats) -> float:
    """Return the two-sided p-value of the sign-flip test of mean 0, exact up to 16 pairs."""
    values = np.asarray(difference, dtype=np.float64)
    n = len(values)
    if n == 0:
        return math.nan
    exact = n <= _EXACT_PAIRS
    if exact:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(0).choice((-1, 1), size=(_SAMPLED_SIGNS, n))
    seen = abs(values.sum())
    # sums that differ only by rounding are equally extreme
    extreme = np.abs(signs @ values) >= seen - 1e-9 * max(seen, np.abs(values).sum())
    if exact:
        return float(extreme.mean())
    return float((extreme.sum() + 1) / (_SAMPLED_SIGNS + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for multiple comparisons (Holm 1979); NaN stays NaN."""
    corrected = [math.nan] * len(p_values)
    known = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    running = 0.0
    for rank, (p, index) in enumerate(known):
        running = max(running, min(1.0, (len(known) - rank) * p))
        corrected[index] = running
    return corrected


def pooled_quantiles(
    arms: Sequence[Sequence[Floats]],
    quantiles: Sequence[float],
    seed: int = 0,
    interim: InterimAnalysis = FIXED,
) -> list[tuple[Floats, Floats, Floats]]:
    """Return each arm's quantiles of all repeats together, and the bounds of their 95 % intervals.

    An arm has one array of values per repeat; its three results have shape (quantiles,). The
    interval is a percentile bootstrap that draws repeats, then values within each: values of one
    repeat are not independent, and a high quantile of a single repeat is a poor estimate.
    """
    nothing = np.full(len(quantiles), math.nan)
    results = [(nothing, nothing, nothing)] * len(arms)
    filled = [
        [np.asarray(group, dtype=np.float64) for group in groups if len(group)] for groups in arms
    ]
    # Which values are drawn depends on the repeats' numbers of values only. Arms that send the same
    # flows have the same numbers, so that one sequence of draws serves them all.
    alike: dict[tuple[int, ...], list[int]] = {}
    for arm, groups in enumerate(filled):
        if groups:
            alike.setdefault(tuple(map(len, groups)), []).append(arm)
    shares = np.asarray(quantiles, dtype=np.float64)
    tail = interim.level / 2
    for sizes, members in alike.items():
        pooled = [np.concatenate(filled[arm]) for arm in members]
        for arm, values, draws in zip(
            members, pooled, _bootstrap(pooled, sizes, shares, seed), strict=True
        ):
            low, high = np.quantile(draws, (tail, 1 - tail), axis=0)
            results[arm] = np.quantile(values, shares), low, high
    return results


def _bootstrap(
    pooled: Sequence[Floats], sizes: Sequence[int], shares: Floats, seed: int
) -> list[Floats]:
    """Return the quantiles of each bootstrap draw of each arm, shapes (draws, quantiles).

    `pooled` has the arms' values (values,), repeat after repeat; `sizes` are the repeats' numbers
    of values. Ranks are drawn instead of values, because short integers are sorted faster.
    """
    total, longest = sum(sizes), max(sizes) * len(sizes)
    kind = np.min_scalar_type(longest)
    ranks, ordered = [], []
    for values in pooled:
        order = np.argsort(values)
        rank = np.empty(total, dtype=kind)
        rank[order] = np.arange(total)
        ranks.append(rank)
        ordered.append(values[order])
    count = min(_MAX_BOOTSTRAPS, max(_MIN_BOOTSTRAPS, _BOOTSTRAP_VALUES // total))
    draws = [np.empty((count, len(shares))) for _ in pooled]
    for first, drawn, lengths in _draws(sizes, count, seed):
        ends, upto = np.cumsum(lengths).tolist(), np.array(lengths)[:, None] - 1
        at = shares * upto
        below = at.astype(int)
        above = np.minimum(below + 1, upto)
        row = np.arange(len(lengths))[:, None]
        chosen = np.full((len(lengths), max(lengths)), longest, dtype=kind)
        for rank, values, quantile in zip(ranks, ordered, draws, strict=True):
            picked = rank.take(drawn)
            for of_draw, length, end in zip(chosen, lengths, ends, strict=True):
                of_draw[:length] = picked[end - length : end]
                of_draw[:length].sort()
            low, high = values[chosen[row, below]], values[chosen[row, above]]
            quantile[first : first + len(lengths)] = low + (at - below) * (high - low)
    return draws


def _draws(sizes: Sequence[int], count: int, seed: int) -> Iterator[tuple[int, Ints, list[int]]]:
    """Yield `count` bootstrap draws in batches.

    A batch is the number of its first draw, the indices of the drawn values, draw after draw, and
    how many values each of the draws has.
    """
    rng, repeats = np.random.default_rng(seed), len(sizes)
    size_of, begin_of = np.array(sizes), np.cumsum(sizes) - sizes
    longest = max(sizes) * repeats
    batch = max(1, _BATCH_VALUES // longest)
    uniform, indices = np.empty(batch * longest), np.empty(batch * longest, dtype=int)
    for first in range(0, count, batch):
        chosen: list[int] = []
        lengths: list[int] = []
        used = 0
        for _ in range(min(batch, count - first)):
            of_draw = rng.integers(repeats, size=repeats).tolist()
            length = sum([sizes[repeat] for repeat in of_draw])
            rng.random(out=uniform[used : used + length])
            used += length
            lengths.append(length)
            chosen += of_draw
        values, drawn = uniform[:used], indices[:used]
        size = size_of[chosen]
        np.multiply(values, np.repeat(size, size), out=values)
        np.copyto(drawn, values, casting="unsafe")
        drawn += np.repeat(begin_of[chosen], size)
        yield first, drawn, lengths


# Fewer pairs do not allow to estimate how much results vary.
_MIN_PAIRS = 3

# arm -> repeat -> metric -> value of a valid trial
Values = Mapping[str, Mapping[int, Mapping[str, float]]]


def status_at(
    interim: InterimAnalysis, rule: StoppingRule, factors: Mapping[str, Scalar], values: Values
) -> ConditionStatus:
    """Return what an interim analysis of a condition shows, and whether it needs more repeats.

    `values` has the arms in the campaign's order. Only repeats up to those of `interim` count. A
    pair without a valid trial on both sides is left out. A metric that no trial has, such as one of
    RoCE where hosts use TCP, has no widths and does not ask for more repeats.
    """
    upto = {
        arm: {repeat: row for repeat, row in rows.items() if repeat <= interim.repeats}
        for arm, rows in values.items()
    }
    widths = {metric: _half_widths(upto, metric, interim) for metric in rule.of}
    every = [width for arms in widths.values() for width in arms.values()]
    narrow = bool(every) and all(width is not None and width <= rule.until for width in every)
    done: Done = "width" if narrow else "most" if interim.repeats >= rule.maximum else ""
    return ConditionStatus(factors, interim.repeats, interim.number, done, widths)


def likely_repeats(rule: StoppingRule, plan: AnalysisPlan, values: Values) -> int | None:
    """Return after how many repeats a condition is likely to be done, at its present spread.

    None where a metric has fewer than three pairs.
    """
    metrics = [metric for metric in rule.of if _known(values, metric)]
    spreads = [_spread(values, metric, arm) for metric in metrics for arm in _compared(values)]
    if min(map(len, spreads), default=0) < _MIN_PAIRS:
        return None
    for size in rule.sizes:
        interim = plan.at(size)
        if all(_likely_width(spread, interim) <= rule.until for spread in spreads):
            return size
    return rule.maximum


def _half_widths(values: Values, metric: str, interim: InterimAnalysis) -> dict[str, float | None]:
    """Return the half-widths of the differences from the first arm, relative to its mean.

    For a single arm it is the half-width of its own mean.
    """
    widths: dict[str, float | None] = {}
    if not _known(values, metric):
        return widths
    for arm in _compared(values):
        pairs = _pairs(values, metric, arm)
        interval = t_interval(pairs[:, 1], interim)
        half = (interval.high - interval.low) / 2
        mean = abs(float(pairs[:, 0].mean())) if len(pairs) else 0.0
        known = math.isfinite(half) and (mean > 0 or half == 0)
        widths[arm] = (half / mean if half else 0.0) if known else None
    return widths


def _known(values: Values, metric: str) -> bool:
    return any(math.isfinite(row[metric]) for rows in values.values() for row in rows.values())


def _compared(values: Values) -> list[str]:
    """Return the arms whose intervals count: all but the first, or the only one."""
    first, *others = values
    return others or [first]


def _pairs(values: Values, metric: str, arm: str) -> Floats:
    """Return the first arm's values, and `arm`'s differences from them, shape (pairs, 2).

    For the first arm itself, both columns are its values.
    """
    first = next(iter(values))
    rows = []
    for repeat, row in sorted(values[arm].items()):
        base = values[first].get(repeat, {}).get(metric, math.nan)
        rows.append((base, row[metric] - base if arm != first else base))
    pairs = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return np.asarray(pairs[np.isfinite(pairs).all(axis=1)])


def _spread(values: Values, metric: str, arm: str) -> Floats:
    """Return the second column of `_pairs` relative to the first arm's mean, shape (pairs,)."""
    pairs = _pairs(values, metric, arm)
    mean = abs(float(pairs[:, 0].mean())) if len(pairs) else 0.0
    return np.asarray(pairs[:, 1] / mean) if mean else pairs[:0, 1]


def _likely_width(values: Floats, interim: InterimAnalysis) -> float:
    t = student_t.quantile(interim.repeats - 1, 1 - interim.level / 2)
    return t * float(values.std(ddof=1)) / math.sqrt(interim.repeats)
