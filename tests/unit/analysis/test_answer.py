"""The answer of a campaign: who wins, by which rule, and in which words."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.analysis.answer import answer_of, answers_of, headline, validity_text
from orchestration.analysis.arm_differences import compare_arms, compare_pairs
from orchestration.analysis.metrics import METRICS, SCORECARD
from orchestration.analysis.report.first_screen import answer_to_json, first_screen, scorecard
from orchestration.analysis.sequential import FIXED, PLAIN, AnalysisPlan
from orchestration.analysis.statistics import t_interval
from orchestration.analysis.summary import Arm, Condition, Summary, Trial
from orchestration.render.json import plain
from orchestration.render.scorecard import Headline
from orchestration.render.terminal import lines
from orchestration.results.stamp import Reason, Stamp
from tests.trials import trial_spec
from traffic.patterns.poisson import PoissonSpec

MEAN, GOODPUT = "slowdown_mean_all", "goodput_bps"
LONG = [f"static(kmax_bytes={size}000, kmin_bytes=5000)" for size in (100, 200, 400, 800)]
# Differences of 0 with p = 0.036 in a paired t-test.
SHIFT = [-0.1, -0.3, 0.02, -0.25, -0.04, -0.22]
SOUND = Stamp(True, (), ())
NOISE = (0.0, 0.3, -0.2, 0.1, -0.3, 0.2, -0.1, 0.25, -0.25, 0.05)


def metrics_of(values, at):
    """Return the metrics of a repeat: 1 of each, and those given, which may be one number."""
    given_here = {key: row if np.isscalar(row) else row[at] for key, row in values.items()}
    return dict.fromkeys((metric.key for metric in METRICS.report), math.nan) | given_here


def trial_of(arm, repeat, scalars, stamp):
    spec = trial_spec(
        testbed="graphcc", traffic=(PoissonSpec("WebSearch", 0.6, 0, 1_000_000),), repeat=repeat,
        seed=repeat, duration_ns=1_000_000, drain_ns=0,
    )  # fmt: skip
    figures = SimpleNamespace(scalars=scalars)
    return Trial(Path(), f"{arm}-{repeat}", spec, arm, stamp, {}, {}, figures, arm)


def condition_of(rows, judge=(MEAN,), label="all trials", plan=PLAIN, stamp=SOUND):
    """Return a condition; `rows` is arm -> metric -> a value for each repeat, or for all."""
    trials = {
        name: tuple(
            trial_of(name, at + 1, metrics_of(values, at), stamp)
            for at in range(max([1, *(len(v) for v in values.values() if not np.isscalar(v))]))
        )
        for name, values in rows.items()
    }
    repeats = max(map(len, trials.values()))
    arms = tuple(arm_of(name, of_arm, plan.at(repeats)) for name, of_arm in trials.items())
    return compared(arms, judge, label, plan, repeats)


def arm_of(name, trials, interim):
    valid = tuple(trial for trial in trials if trial.stamp.valid)
    keys = [metric.key for metric in METRICS.report]
    means = {key: t_interval([t.metrics.scalars[key] for t in valid], interim) for key in keys}
    return Arm(name, trials, valid, means, {}, None)


def compared(arms, judge, label, plan, repeats):
    values = {arm.name: {t.spec.seed: t.metrics.scalars for t in arm.valid} for arm in arms}
    return Condition(label, {}, arms, compare_arms(values, judge, plan.at(repeats)), plan)


def summary_of(*conditions, judge=(MEAN,)):
    names = tuple(dict.fromkeys(arm.name for one in conditions for arm in one.arms))
    trials = tuple(trial for one in conditions for arm in one.arms for trial in arm.trials)
    return Summary("c", names[0], trials, conditions, "host.congestion_control", names, judge)


def around(mean, spread=0.1, repeats=10, turn=0):
    noise = np.roll(NOISE, turn)[:repeats]
    return [mean + spread * float(one) for one in noise]


def answered(judge=MEAN, **rows):
    return answer_of(condition_of({name: {judge: row} for name, row in rows.items()}), judge)


def test_a_better_arm_wins_with_its_difference_from_the_baseline():
    found = answered(dcqcn=around(4), hpcc=around(3, turn=1), swift=around(3.6, turn=2))
    assert (found.outcome, found.best) == ("winner", ("hpcc",))
    assert found.sentence == (
        "hpcc wins: mean slowdown 25% lower than dcqcn's [24, 26], "
        "and 17% lower than the next best, swift [16, 17]."
    )


def test_what_is_better_is_what_the_metric_says():
    rows = {name: {GOODPUT: around(mean, turn=at)} for at, (name, mean) in
            enumerate((("a", 4), ("b", 5)))}  # fmt: skip
    condition = condition_of(rows, (GOODPUT,))
    assert answer_of(condition, GOODPUT).best == ("b",)
    assert "25% higher than a's" in answer_of(condition, GOODPUT).sentence


def test_the_baseline_wins_if_all_others_are_worse():
    found = answered(dcqcn=around(3), hpcc=around(4, turn=1), swift=around(3.6, turn=2))
    assert (found.outcome, found.best) == ("winner", ("dcqcn",))
    assert found.sentence.startswith(
        "dcqcn wins: with the next best, swift, mean slowdown 20% higher ["
    )


def test_two_that_beat_the_baseline_lead_together():
    found = answered(a=around(4), b=around(3, 0.6, turn=1), c=around(3.02, 0.6, turn=3))
    assert (found.outcome, found.best) == ("leaders", ("b", "c"))
    assert "no difference is shown between them" in found.sentence


def test_of_several_leaders_one_without_a_price_stands_for_all_and_the_first_names_its_own():
    rows = {
        "a": {MEAN: around(4), GOODPUT: around(4)},
        "b": {MEAN: around(3, 0.6, turn=1), GOODPUT: around(3, turn=1)},
        "c": {MEAN: around(3.02, 0.6, turn=3), GOODPUT: around(4, turn=2)},
    }
    found = answer_of(condition_of(rows), MEAN)
    assert found.best == ("b", "c")
    price = "; b's price: goodput of a receiving host 25% lower [24, 26]."
    assert ": with c, mean slowdown" in found.sentence
    assert found.sentence.endswith(price)


def test_an_arm_that_varies_too_much_keeps_another_from_winning():
    found = answered(a=around(4), b=around(3.5, turn=1), c=around(3.4, 6, turn=3))
    assert (found.outcome, found.best) == ("leaders", ("b",))
    assert found.sentence.startswith("b leads: mean slowdown 12% lower than a's [")
    assert found.sentence.endswith("; c may be as good.")


def test_without_a_winner_the_sentence_says_how_close_arms_are_and_which_are_worse():
    found = answered(a=around(3), b=around(3, turn=1), c=around(4, turn=2))
    assert found.outcome == "none"
    assert found.bound < 0.1
    assert "b is within" in found.sentence
    assert "c is worse by 33% [" in found.sentence


def test_a_difference_that_is_sure_and_tiny_wins_nothing():
    found = answered(a=around(3, 0.001), b=around(2.98, 0.001, turn=1))
    assert found.outcome == "none"
    assert found.sentence == "No winner by mean slowdown: b is within 0.7% of a."


def test_identical_arms_are_named_with_the_reason():
    reason = Reason("knob-unused", "warning", "pmax changes nothing: no queue marks")
    stamps = Stamp(True, (reason,), ())
    rows = {"a": {MEAN: around(3)}, "b": {MEAN: around(3)}}
    assert answer_of(condition_of(rows), MEAN).sentence == (
        "No difference: a and b are identical in every pair."
    )
    found = answer_of(condition_of(rows, stamp=stamps), MEAN)
    assert found.outcome == "identical"


def test_one_pair_is_not_tested_and_one_arm_not_compared():
    found = answered(a=[3.0], b=[2.0])
    assert found.outcome == "untested"
    assert "b has the lowest mean slowdown of 2 arms, 2.00, which may be chance" in found.sentence
    alone = answered(a=around(3))
    assert alone.outcome == "alone"
    assert alone.sentence.endswith("nothing is compared.")


def test_nothing_valid_and_nothing_measured_are_different_answers():
    assert answered(a=[math.nan], b=[math.nan]).sentence == (
        "No answer: no trial has the metric mean slowdown."
    )
    invalid = condition_of({"a": {MEAN: [3.0]}, "b": {MEAN: [3.0]}}, stamp=Stamp(False, (), ()))
    found = answer_of(invalid, MEAN)
    assert (found.outcome, found.sentence) == ("void", "No answer: no trial is valid.")
    assert headline(summary_of(invalid)) == found.sentence
    assert scorecard(summary_of(invalid)) is None
    assert validity_text(summary_of(invalid)).startswith("2 of 2 trials are invalid")


def test_an_arm_without_a_value_cannot_lose():
    """Whether it would have been the best is not known, so that nobody wins."""
    found = answered(a=around(4), b=around(3, turn=1), c=[math.nan] * 10)
    assert (found.outcome, found.best) == ("leaders", ("b",))
    assert found.sentence.endswith("c may be as good.")
    lost = answered(a=[math.nan] * 10, b=around(3), c=around(4, turn=1))
    assert lost.outcome == "untested"
    assert "no seed has a valid trial of a and of another" in lost.sentence


def test_missing_repeats_are_not_mistaken_for_a_difference():
    """Seeds differ more than arms: the mean over other seeds says nothing of the arms."""
    hard = [float(2 + 4 * seed) for seed in range(10)]
    worse = [value * 1.05 + 0.01 * noise for value, noise in zip(hard, NOISE, strict=True)]
    found = answered(a=hard, b=[*worse[:5], *[math.nan] * 5])
    assert (found.outcome, found.best) == ("winner", ("a",))
    assert "with b, mean slowdown 5.0% higher" in found.sentence


def test_a_metric_that_is_0_for_the_baseline_has_its_unit():
    rows = {"a": {"dropped_packets": [0.0] * 10},
            "b": {"dropped_packets": around(50, 10, repeats=9)}}  # fmt: skip
    found = answer_of(condition_of(rows, ("dropped_packets",)), "dropped_packets")
    assert found.sentence == "a wins: with b, packets dropped 50 more."
    rows["b"] = {"dropped_packets": [0.0, 0.0, 0.0, 1.0, *[0.0] * 6]}
    found = answer_of(condition_of(rows, ("dropped_packets",)), "dropped_packets")
    assert (found.outcome, math.isnan(found.bound)) == ("none", True)
    assert "b is within 0.3262 of a" in found.sentence


def test_the_price_is_the_largest_of_what_got_worse():
    rows = {
        "a": {MEAN: around(4), GOODPUT: around(9, turn=3), "timeouts": [0.0] * 10},
        "b": {MEAN: around(3, turn=1), GOODPUT: around(8, turn=4), "timeouts": around(5, turn=5)},
    }
    assert answer_of(condition_of(rows), MEAN).sentence.endswith(
        "; its price: retransmission timeouts 5 instead of 0."
    )
    del rows["a"]["timeouts"], rows["b"]["timeouts"]
    assert "; its price: goodput of a receiving host 11% lower [" in (
        answer_of(condition_of(rows), MEAN).sentence
    )


def test_several_judges_pay_for_each_other():
    """b is better by p = 0.03 or so on one metric: not sure if that is one of two chances."""
    shift = SHIFT
    a = around(4, repeats=6)
    rows = {"a": {MEAN: a, GOODPUT: around(4, repeats=6)},
            "b": {MEAN: [x + y for x, y in zip(a, shift, strict=True)],
                  GOODPUT: around(4, repeats=6, turn=2)}}  # fmt: skip
    assert answer_of(condition_of(rows), MEAN).outcome == "winner"
    both = condition_of(rows, (MEAN, GOODPUT))
    assert answer_of(both, MEAN).outcome == "none"
    text = headline(summary_of(both, judge=(MEAN, GOODPUT)))
    assert text == "No winner by mean slowdown; no winner by goodput of a receiving host."


def test_several_judges_that_agree_have_one_sentence():
    rows = {"a": {MEAN: around(4), GOODPUT: around(4)},
            "b": {MEAN: around(3, turn=1), GOODPUT: around(5, turn=1)}}  # fmt: skip
    both = condition_of(rows, (MEAN, GOODPUT))
    text = headline(summary_of(both, judge=(MEAN, GOODPUT)))
    assert text.startswith("b wins by mean slowdown and goodput of a receiving host: mean")


def test_several_conditions_are_counted_with_the_range_of_a_win_everywhere():
    wins = [
        condition_of({"a": {MEAN: around(4)}, "b": {MEAN: around(mean, turn=1)}}, label=f"l {mean}")
        for mean in (3, 2)
    ]
    assert headline(summary_of(*wins)) == (
        "b wins in all 2 conditions: mean slowdown 25% to 50% lower than a's."
    )
    none = condition_of({"a": {MEAN: around(4)}, "b": {MEAN: around(4, turn=1)}}, label="none")
    found = headline(summary_of(*wins, none))
    assert found == "b wins in 2 of 3 conditions, no winner in 1; judged by mean slowdown."
    assert headline(summary_of(none, none)) == (
        "No winner in any of 2 conditions: b is within 0.7% of a; judged by mean slowdown."
    )


def test_a_condition_without_the_baseline_is_no_row_of_the_scorecard():
    full = condition_of({n: {MEAN: around(m)} for n, m in (("a", 4), ("b", 3), ("c", 2))})
    part = condition_of({n: {MEAN: around(m)} for n, m in (("b", 3), ("c", 2))}, label="part")
    card = scorecard(summary_of(full, part))
    assert [row.label for row in card.rows] == ["all trials"]
    assert "1 more condition" in card.caption


def test_interim_analyses_ask_for_more():
    """p = 0.03 is significant in a plain campaign, but not at the second of five looks."""
    shift = SHIFT
    a = around(4, repeats=6)
    rows = {"a": {MEAN: a}, "b": {MEAN: [x + y for x, y in zip(a, shift, strict=True)]}}
    assert answer_of(condition_of(rows), MEAN).outcome == "winner"
    looks = AnalysisPlan((3, 6, 12, 24, 48))
    assert answer_of(condition_of(rows, plan=looks), MEAN).outcome == "none"


def fast(values, judge=MEAN):
    """Return the answer to values (arms, repeats), with nothing but the metric that judges."""
    names = "abcdefgh"[: len(values)]
    arms = []
    for name, row in zip(names, values, strict=True):
        trials = tuple(
            SimpleNamespace(spec=SimpleNamespace(seed=at), stamp=Stamp(True, (), ()),
                            metrics=SimpleNamespace(scalars={judge: float(value)}))
            for at, value in enumerate(row)
        )  # fmt: skip
        arms.append(SimpleNamespace(
            name=name, valid=trials, trials=trials, estimates={judge: t_interval(row)}
        ))  # fmt: skip
    rows = {arm.name: {t.spec.seed: t.metrics.scalars for t in arm.valid} for arm in arms}
    pairs = [(names[0], name) for name in names[1:]]
    judged = compare_pairs(rows, pairs, (judge,))
    items = tuple(dataclasses.replace(item, judged=True) for item in judged)
    return answer_of(SimpleNamespace(label="", arms=arms, comparisons=items, interim=FIXED), judge)


@given(
    st.integers(2, 5).flatmap(
        lambda arms: st.lists(
            st.lists(st.floats(1, 100), min_size=4, max_size=4), min_size=arms, max_size=arms
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_of_any_values_there_is_a_sentence_and_two_arms_are_judged_as_compared(values):
    found = fast(values)
    assert found.sentence.endswith(".")
    assert "nan" not in found.sentence
    assert (found.outcome == "winner") <= (len(found.best) == 1)
    if len(values) == 2:
        first, second = ({at: {MEAN: v} for at, v in enumerate(row)} for row in values)
        (item,) = compare_pairs({"a": first, "b": second}, [("a", "b")], (MEAN,))
        sure = item.real and not abs(item.difference.relative) < 0.01
        assert (found.outcome == "winner") == sure


SLOW = pytest.mark.slow


@pytest.mark.parametrize("worse", [0, 1])
@pytest.mark.parametrize(
    ("arms", "campaigns", "most"),
    [(2, 200, 20), (3, 200, 20), *(pytest.param(n, 2000, 130, marks=SLOW) for n in (2, 3, 4, 7))],
)
def test_at_most_one_campaign_in_twenty_announces_a_winner_that_is_none(
    arms, campaigns, most, worse
):
    """Identical arms; or all alike but one that is far worse, so that its test costs nothing.

    At a rate of 5 %, a number of more than `most` has a probability of about 0.1 %.
    """
    rng = np.random.default_rng(arms)
    wins = 0
    for _ in range(campaigns):
        values = 100 + rng.normal(0, 5, (1, 6)) + rng.normal(0, 8, (arms + worse, 6))
        values[arms:] += 200
        wins += fast(values).outcome == "winner"
    assert wins <= most


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_truly_better_arm_is_announced(place):
    rng = np.random.default_rng(place)
    found = []
    for _ in range(100):
        values = 100 + rng.normal(0, 20, (1, 8)) + rng.normal(0, 4, (4, 8))
        values[place] -= 15
        found.append(fast(values))
    assert sum(one.best == ("abcd"[place],) for one in found) >= 90
    assert not [one for one in found if one.outcome == "winner" and one.best != ("abcd"[place],)]


CASES = {
    "a winner with its price": (4, 3, 3.6, 3.8),
    "leaders": (4, 3, 3.01, 3.02),
    "no winner": (3, 3, 3.01, 4),
    "the baseline": (3, 4, 3.6, 3.8),
    "all worse but one": (3, 3, 3.6, 3.8),
}


def long_condition(means):
    rows = {
        name: {MEAN: around(mean, 0.3, turn=at), "slowdown_p99_small": around(9 / mean, turn=at)}
        for at, (name, mean) in enumerate(zip(LONG, means, strict=True))
    }
    for at, values in enumerate(rows.values()):
        others = [key for key in SCORECARD if key not in values][:4]
        values |= {key: around(5 + len(key), turn=len(key) + at) for key in others}
    return condition_of(rows)


@pytest.mark.parametrize("name", CASES)
def test_four_long_names_take_forty_words_and_one_screen(name):
    made = summary_of(long_condition(CASES[name]))
    blocks = first_screen(made)
    assert isinstance(blocks[0], Headline)
    assert len(blocks[0].sentence.split()) <= 40, blocks[0].sentence
    assert len(f"{blocks[0].kicker} {blocks[0].sentence}".split()) <= 60


@pytest.mark.parametrize(("arms", "most"), [(4, 30), (8, 200)])
def test_a_terminal_of_80_columns_holds_the_first_screen(arms, most):
    names = ["dcqcn", "hpcc", "swift", "timely", "dctcp", "cubic", "rlcc", "bbr"][:arms]
    keys = [MEAN, *[key for key in SCORECARD if key != MEAN][:5]]
    rows = {
        name: {key: around(4 - 0.3 * (at % 3), turn=at) for key in keys}
        for at, name in enumerate(names)
    }
    shown = lines(first_screen(summary_of(condition_of(rows))), 80).splitlines()
    assert max(map(len, shown)) <= 80
    assert len(shown) <= most


@pytest.mark.parametrize("name", CASES)
def test_json_begins_with_the_answer_and_has_no_nan(name):
    data = plain(answer_to_json(summary_of(long_condition(CASES[name]))))
    text = json.dumps(data, allow_nan=False)
    assert json.loads(text) == data
    assert next(iter(data)) == "sentence"
    (answer,) = data["by_condition"]
    assert answer["sentence"] == data["sentence"]
    assert len(data["scorecard"]["rows"]) == 6


@pytest.mark.parametrize("metric", METRICS.report, ids=lambda metric: metric.key)
def test_every_metric_has_sentences_that_say_which_side_is_better(metric):
    better, other = (2, 3) if metric.better == "lower" else (3, 2)
    rows = {"a": {metric.key: around(other)}, "b": {metric.key: around(better, turn=1)}}
    condition = condition_of(rows, (metric.key,))
    found = answers_of(summary_of(condition, judge=(metric.key,)))[0]
    assert found.best == ("b",)
    side = {"lower": "fewer", "higher": "more"} if metric.unit == "count" else {}
    assert f" {side.get(metric.better, metric.better)} than a's [" in found.sentence
    assert "," not in found.sentence.partition(" [")[0]
