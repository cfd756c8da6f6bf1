"""Tests every metric of a comparison: difference, interval, verdict, repeats needed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis import student_t
from orchestration.analysis.comparison.equivalence import (
    SIGNIFICANCE,
    UNDECIDED,
    Interval,
    Margins,
    Means,
    PValues,
    Verdict,
    interval_of,
    p_values,
    repeats_needed,
    verdict,
)
from orchestration.analysis.comparison.estimates import CellEstimates, Distance
from orchestration.analysis.metric_types import Metric
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.sequential import InterimAnalysis
from orchestration.analysis.statistics import holm


@dataclass(frozen=True)
class MetricVerdict:
    """One metric of one cell, with its verdict.

    `a` and `b` are means over pairs, NaN for a distance. `margin` is a share of A, `allowed` the
    same in the metric's unit. `p_zero` is corrected by Holm's method, `p_beyond` is that of the
    equivalence test. `repeats` is how many in total would settle an open verdict; None if there are
    over 1,000, if that is unknown, or for a settled verdict. `n` counts pairs.
    """

    cell: str
    metric: Metric
    a: float
    b: float
    interval: Interval
    margin: float
    allowed: float
    p_zero: float
    p_beyond: float
    verdict: Verdict
    repeats: int | None
    n: int

    @property
    def identical(self) -> bool:
        """Whether A and B are the same in every pair."""
        return self.interval.difference == self.interval.low == self.interval.high == 0


# A metric before Holm's correction, the standard deviation of one repeat's difference, and the
# value that is compared with the margin.
_Draft = tuple[MetricVerdict, float, float]


def assess_metrics(
    cells: Sequence[tuple[str, CellEstimates]], margins: Margins
) -> list[MetricVerdict]:
    """Return the verdicts on all metrics of all cells, given as (label, estimates).

    All metrics together are one family for Holm's correction. A metric that a cell does not have on
    both sides is left out there.
    """
    drafts = []
    for label, estimates in cells:
        for metric in METRICS.between_runs:
            margin, interim = margins.margin(metric), estimates.interim
            if metric.distance:
                if distance := estimates.distance(metric, margin):
                    drafts.append(_of_distance(label, metric, distance, margin, interim))
            elif means := estimates.means(metric):
                drafts.append(_of_means(label, metric, means, margin, interim))
    corrected = holm([tested.p_zero for tested, _, _ in drafts])
    family = sum(not math.isnan(p) for p in corrected)
    return [_settled(draft, p, family) for draft, p in zip(drafts, corrected, strict=True)]


def _settled(draft: _Draft, p_zero: float, family: int) -> MetricVerdict:
    tested, spread, beyond = draft
    tests = PValues(tested.p_zero, tested.p_beyond, tested.allowed)
    result = verdict(beyond, tests, p_zero)
    repeats = None
    if result == UNDECIDED:
        repeats = repeats_needed(beyond, spread, tested.allowed, family)
        repeats = max(repeats, tested.n + 1) if repeats is not None else None
    return dataclasses.replace(tested, p_zero=p_zero, verdict=result, repeats=repeats)


def _of_means(
    cell: str, metric: Metric, means: Means, margin: float, interim: InterimAnalysis
) -> _Draft:
    p = p_values(means, margin, metric.floor, interim)
    tested = MetricVerdict(
        cell, metric, means.a, means.b, interval_of(means, interim), margin, p.allowed, p.zero,
        p.beyond, UNDECIDED, None, means.n,
    )  # fmt: skip
    return tested, means.error() * math.sqrt(means.n), means.difference


def _of_distance(
    cell: str, metric: Metric, distance: Distance, margin: float, interim: InterimAnalysis
) -> _Draft:
    """Return the verdict, before Holm's correction, on a distance between two distributions.

    The distance is a norm of their difference. By the triangle inequality, the true distance
    differs from the measured one by at most the norm of the noise. Its test has one side only, at
    the level of `interim`.
    """
    value, noise = distance.value, distance.noise
    absolute = metric.distance == "cdf"
    allowed = margin if absolute else max(margin * distance.scale, metric.floor)
    known = len(noise) > 0
    half = float(np.quantile(noise, 1 - interim.level)) if known else math.nan
    p_zero = p_beyond = math.nan
    if known:
        p_zero = interim.p_value(_tail(noise, value, distance.freedom))
        p_beyond = interim.p_value(float(np.mean(distance.drawn_beyond >= allowed)))
    # NaN if the noise is unknown
    low, high = float(np.maximum(0.0, value - half)), value + half
    scale = 1.0 if absolute else distance.scale
    relative = [x / scale if scale else math.nan for x in (value, low, high)]
    tested = MetricVerdict(
        cell, metric, math.nan, math.nan, Interval(value, low, high, *relative), margin, allowed,
        p_zero, p_beyond, UNDECIDED, None, distance.n,
    )  # fmt: skip
    # the standard deviation of one repeat that would give this interval
    t = student_t.quantile(distance.freedom, 1 - SIGNIFICANCE)
    beyond = float(np.quantile(distance.drawn_beyond, 1 - SIGNIFICANCE)) if known else math.nan
    spread = (beyond - distance.beyond) / t * math.sqrt(distance.n)
    return tested, spread, distance.beyond


def _tail(noise: np.ndarray, value: float, freedom: float) -> float:
    """Return the probability of noise of `value` or more; beyond the draws, by Student's t."""
    if not noise.any():
        return 1.0 if value == 0 else 0.0
    share = float(np.mean(noise >= value))
    if share > 0:
        return share
    half = float(np.quantile(noise, 1 - SIGNIFICANCE))
    ratio = value / half * student_t.quantile(freedom, 1 - SIGNIFICANCE / 2)
    return min(1 / len(noise), float(2 * student_t.cdf(freedom, -ratio)))
