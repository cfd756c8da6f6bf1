"""The statistics of `closloop credit`: rank correlations, mean changes, and consistency.

Do two measures put cases in the same order? That is Kendall's tau-b, with ties as in M. G. Kendall,
"The treatment of ties in ranking problems" (Biometrika 33, 1945): concordant less discordant pairs,
over the geometric mean of the pairs that are not tied in one and in the other measure. Intervals
are percentiles of resampled clusters (B. Efron and R. J. Tibshirani, "An Introduction to the
Bootstrap", 1993, section 13.3). The alternatives to one decision are a cluster and are drawn
together, because they are not independent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from orchestration.analysis.statistics import Estimate, t_interval
from orchestration.core.records import Floats, Ints
from orchestration.counterfactuals.decisions import Decision, Setting

# With fewer decisions that changed anything, a bootstrap draws the same few again and again, and
# its interval is too narrow.
_MIN_MOVED = 8
_RESAMPLES = 2_000
_LEVEL = 0.95

# Rewards: of the next interval, of all that follow (discounted), and of all queues of the fabric.
REWARDS = {
    "reward": "reward, next interval",
    "returned": "return, discounted",
    "fabric": "return, all queues",
}
# Outcomes that a decision should be judged by; smaller is better.
OUTCOMES = {
    "slowdown": "mean slowdown",
    "slowdown_near": "mean slowdown, running flows",
    "fct_small_ns": "mean FCT, up to 100KB",
    "fct_rest_ns": "mean FCT, above 100KB",
}


@dataclass(frozen=True)
class Case:
    """One alternative setting in place of one decision.

    `number` is that of the decision, `queue_bytes` the queue length when it was made.
    """

    label: str
    number: int
    decision: Decision
    setting: Setting
    queue_bytes: int

    @property
    def queue_nonempty(self) -> bool:
        """Whether there were packets in the queue when the decision was made."""
        return self.queue_bytes > 0

    @property
    def deeper(self) -> bool:
        """Whether the alternative lets the queue grow longer than the decision did."""
        return half_marked_bytes(self.setting) > half_marked_bytes(self.decision.setting)


def half_marked_bytes(setting: Setting) -> float:
    """Return the queue length at which RED marks half of the packets, a measure of its depth."""
    low, high, maximum = (float(setting[name]) for name in ("kmin_bytes", "kmax_bytes", "pmax"))
    return high if maximum <= 0.5 else low + (high - low) * 0.5 / maximum


@dataclass(frozen=True)
class MeasuredCase:
    """How a counterfactual differs from its parent: in rewards, and in flow completion.

    `changed` counts flows with another FCT, `unfinished` how many more flows were not completed.
    """

    case: Case
    reward: float
    returned: float
    fabric: float
    slowdown: float
    slowdown_near: float
    fct_small_ns: float
    fct_rest_ns: float
    changed: int
    unfinished: int
    wall_s: float


@dataclass(frozen=True)
class Correlation:
    """Kendall's tau-b with its 95 % interval; NaN if undefined."""

    tau: float
    low: float
    high: float
    cases: int
    clusters: int


@dataclass(frozen=True)
class Ranking:
    """Whether a reward puts the cases of a group in the same order as an outcome.

    `agree` counts the cases in which the reward rises and the outcome improves, or the reward falls
    and the outcome gets worse. `oppose` counts those in which they move against each other.
    """

    group: str
    reward: str
    outcome: str
    correlation: Correlation
    agree: int
    oppose: int


@dataclass(frozen=True)
class MeanChange:
    """The mean change of a measure by the alternatives of a group, over the means of decisions."""

    group: str
    figure: str
    estimate: Estimate


def rankings(measured: Sequence[MeasuredCase], seed: int) -> Iterator[Ranking]:
    """Yield the rankings of all cases by each reward and outcome, then those of groups."""
    cluster = np.array([one.case.number for one in measured])
    columns = {name: _column(measured, name) for name in (*REWARDS, *OUTCOMES)}
    every = np.ones(len(measured), dtype=bool)
    for reward in REWARDS:
        for outcome in OUTCOMES:
            yield _ranking("all", reward, outcome, columns, cluster, every, seed)
    for group, mask in groups_of(measured).items():
        for outcome in OUTCOMES:
            yield _ranking(group, "returned", outcome, columns, cluster, mask, seed)


