"""Student's t for any positive number of degrees of freedom, and the minimum detectable effect.

scipy.special has both, but importing it takes longer than all computations of a report, and it
would be the largest package of a fresh install. Tests compare the two.

A t-test finds a true difference of d standard errors with the probability that a noncentral t of
noncentrality d lies beyond the test's bounds (Cohen 1988, chapter 2; Bloom 1995, "Minimum
detectable effects"). The minimum detectable effect is the difference that it finds with a
probability of 80 %: it distinguishes "no difference" from "too few repeats to see one".
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from orchestration.core.records import Floats

CONFIDENCE = 0.95
# The relative size of a step below which iterations end.
_CLOSE = 1e-15
_MAX_STEPS = 1_000
_TINY = 1e-300


def cdf(freedom: float, t: float) -> float:
    """Return the probability of a value up to `t`; NaN for invalid input."""
    if not freedom > 0 or math.isnan(t):
        return math.nan
    square = t * t
    share, rest = freedom / (freedom + square), 1 / (1 + freedom / square) if square else 0.0
    tail = 0.5 * _incomplete_beta(freedom / 2, 0.5, share, rest)
    return tail if t < 0 else 1 - tail


@lru_cache(maxsize=4096)
def quantile(freedom: float, probability: float) -> float:
    """Return the value below which `probability` lies; NaN for invalid input."""
    if not (freedom > 0 and 0 < probability < 1):
        return math.nan
    if probability < 0.5:
        return -quantile(freedom, 1 - probability)
    # The density falls for t > 0, so Newton's steps from below never overshoot the quantile.
    t = NormalDist().inv_cdf(probability)
    for _ in range(_MAX_STEPS):
        step = (1 - probability - cdf(freedom, -t)) / _density(freedom, t)
        if step >= -_CLOSE * t:  # only rounding error remains
            break
        t -= step
    return t


def _density(freedom: float, t: float) -> float:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    power = -(freedom + 1) / 2 * math.log1p(t * t / freedom)
    return math.exp(scale + power) / math.sqrt(freedom * math.pi)


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularised incomplete beta function (DLMF 8.17.22); `rest` is 1 - x, exact."""
    if x <= 0 or rest <= 0:
        return float(x > 0)
    if x > (a + 1) / (a + b + 2):  # the fraction for the complement converges faster
        return 1 - _incomplete_beta(b, a, rest, x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front += a * math.log(x) + b * math.log(rest)
    # Lentz's algorithm for continued fractions, modified by Thompson and Barnett (1986).
    value = 1.0
    numerator, denominator = 1.0, 0.0
    for step in range(_MAX_STEPS):
        half = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = half * (b - half) * x / ((a + step - 1) * (a + step))
        else:
            term = -(a + half) * (a + b + half) * x / ((a + step - 1) * (a + step))
        denominator = 1 / _not_zero(1 + term * denominator)
        numerator = _not_zero(1 + term / numerator)
        change = numerator * denominator
        value *= change
        if step and abs(change - 1) < _CLOSE:
            break
    return math.exp(front) / a * (value - 1)


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


POWER = 0.8
# Points of the quadrature over the estimated spread, and its range in standard deviations.
_POINTS, _FAR = 200, 9.0
_HALVINGS = 50


def detectable(half_width: float, freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return the true difference that a two-sided t-test finds with a probability of 80 %.

    `half_width` is that of the interval of that `confidence` (a 95 % interval is a test at 5 %),
    with `freedom` degrees of freedom, in any unit; the result has the same unit. NaN without an
    interval.
    """
    if freedom < 1 or not math.isfinite(half_width):
        return math.nan
    error = half_width / quantile(freedom, 0.5 + confidence / 2)
    return error * noncentrality(freedom, 1 - confidence)


@lru_cache(maxsize=1024)
def noncentrality(freedom: int, level: float, power: float = POWER) -> float:
    """Return how many standard errors a difference has that a two-sided test finds with `power`."""
    bound = quantile(freedom, 1 - level / 2)
    low, high = 0.0, 2.0
    while t_test_power(high, freedom, bound) < power:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if t_test_power(middle, freedom, bound) < power else (low, middle)
        )
    return high


def t_test_power(errors: float, freedom: int, bound: float) -> float:
    """Return the power: P(|T| > `bound`) for a noncentral t of noncentrality `errors`.

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
