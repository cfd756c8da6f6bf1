"""Each metric's difference over the pairs of a cell, with its uncertainty.

With two or more pairs, one value per trial counts, and intervals are Student's over the pairs. With
one pair, the variation between repeats is unknown; a block bootstrap over the trial's time
estimates the noise within the trial instead. Flows of one trial share queues, so flows close in
time are not independent and cannot be resampled one by one. If both trials carry the same flows,
each draw uses the same blocks for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.comparison.equivalence import Means, means_of
from orchestration.analysis.comparison.flows import (
    BLOCKS,
    CLASSES,
    QUEUE_EDGES_BYTES,
    SLOWDOWN_EDGES,
    FlowBlocks,
    cdf,
    quantiles,
)
from orchestration.analysis.comparison.ports import PortBlocks
from orchestration.analysis.comparison.trials import PairMetrics, TrialFigures
from orchestration.analysis.metric_types import Metric
from orchestration.analysis.metrics import (
    DROPPED_SHARE,
    FCT_RATIO,
    QUEUE_WASSERSTEIN,
    SIZE_CLASSES,
    fct_key,
    slowdown_key,
)
from orchestration.analysis.sequential import FIXED, InterimAnalysis
from orchestration.core.records import Floats

# How two CDFs (rows, bins) are compared: most often by their difference.
CompareCdfs = Callable[[Floats, Floats], Floats]
DRAWS = 2_000
# Draws for variances, which need fewer of them than the tail of a distance.
_VARIANCE_DRAWS = 1_000
# With fewer non-empty blocks, or fewer flows, the spread cannot be estimated.
MIN_BLOCKS, MIN_FLOWS = 4, 30
_UNKNOWN = np.full((2, 2), math.nan)
# The bin width of a resampled quantile, as a share of its value.
_BIN = {"slowdown_p50": 0.005, "slowdown_p99": 0.005, "queue_p99": 0.012}


class Resampled:
    """A block bootstrap of one pair. With too few blocks, covariances are NaN, noise is empty."""

    def __init__(self, pair: PairMetrics) -> None:
        rng = np.random.default_rng(0)
        same = pair.paired is not None and pair.paired.same
        self._pair = pair
        self._weights_a = rng.multinomial(BLOCKS, np.full(BLOCKS, 1 / BLOCKS), DRAWS).astype(float)
        self._weights_b = self._weights_a
        if not same:
            self._weights_b = rng.permuted(self._weights_a, axis=1)
        self._chi = np.sqrt(BLOCKS / rng.chisquare(BLOCKS - 1, DRAWS))
        self._scalars_a = _scalars(pair.a, self._weights_a[:_VARIANCE_DRAWS])
        self._scalars_b = _scalars(pair.b, self._weights_b[:_VARIANCE_DRAWS])

    def means(self, metric: Metric, a: float, b: float) -> Means:
        """Return a scalar metric's values `a` and `b` with the covariance of their noise."""
        filled, enough = _filled(self._pair, metric)
        if self._identical(metric) and (metric.of is None or a == b):
            return Means(a, b, np.zeros((2, 2)), BLOCKS - 1, 1)
        if not enough:
            return Means(a, b, _UNKNOWN, BLOCKS - 1, 1)
        # blocks without flows of a class give no information on its spread
        return Means(a, b, self._covariance(metric, a, b, filled), filled - 1, 1)

    def _covariance(self, metric: Metric, a: float, b: float, filled: int) -> Floats:
        if metric.key not in self._scalars_a or metric.key not in self._scalars_b:
            return _UNKNOWN  # one side has a queue histogram but no samples over time
        drawn = np.stack([self._scalars_a[metric.key], self._scalars_b[metric.key]])
        drawn = drawn[:, np.isfinite(drawn).all(axis=0)]
        if drawn.shape[1] < _VARIANCE_DRAWS / 2:
            return _UNKNOWN
        rounding = np.square(_BIN.get(metric.family, 0.0) * np.array([a, b])) / 12
        return np.asarray(np.cov(drawn) * filled / (filled - 1) + np.diag(rounding))

    def ratio_covariance(self, ratio: float) -> Floats:
        """Return the covariance matrix of the constant 1 and the mean FCT ratio of the flows."""
        paired = self._pair.paired
        if paired is None or np.count_nonzero(paired.count) < MIN_BLOCKS:
            identical = paired is not None and paired.identical
            return np.zeros((2, 2)) if identical else _UNKNOWN
        count = self._weights_a @ paired.count
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = (self._weights_a @ paired.log_ratio_sum) / count
        logs = logs[np.isfinite(logs)]
        variance = float(logs.var(ddof=1)) * BLOCKS / (BLOCKS - 1) * ratio**2
        return np.array([[0.0, 0.0], [0.0, variance]])

    def group_covariance(self, group: int) -> Floats:
        """Return the covariance of the two trials' mean slowdowns in one group of flow sizes."""
        a, b = self._pair.a.flows, self._pair.b.flows
        if a is None or b is None:
            return _UNKNOWN
        if self._pair.paired is not None and self._pair.paired.identical:
            return np.zeros((2, 2))
        if np.count_nonzero(a.group_count[:, group] + b.group_count[:, group]) < MIN_BLOCKS:
            return _UNKNOWN
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = np.stack(
                [
                    (w @ side.group_sum[:, group]) / (w @ side.group_count[:, group])
                    for w, side in ((self._weights_a, a), (self._weights_b, b))
                ]
            )
        drawn = drawn[:, np.isfinite(drawn).all(axis=0)]
        return np.asarray(np.cov(drawn) * BLOCKS / (BLOCKS - 1))

    def noise(self, metric: Metric, a: Floats, b: Floats, compare: CompareCdfs) -> Floats:
        """Return the noise of `compare` for two distributions, shape (draws, its columns).

        `a` and `b` are counts (blocks, bins). Counts without times have no known noise.
        """
        measured = compare(cdf(a.sum(axis=0)[None, :]), cdf(b.sum(axis=0)[None, :]))
        if self._identical(metric):
            return np.zeros_like(measured)
        timeless = len(a) < BLOCKS or len(b) < BLOCKS
        if timeless or np.count_nonzero(a.sum(axis=1) + b.sum(axis=1)) < MIN_BLOCKS:
            return measured[:0]
        drawn = compare(cdf(self._weights_a @ a), cdf(self._weights_b @ b))
        drawn = (drawn - measured) * self._chi[:, None]
        return np.asarray(drawn[np.isfinite(drawn).all(axis=1)])

    def _identical(self, metric: Metric) -> bool:
        if metric.scope == "flow":
            return self._pair.paired is not None and self._pair.paired.identical
        return self._pair.divergence is not None and self._pair.divergence.identical


