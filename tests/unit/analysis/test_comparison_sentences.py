"""A comparison's sentences, word by word: every answer that it can give, and how fast runs were."""

import dataclasses
import math
from pathlib import Path

import pytest

from orchestration.analysis.comparison import sentences
from orchestration.analysis.comparison.equivalence import (
    DIFFERENT,
    EQUIVALENT,
    UNDECIDED,
    Interval,
    Margins,
)
from orchestration.analysis.comparison.hypothesis_tests import MetricVerdict
from orchestration.analysis.comparison.result import ComparedCell, RunComparison, Subgroups
from orchestration.analysis.comparison.runs import Run
from orchestration.analysis.comparison.trials import Speed
from orchestration.analysis.metrics import METRICS

KNOWN = Interval(0.1, 0.05, 0.15, 0.1, 0.05, 0.15)
LONE = Interval(0.1, *[math.nan] * 2, 0.1, *[math.nan] * 2)
NOWHERE = Subgroups((), (), (), math.nan, 0, "", None, math.nan)
UNTIMED = Speed(1_000, None, None, 1, "packets")


def judged(verdict, repeats=None, interval=KNOWN):
    values = (1.0, 1.1, interval, 0.1, 0.1, 0.5, 0.5)
    return MetricVerdict("cell", METRICS.between_runs[0], *values, verdict, repeats, 5)


def compared(items, left_out=0, speeds=(UNTIMED, UNTIMED), margins=None):
    sides = tuple((METRICS.between_runs[-1 - n], "A") for n in range(left_out))
    cell = ComparedCell("cell", "seed", (), tuple(items), sides, NOWHERE, ())
    a, b = (Run(letter, Path(letter), (), (), ()) for letter in "AB")
    return RunComparison(a, b, margins or Margins(), (cell,), *speeds, ())


def answer(*items, left_out=0):
    return sentences.answer(compared(items, left_out))


SAME, OTHER = judged(EQUIVALENT), judged(DIFFERENT)


def test_all_equivalent():
    assert answer(*[SAME] * 17) == "Equivalent: 17 of 17 metrics, within the margin of 10%."
    assert answer(SAME) == "Equivalent: 1 of 1 metric, within the margin of 10%."
    own = compared([SAME], margins=Margins(0.05, {"slowdown_mean": 0.15}))
    assert sentences.answer(own).endswith("within the margin of 5% (slowdown_mean: 15%).")


def test_all_identical():
    nothing = dataclasses.replace(KNOWN, difference=0.0, low=0.0, high=0.0)
    same = judged(EQUIVALENT, interval=nothing)
    assert answer(same, same) == "Equivalent: 2 of 2 metrics, identical in every pair."
    assert answer(same, SAME) == "Equivalent: 2 of 2 metrics, within the margin of 10%."


def test_some_different():
    assert (
        answer(*[OTHER] * 2, *[SAME] * 15)
        == "Different: 2 of 17 metrics differ by more than the margin of 10%, "
        "15 are equivalent within it."
    )
    assert (
        answer(OTHER, SAME, judged(UNDECIDED, 31))
        == "Different: 1 of 3 metrics differs by more than the margin of 10%, "
        "1 is equivalent within it, 1 needs more data (31 repeats in total would settle it)."
    )
    assert answer(*[OTHER] * 3) == (
        "Different: 3 of 3 metrics differ by more than the margin of 10%."
    )


def test_some_lacking():
    one = judged(UNDECIDED, 31)
    assert (
        answer(*[SAME] * 22, one) == "Not enough data: 22 of 23 metrics are equivalent within "
        "the margin of 10%, 1 needs more data (31 repeats in total would settle it)."
    )
    seven = [judged(UNDECIDED, count) for count in (10, 13, 15, 25, 32, 35, 108)]
    assert (
        answer(*[SAME] * 16, *seven) == "Not enough data: 16 of 23 metrics are equivalent within "
        "the margin of 10%, 7 need more data "
        "(25 repeats in total would settle half of them, 108 repeats all of them)."
    )


def test_all_lacking():
    assert (
        answer(*[judged(UNDECIDED, 40)] * 23) == "Not enough data: 23 of 23 metrics need more data "
        "(40 repeats in total would settle all of them)."
    )
    assert (
        answer(*[judged(UNDECIDED)] * 2)
        == "Not enough data: 2 of 2 metrics need more data (more than 1,000 repeats)."
    )


@pytest.mark.parametrize(
    ("repeats", "said"),
    [
        ((10, 20, None, None, None), "20 repeats in total would settle 2 of these 5"),
        (
            (10, 20, 30, 40, None),
            "30 repeats in total would settle half of them, 40 repeats 4 of these 5",
        ),
        ((20, 20, 20, None, None), "20 repeats in total would settle 3 of these 5"),
    ],
)
def test_half_of_them_counts_those_that_no_number_of_repeats_settles(repeats, said):
    assert f"5 need more data ({said})." in answer(SAME, *[judged(UNDECIDED, n) for n in repeats])


def test_one_repeat_only():
    lone = judged(UNDECIDED, None, LONE)
    assert (
        answer(*[lone] * 2) == "Not enough data: 2 of 2 metrics need more data "
        "(how many repeats is unknown with one pair)."
    )
    assert (
        answer(SAME, lone) == "Not enough data: 1 of 2 metrics is equivalent within "
        "the margin of 10%, 1 needs more data (how many repeats is unknown with one pair)."
    )


def test_what_only_one_run_has_keeps_the_answer_open():
    assert (
        answer(*[SAME] * 12, left_out=7)
        == "Not enough data: 12 of 12 metrics are equivalent within the margin of 10%, "
        "7 more are in one run only."
    )
    assert (
        answer(OTHER, left_out=1)
        == "Different: 1 of 1 metric differs by more than the margin of 10%, "
        "1 more is in one run only."
    )


def speeds(first, second):
    a, b = (dataclasses.replace(UNTIMED, wall_s=wall_s) for wall_s in (first, second))
    return sentences.speeds(compared([SAME], speeds=(a, b)))


@pytest.mark.parametrize(
    ("slow_s", "said"),
    [
        (1.02, "Both are equally fast, counting start and build too."),
        (1.4, "A is 1.4 times as fast as B, counting start and build too."),
        (1_234.0, "A is 1,234 times as fast as B, counting start and build too."),
    ],
)
def test_ratios_of_speed_are_told_in_digits(slow_s, said):
    assert speeds(1.0, slow_s)[2] == said
    assert speeds(slow_s, 1.0)[2] == said.replace("A is", "B is").replace("as B", "as A")


def test_a_run_without_counters_has_no_speed():
    nothing = Speed(0, 3.0, None, 2, "nothing was counted")
    first, second, counted = sentences.speeds(compared([SAME], speeds=(UNTIMED, nothing)))
    assert first.endswith("1,000 packet-hops in 1 trial, wall time not recorded")
    assert second.endswith("no packet-hops counted in 2 trials")
    assert counted == "A packet-hop: packets."


def test_each_side_says_what_it_counts_if_they_count_otherwise():
    data = Speed(500, None, None, 1, "packets, data only")
    *_, first, second = sentences.speeds(compared([SAME], speeds=(UNTIMED, data)))
    assert first == "A packet-hop of A: packets."
    assert second == "A packet-hop of B: packets, data only."
