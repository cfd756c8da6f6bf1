"""Intervals over training seeds and repeats: networks differ by training, repeats by traffic.

Repeats that share a network are not independent, so a network counts as one draw, however many
repeats it has. The bootstrap is hierarchical: it draws networks with replacement, then repeats
within each (Davison and Hinkley 1997, section 3.8; Saravanan, Berman and Sober 2020). For
differences a repeat is a pair of trials with the same traffic.

A percentile interval of five draws is too narrow: its spread lacks a factor of sqrt(n / (n - 1)),
and it has the tails of a normal distribution, not Student's (Hesterberg 2015, section 4.3). So its
ends are moved away from the estimate by a factor of sqrt(n / (n - 1)) t / z, where n is the number
of units drawn first. For means it is never narrower than Student's interval over the repeats, which
ignores networks.

A tail is the quantile of all repeats' flows together: the p99 of one trial with a few hundred flows
depends on one to three of them, and the mean of such quantiles is biased. At least a hundred flows
must lie beyond it: the relative error of a tail's probability is then about a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from orchestration.analysis import student_t
from orchestration.analysis.sequential import at_confidence
from orchestration.analysis.statistics import (
    Estimate,
    PairedDifference,
    paired_difference,
    t_interval,
)
from orchestration.analysis.student_t import CONFIDENCE
from orchestration.core.records import Floats, Ints

DRAWS = 2_000
# One label per repeat: that of its network.
Groups = Sequence[Hashable]
_NAN = math.nan
NO_DIFFERENCE = PairedDifference(_NAN, _NAN, _NAN, _NAN, _NAN, _NAN, _NAN, _NAN, 0)


def units(groups: Groups) -> int:
    """Return how many units are drawn first: networks, or repeats if there is one network."""
    networks = len(set(groups))
    return networks if networks > 1 else len(groups)


def draw_counts(groups: Groups, draws: int = DRAWS, seed: int = 0) -> Ints:
    """Return how often each draw has each repeat, shape (draws, repeats).

    Equal groups give equal draws.
    """
    label = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return _drawn(tuple(label[group] for group in groups), draws, seed)


@lru_cache(maxsize=64)
def _drawn(labels: tuple[int, ...], draws: int, seed: int) -> Ints:
    rng = np.random.default_rng(seed)
    which = np.array(labels)
    order = np.argsort(which, kind="stable")
    sizes = np.bincount(which)
    begins = np.cumsum(sizes) - sizes
    counts = np.zeros((draws, len(which)), dtype=np.int64)
    rows = np.arange(draws)
    for _ in sizes:
        network = rng.integers(len(sizes), size=draws)
        for number in range(int(sizes.max())):
            picked = begins[network] + (rng.random(draws) * sizes[network]).astype(np.int64)
            has = number < sizes[network]
            np.add.at(counts, (rows[has], order[picked[has]]), 1)
    counts.flags.writeable = False  # the cache returns the same array to all callers
    return counts


def widened_interval(
    point: float, draws: Floats, count: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the interval of an estimate from its bootstrap draws, widened for few units.

    `count` is the number of units drawn first. NaN for fewer than two, or if a draw is not finite.
    """
    if count < 2 or not np.all(np.isfinite(draws)):
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    quantile = student_t.quantile(count - 1, 1 - tail) / NormalDist().inv_cdf(1 - tail)
    factor = math.sqrt(count / (count - 1)) * quantile
    low, high = np.quantile(draws, (tail, 1 - tail))
    return (
        point - factor * max(0.0, point - float(low)),
        point + factor * max(0.0, float(high) - point),
    )


