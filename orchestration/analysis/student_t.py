"""Student's t: cdf and quantiles for any positive number of degrees of freedom.

scipy.special has both, but importing it takes longer than all computations of a report, and it
would be the largest package of a fresh install. Tests compare the two.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

# The relative size of a step below which iterations end.
_CLOSE = 1e-15
_STEPS_MOST = 1_000
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
    for _ in range(_STEPS_MOST):
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
    for step in range(_STEPS_MOST):
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