def mean_changes(measured: Sequence[MeasuredCase]) -> Iterator[MeanChange]:
    """Yield the mean changes of all cases and of groups, with Student's intervals over decisions.

    Alternatives to one decision are not independent: their mean is one observation.
    """
    cluster = np.array([one.case.number for one in measured])
    every = {"all": np.ones(len(measured), dtype=bool), **groups_of(measured)}
    for group, mask in every.items():
        for figure in ("returned", *OUTCOMES):
            values = _column(measured, figure)
            means = [
                float(values[mask & (cluster == number)].mean())
                for number in np.unique(cluster[mask]).tolist()
            ]
            yield MeanChange(group, figure, t_interval(means))


def consistency(measured: Sequence[MeasuredCase], figure: str) -> tuple[int, int]:
    """Return in how many pairs of similar alternatives a measure moves the same and opposite ways.

    A pair is two alternatives to one decision, both deeper or both shallower, that changed the
    measure by different amounts. If chance alone decides what follows a decision, half of the pairs
    move the same way. No reward can then rank the alternatives as the measure does.
    """
    same = opposite = 0
    for one, other in combinations(measured, 2):
        first, second = getattr(one, figure), getattr(other, figure)
        similar = (one.case.number, one.case.deeper) == (other.case.number, other.case.deeper)
        if similar and first != second:
            same += first * second > 0
            opposite += first * second < 0
    return same, opposite


def groups_of(measured: Sequence[MeasuredCase]) -> dict[str, NDArray[np.bool_]]:
    """Return which cases are in each group: by the queue's state, and deeper or shallower."""
    queue_nonempty = np.array([one.case.queue_nonempty for one in measured])
    deeper = np.array([one.case.deeper for one in measured])
    return {
        "empty queue": ~queue_nonempty,
        "standing queue": queue_nonempty,
        "shallower": ~deeper,
        "deeper": deeper,
        "standing, shallower": queue_nonempty & ~deeper,
        "standing, deeper": queue_nonempty & deeper,
    }


def _column(measured: Sequence[MeasuredCase], name: str) -> Floats:
    return np.array([getattr(one, name) for one in measured], dtype=np.float64)


def _ranking(
    group: str,
    reward: str,
    outcome: str,
    columns: Mapping[str, Floats],
    cluster: NDArray[np.int64],
    mask: NDArray[np.bool_],
    seed: int,
) -> Ranking:
    earned, gain = columns[reward][mask], -columns[outcome][mask]
    correlation = kendall(earned, gain, cluster[mask], seed)
    moved = (earned != 0) | (gain != 0)
    if len(np.unique(cluster[mask][moved])) < _MIN_MOVED:
        correlation = dataclasses.replace(correlation, low=math.nan, high=math.nan)
    return Ranking(group, reward, outcome, correlation, *agreement(earned, gain))


def kendall(x: Floats, y: Floats, cluster: Ints, seed: int) -> Correlation:
    """Return Kendall's tau-b of `x` and `y` (cases,), without the cases that lack one of them.

    `cluster` (cases,) says which cases are drawn together. Tau is NaN without two distinct values
    of each; the ends of the interval are NaN with less than three clusters.
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y, cluster = x[known], y[known], cluster[known]
    names, cluster_index = np.unique(cluster, return_inverse=True)
    signs = np.sign(x[:, None] - x), np.sign(y[:, None] - y)
    unweighted = np.ones((1, len(x)))
    tau = float(_tau(*signs, unweighted)[0])
    if math.isnan(tau) or len(names) < 3:
        return Correlation(tau, math.nan, math.nan, len(x), len(names))
    rng = np.random.default_rng([seed, len(x)])
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), _RESAMPLES)
    taus = _tau(*signs, drawn[:, cluster_index].astype(np.float64))
    taus = taus[np.isfinite(taus)]
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(taus, (tail, 1 - tail)) if len(taus) else (math.nan, math.nan)
    return Correlation(tau, float(low), float(high), len(x), len(names))


def _tau(x: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64]) -> Floats:
    """Return tau-b for each row of weights (rows, cases), from matrices of signs (cases, cases)."""

    def total(pairs: NDArray[np.float64]) -> Floats:
        return np.asarray(((weight @ pairs) * weight).sum(axis=1))

    untied = total(np.abs(x)) * total(np.abs(y))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(untied > 0, total(x * y) / np.sqrt(untied), math.nan)


def agreement(x: Floats, y: Floats) -> tuple[int, int]:
    """Return how many cases have the same sign in `x` and `y`, and how many opposite signs."""
    product = np.sign(x) * np.sign(y)
    return int((product > 0).sum()), int((product < 0).sum())
