"""Boundaries against published ones and against simulation; intervals and p-values of a look."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from orchestration.analysis.sequential import (
    ALPHA,
    FIXED,
    PLAIN,
    AnalysisPlan,
    boundaries,
    nominal_levels,
    obrien_fleming_spending,
    pocock_spending,
)
from orchestration.analysis.statistics import paired_difference, t_interval

FIFTHS = (0.2, 0.4, 0.6, 0.8, 1.0)
SIZES = (5, 8, 12, 18, 27, 41, 60)


@pytest.mark.parametrize(
    ("spending", "published"),
    [
        # what ldbounds (R) and ld98 (Reboussin, DeMets, Kim and Lan 2000) give, two-sided at 5 %
        (pocock_spending, (2.4380, 2.4268, 2.4101, 2.3966, 2.3859)),
        (obrien_fleming_spending, (4.8769, 3.3569, 2.6803, 2.2898, 2.0310)),
    ],
)
def test_boundaries_are_the_published_ones(spending, published) -> None:
    assert boundaries(FIFTHS, 0.05, spending) == pytest.approx(published, abs=2e-4)


def test_one_look_is_the_ordinary_test() -> None:
    assert boundaries([1.0]) == pytest.approx([1.959964], abs=1e-6)
    assert nominal_levels((7,)) == pytest.approx((ALPHA,))


def test_each_look_spends_what_the_spending_function_gives_it() -> None:
    bounds = boundaries([size / 60 for size in SIZES])
    sums = np.random.default_rng(1).standard_normal((40_000, 60)).cumsum(axis=1)
    crossed = np.abs(sums[:, np.array(SIZES) - 1] / np.sqrt(SIZES)) > bounds
    by_then = np.logical_or.accumulate(crossed, axis=1).mean(axis=0)
    wanted = [pocock_spending(ALPHA, size / 60) for size in SIZES]
    assert by_then == pytest.approx(wanted, abs=4 * math.sqrt(0.05 / 40_000))


def test_a_level_that_is_spent_more_freely_has_lower_boundaries_at_every_look() -> None:
    levels = [nominal_levels(SIZES, alpha) for alpha in (1e-8, 1e-3, 0.05, 0.5, 0.97)]
    assert all(np.all(np.diff(column) > 0) for column in zip(*levels, strict=True))


def test_results_belong_to_the_first_look_that_has_as_many_repeats() -> None:
    looks = AnalysisPlan(SIZES)
    assert [looks.at(n).repeats for n in (1, 5, 6, 8, 59, 60, 99)] == [5, 5, 8, 8, 60, 60, 60]
    assert [(looks.at(n).number, looks.at(n).of) for n in (5, 60)] == [(1, 7), (7, 7)]


def test_a_plain_campaign_is_read_as_always() -> None:
    assert PLAIN.at(30) is FIXED
    assert AnalysisPlan((5,)).at(5) is FIXED
    assert FIXED.in_words == ""
    for p in (0.0, 0.04, 0.7, 1.0):
        assert FIXED.p_value(p) == FIXED.one_sided(p) == p


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_the_interval_excludes_zero_exactly_if_the_p_value_is_below_five_percent(size) -> None:
    look, rng = AnalysisPlan(SIZES).at(size), np.random.default_rng(size)
    seen = set()
    for shift in np.linspace(0, 4, 60):
        a = rng.normal(20, 1, size)
        found = paired_difference(a, a + rng.normal(shift / math.sqrt(size), 1, size), look)
        excluded = found.low > 0 or found.high < 0
        assert excluded == (found.p_t < 0.05)
        assert excluded == (found.relative_low > 0 or found.relative_high < 0)
        seen.add(excluded)
    assert seen == {True, False}


def test_p_values_of_a_look_are_larger_ordered_and_end_at_one() -> None:
    look = AnalysisPlan(SIZES).at(18)
    ps = [1e-12, 1e-6, 0.001, 0.01, 0.05, 0.3, 0.9, 1.0]
    found = [look.p_value(p) for p in ps]
    assert found == sorted(found)
    assert all(later >= p for later, p in zip(found, ps, strict=True))
    assert (look.p_value(look.level), found[-1]) == (pytest.approx(0.05), 1.0)
    assert math.isnan(look.p_value(math.nan))
    assert look.one_sided(look.level / 2) == pytest.approx(0.025)
    assert look.one_sided(0.8) == 0.8


def test_the_interval_of_a_look_is_students_at_its_nominal_level() -> None:
    values = [3.1, 2.7, 3.4, 2.9, 3.3]
    plain, wide = t_interval(values), t_interval(values, AnalysisPlan(SIZES).at(5))
    level = 0.05 * math.log(1 + (math.e - 1) * 5 / 60)
    wanted = stats.t.ppf(1 - level / 2, 4) / stats.t.ppf(0.975, 4)
    assert (wide.high - wide.mean) / (plain.high - plain.mean) == pytest.approx(wanted)
    assert (wide.mean, wide.n) == (plain.mean, plain.n)
