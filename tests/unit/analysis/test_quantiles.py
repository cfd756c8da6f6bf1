"""Intervals over networks and repeats, tails over repeats, and what a sample could have shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from orchestration.analysis.quantiles import (
    beyond,
    bootstrap_quantiles,
    draw_counts,
    pooled_difference,
    pooled_estimate,
    pooled_quantile,
    tail_difference,
    units,
    widened_interval,
)
from orchestration.analysis.statistics import paired_difference, t_interval
from orchestration.analysis.student_t import detectable, noncentrality, t_test_power

NETWORKS, REPEATS = 5, 2
GROUPS = [network for network in range(NETWORKS) for _ in range(REPEATS)]
SAMPLES = 400


def covered(between: float, seed: int) -> tuple[float, float, int]:
    """Return how often intervals over networks, and Student's, have the true mean, 0.

    Also, how often the first was the narrower one.
    """
    rng = np.random.default_rng(seed)
    mine = students = narrower = 0
    for _ in range(SAMPLES):
        values = np.repeat(rng.normal(0, between, NETWORKS), REPEATS)
        values = values + rng.normal(0, 1, NETWORKS * REPEATS)
        found, plain = pooled_estimate(values, GROUPS), t_interval(values)
        mine += found.low <= 0 <= found.high
        students += plain.low <= 0 <= plain.high
        narrower += found.low > plain.low or found.high < plain.high
    return mine / SAMPLES, students / SAMPLES, narrower


def test_networks_that_agree_never_make_an_interval_narrower_than_students() -> None:
    mine, students, narrower = covered(between=0.0, seed=1)
    assert narrower == 0
    assert mine >= students >= 0.92


def test_an_end_that_a_skewed_bootstrap_leaves_near_is_students() -> None:
    values = [0.0] * 9 + [10.0]
    found, plain = pooled_estimate(values, range(10)), t_interval(values)
    assert found.low == plain.low
    assert found.high > plain.high


@pytest.mark.parametrize("between", [1.5, 3.0])
def test_networks_that_differ_are_covered_where_students_interval_is_not(between: float) -> None:
    mine, students, _ = covered(between, seed=2)
    assert mine >= 0.93
    assert students < 0.92


def test_a_draw_has_as_many_networks_and_repeats_as_there_are() -> None:
    counts = draw_counts(["a", "b", "a", "b", "c", "c"], draws=500)
    assert counts.shape == (500, 6)
    assert (counts.sum(axis=1) == 6).all()
    by_network = counts[:, [0, 1, 4]] + counts[:, [2, 3, 5]]
    assert (by_network % 2 == 0).all(), "a network comes with all of its repeats' number"
    assert counts.mean(axis=0) == pytest.approx(np.ones(6), abs=0.15)
    assert (draw_counts(["a", "b", "a", "b", "c", "c"], draws=500) == counts).all()


def test_repeats_are_drawn_if_there_is_one_network() -> None:
    assert units(["a", "a", "a"]) == 3
    assert units(["a", "a", "b"]) == 2
    assert units(["a", "b", "c"]) == 3


def test_one_network_leaves_a_difference_as_it_is() -> None:
    a, b = [4.0, 5.0, 6.0], [2.0, 2.6, 3.0]
    assert pooled_difference(a, b, [["x"] * 3, [""] * 3]) == paired_difference(a, b)


def test_the_spread_of_either_sides_networks_counts() -> None:
    a = [10.0, 10.1, 9.9, 10.0]
    b = [8.0, 8.1, 9.4, 9.6]  # the second network is worse
    plain = paired_difference(a, b)
    for groupings in ([[1, 1, 2, 2], [1] * 4], [[1] * 4, [1, 1, 2, 2]]):
        found = pooled_difference(a, b, groupings)
        assert found.mean == plain.mean
        assert found.low < plain.low
        assert found.high > plain.high
        assert found.relative_low < plain.relative_low
        assert found.relative_high > 0, "two networks tell little"


def test_a_lower_confidence_has_a_narrower_interval() -> None:
    values = [1.0, 2.0, 3.0, 4.5]
    for groups in ([0] * 4, [0, 0, 1, 1]):
        wide, narrow = (pooled_estimate(values, groups, share) for share in (0.99, 0.9))
        assert wide.low < narrow.low
        assert narrow.high < wide.high


def test_another_confidence_of_one_network_is_students_and_fiellers() -> None:
    a, b = np.array([4.0, 5.0, 6.0, 5.5]), np.array([3.7, 4.6, 5.4, 5.1])
    law = stats.ttest_rel(b, a).confidence_interval(0.99)
    found = pooled_difference(a, b, [[0] * 4], 0.99)
    assert (found.low, found.high) == pytest.approx((law.low, law.high))
    estimate = stats.ttest_1samp(b, 0).confidence_interval(0.99)
    mine = pooled_estimate(b, [0] * 4, 0.99)
    assert (mine.low, mine.high) == pytest.approx((estimate.low, estimate.high))
    # at the ends of Fieller's interval the test of b - r a = 0 is on the bound
    for ratio in (1 + found.relative_low, 1 + found.relative_high):
        assert stats.ttest_1samp(b - ratio * a, 0).pvalue == pytest.approx(0.01)


def test_an_interval_needs_two_units() -> None:
    assert all(math.isnan(end) for end in widened_interval(1.0, np.array([1.0, 2.0]), 1))


def test_tails_of_draws_are_numpys_of_the_drawn_values() -> None:
    rng = np.random.default_rng(3)
    samples = [rng.exponential(size=size) for size in (40, 7, 300)]
    counts = draw_counts([0, 0, 0], draws=50)
    for share in (0.5, 0.9, 0.99):
        found = bootstrap_quantiles(samples, share, counts)
        for row, weights in zip(found, counts, strict=True):
            drawn = np.concatenate([np.repeat(s, n) for s, n in zip(samples, weights, strict=True)])
            assert row == pytest.approx(np.quantile(drawn, share))


def test_a_tail_is_that_of_all_repeats_together() -> None:
    rng = np.random.default_rng(4)
    samples = [rng.exponential(size=4_000) for _ in range(5)]
    found = pooled_quantile(samples, 0.99, [""] * 5)
    assert beyond(samples, 0.99) == 200
    assert found.mean == np.quantile(np.concatenate(samples), 0.99)
    assert found.low < math.log(100) < found.high
    assert pooled_quantile(samples, 0.99, [""] * 5) == found


def test_a_difference_of_tails_is_paired_by_repeat() -> None:
    rng = np.random.default_rng(5)
    scale = [0.5, 1.0, 2.0, 4.0, 8.0]  # repeats differ by much, pairs do not
    first = [k * rng.exponential(size=4_000) for k in scale]
    second = [0.7 * k * rng.exponential(size=4_000) for k in scale]
    found = tail_difference(first, second, 0.99, [[""] * 5, [""] * 5])
    alone = pooled_quantile(first, 0.99, [""] * 5)
    assert found.relative_low < -0.3 < found.relative_high < 0
    assert alone.high - alone.low > 0.5 * alone.mean
    assert tail_difference([], [], 0.99, [[], []]).n == 0


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 30])
def test_what_a_test_finds_is_scipys_noncentral_t(freedom: int) -> None:
    bound = float(stats.t.ppf(0.975, freedom))
    for errors in (0.0, 1.0, 3.0, 6.0):
        law = stats.nct(freedom, errors)
        expected = float(law.sf(bound) + law.cdf(-bound)) if errors else 0.05
        assert t_test_power(errors, freedom, bound) == pytest.approx(expected, abs=1e-6)


def test_the_smallest_detectable_difference_by_the_book() -> None:
    # Cohen 1988: a difference of half a deviation takes 34 pairs at 5 %, two-sided, power 80 %
    pairs = 34
    half = float(stats.t.ppf(0.975, pairs - 1)) / math.sqrt(pairs)  # of a deviation of 1
    assert detectable(half, pairs - 1) == pytest.approx(0.495, abs=0.005)
    assert noncentrality(10_000, 0.05) == pytest.approx(2.8016, abs=1e-3)
    assert math.isnan(detectable(math.nan, 4))
    assert math.isnan(detectable(1.0, 0))


def test_a_sample_shows_its_smallest_detectable_difference_in_four_of_five_samples() -> None:
    rng = np.random.default_rng(6)
    repeats, errors = 5, noncentrality(4, 0.05) / math.sqrt(5)
    samples = rng.normal(errors, 1, (2_000, repeats))
    found = [t_interval(sample).low > 0 for sample in samples]
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)
