"""Simulates campaigns with adaptive repeats, in which two tuners do not differ, or differ by a bit.

A campaign with adaptive repeats has interim analyses (here also: looks), and stops as soon as its
interval is narrow enough. A simulated campaign is nothing but pairs of values: a seed changes the
mean slowdowns of both tuners together, and each a little by itself. What is measured is how often
an interval misses the true difference: at the interim analysis at which the campaign stopped, at
any of them, and with Student's plain intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

from orchestration.analysis import student_t
from orchestration.analysis.sequential import ALPHA, AnalysisPlan
from orchestration.analysis.statistics import status_at
from orchestration.bench.outcome import Figure, Outcome, at_most
from orchestration.core.records import Floats
from orchestration.core.repeats import StoppingRule

RULE = StoppingRule(0.03, ("slowdown_mean",), 5, 60)
CAMPAIGNS = 20_000
# How many campaigns are also analysed by closloop's own code, one by one.
_CHECKED = 200
_MAX_FALSE, _MIN_COVERED = 6.0, 94.0

# (campaigns, rng) -> the first tuner's values and the second's, both of shape (campaigns, repeats)
Draw = Callable[[int, np.random.Generator], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Simulated:
    """Shares of campaigns in percent, and the mean number of repeats.

    `stopped` is the share of campaigns whose interval missed the true difference when they stopped,
    and `any_look` the share in which that happened at one interim analysis or more. `naive_stopped`
    and `naive_any` are the same with Student's 95 % intervals. `fixed` and `fixed_min` are the
    share with Student's intervals of campaigns without interim analyses, of the maximum and minimum
    number of repeats. `at_most` is the share of campaigns that reached the maximum.
    """

    stopped: float
    any_look: float
    naive_stopped: float
    naive_any: float
    fixed: float
    fixed_min: float
    repeats: float
    at_most: float


def simulate(draw: Draw, truth: float, seed: int, campaigns: int = CAMPAIGNS) -> Simulated:
    """Return the shares for simulated campaigns whose true mean difference is `truth`."""
    first, second = draw(campaigns, np.random.default_rng(seed))
    plan = AnalysisPlan(RULE.sizes)
    shape = len(RULE.sizes), campaigns
    missed, student, narrow, student_narrow = (np.zeros(shape, dtype=bool) for _ in range(4))
    for index, size in enumerate(RULE.sizes):
        differences, mean = (second - first)[:, :size], first[:, :size].mean(axis=1)
        error = differences.std(axis=1, ddof=1) / np.sqrt(size)
        level = plan.at(size).level
        for miss, done, confidence in (
            (missed, narrow, 1 - level / 2),
            (student, student_narrow, 1 - ALPHA / 2),
        ):
            half = student_t.quantile(size - 1, confidence) * error
            miss[index] = np.abs(differences.mean(axis=1) - truth) > half
            done[index] = half <= RULE.until * np.abs(mean)
    stop, student_stop = (_stopping_analysis(done) for done in (narrow, student_narrow))
    _check_agreement(first, second, np.array(RULE.sizes)[stop])
    return Simulated(
        stopped=_percent(np.take_along_axis(missed, stop[None], axis=0)),
        any_look=_percent(missed.any(axis=0)),
        naive_stopped=_percent(np.take_along_axis(student, student_stop[None], axis=0)),
        naive_any=_percent(student.any(axis=0)),
        fixed=_percent(student[-1]),
        fixed_min=_percent(student[0]),
        repeats=float(np.array(RULE.sizes)[stop].mean()),
        at_most=_percent(~narrow.any(axis=0)),
    )


def _stopping_analysis(done: np.ndarray) -> np.ndarray:
    """Return the analysis at which each campaign stops: the first that is done, or the last.

    `done` has shape (analyses, campaigns).
    """
    return np.where(done.any(axis=0), done.argmax(axis=0), len(done) - 1)


def _check_agreement(first: Floats, second: Floats, repeats: np.ndarray) -> None:
    """Check that closloop's own rule stops the first campaigns where the simulation does."""
    plan, metric = AnalysisPlan(RULE.sizes), RULE.of[0]
    for a, b, expected in zip(first[:_CHECKED], second, repeats, strict=False):
        values = {
            tuner: {number: {metric: float(value)} for number, value in enumerate(row, start=1)}
            for tuner, row in (("a", a), ("b", b))
        }
        statuses = (status_at(plan.at(size), RULE, {}, values) for size in RULE.sizes)
        result = next(status.repeats for status in statuses if status.done)
        if result != expected:
            raise AssertionError(f"stopped after {result} repeats, simulated {expected}")


def _percent(hit: ArrayLike) -> float:
    return 100 * float(np.asarray(hit).mean())


