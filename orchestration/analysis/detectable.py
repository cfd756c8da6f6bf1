"""The smallest difference that a sample could have shown: the minimal detectable effect.

A t-test finds a true difference of d standard errors with the probability that a noncentral t of
noncentrality d lies beyond the test's bounds (Cohen 1988, chapter 2; Bloom 1995, "Minimum
detectable effects"). The smallest detectable difference is the one that it finds with 80 %. It
tells "no difference" from "too few repeats to see one".
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from orchestration.analysis import student_t
from orchestration.analysis.statistics import CONFIDENCE
from orchestration.core.records import Floats

POWER = 0.8
# Points of the quadrature over the estimated spread, and how far it goes, in its deviations.
_POINTS, _FAR = 200, 9.0
_HALVINGS = 50


def detectable(half_width: float, freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return the true difference that a two-sided t-test finds with a probability of 80 %.

    `half_width` is half of the interval of that `confidence` (a 95 % interval is a test at 5 %),
    with `freedom` degrees of freedom, in any unit; the result has the same. NaN without an
    interval.
    """
    if freedom < 1 or not math.isfinite(half_width):
        return math.nan
    error = half_width / student_t.quantile(freedom, 0.5 + confidence / 2)
    return error * noncentrality(freedom, 1 - confidence)


@lru_cache(maxsize=1024)
def noncentrality(freedom: int, level: float, power: float = POWER) -> float:
    """Return how many standard errors a difference has that a two-sided test finds with `power`."""
    bound = student_t.quantile(freedom, 1 - level / 2)
    low, high = 0.0, 2.0
    while found_with(high, freedom, bound) < power:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if found_with(middle, freedom, bound) < power else (low, middle)
    return high


def found_with(errors: float, freedom: int, bound: float) -> float:
    """Return P(|T| > `bound`) for a noncentral t of noncentrality `errors`.

    T is (Z + errors) / S, with Z normal and S the root of chi-square over its degrees of freedom;
    the probability given S is integrated over S by Gauss and Legendre's rule.
    """
    nodes, weights = _rule()
    top = 1 + _FAR / math.sqrt(freedom)
    spread = top * (nodes + 1) / 2
    scale = freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2) + math.log(2)
    log_density = scale + (freedom - 1) * np.log(spread) - freedom * spread**2 / 2
    normal = NormalDist().cdf
    beyond = [normal(errors - bound * s) + normal(-errors - bound * s) for s in spread]
    return float(np.sum(weights * np.exp(log_density) * np.array(beyond)) * top / 2)


@lru_cache(maxsize=1)
def _rule() -> tuple[Floats, Floats]:
    return np.polynomial.legendre.leggauss(_POINTS)