def _filled(pair: PairMetrics, metric: Metric) -> tuple[int, bool]:
    """Return in how many blocks both trials have values of a metric, and if they are enough."""
    if metric.scope != "flow":
        return BLOCKS, True
    counts = []
    for side in (pair.a, pair.b):
        count = side.flows.count if side.flows is not None else np.zeros((BLOCKS, len(CLASSES)))
        at = CLASSES.index(metric.klass) if metric.klass in CLASSES else slice(None)
        counts.append(count[:, at].reshape(BLOCKS, -1).sum(axis=1))
    filled = int(np.count_nonzero(np.minimum(*counts)))
    return filled, filled >= MIN_BLOCKS and min(c.sum() for c in counts) >= MIN_FLOWS


def _scalars(figures: TrialFigures, weights: Floats) -> dict[str, Floats]:
    """Return the scalar metrics of each draw, shapes (draws,); `weights` is (draws, blocks)."""
    values: dict[str, Floats] = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        if figures.flows is not None:
            values |= _of_flows(figures.flows, weights)
        if figures.ports is not None:
            values |= _of_ports(figures.ports.blocks, weights)
    return values


def _of_flows(flows: FlowBlocks, weights: Floats) -> dict[str, Floats]:
    values = {}
    for klass in SIZE_CLASSES:
        part = slice(None) if klass == "all" else [CLASSES.index(klass)]
        count = weights @ flows.count[:, part].sum(axis=1)
        values[slowdown_key("mean", klass)] = (
            weights @ flows.slowdown_sum[:, part].sum(axis=1)
        ) / count
        values[fct_key(klass)] = (weights @ flows.fct_sum_ns[:, part].sum(axis=1)) / count
        drawn = weights @ flows.histogram[:, part].sum(axis=1)
        p50, p99 = quantiles(drawn, SLOWDOWN_EDGES, (0.5, 0.99)).T
        values[slowdown_key("p50", klass)], values[slowdown_key("p99", klass)] = p50, p99
    return values


def _of_ports(ports: PortBlocks, weights: Floats) -> dict[str, Floats]:
    busy = (weights @ ports.busy) / (weights @ ports.time)
    drawn = weights @ ports.queue_histogram
    return {
        "queue_mean_bytes": (weights @ ports.queue_sum_bytes) / (weights @ ports.queue_count),
        "queue_p99_bytes": quantiles(drawn, QUEUE_EDGES_BYTES, (0.99,))[:, 0],
        "marked_share": (weights @ ports.marked) / (weights @ ports.packets),
        "utilisation_hosts": busy[:, 0],
        "utilisation_fabric": busy[:, 1],
        DROPPED_SHARE: (weights @ ports.dropped) / (weights @ ports.drop_packets),
    }