def pooled_estimate(
    values: Sequence[float] | Floats, groups: Groups, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the mean over repeats, shape (repeats,), with an interval over networks and repeats.

    With one network, or one repeat, it is Student's. NaN values are left out.
    """
    sample = np.asarray(values, dtype=np.float64)
    known = np.isfinite(sample)
    sample, groups = sample[known], _chosen(groups, known)
    plain = t_interval(sample, at_confidence(confidence))
    if len(set(groups)) < 2:
        return plain
    counts = draw_counts(groups)
    low, high = widened_interval(
        plain.mean, counts @ sample / counts.sum(axis=1), units(groups), confidence
    )
    return Estimate(plain.mean, *_wider((low, high), (plain.low, plain.high)), plain.n)


def pooled_difference(
    a: Sequence[float] | Floats,
    b: Sequence[float] | Floats,
    groupings: Sequence[Groups],
    confidence: float = CONFIDENCE,
) -> PairedDifference:
    """Compare `b` with `a`, shapes (pairs,), over networks and repeats.

    Each of `groupings` labels the pairs by the networks of one side. If both sides have several
    networks, each end of the interval is the wider of the two. With one network per side the
    interval is that of `paired_difference`. P-values always are.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    both = np.isfinite(first) & np.isfinite(second)
    first, second = first[both], second[both]
    result = paired_difference(first, second, at_confidence(confidence))
    for grouping in groupings:
        groups = _chosen(grouping, both)
        if len(set(groups)) < 2:
            continue
        counts = draw_counts(groups)
        drawn = counts.sum(axis=1)
        draws_a, draws_b = counts @ first / drawn, counts @ second / drawn
        absolute, shares = draws_b - draws_a, _relative(draws_a, draws_b)
        ends = widened_interval(result.mean, absolute, units(groups), confidence)
        ratio = widened_interval(result.relative, shares, units(groups), confidence)
        if not math.isfinite(result.relative_low):  # the other mean may be 0
            ratio = (math.nan, math.nan)
        low, high = _wider(ends, (result.low, result.high))
        relative_low, relative_high = _wider(ratio, (result.relative_low, result.relative_high))
        result = replace(
            result, low=low, high=high, relative_low=relative_low, relative_high=relative_high
        )
    return result


def difference_of(
    statistic: Callable[[Ints], tuple[float, float, Floats, Floats]],
    groupings: Sequence[Groups],
    pairs: int,
    confidence: float = CONFIDENCE,
) -> PairedDifference:
    """Return the difference of a statistic of all repeats together, such as a pooled quantile.

    `statistic` takes counts, shape (draws, pairs), and returns the values of the first and of the
    second side of all pairs, then those of each draw. The p-values are NaN.
    """
    ends: list[tuple[float, float]] = []
    ratios: list[tuple[float, float]] = []
    mean = relative = math.nan
    usual: Groups = [0] * pairs
    several = [groups for groups in groupings if len(set(groups)) > 1] or [usual]
    for groups in several:
        first, second, draws_a, draws_b = statistic(draw_counts(groups, DRAWS // 4))
        mean = second - first
        relative = second / first - 1 if first else math.nan
        ends.append(widened_interval(mean, draws_b - draws_a, units(groups), confidence))
        shares = _relative(draws_a, draws_b)
        ratios.append(widened_interval(relative, shares, units(groups), confidence))
    (low, high), (relative_low, relative_high) = (reduce(_wider, each) for each in (ends, ratios))
    bounds = (low, high, relative, relative_low, relative_high)
    return PairedDifference(mean, *bounds, _NAN, _NAN, pairs)


def _relative(a: Floats, b: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(b / a - 1)


def _chosen(groups: Groups, known: NDArray[np.bool_]) -> list[Hashable]:
    return [group for group, kept in zip(groups, known, strict=True) if kept]


def _wider(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Return the lower low and the higher high; NaN if either is unknown."""
    if not all(map(math.isfinite, (*one, *other))):
        return math.nan, math.nan
    return min(one[0], other[0]), max(one[1], other[1])


MIN_BEYOND = 100


def beyond(samples: Sequence[Floats], share: float) -> int:
    """Return how many values of all repeats together lie beyond the quantile of that `share`."""
    count = sum(len(sample) for sample in samples)
    return math.floor(count * (1 - share) + 1e-9)


def pooled_quantile(
    samples: Sequence[Floats], share: float, groups: Groups, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the quantile of all repeats' values together, with its interval.

    `samples` has one array of values per repeat, `groups` the network of each repeat. NaN without
    values.
    """
    filled = [index for index, sample in enumerate(samples) if len(sample)]
    if not filled:
        return Estimate(math.nan, math.nan, math.nan, 0)
    kept = [samples[index] for index in filled]
    labels = [groups[index] for index in filled]
    point = float(np.quantile(np.concatenate(kept), share))
    draws = bootstrap_quantiles(kept, share, draw_counts(labels, DRAWS // 4))
    return Estimate(point, *widened_interval(point, draws, units(labels), confidence), len(kept))


def tail_difference(
    a: Sequence[Floats],
    b: Sequence[Floats],
    share: float,
    groupings: Sequence[Groups],
    confidence: float = CONFIDENCE,
) -> PairedDifference:
    """Compare the pooled quantile of `b` with that of `a`; both have one array per repeat, paired.

    Repeats without values on one side are left out.
    """
    both = [index for index in range(len(a)) if len(a[index]) and len(b[index])]
    first, second = [a[index] for index in both], [b[index] for index in both]
    labels = [[grouping[index] for index in both] for grouping in groupings]
    if not both:
        return NO_DIFFERENCE

    def statistic(counts: Ints) -> tuple[float, float, Floats, Floats]:
        return (
            float(np.quantile(np.concatenate(first), share)),
            float(np.quantile(np.concatenate(second), share)),
            bootstrap_quantiles(first, share, counts),
            bootstrap_quantiles(second, share, counts),
        )

    return difference_of(statistic, labels, len(both), confidence)


def bootstrap_quantiles(samples: Sequence[Floats], share: float, counts: Ints) -> Floats:
    """Return the quantile over all repeats of each draw together, shape (draws,).

    `counts` (draws, repeats) is how often a draw has each repeat. The result is that of np.quantile
    for values repeated that often, which are not copied: only the largest of each repeat matter.
    """
    sizes = np.array([len(sample) for sample in samples])
    drawn = counts @ sizes
    # a drawn repeat has each of its values at least once, so that so many of each are enough
    maximum = math.ceil((1 - share) * int(drawn.max())) + 2
    tops = [np.sort(np.asarray(sample, dtype=np.float64))[::-1][:maximum] for sample in samples]
    values = np.concatenate(tops)
    which = np.repeat(np.arange(len(tops)), [len(top) for top in tops])
    order = np.argsort(-values, kind="stable")
    values, which = values[order], which[order]
    at = share * (drawn - 1)
    lower = np.floor(at).astype(np.int64)
    quantiles = np.empty(len(counts))
    for row, weights in enumerate(counts):
        reached = np.cumsum(weights[which])
        # ranks are counted from the largest value
        below = values[np.searchsorted(reached, drawn[row] - 1 - lower[row], side="right")]
        upper = max(int(drawn[row] - 2 - lower[row]), 0)
        above = values[np.searchsorted(reached, upper, side="right")]
        quantiles[row] = below + (at[row] - lower[row]) * (above - below)
    return quantiles
