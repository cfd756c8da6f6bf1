"""Simulates campaigns with adaptive repeats in which two tuners do not differ, and some that do.

A campaign is its paired values alone: seeds change both tuners' mean slowdowns together, and each a
little by itself. What is measured is how often an interval misses the true difference: at the look
at which the campaign stopped, at any of its looks, and with plain Student's intervals.
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
# Campaigns that the product's own code judges too, one by one.
_CHECKED = 200
_MAX_FALSE, _MIN_COVERED = 6.0, 94.0

# (campaigns, rng) -> the first tuner's values and the other's, both (campaigns, most)
Draw = Callable[[int, np.random.Generator], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Simulated:
    """Shares of campaigns in percent, and repeats.

    `stopped` is how many had an interval without the truth when they stopped, `any_look` at one of
    all looks or more; `naive_any` and `naive_stopped` are the same with Student's 95 % intervals,
    `fixed` with those after `maximum` repeats, and `fixed_min` after `minimum`.
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
    """Return what happens in simulated campaigns whose true mean difference is `truth`."""
    first, second = draw(campaigns, np.random.default_rng(seed))
    looks = AnalysisPlan(RULE.sizes)
    shape = len(RULE.sizes), campaigns
    missed, plain, narrow, plain_narrow = (np.zeros(shape, dtype=bool) for _ in range(4))
    for place, size in enumerate(RULE.sizes):
        apart, mean = (second - first)[:, :size], first[:, :size].mean(axis=1)
        error = apart.std(axis=1, ddof=1) / np.sqrt(size)
        level = looks.at(size).level
        for miss, done, confidence in (
            (missed, narrow, 1 - level / 2),
            (plain, plain_narrow, 1 - ALPHA / 2),
        ):
            half = student_t.quantile(size - 1, confidence) * error
            miss[place] = np.abs(apart.mean(axis=1) - truth) > half
            done[place] = half <= RULE.until * np.abs(mean)
    stop, plain_stop = (_first(done) for done in (narrow, plain_narrow))
    _agrees(first, second, np.array(RULE.sizes)[stop])
    return Simulated(
        stopped=_percent(np.take_along_axis(missed, stop[None], axis=0)),
        any_look=_percent(missed.any(axis=0)),
        naive_stopped=_percent(np.take_along_axis(plain, plain_stop[None], axis=0)),
        naive_any=_percent(plain.any(axis=0)),
        fixed=_percent(plain[-1]),
        fixed_min=_percent(plain[0]),
        repeats=float(np.array(RULE.sizes)[stop].mean()),
        at_most=_percent(~narrow.any(axis=0)),
    )


def _first(done: np.ndarray) -> np.ndarray:
    """Return the look at which each campaign stops: the first narrow one, or the last."""
    return np.where(done.any(axis=0), done.argmax(axis=0), len(done) - 1)


def _agrees(first: Floats, second: Floats, repeats: np.ndarray) -> None:
    """Check that the runner's rule stops the first campaigns where the simulation does."""
    looks, metric = AnalysisPlan(RULE.sizes), RULE.of[0]
    for a, b, expected in zip(first[:_CHECKED], second, repeats, strict=False):
        values = {
            tuner: {number: {metric: float(value)} for number, value in enumerate(row, start=1)}
            for tuner, row in (("a", a), ("b", b))
        }
        condition_statuses = (status_at(looks.at(size), RULE, {}, values) for size in RULE.sizes)
        found = next(standing.repeats for standing in condition_statuses if standing.done)
        if found != expected:
            raise AssertionError(f"stopped after {found} repeats, simulated {expected}")


def _percent(hit: ArrayLike) -> float:
    return 100 * float(np.asarray(hit).mean())


def normal(spread: float) -> Draw:
    """Normal values around 4, whose differences have the deviation `spread`, relative to it."""

    def draw(campaigns: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        shape = (campaigns, RULE.maximum)
        seeds = rng.normal(4.0, 0.4, shape)
        own = 4.0 * spread / np.sqrt(2)
        return seeds + rng.normal(0, own, shape), seeds + rng.normal(0, own, shape)

    return draw


def lognormal(seeds: float, own: float, gain: float = 1.0) -> Draw:
    """Lognormal values: deviations of the logarithm that both share, and that each has by itself.

    The second tuner's values are `gain` times as large.
    """

    def draw(campaigns: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        shape = (campaigns, RULE.maximum)
        shared = rng.normal(0, seeds, shape)
        first, second = (np.exp(shared + rng.normal(0, own, shape)) for _ in range(2))
        return first, gain * second

    return draw


def one_sided(seeds: float, own: float) -> Draw:
    """One tuner is erratic, and the other is not: equal means, differences skewed to one side."""

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
# Deviations of the logarithm of the one tuner that is erratic; no t-test is right there.
_ERRATIC = (0.2, 0.5)


def sequential() -> Outcome:
    """False alarms of campaigns with adaptive repeats, beside looking naively; repeats saved."""
    figures: list[Figure] = []
    data: dict[str, object] = {}
    for number, (name, draw) in enumerate(_NULL.items()):
        found = simulate(draw, 0.0, number)
        data[name] = asdict(found)
        figures += [
            at_most(f"{name}: false alarms when it stops", found.stopped, _MAX_FALSE, 1, " %"),
            at_most(f"{name}: false alarms at any look", found.any_look, _MAX_FALSE, 1, " %"),
            Figure(
                f"{name}: the same with Student's intervals, when it stops, at any look, at "
                f"{RULE.maximum}",
                f"{found.naive_stopped:.1f} %, {found.naive_any:.1f} %, {found.fixed:.1f} %",
            ),
            Figure(
                f"{name}: mean repeats, of at most {RULE.maximum}",
                f"{found.repeats:.1f} ({found.at_most:.0f} % of campaigns reach the most)",
            ),
        ]
    for name, gain in _SHIFTED.items():
        draw, own = lognormal(0.3, 0.05, gain), 0.05
        truth = (gain - 1) * float(np.exp((0.3**2 + own**2) / 2))
        found = simulate(draw, truth, len(data))
        data[f"coverage, {name}"] = asdict(found)
        covered = 100 - found.stopped
        figures.append(
            Figure(
                f"lognormal, by 7 %, the second tuner has {name}: intervals with the truth when it "
                "stops",
                f"{covered:.1f} %",
                f"{_MIN_COVERED:g} % or more",
                covered >= _MIN_COVERED,
            )
        )
    for own in _ERRATIC:
        found = simulate(one_sided(0.3, own), 0.0, len(data))
        data[f"one-sided, {own}"] = asdict(found)
        figures.append(
            Figure(
                f"one tuner erratic by {100 * own:.0f} %, the other not: false alarms when it "
                f"stops, at any look; of a plain campaign of {RULE.minimum}, of {RULE.maximum}",
                f"{found.stopped:.1f} %, {found.any_look:.1f} %; "
                f"{found.fixed_min:.1f} %, {found.fixed:.1f} %",
            )
        )
    looks = ", ".join(map(str, RULE.sizes))
    return Outcome(
        f"Adaptive repeats: ±{100 * RULE.until:g} % of the mean, looks after {looks} repeats",
        tuple(figures),
        (
            f"{CAMPAIGNS:,} campaigns a row, so that a share of 5 % is known to ±0.3 %. A false "
            "alarm is an interval at nominal 95 % without 0 where tuners do not differ; pairs "
            "differ by the deviation of their differences, relative to the mean",
            f"{_CHECKED} campaigns of each row were stopped by the runner's own code too, at the "
            "same looks",
        ),
        data,
    )