def normal(spread: float) -> Draw:
    """Draw normal values around 4. The deviation of their differences is `spread` times 4."""

    def draw(campaigns: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        shape = (campaigns, RULE.maximum)
        seeds = rng.normal(4.0, 0.4, shape)
        own = 4.0 * spread / np.sqrt(2)
        return seeds + rng.normal(0, own, shape), seeds + rng.normal(0, own, shape)

    return draw


def lognormal(seeds: float, own: float, gain: float = 1.0) -> Draw:
    """Draw lognormal values.

    `seeds` is the deviation of the logarithm that both tuners share, `own` the one that each has by
    itself. The second tuner's values are `gain` times as large.
    """

    def draw(campaigns: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        shape = (campaigns, RULE.maximum)
        shared = rng.normal(0, seeds, shape)
        first, second = (np.exp(shared + rng.normal(0, own, shape)) for _ in range(2))
        return first, gain * second

    return draw


def one_sided(seeds: float, own: float) -> Draw:
    """Draw values with equal means, of which only the second tuner's vary by themselves.

    So the differences are skewed to one side.
    """

    def draw(campaigns: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        shape = (campaigns, RULE.maximum)
        first = np.exp(rng.normal(0, seeds, shape))
        return first, first * np.exp(rng.normal(0, own, shape) - own**2 / 2)

    return draw


_NULL: dict[str, Draw] = {
    "normal, pairs differ by 4 %": normal(0.04),
    "normal, by 10 %": normal(0.10),
    "lognormal, by 4 %": lognormal(0.3, 0.03),
    "lognormal, by 14 %": lognormal(0.3, 0.10),
    "lognormal with a heavy tail, by 42 %": lognormal(1.0, 0.30),
}
_SHIFTED = {"5 % less": 0.95, "20 % more": 1.2}
# Deviations of the logarithm of the tuner that varies by itself. No t-test is exact for such
# values.
_ERRATIC = (0.2, 0.5)


def sequential() -> Outcome:
    """False alarms of campaigns with adaptive repeats, compared with naive ones; repeats saved."""
    data: dict[str, object] = {}
    figures = [*_equal_tuners(data), *_different_tuners(data), *_erratic_tuner(data)]
    sizes = ", ".join(map(str, RULE.sizes))
    return Outcome(
        f"Adaptive repeats: ±{100 * RULE.until:g} % of the mean, analyses after {sizes} repeats",
        tuple(figures),
        (
            f"{CAMPAIGNS:,} campaigns a row, so that a share of 5 % is known to ±0.3 %. A false "
            "alarm is an interval at nominal 95 % without 0 where tuners do not differ; pairs "
            "differ by the deviation of their differences, relative to the mean",
            f"{_CHECKED} campaigns of each row were stopped by the runner's own code too, at the "
            "same interim analyses",
        ),
        data,
    )


def _equal_tuners(data: dict[str, object]) -> list[Figure]:
    """Return the figures for tuners that do not differ; add the raw results to `data`."""
    figures: list[Figure] = []
    for number, (name, draw) in enumerate(_NULL.items()):
        result = simulate(draw, 0.0, number)
        data[name] = asdict(result)
        figures += [
            at_most(f"{name}: false alarms when it stops", result.stopped, _MAX_FALSE, 1, " %"),
            at_most(f"{name}: false alarms at any analysis", result.any_look, _MAX_FALSE, 1, " %"),
            Figure(
                f"{name}: the same with Student's intervals, when it stops, at any analysis, at "
                f"{RULE.maximum}",
                f"{result.naive_stopped:.1f} %, {result.naive_any:.1f} %, {result.fixed:.1f} %",
            ),
            Figure(
                f"{name}: mean repeats, of at most {RULE.maximum}",
                f"{result.repeats:.1f} ({result.at_most:.0f} % of campaigns reach the maximum)",
            ),
        ]
    return figures


def _different_tuners(data: dict[str, object]) -> list[Figure]:
    """Return the figures for tuners that differ; add the raw results to `data`."""
    figures = []
    for name, gain in _SHIFTED.items():
        draw, own = lognormal(0.3, 0.05, gain), 0.05
        truth = (gain - 1) * float(np.exp((0.3**2 + own**2) / 2))
        result = simulate(draw, truth, len(data))
        data[f"coverage, {name}"] = asdict(result)
        covered = 100 - result.stopped
        figures.append(
            Figure(
                f"lognormal, by 7 %, the second tuner has {name}: intervals with the truth when it "
                "stops",
                f"{covered:.1f} %",
                f"{_MIN_COVERED:g} % or more",
                covered >= _MIN_COVERED,
            )
        )
    return figures


def _erratic_tuner(data: dict[str, object]) -> list[Figure]:
    """Return the figures for tuners of which one varies by itself; add raw results to `data`."""
    figures = []
    for own in _ERRATIC:
        result = simulate(one_sided(0.3, own), 0.0, len(data))
        data[f"one-sided, {own}"] = asdict(result)
        figures.append(
            Figure(
                f"one tuner erratic by {100 * own:.0f} %, the other not: false alarms when it "
                f"stops, at any analysis; of a plain campaign of {RULE.minimum}, of {RULE.maximum}",
                f"{result.stopped:.1f} %, {result.any_look:.1f} %; "
                f"{result.fixed_min:.1f} %, {result.fixed:.1f} %",
            )
        )
    return figures
