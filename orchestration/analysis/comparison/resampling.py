"""The noise of one pair of trials: their time, cut into blocks, is drawn again and again.

Flows of one trial share queues, so neighbours in time are not independent and cannot be drawn one
by one. Both trials get the same blocks in a draw where they carry the same flows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from orchestration.analysis.comparison.catalogue import DROPPED_SHARE, Compared
from orchestration.analysis.comparison.equivalence import Means
from orchestration.analysis.comparison.flows import CLASSES, FlowBlocks
from orchestration.analysis.comparison.grids import (
    BLOCKS,
    QUEUE_EDGES_BYTES,
    SLOWDOWN_EDGES,
    cdf,
    quantiles,
)
from orchestration.analysis.comparison.ports import PortBlocks
from orchestration.analysis.comparison.trials import PairFigures, TrialFigures
from orchestration.analysis.metrics import SIZE_CLASSES, fct_key, slowdown_key
from orchestration.model.records import Floats

# What is taken of two CDFs (rows, bins): their difference, most often.
Apart = Callable[[Floats, Floats], Floats]
DRAWS = 2_000
# For variances, which need fewer draws than the tail of a distance.
_FEW = 1_000
# Fewer blocks with something in them, or fewer flows, say nothing of the spread.
LEAST_BLOCKS, LEAST_FLOWS = 4, 30
_UNKNOWN = np.full((2, 2), math.nan)
# The width of a bin, as a share of the value, that a resampled quantile is rounded to.
_BIN = {"slowdown_p50": 0.005, "slowdown_p99": 0.005, "queue_p99": 0.012}


class Resampled:
    """One pair, drawn by blocks. What cannot be known for want of blocks is NaN, or no noise."""

    def __init__(self, pair: PairFigures) -> None:
        rng = np.random.default_rng(0)
        same = pair.paired is not None and pair.paired.same
        self._pair = pair
        self._weights_a = rng.multinomial(BLOCKS, np.full(BLOCKS, 1 / BLOCKS), DRAWS).astype(float)
        self._weights_b = self._weights_a
        if not same:
            self._weights_b = rng.permuted(self._weights_a, axis=1)
        self._chi = np.sqrt(BLOCKS / rng.chisquare(BLOCKS - 1, DRAWS))
        self._scalars_a = _scalars(pair.a, self._weights_a[:_FEW])
        self._scalars_b = _scalars(pair.b, self._weights_b[:_FEW])

    def means(self, metric: Compared, a: float, b: float) -> Means:
        """Return a scalar metric's values `a` and `b` with their noise."""
        filled, enough = _filled(self._pair, metric)
        if self._identical(metric):
            return Means(a, b, np.zeros((2, 2)), BLOCKS - 1, 1)
        if not enough:
            return Means(a, b, _UNKNOWN, BLOCKS - 1, 1)
        # blocks without flows of a class tell nothing of its spread
        return Means(a, b, self._covariance(metric, a, b, filled), filled - 1, 1)

    def _covariance(self, metric: Compared, a: float, b: float, filled: int) -> Floats:
        drawn = np.stack([self._scalars_a[metric.key], self._scalars_b[metric.key]])
        drawn = drawn[:, np.isfinite(drawn).all(axis=0)]
        if drawn.shape[1] < _FEW / 2:
            return _UNKNOWN
        rounding = np.square(_BIN.get(metric.family, 0.0) * np.array([a, b])) / 12
        return np.asarray(np.cov(drawn) * filled / (filled - 1) + np.diag(rounding))

    def ratio_covariance(self, ratio: float) -> Floats:
        """Return the covariance of 1 and of the geometric mean of FCTs' ratios, flow by flow."""
        paired = self._pair.paired
        if paired is None or np.count_nonzero(paired.count) < LEAST_BLOCKS:
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
        if np.count_nonzero(a.group_count[:, group] + b.group_count[:, group]) < LEAST_BLOCKS:
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

    def noise(self, metric: Compared, a: Floats, b: Floats, apart: Apart) -> Floats:
        """Return what noise adds to `apart` of two distributions: (draws, whatever it returns).

        `a` and `b` are counts, (blocks, bins); `apart` takes CDFs, (rows, bins).
        """
        seen = apart(cdf(a.sum(axis=0)[None, :]), cdf(b.sum(axis=0)[None, :]))
        if self._identical(metric):
            return np.zeros_like(seen)
        if np.count_nonzero(a.sum(axis=1) + b.sum(axis=1)) < LEAST_BLOCKS:
            return seen[:0]
        drawn = apart(cdf(self._weights_a @ a), cdf(self._weights_b @ b))
        drawn = (drawn - seen) * self._chi[:, None]
        return np.asarray(drawn[np.isfinite(drawn).all(axis=1)])

    def _identical(self, metric: Compared) -> bool:
        if metric.group == "flows":
            return self._pair.paired is not None and self._pair.paired.identical
        return self._pair.parting is not None and self._pair.parting.identical


def _filled(pair: PairFigures, metric: Compared) -> tuple[int, bool]:
    """Return in how many blocks both trials have something of a metric, and if that is enough."""
    if metric.group == "ports":
        return BLOCKS, True
    counts = []
    for side in (pair.a, pair.b):
        count = side.flows.count if side.flows is not None else np.zeros((BLOCKS, len(CLASSES)))
        at = CLASSES.index(metric.klass) if metric.klass in CLASSES else slice(None)
        counts.append(count[:, at].reshape(BLOCKS, -1).sum(axis=1))
    filled = int(np.count_nonzero(np.minimum(*counts)))
    return filled, filled >= LEAST_BLOCKS and min(c.sum() for c in counts) >= LEAST_FLOWS


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
