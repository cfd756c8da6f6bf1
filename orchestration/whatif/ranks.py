"""Whether one figure ranks cases as another does: Kendall's tau-b, with a bootstrap over clusters.

Tau-b counts ties as M. G. Kendall, "The treatment of ties in ranking problems" (Biometrika 33,
1945): concordant less discordant pairs, over the geometric mean of the pairs that are not tied in
the one and in the other. Intervals are percentiles of resampled clusters (B. Efron and
R. J. Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3): cases of one cluster, the
alternatives to one decision, are drawn together, as they are not independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestration.model.records import Floats, Ints

_RESAMPLES = 2_000
_LEVEL = 0.95


@dataclass(frozen=True)
class Correlation:
    """Tau-b of `cases` cases in `clusters` clusters, with its 95 % interval; NaN if undefined."""

    tau: float
    low: float
    high: float
    cases: int
    clusters: int


def kendall(x: Floats, y: Floats, cluster: Ints, seed: int) -> Correlation:
    """Return how `x` and `y` (cases,) rank cases alike; cases that lack one are left out.

    `cluster` (cases,) says which cases are drawn together. Without two distinct values of each,
    tau is NaN; so are the bounds with fewer than three clusters.
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y, cluster = x[known], y[known], cluster[known]
    names, place = np.unique(cluster, return_inverse=True)
    signs = np.sign(x[:, None] - x), np.sign(y[:, None] - y)
    whole = np.ones((1, len(x)))
    tau = float(_tau(*signs, whole)[0])
    if math.isnan(tau) or len(names) < 3:
        return Correlation(tau, math.nan, math.nan, len(x), len(names))
    rng = np.random.default_rng([seed, len(x)])
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), _RESAMPLES)
    found = _tau(*signs, drawn[:, place].astype(np.float64))
    found = found[np.isfinite(found)]
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(found, (tail, 1 - tail)) if len(found) else (math.nan, math.nan)
    return Correlation(tau, float(low), float(high), len(x), len(names))


def _tau(x: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64]) -> Floats:
    """Return tau-b for each row of weights (rows, cases), from matrices of signs (cases, cases)."""

    def total(pairs: NDArray[np.float64]) -> Floats:
        return np.asarray(((weight @ pairs) * weight).sum(axis=1))

    untied = total(np.abs(x)) * total(np.abs(y))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(untied > 0, total(x * y) / np.sqrt(untied), math.nan)


def agreement(x: Floats, y: Floats) -> tuple[int, int]:
    """Return how many cases have the same sign in both, and opposite ones; zeros are neither."""
    product = np.sign(x) * np.sign(y)
    return int((product > 0).sum()), int((product < 0).sum())
