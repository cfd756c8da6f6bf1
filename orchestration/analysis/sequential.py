"""Intervals that stay valid although a campaign is analysed several times while it runs.

A campaign with adaptive repeats makes an interim analysis at planned numbers of repeats and stops
when its results are precise enough. A 95 % interval that is read at each of several analyses misses
the true value at one of them in far more than 5 % of campaigns (Armitage, McPherson and Rowe 1969).
Here the 5 % are spent over the analyses (Lan and DeMets, "Discrete sequential boundaries for
clinical trials", Biometrika 70, 1983): when a share t of the maximum number of repeats is done, at
most alpha(t) of all campaigns have had an interval without the true value. The intervals are
repeated confidence intervals (Jennison and Turnbull, JRSS B 51, 1989): they cover the true value at
all analyses together, so they are valid whatever makes a campaign stop: a width, the time, or
somebody who reads the report.

The spending is Pocock's type, alpha ln(1 + (e - 1) t). O'Brien and Fleming's type spends next to
nothing early: its boundary for 5 of 60 repeats is 7.7 normal deviations, which with Student's
quantiles is no interval at all. A campaign that shall stop as soon as it can needs intervals early.
Its price is paid at the end: from 5 to 60 repeats, the last interval is 1.2 times as wide as
Student's.

The standard deviation is unknown and samples are small. As is usual then, each analysis' nominal
level is worked out for normal values of known deviation and used with Student's quantile (the
significance level approach: Pocock 1977; Jennison and Turnbull, "Group Sequential Methods", 2000,
sections 3.8 and 4.4). That is an approximation: `closloop bench run sequential` measures its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from orchestration.core.records import Floats

ALPHA = 0.05
# Gauss-Legendre nodes on half of the continuation region: more than two for each standard deviation
# of an increment, also for boundaries of 1e-9 and for analyses 10 % apart.
_NODES = 96
_MAX_NEWTON_STEPS, _CLOSE = 60, 1e-11
# The overall levels whose nominal levels are worked out; between them p-values are interpolated.
_ALPHAS = tuple(
    sorted({ALPHA, 0.1, *np.geomspace(1e-9, 0.5, 24).tolist(), 0.6, 0.7, 0.8, 0.9, 0.97})
)

Spending = Callable[[float, float], float]


def pocock_spending(alpha: float, share: float) -> float:
    """Return how much of `alpha` is spent when `share` of the sample is there.

    This is Lan and DeMets' spending function of Pocock's type (1983).
    """
    return float(alpha * math.log1p((math.e - 1) * min(1.0, share)))


def obrien_fleming_spending(alpha: float, share: float) -> float:
    """Return the same by O'Brien and Fleming's type: 2 - 2 Phi(z / sqrt(share)) for either side.

    Campaigns do not use it; it is here for comparison, in tests and in the benchmark.
    """
    z = NormalDist().inv_cdf(1 - alpha / 4)
    return 2 * math.erfc(z / math.sqrt(min(1.0, share)) / math.sqrt(2))


def boundaries(
    shares: Sequence[float], alpha: float = ALPHA, spending: Spending = pocock_spending
) -> Floats:
    """Return the two-sided boundaries of a standard normal statistic, shape (analyses,).

    `shares` are the analyses' sample sizes as shares of the last one, increasing to 1. Without an
    effect, the statistic crosses its boundary at the k-th analysis, and at none before, with
    probability spending(alpha, shares[k]) - spending(alpha, shares[k - 1]).

    The density of the sum that has crossed no boundary yet is integrated analysis by analysis
    (Armitage, McPherson and Rowe 1969; Jennison and Turnbull 2000, chapter 19).
    """
    points, weights = _quadrature()
    found: list[float] = []
    spent, at, density, before = 0.0, np.zeros(1), np.full(1, 0.5), 0.0
    for share in shares:
        target = spending(alpha, share) - spent
        spent += target
        step = math.sqrt(share - before)
        bound = _bound(at, density, step, target, found[-1] * math.sqrt(share) if found else 0.0)
        found.append(bound / math.sqrt(share))
        node = bound * points
        kernel = _normal((node[:, None] - at) / step) + _normal((node[:, None] + at) / step)
        # `density` has the weights of its nodes in it
        at, density, before = node, (kernel @ density / step) * bound * weights, share
    return np.array(found)


@lru_cache
def _quadrature() -> tuple[Floats, Floats]:
    """Return points and weights for one half of the density, which is symmetric."""
    points, weights = np.polynomial.legendre.leggauss(2 * _NODES)
    return points[_NODES:], weights[_NODES:]


def _bound(at: Floats, density: Floats, step: float, target: float, start: float) -> float:
    """Return the bound that the next sum crosses with probability `target`: Newton on its log."""
    low, high, bound = 0.0, math.inf, start or step
    for _ in range(_MAX_NEWTON_STEPS):
        tail = _upper(np.concatenate([(bound - at), (bound + at)]) / step)
        crossed = 2 * float(np.concatenate([density, density]) @ tail)
        if abs(crossed - target) <= _CLOSE * target:
            break
        if crossed > target:
            low = bound
        else:
            high = bound
        slope = _normal((bound - at) / step) + _normal((bound + at) / step)
        density_there = 2 * float(density @ slope) / step
        bound += math.log(crossed / target) * crossed / density_there if crossed > 0 else -bound
        if not low < bound < high:
            bound = (low + high) / 2 if math.isfinite(high) else 2 * low + step
        if math.isfinite(high) and high - low <= _CLOSE * high:
            break
    return bound


def _normal(z: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi))


def _upper(z: Floats) -> Floats:
    """Return the probability of a standard normal value above z, exact also far out."""
    return np.array([0.5 * math.erfc(value / math.sqrt(2)) for value in z.tolist()])


@lru_cache(maxsize=256)
def nominal_levels(sizes: tuple[int, ...], alpha: float = ALPHA) -> tuple[float, ...]:
    """Return the two-sided nominal level of each interim analysis.

    `sizes` are the planned numbers of repeats, increasing. At an analysis, an interval of
    confidence 1 - level is wide enough.
    """
    bounds = boundaries([size / sizes[-1] for size in sizes], alpha)
    return tuple(math.erfc(bound / math.sqrt(2)) for bound in bounds.tolist())


@dataclass(frozen=True)
class InterimAnalysis:
    """One analysis of the results, and how intervals and p-values are read at it.

    `repeats` is its planned sample size; it is the analysis `number` of `of`, from 1. `level` is
    its nominal level: an interval of confidence 1 - `level` is its 95 % interval. A campaign
    without adaptive repeats has one analysis, with ordinary intervals and p-values.
    """

    repeats: int = 0
    number: int = 1
    of: int = 1
    level: float = ALPHA
    # nominal level -> overall level, increasing; none where they are equal
    curve: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    @property
    def confidence(self) -> float:
        """The nominal confidence of its intervals."""
        return 1 - self.level

    @property
    def planned(self) -> bool:
        """Whether it is one of several, so that its intervals are wider than Student's."""
        return self.of > 1

    @property
    def in_words(self) -> str:
        """What a reader of intervals has to know of this analysis; "" if it is the only one."""
        if not self.planned:
            return ""
        return (
            f"Adaptive repeats: this is interim analysis {self.number} of {self.of}, at "
            f"{self.repeats} repeats. Its intervals and p-values hold over all interim analyses "
            "(Pocock-type alpha spending): 95% intervals use Student's t at "
            f"{100 * (1 - self.level):.4g}%."
        )

    def p_value(self, p: float) -> float:
        """Return a two-sided p-value as it counts at this analysis, NaN for NaN.

        It is the repeated p-value (Jennison and Turnbull 1989): the smallest overall level whose
        interval excludes the null hypothesis. So it is below 5 % exactly if the 95 % interval does.
        """
        if not self.curve or math.isnan(p) or p <= 0:
            return p
        nominal, overall = zip(*self.curve, strict=True)
        if p <= nominal[0]:
            return float(p * overall[0] / nominal[0])
        if p >= nominal[-1]:
            return 1.0
        return math.exp(float(np.interp(math.log(p), np.log(nominal), np.log(overall))))

    def one_sided(self, p: float) -> float:
        """Return a one-sided p-value as it counts at this analysis: half of the two-sided one."""
        return p if p > 0.5 or not self.curve else self.p_value(2 * p) / 2