@dataclass(frozen=True)
class Distance:
    """The distance of two distributions, its noise (draws,), and A's mean as `scale`.

    `beyond` is what is compared with the margin: `value` except for the Kolmogorov-Smirnov
    distance. `drawn_beyond` (draws,) are draws of its upper bound. `noise` is empty if the spread
    is unknown; `freedom` are its degrees of freedom, `n` counts pairs.
    """

    value: float
    noise: Floats
    beyond: float
    drawn_beyond: Floats
    scale: float
    freedom: float
    n: int


class CellEstimates:
    """The estimates of one cell's pairs, at the analysis `interim`."""

    def __init__(self, pairs: Sequence[PairMetrics], interim: InterimAnalysis = FIXED) -> None:
        self.interim = interim
        self._pairs = pairs
        self._resampled = Resampled(pairs[0]) if len(pairs) == 1 else None

    def means(self, metric: Metric) -> Means | None:
        """Return a scalar metric's means; None if no pair has it on both sides."""
        if metric.key == FCT_RATIO:
            return self._ratio()
        values = [
            [side.scalars.get(metric.key, math.nan) for side in (pair.a, pair.b)]
            for pair in self._pairs
        ]
        return self._over_pairs(values, lambda pair, a, b: pair.means(metric, a, b))

    def _over_pairs(
        self,
        values: Sequence[Sequence[float]],
        of_single_pair: Callable[[Resampled, float, float], Means],
    ) -> Means | None:
        """Return the means over the pairs that have both values; None if there is none.

        With a single pair of trials, `of_single_pair` makes them.
        """
        both = np.array([value for value in values if np.isfinite(value).all()]).reshape(-1, 2)
        if not len(both):
            return None
        if self._resampled is None:
            return means_of(both[:, 0], both[:, 1])
        a, b = both[0].tolist()
        return of_single_pair(self._resampled, a, b)

    def on_one_side(self, metric: Metric) -> str:
        """Return "A" or "B" if only that run has the metric, else ""."""

        def has(figures: TrialFigures) -> bool:
            if metric.distance:
                return _counts(figures, metric) is not None
            return math.isfinite(figures.scalars.get(metric.key, math.nan))

        a, b = any(has(pair.a) for pair in self._pairs), any(has(pair.b) for pair in self._pairs)
        return "" if a == b else "A" if a else "B"

    def _ratio(self) -> Means | None:
        """Return the geometric mean of the flows' ratios of FCTs, B to A, compared with 1."""
        paired = [pair.paired for pair in self._pairs]
        known = [item for item in paired if item is not None and item.count.sum()]
        logs = [item.log_ratio_sum.sum() / item.count.sum() for item in known]
        return self._over_pairs(
            [(1.0, ratio) for ratio in np.exp(logs)],
            lambda pair, a, b: Means(a, b, pair.ratio_covariance(b), BLOCKS - 1, 1),
        )

    def by_size(self, group: int) -> Means | None:
        """Return the mean slowdowns in one group of flow sizes; None without flows."""
        values = [
            [
                side.group_sum[:, group].sum() / side.group_count[:, group].sum()
                if side is not None and side.group_count[:, group].any()
                else math.nan
                for side in (pair.a.flows, pair.b.flows)
            ]
            for pair in self._pairs
        ]
        return self._over_pairs(
            values, lambda pair, a, b: Means(a, b, pair.group_covariance(group), BLOCKS - 1, 1)
        )

    def distance(self, metric: Metric, margin: float) -> Distance | None:
        """Return the distance of two distributions; None if one side has none."""
        known = _with_counts(self._pairs, metric)
        if not known:
            return None
        queue = metric.key == QUEUE_WASSERSTEIN
        key = "queue_mean_bytes" if queue else slowdown_key("mean", "all")
        scale = float(np.mean([pair.a.scalars[key] for pair, _, _ in known]))
        counts = [(a, b) for _, a, b in known]
        # outside the range of all values both CDFs are equal
        filled = np.flatnonzero(sum((a + b).sum(axis=0) for a, b in counts))
        span = slice(int(filled[0]), int(filled[-1]) + 1)
        counts = [(a[:, span], b[:, span]) for a, b in counts]
        freedom = float(BLOCKS - 1 if self._resampled is not None else len(counts) - 1)
        n = len(counts)
        same = all(np.array_equal(a.sum(axis=0), b.sum(axis=0)) for a, b in counts)
        if same and self._resampled is None:
            # A and B are equal in every pair, so the variation between repeats does not matter
            nothing = np.zeros(1)
            return Distance(0.0, nothing, 0.0, nothing, scale, freedom, n)
        mean, drawn = self._compared(metric, counts, np.subtract)
        if metric.distance == "mean":
            widths = np.diff(_edges(metric), append=np.inf)[span]
            widths[-1] = 0.0
            value, noise = float(np.abs(mean) @ widths), np.abs(drawn) @ widths
            beyond, drawn_beyond = value, value + noise
        else:
            value, noise = float(np.abs(mean).max()), np.abs(drawn).max(axis=1, initial=0.0)
            mean, drawn = self._compared(metric, counts, _tolerant(margin))
            beyond = max(0.0, float(mean.max()))
            drawn_beyond = np.maximum(0.0, (mean + drawn).max(axis=1, initial=0.0))
        return Distance(value, noise, beyond, drawn_beyond, scale, freedom, n)

    def _compared(
        self, metric: Metric, counts: Sequence[tuple[Floats, Floats]], compare: CompareCdfs
    ) -> tuple[Floats, Floats]:
        """Return the mean of `compare` over the pairs, and its noise (draws, ...)."""
        of_pairs = compare(*_cdfs(counts))
        mean = of_pairs.mean(axis=0)
        if self._resampled is not None:
            return mean, self._resampled.noise(metric, *counts[0], compare)
        if len(counts) < 2:
            return mean, of_pairs[:0]
        return mean, _studentised(of_pairs - mean)


