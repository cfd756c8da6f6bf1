import math

import numpy as np
import pytest
from scipy import stats

from orchestration.analysis.comparison.equivalence import (
    DIFFERENT,
    EQUIVALENT,
    UNDECIDED,
    interval_of,
    means_of,
    p_values,
    parse_margins,
    repeats_needed,
    verdict,
)
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.statistics import paired_difference
from orchestration.core.errors import InputError

A = np.array([10.0, 11.0, 9.0, 10.5, 9.8])


def judged(b, margin=0.1, floor=0.0, family=1):
    means = means_of(A, np.asarray(b))
    p = p_values(means, margin, floor)
    return verdict(means.difference, p, min(1.0, family * p.zero))


def test_the_test_against_zero_is_the_paired_t_test():
    b = A + np.array([0.3, -0.2, 0.5, 0.1, 0.4])
    assert p_values(means_of(A, b), 0.1, 0.0).zero == pytest.approx(stats.ttest_rel(b, A).pvalue)


def test_the_equivalence_test_is_two_one_sided_t_tests_of_the_ratio():
    b = A + np.array([0.3, -0.2, 0.5, 0.1, 0.4])
    above = stats.ttest_1samp(b - 0.9 * A, 0, alternative="greater").pvalue
    below = stats.ttest_1samp(b - 1.1 * A, 0, alternative="less").pvalue
    assert p_values(means_of(A, b), 0.1, 0.0).beyond == pytest.approx(max(above, below))


def test_a_floor_above_the_margin_takes_its_place():
    b = A + np.array([0.3, -0.2, 0.5, 0.1, 0.4])
    p = p_values(means_of(A, b), 0.01, 2.0)
    assert p.allowed == 2.0
    below = stats.ttest_1samp(b - A, 2.0, alternative="less").pvalue
    above = stats.ttest_1samp(b - A, -2.0, alternative="greater").pvalue
    assert p.beyond == pytest.approx(max(above, below))


def test_the_interval_is_the_report_s():
    b = A * 1.2 + np.array([0.3, -0.2, 0.5, 0.1, 0.4])
    got, known = interval_of(means_of(A, b)), paired_difference(A, b)
    assert (got.low, got.high) == pytest.approx((known.low, known.high))
    assert got.relative_low == pytest.approx(known.relative_low)
    assert got.relative_high == pytest.approx(known.relative_high)


def test_verdicts():
    noise = np.array([0.1, -0.1, 0.05, -0.02, 0.03])
    assert judged(A + noise) == EQUIVALENT
    assert judged(1.5 * A + noise) == DIFFERENT
    assert judged(1.05 * A + noise) == EQUIVALENT
    # surely not 0 and surely within the margin is no difference that matters
    assert judged(A + 50 * noise) == UNDECIDED
    # beyond the margin by its estimate, yet too noisy after the correction for many metrics
    assert judged(1.3 * A + 20 * noise, family=50) == UNDECIDED


def test_identical_values_are_equivalent_and_constant_shifts_are_certain():
    assert judged(A) == EQUIVALENT
    assert judged(np.zeros(5) + A + 3) == DIFFERENT
    assert interval_of(means_of(A, A)).relative_low == 0
    means = means_of(np.zeros(4), np.zeros(4))
    assert verdict(0.0, p_values(means, 0.1, 0.0), 1.0) == UNDECIDED  # 0 within 0 of 0: no margin
    assert verdict(0.0, p_values(means, 0.1, 1.0), 1.0) == EQUIVALENT


def test_identical_values_are_equivalent_however_far_repeats_are_apart():
    wild = np.array([1.0, 20.0, 3.0])
    means = means_of(wild, wild * (1 + 1e-15))
    tests = p_values(means, 0.1, 0.0)
    assert verdict(means.difference, tests, tests.zero) == EQUIVALENT
    got = interval_of(means)
    assert (got.difference, got.relative_low, got.relative_high) == (0, 0, 0)
    # a difference that is none of rounding
    means = means_of(wild, wild * (1 + 1e-4))
    tests = p_values(means, 0.1, 0.0)
    assert not means.identical
    assert verdict(means.difference, tests, tests.zero) == UNDECIDED


def test_one_pair_alone_has_no_spread():
    means = means_of(A[:1], A[:1] * 2)
    assert math.isnan(p_values(means, 0.1, 0.0).zero)
    assert verdict(means.difference, p_values(means, 0.1, 0.0), math.nan) == UNDECIDED


@pytest.mark.parametrize(("difference", "settled"), [(0.0, EQUIVALENT), (2.0, DIFFERENT)])
def test_so_many_repeats_do_settle_it_four_times_in_five(difference, settled):
    rng, spread, allowed = np.random.default_rng(1), 1.5, 1.0
    count = repeats_needed(difference, spread, allowed, family=10)
    found = 0
    for _ in range(400):
        a = np.full(count, 10.0)
        means = means_of(a, a + rng.normal(difference, spread, count))
        p = p_values(means, 0.1, 0.0)
        found += verdict(means.difference, p, min(1.0, 10 * p.zero)) == settled
    assert 0.7 <= found / 400 <= 0.95


def test_a_difference_at_the_margin_cannot_be_settled():
    assert repeats_needed(0.999, 1.0, 1.0, 10) is None
    assert repeats_needed(0.0, math.nan, 1.0, 10) is None


def test_margins_are_parsed_by_family_and_by_metric():
    margins = parse_margins(["5%", "slowdown_mean=15%", "slowdown_mean_small=20%"])
    shares = [
        margins.margin(METRICS[key])
        for key in ("queue_mean_bytes", "slowdown_mean_all", "slowdown_mean_small")
    ]
    assert shares == pytest.approx([0.05, 0.15, 0.20])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5", "'5' is not a share between 0% and 100%"),
        ("0%", "'0%' is not a share"),
        ("slowdown_maen=5%", "no metric is called 'slowdown_maen'"),
        ("queue_mean=much", "is not a share"),
    ],
)
def test_wrong_margins_are_refused_with_what_is_known(text, said):
    with pytest.raises(InputError) as caught:
        parse_margins([text])
    assert said in str(caught.value)
    assert "->" in str(caught.value)
