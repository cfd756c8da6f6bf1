import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from orchestration.analysis import student_t
from orchestration.analysis.statistics import (
    holm,
    paired_difference,
    pooled_quantiles,
    sign_flip,
    t_interval,
)

A = [10.0, 12.0, 9.0, 11.0, 13.0]
B = [11.5, 13.1, 10.2, 12.9, 14.0]


def test_the_t_interval_is_scipys():
    found = t_interval(A)
    low, high = stats.t.interval(0.95, 4, np.mean(A), stats.sem(A))
    assert (found.mean, found.low, found.high, found.n) == pytest.approx((11, low, high, 5))


def test_one_repeat_has_a_mean_and_no_interval():
    found = t_interval([3.0, math.nan])
    assert (found.mean, found.n) == (3, 1)
    assert math.isnan(found.low)


def test_the_paired_difference_is_scipys_t_test():
    found, wanted = paired_difference(A, B), stats.ttest_rel(B, A)
    interval = wanted.confidence_interval(0.95)
    assert found.p_t == pytest.approx(wanted.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.relative == pytest.approx(np.mean(B) / np.mean(A) - 1)


def test_pairing_sees_what_two_means_do_not():
    seeds = np.array([100.0, 200.0, 300.0, 400.0])
    found = paired_difference(list(seeds), list(seeds + np.array([4, 5, 6, 5])))
    assert found.p_t < 0.01
    assert t_interval(seeds).high > t_interval(seeds + 5).mean, "unpaired intervals overlap"


@given(
    st.lists(
        st.tuples(st.floats(50, 100), st.floats(50, 100)), min_size=3, max_size=12, unique=True
    )
)
def test_fiellers_interval_excludes_no_change_exactly_when_the_t_interval_does(pairs):
    found = paired_difference(*zip(*pairs, strict=True))
    if math.isnan(found.relative_low) or min(abs(found.low), abs(found.high)) < 1e-6:
        return
    assert (found.low > 0) == (found.relative_low > 0)
    assert (found.high < 0) == (found.relative_high < 0)
    assert found.relative_low <= found.relative <= found.relative_high


def test_fiellers_interval_covers_as_often_as_it_says():
    rng, hits = np.random.default_rng(1), 0
    for _ in range(600):
        base = rng.normal(10, 2, 6)
        found = paired_difference(list(base), list(1.2 * base + rng.normal(0, 0.5, 6)))
        hits += found.relative_low <= 0.2 <= found.relative_high
    assert 0.92 <= hits / 600 <= 0.98


def test_a_base_that_may_be_zero_has_no_relative_interval():
    found = paired_difference([-1.0, 1.0, 0.5], [5.0, 6.0, 7.0])
    assert math.isnan(found.relative_low)


def test_sign_flip_is_exact():
    assert sign_flip([1, 2, 3, 4, 5]) == 2 / 32
    assert sign_flip([1, -1]) == 1
    assert sign_flip([3, 1, -1]) == 6 / 8  # all but 3-1-1 and its opposite are as far from 0
    assert math.isnan(sign_flip([]))


def test_sign_flip_of_many_pairs_is_close_to_the_t_test():
    rng = np.random.default_rng(2)
    base = rng.normal(0, 1, 40)
    found = paired_difference(list(base), list(base + rng.normal(0.3, 1, 40)))
    assert found.p_sign_flip == pytest.approx(found.p_t, abs=0.02)


def test_equal_results_do_not_differ_and_equal_differences_do():
    assert paired_difference(A, A).p_t == 1
    shifted = paired_difference([1.0, 2.0], [1.5, 2.5])
    assert (shifted.p_t, shifted.low, shifted.high) == (0.5, 0.5, 0.5)
    assert paired_difference(range(1, 4), range(2, 5)).p_t == 0


def test_holm_is_the_textbooks():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    found = holm([0.01, math.nan, 0.04])
    assert found[0] == 0.02
    assert math.isnan(found[1])


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values):
    found = holm(p_values)
    assert all(after >= before for before, after in zip(p_values, found, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert np.all(np.diff(np.array(found)[order]) >= 0)


def test_pooled_quantiles_take_all_repeats_together():
    groups = [np.arange(50.0), np.arange(50.0, 101.0), np.zeros(0)]
    [(point, low, high)] = pooled_quantiles([groups], (0.5, 0.99))
    assert list(point) == [50, 99]
    assert np.all((low <= point) & (point <= high))


def test_pooled_quantiles_are_those_of_values_that_are_drawn_one_by_one():
    rng = np.random.default_rng(4)
    repeats = [(3, 40, 1), (3, 40, 1), (900, 30_000), (3, 0, 40, 1), (70_000,), ()]
    arms = [
        [rng.lognormal(1, 1, size).round(arm) for size in of_arm]
        for arm, of_arm in enumerate(repeats)
    ]
    for arm, found in zip(arms, pooled_quantiles(arms, (0.5, 0.95, 1.0), seed=5), strict=True):
        np.testing.assert_array_equal(found, _drawn_one_by_one(arm, (0.5, 0.95, 1.0), seed=5))


def _drawn_one_by_one(groups, quantiles, seed):
    groups = [group for group in groups if len(group)]
    if not groups:
        return np.full((3, len(quantiles)), math.nan)
    rng = np.random.default_rng(seed)
    draws = []
    total = sum(map(len, groups))
    for _ in range(min(500, max(100, 5_000_000 // total))):
        chosen = [groups[index] for index in rng.integers(len(groups), size=len(groups))]
        picks = [(rng.random(len(group)) * len(group)).astype(int) for group in chosen]
        drawn = np.sort(
            np.concatenate([group[pick] for group, pick in zip(chosen, picks, strict=True)])
        )
        at = np.array(quantiles) * (len(drawn) - 1)
        below = at.astype(int)
        above = np.minimum(below + 1, len(drawn) - 1)
        draws.append(drawn[below] + (at - below) * (drawn[above] - drawn[below]))
    return [
        np.quantile(np.concatenate(groups), quantiles),
        *np.quantile(draws, (0.025, 0.975), axis=0),
    ]


def test_pooled_quantiles_know_that_repeats_differ():
    rng = np.random.default_rng(3)
    alike = [rng.normal(10, 1, 400) for _ in range(5)]
    unlike = [rng.normal(10 + shift, 1, 400) for shift in (-2, -1, 0, 1, 2)]
    widths = [np.ptp(found[1:]) for found in pooled_quantiles([alike, unlike], (0.5,))]
    assert widths[1] > 5 * widths[0]


def test_no_values_have_no_quantiles():
    assert np.isnan(pooled_quantiles([[np.zeros(0)]], (0.5,))).all()


@pytest.mark.parametrize("freedom", [0.5, 1, 2, 3, 4.7, 5, 11, 29.3, 100, 1000])
def test_students_t_is_scipys(freedom):
    for t in (-50, -9, -3, -1.1, -0.3, -1e-3, 0, 1e-6, 0.5, 2, 7.7, 200):
        wanted = special.stdtr(freedom, t)
        assert student_t.cdf(freedom, t) == pytest.approx(wanted, rel=1e-10), t
    for probability in (0.001, 0.025, 0.5, 0.6, 0.95, 0.975, 0.9999):
        wanted = special.stdtrit(freedom, probability)
        found = student_t.quantile(freedom, probability)
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12), probability


def test_students_t_at_its_ends():
    assert student_t.cdf(1, 1) == pytest.approx(0.75, rel=1e-15)  # Cauchy's distribution
    assert student_t.cdf(2, math.sqrt(2)) == pytest.approx(0.5 + math.sqrt(2) / 4, rel=1e-15)
    assert [student_t.cdf(5, t) for t in (-math.inf, 0, math.inf)] == [0, 0.5, 1]
    assert student_t.quantile(1, 0.9999) == pytest.approx(math.tan(0.4999 * math.pi), rel=1e-12)
    assert student_t.quantile(10**6, 0.975) == pytest.approx(1.959966, abs=1e-6)
    for nothing in (student_t.cdf(0, 1), student_t.cdf(3, math.nan), student_t.quantile(-1, 0.9)):
        assert math.isnan(nothing)
    assert math.isnan(student_t.quantile(4, 1))