def mean_distribution(
    pairs: Sequence[PairMetrics], metric: Metric
) -> tuple[Floats, Floats, Floats] | None:
    """Return the edges and the mean CDFs of A and of B over the pairs, all (bins,)."""
    known = _with_counts(pairs, metric)
    if not known:
        return None
    a, b = _cdfs([(a, b) for _, a, b in known])
    return _edges(metric), a.mean(axis=0), b.mean(axis=0)


def _cdfs(counts: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return the CDFs of A and of B, both (pairs, bins)."""
    a, b = (cdf(np.stack([both[side].sum(axis=0) for both in counts])) for side in (0, 1))
    return a, b


def _with_counts(
    pairs: Sequence[PairMetrics], metric: Metric
) -> list[tuple[PairMetrics, Floats, Floats]]:
    """Return the pairs of which both sides have a distribution, with A's and B's counts."""
    every = ((pair, _counts(pair.a, metric), _counts(pair.b, metric)) for pair in pairs)
    return [(pair, a, b) for pair, a, b in every if a is not None and b is not None]


def _counts(figures: TrialFigures, metric: Metric) -> Floats | None:
    """Return a trial's counts, shape (blocks, bins), or (1, bins) without times; None if none."""
    if metric.key == QUEUE_WASSERSTEIN:
        ports = figures.ports
        counts = ports.blocks.queue_histogram if ports is not None else figures.queue_histogram
    else:
        counts = figures.flows.histogram.sum(axis=1) if figures.flows is not None else None
    return counts if counts is not None and counts.any() else None


def _edges(metric: Metric) -> Floats:
    return QUEUE_EDGES_BYTES if metric.key == QUEUE_WASSERSTEIN else SLOWDOWN_EDGES


def _tolerant(margin: float) -> CompareCdfs:
    """Return a comparison of CDFs of slowdowns that ignores slowdowns that differ by `margin`.

    It is by how much one CDF exceeds the other one shifted by `margin`: the share of flows that a
    change of slowdowns by `margin` does not explain. If all flows have the same slowdown and B is
    1 % slower, the CDFs differ by 100 %, but this is 0 for any margin of 1 % or more.
    """
    bins = round(np.log1p(margin) / np.log(SLOWDOWN_EDGES[1] / SLOWDOWN_EDGES[0]))

    def excess(a: Floats, b: Floats) -> Floats:
        later_a, later_b = (
            np.concatenate([f[:, bins:], np.ones((len(f), min(bins, f.shape[1])))], axis=1)
            for f in (a, b)
        )
        return np.concatenate([b - later_a, a - later_b], axis=1)

    return excess


def _studentised(residuals: Floats) -> Floats:
    """Return draws (draws, bins) of the noise of the mean of `residuals` (pairs, bins).

    It is a multiplier bootstrap: each draw has one normal multiplier per pair, and one draw of
    Student's denominator for all bins. For a single bin this is the t-test; for several it keeps
    the dependence between bins.
    """
    n, rng = len(residuals), np.random.default_rng(0)
    drawn = rng.standard_normal((DRAWS, n)) @ residuals / math.sqrt(n * (n - 1))
    return np.asarray(drawn * np.sqrt((n - 1) / rng.chisquare(n - 1, DRAWS))[:, None])