FIXED = InterimAnalysis()


def at_confidence(confidence: float) -> InterimAnalysis:
    """Return an analysis whose intervals have this nominal confidence."""
    return FIXED if confidence == FIXED.confidence else InterimAnalysis(level=1 - confidence)


@dataclass(frozen=True)
class AnalysisPlan:
    """A campaign's interim analyses by their numbers of repeats; none without adaptive repeats."""

    sizes: tuple[int, ...] = ()

    def at(self, repeats: int) -> InterimAnalysis:
        """Return the analysis that results of so many repeats belong to.

        That is the first one with at least as many repeats, or else the last one.
        """
        if len(self.sizes) < 2:
            return FIXED
        analyses = _analyses(self.sizes)
        return next((interim for interim in analyses if interim.repeats >= repeats), analyses[-1])


PLAIN = AnalysisPlan()


@lru_cache(maxsize=64)
def _analyses(sizes: tuple[int, ...]) -> tuple[InterimAnalysis, ...]:
    levels = {alpha: nominal_levels(sizes, alpha) for alpha in _ALPHAS}
    return tuple(
        InterimAnalysis(
            repeats=size,
            number=index + 1,
            of=len(sizes),
            level=levels[ALPHA][index],
            curve=tuple((levels[alpha][index], alpha) for alpha in _ALPHAS),
        )
        for index, size in enumerate(sizes)
    )
