"""The field `repeats`, its looks, and when a condition has enough repeats."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orchestration.analysis.metrics import METRICS
from orchestration.analysis.sequential import AnalysisPlan
from orchestration.analysis.statistics import (
    likely_repeats,
    paired_difference,
    status_at,
    t_interval,
)
from orchestration.bench.sequential import lognormal, normal, simulate
from orchestration.core.repeats import StoppingRule

RULE = StoppingRule(0.03, ("m",), 5, 60)
LOOKS = AnalysisPlan(RULE.sizes)


def values(*tuners: np.ndarray) -> dict[str, dict[int, dict[str, float]]]:
    return {
        f"t{number}": {repeat: {"m": float(value)} for repeat, value in enumerate(row, start=1)}
        for number, row in enumerate(tuners)
    }


def draw(spread: float, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    first = rng.normal(10, 1, count)
    return first, first + rng.normal(0.2, 10 * spread, count)


@pytest.mark.parametrize(
    ("minimum", "maximum", "sizes"),
    [
        (5, 60, (5, 8, 12, 18, 27, 41, 60)),
        (5, 20, (5, 8, 12, 20)),  # 18 would be too close to 20
        (5, 6, (5, 6)),
        (3, 10, (3, 5, 8, 10)),
    ],
)
def test_looks_grow_and_end_at_the_most(minimum: int, maximum: int, sizes: tuple[int, ...]) -> None:
    rule = StoppingRule(0.03, ("m",), minimum, maximum)
    assert rule.sizes == sizes
    assert [rule.after(size) for size in sizes[:-1]] == list(sizes[1:])


@pytest.mark.slow
def test_it_is_done_when_every_difference_is_narrow_enough() -> None:
    first, near = draw(0.004)
    far = draw(0.2)[1]
    look = LOOKS.at(5)
    alone = status_at(look, RULE, {}, values(first, near))
    apart = paired_difference(first[:5], near[:5], look)
    width = (apart.high - apart.low) / 2 / first[:5].mean()
    assert alone.widths["m"]["t1"] == pytest.approx(width)
    assert (alone.done, alone.repeats, alone.interim_analysis) == ("width", 5, 1)
    both = status_at(look, RULE, {}, values(first, near, far))
    assert (both.done, list(both.widths["m"])) == ("", ["t1", "t2"])
    assert status_at(LOOKS.at(60), RULE, {}, values(first, near, far)).done == "most"


def test_one_tuner_alone_is_known_by_its_mean() -> None:
    first, _ = draw(0.1)
    found = status_at(LOOKS.at(12), RULE, {}, values(first))
    interval = t_interval(first[:12], LOOKS.at(12))
    width = (interval.high - interval.low) / 2 / first[:12].mean()
    assert found.widths == {"m": {"t0": pytest.approx(width)}}


def test_later_repeats_do_not_count_at_an_earlier_look() -> None:
    first, near = draw(0.02)
    whole = status_at(LOOKS.at(8), RULE, {}, values(first, near))
    assert whole == status_at(LOOKS.at(8), RULE, {}, values(first[:8], near[:8]))


def test_a_pair_without_one_of_its_trials_is_missing() -> None:
    first, near = draw(0.004)
    some = values(first, near)
    del some["t0"][2], some["t1"][4]
    some["t1"][5] = {"m": math.nan}
    kept = [0, 2]  # repeats 1 and 3
    look = LOOKS.at(5)
    apart = paired_difference(first[kept], near[kept], look)
    width = (apart.high - apart.low) / 2 / first[kept].mean()
    found = status_at(look, RULE, {}, some)
    assert found.widths["m"]["t1"] == pytest.approx(width)
    del some["t0"][1]
    assert status_at(look, RULE, {}, some).widths == {"m": {"t1": None}}


def test_values_that_never_differ_are_known_even_if_they_are_zero() -> None:
    nothing = np.zeros(5)
    assert status_at(LOOKS.at(5), RULE, {}, values(nothing, nothing)).done == "width"
    other = np.arange(5.0)
    assert status_at(LOOKS.at(5), RULE, {}, values(nothing, other)).done == ""


def test_a_metric_that_no_trial_has_holds_nothing_up_but_is_no_reason_to_stop() -> None:
    first, near = draw(0.004)
    some = values(first, near)
    for rows in some.values():
        for row in rows.values():
            row["none"] = math.nan
    both = StoppingRule(0.03, ("m", "none"), 5, 60)
    found = status_at(LOOKS.at(5), both, {}, some)
    assert (found.done, found.widths["none"]) == ("width", {})
    assert "no trial has none" in found.in_words(both)
    alone = status_at(LOOKS.at(5), StoppingRule(0.03, ("none",), 5, 60), {}, some)
    assert alone.done == ""


def test_what_is_likely_follows_from_the_spread() -> None:
    first = np.full(8, 10.0)
    apart = 10 * np.tile([1, -1], 4) / math.sqrt(8 / 7)  # their deviation is 10
    # 0.045 t / sqrt(n) is 0.0311 after 18 repeats (t = 2.93), 0.0232 after 27 (t = 2.68)
    for spread, expected in ((0.005, 5), (0.045, 27), (0.5, 60)):
        assert likely_repeats(RULE, LOOKS, values(first, first + spread * apart)) == expected
    assert likely_repeats(RULE, LOOKS, values(first[:2], first[2:4])) is None


def test_a_look_in_words() -> None:
    first, other = draw(0.02)
    found = status_at(LOOKS.at(5), RULE, {"load": 0.6}, values(first, other))
    assert found.in_words(RULE) == (
        f"load 0.6: 5 repeats, m known to ±{100 * (found.widest('m') or 0):.1f}%; "
        "±3% is required, continuing to 8"
    )


def test_metrics_have_the_names_of_reports_and_of_papers() -> None:
    # what both have is the same there
    for name in METRICS.of_a_trial:
        assert METRICS.canonical(name) == name
    assert METRICS.canonical("mean_slowdown") == "slowdown_mean"
    assert METRICS.canonical("p99_fct") == "fct_p99"
    assert METRICS.canonical("slow") == ""


@pytest.mark.parametrize("draw_pairs", [normal(0.04), lognormal(0.3, 0.05), lognormal(0.8, 0.3)])
def test_false_alarms_stay_below_six_percent(draw_pairs) -> None:
    found = simulate(draw_pairs, 0.0, 7, campaigns=6_000)
    assert found.stopped <= found.any_look <= 6.0
    assert found.naive_any > 10
