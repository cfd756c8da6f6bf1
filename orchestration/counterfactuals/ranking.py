"""The statistics of credit: rankings by group, mean changes, and how far chance decides.

Whether one figure ranks cases as another does is Kendall's tau-b, which counts ties as M. G.
Kendall, "The treatment of ties in ranking problems" (Biometrika 33, 1945): concordant less
discordant pairs, over the geometric mean of the pairs that are not tied in the one and in the
other. Intervals are percentiles of resampled clusters (B. Efron and R. J. Tibshirani, "An
Introduction to the Bootstrap", 1993, section 13.3): cases of one cluster, the alternatives to one
decision, are drawn together, as they are not independent.
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

# A bootstrap over fewer decisions that changed anything draws the same few again and again, and
# its interval would be too narrow.
_MIN_MOVED = 8
_RESAMPLES = 2_000
_LEVEL = 0.95

# What the reward is: of the next interval, of all that follow, and of all queues of the fabric.
REWARDS = {
    "reward": "reward, next interval",
    "returned": "return, discounted",
    "fabric": "return, all queues",
}
# What a decision should be judged by; less is better in each.
OUTCOMES = {
    "slowdown": "mean slowdown",
    "slowdown_near": "mean slowdown, flows under way",
    "fct_small_ns": "mean FCT, up to 100KB",
    "fct_rest_ns": "mean FCT, above 100KB",
}


@dataclass(frozen=True)
class Case:
    """One alternative to one decision. `number` is the decision's, `queue_bytes` the queue then."""

    label: str
    number: int
    decision: Decision
    setting: Setting
    queue_bytes: int

    @property
    def queue_nonempty(self) -> bool:
        """Whether packets stood in the queue when it was decided on."""
        return self.queue_bytes > 0

    @property
    def deeper(self) -> bool:
        """Whether the alternative lets the queue grow longer than the decision did."""
        return half_marked_bytes(self.setting) > half_marked_bytes(self.decision.setting)


def half_marked_bytes(setting: Setting) -> float:
    """Return the queue length at which RED marks half of the packets: one measure of its depth."""
    low, high, maximum = (float(setting[name]) for name in ("kmin_bytes", "kmax_bytes", "pmax"))
    return high if maximum <= 0.5 else low + (high - low) * 0.5 / maximum


@dataclass(frozen=True)
class MeasuredCase:
    """A counterfactual's changes against its parent: of the reward, and of flows' completion."""

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
    """Tau-b of `cases` cases in `clusters` clusters, with its 95 % interval; NaN if undefined."""

    tau: float
    low: float
    high: float
    cases: int
    clusters: int


@dataclass(frozen=True)
class Ranking:
    """How one reward ranks the cases of a group as one outcome does.

    `agree` counts the cases in which the reward rises and the outcome improves, or both the other
    way; `oppose` those in which the reward says the opposite.
    """

    group: str
    reward: str
    outcome: str
    correlation: Correlation
    agree: int
    oppose: int


@dataclass(frozen=True)
class MeanChange:
    """What the alternatives of a group did to a figure: the mean over decisions' means."""

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
    """Return in how many pairs of like alternatives a figure moves the same way, and opposite ways.

    A pair is of two alternatives to one decision, both deeper or both shallower, that changed the
    figure, and not by the same. Where what follows a decision is chance, half of the pairs agree:
    no reward can then rank the alternatives as the figure does.
    """
    same = opposite = 0
    for one, other in combinations(measured, 2):
        first, second = getattr(one, figure), getattr(other, figure)
        like = (one.case.number, one.case.deeper) == (other.case.number, other.case.deeper)
        if like and first != second:
            same += first * second > 0
            opposite += first * second < 0
    return same, opposite


def groups_of(measured: Sequence[MeasuredCase]) -> dict[str, NDArray[np.bool_]]:
    """Return the cases by the state of the queue, and by the direction of the alternative."""
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
