import dataclasses
import math
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.analysis.answer import headline, validity_text
from orchestration.analysis.arm_differences import compare_arms
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.report.output import report_blocks
from orchestration.analysis.report.queue_figures import busiest_queues, downsample
from orchestration.analysis.report.report_tables import stamp_tables
from orchestration.analysis.report.selection import shown_repeat
from orchestration.analysis.stamp import stamp
from orchestration.analysis.summary import summarise, tuner_label
from orchestration.core.errors import InputError
from orchestration.core.trial import TunerSpec
from orchestration.render.numbers import change, extremes, percent_change, quantity
from orchestration.render.terminal import lines
from orchestration.results.reader import finished_trials
from orchestration.results.sql import Runs
from orchestration.results.stamp import Reason, Stamp
from orchestration.results.writer import write_trial


def write(folder, case, verdict=None, **changes):
    trial = dataclasses.replace(case.trial, **changes)
    verdict = verdict or stamp(trial, case.testbed, case.schedule, case.record)
    write_trial(folder / trial.id, trial, case.testbed, case.schedule, case.record, verdict, {})


def test_tuners_meet_in_one_condition_with_the_baseline_first(summary):
    (condition,) = summary.conditions
    assert condition.label == "load 0.6"
    assert [arm.name for arm in condition.arms] == ["secn1", "secn2"]
    assert summary.arms == ("secn1", "secn2")


def test_an_invalid_trial_is_listed_and_counted_nowhere(summary):
    first, second = summary.conditions[0].arms
    assert [trial.spec.seed for trial in summary.invalid] == [5]
    assert (len(second.trials), len(second.valid)) == (5, 4)
    assert first.estimates["fct_mean_ns_all"].n == 5
    assert second.estimates["fct_mean_ns_all"].n == 4
    values = [trial.metrics.scalars["fct_mean_ns_all"] for trial in second.valid]
    assert second.estimates["fct_mean_ns_all"].mean == pytest.approx(np.mean(values))


def test_comparisons_are_paired_on_the_seeds_that_both_have(summary):
    condition = summary.conditions[0]
    found = {item.metric: item for item in condition.comparisons}
    assert all(item.difference.n == 4 for item in found.values())
    mine = {trial.spec.seed: trial.metrics.scalars for trial in condition.arms[1].valid}
    base = {trial.spec.seed: trial.metrics.scalars for trial in condition.arms[0].valid}
    key = "queue_p99_bytes"
    wanted = np.mean([mine[seed][key] - base[seed][key] for seed in (1, 2, 3, 4)])
    assert found[key].difference.mean == pytest.approx(wanted)
    judged = [item for item in condition.comparisons if item.judged]
    assert [(item.metric, item.family) for item in judged] == [("slowdown_mean_all", 1)]
    assert judged[0].real
    assert "higher [" in judged[0].verdict
    assert found[key].family == len(condition.comparisons) - 1


@pytest.mark.slow
def test_another_baseline_turns_the_differences_round(campaign, summary):
    other = summarise(campaign, "secn2")
    (there, *_), (back, *_) = (s.conditions[0].comparisons for s in (summary, other))
    assert other.arms == ("secn2", "secn1")
    assert back.difference.mean == pytest.approx(-there.difference.mean)


@pytest.mark.slow
def test_imports_of_other_seeds_are_repeats_and_one_seed_has_one_schedule(tmp_path, cases):
    def imported(folder, tuner, seed, flows):
        case = cases(tuner, seed)
        files = {"schedule": flows, "testbed": "t"}
        changes = {"backend": "imported", "files": files, "cell": {}}
        write(tmp_path / folder, case, duration_ns=case.trial.duration_ns + seed, **changes)

    for tuner in ("secn1", "secn2"):
        for seed in (1, 2, 3):
            imported("repeats", tuner, seed, f"flows {seed}")
        for seed, flows in ((1, "flows 1"), (1, "flows 2"), (2, "flows 2")):
            imported("mixed", tuner, seed, flows)
    (condition,) = summarise(tmp_path / "repeats").conditions
    assert [len(arm.valid) for arm in condition.arms] == [3, 3]
    assert {item.difference.n for item in condition.comparisons} == {3}
    mixed = summarise(tmp_path / "mixed").conditions
    assert sorted([len(arm.trials) for arm in c.arms] for c in mixed) == [[1, 1], [2, 2]]


def test_size_groups_hold_as_many_flows_each(summary):
    for arm in summary.conditions[0].arms:
        curve = arm.by_size
        assert len(curve.upto_bytes) == 10
        assert curve.flows.sum() == sum(len(trial.metrics.slowdown) for trial in arm.valid)
        assert curve.flows.max() - curve.flows.min() < 0.2 * curve.flows.mean()
        assert np.all(curve.low <= curve.slowdown)
        assert np.all(curve.slowdown <= curve.high)


@pytest.mark.slow
def test_a_factor_makes_conditions_that_are_not_mixed(tmp_path, cases):
    for load in (0.3, 0.6):
        for tuner in ("secn1", "secn2"):
            write(tmp_path, cases(tuner, 1, 1_000_000, load))
    found = summarise(tmp_path)
    assert [condition.label for condition in found.conditions] == ["load 0.3", "load 0.6"]
    assert all(len(condition.arms) == 2 for condition in found.conditions)


def test_trials_of_an_edited_campaign_are_kept_apart(tmp_path, cases):
    """Another duration under the same factors is another experiment."""
    case = cases("secn1", 1, 1_000_000)
    write(tmp_path, case)
    write(tmp_path, case, duration_ns=1_000_001)
    labels = [condition.label for condition in summarise(tmp_path).conditions]
    assert labels == ["load 0.6", "load 0.6 (variant 2)"]


def test_a_fixed_setting_is_the_baseline_and_a_network_makes_no_condition(tmp_path, cases):
    networks = {"checkpoint acc": "0" * 64, "mine.safetensors": "1" * 64}
    case = cases("secn2", 1, 1_000_000)
    cell = {**case.trial.cell, "tuner": "acc"}
    write(tmp_path, case, tuner=TunerSpec("acc"), files=networks, cell=cell)
    write(tmp_path, cases("secn1", 1, 1_000_000))
    summary = summarise(tmp_path)
    assert summary.baseline == "secn1"
    (condition,) = summary.conditions
    assert [arm.name for arm in condition.arms] == ["secn1", "acc"]


@pytest.mark.slow
def test_checkpoints_that_take_turns_are_one_tuner(tmp_path, cases):
    for repeat in (1, 2, 3):
        turn = TunerSpec("acc", {"checkpoint": f"acc-{2 - repeat % 2}"})
        case = cases("secn2", repeat, 1_000_000)
        write(tmp_path, case, tuner=turn, cell={**case.trial.cell, "tuner": "mine"}, repeat=repeat)
        write(tmp_path, cases("secn1", repeat, 1_000_000), repeat=repeat)
    (condition,) = summarise(tmp_path).conditions
    assert [(arm.name, len(arm.trials)) for arm in condition.arms] == [("secn1", 3), ("mine", 3)]
    page = lines(stamp_tables(summarise(tmp_path)))
    assert page.count("network acc-1") == 2
    assert page.count("network acc-2") == 1
    rows = Runs(tmp_path).sql("select distinct repeat, checkpoint from trials where tuner = 'acc'")
    assert sorted(rows.fetchall()) == [(1, "acc-1"), (2, "acc-2"), (3, "acc-1")]


@pytest.mark.slow
def test_a_learned_tuner_is_told_beside_what_it_has_to_beat(tmp_path, cases):
    arms = {
        "secn1": TunerSpec("secn1"),
        "best-static": TunerSpec("static", {"kmin_bytes": 5_000}),
        "acc": TunerSpec("acc"),
        "placebo-acc": TunerSpec("random", {"of": "acc"}),
    }
    for repeat in (1, 2, 3):
        for label, tuner in arms.items():
            case = cases("secn2", repeat, 1_000_000)
            cell = {**case.trial.cell, "tuner": label}
            write(tmp_path, case, tuner=tuner, cell=cell, repeat=repeat)
    found = summarise(tmp_path)
    assert found.arms == ("secn1", *sorted(set(arms) - {"secn1"}))
    pairs = [(one.arm, one.baseline) for one in found.conditions[0].baselines]
    assert list(dict.fromkeys(pairs)) == [("acc", "best-static"), ("acc", "placebo-acc")]


@pytest.mark.slow
def test_a_label_that_stands_for_two_settings_is_not_taken(tmp_path, cases):
    for repeat, kmin in ((1, 5_000), (2, 9_000)):
        case = cases("secn2", repeat, 1_000_000)
        cell = {**case.trial.cell, "tuner": "mine"}
        tuner = TunerSpec("static", {"kmin_bytes": kmin})
        write(tmp_path, case, tuner=tuner, cell=cell, repeat=repeat)
    assert summarise(tmp_path).arms == ("static(kmin_bytes=5000)", "static(kmin_bytes=9000)")


def test_what_stamps_say_of_every_trial_is_said_once(tmp_path, cases):
    for repeat in (1, 2, 3):
        case = cases("secn1", repeat, 1_000_000)
        same, own = (
            Reason("sources", "warning", "no marks"),
            Reason("x", "warning", f"own {repeat}"),
        )
        write(tmp_path, case, verdict=Stamp(True, (same, own), ()), repeat=repeat)
    found = summarise(tmp_path)
    page = lines(stamp_tables(found))
    assert page.count("no marks") == 1
    assert "in all 3 trials: warning: no marks" in page
    assert all(f"own {repeat}" in page for repeat in (1, 2, 3))
    assert lines(report_blocks(found), 80).count("no marks") == 1


def test_parameters_tell_tuners_of_one_name_apart():
    assert tuner_label(TunerSpec("secn1")) == "secn1"
    assert tuner_label(TunerSpec("static", {"pmax": 0.1, "kmin_bytes": 5})) == (
        "static(kmin_bytes=5, pmax=0.1)"
    )


def test_one_tuner_alone_is_told_in_figures(tmp_path, cases):
    write(tmp_path, cases("secn1", 1, 1_000_000))
    found = summarise(tmp_path)
    assert found.conditions[0].comparisons == ()
    assert headline(found).startswith("secn1: mean slowdown ")
    assert validity_text(found) == "The one trial is valid."


def test_without_valid_trials_there_is_no_figure(tmp_path, cases):
    case = cases("secn1", 1, 1_000_000)
    case.record.flows.status[0] = 2
    write(tmp_path, case)
    found = summarise(tmp_path)
    assert headline(found) == "No answer: no trial is valid."
    assert found.conditions[0].arms[0].valid == ()


def test_the_answer_names_both_tuners_and_the_invalid_trial(summary):
    assert headline(summary).startswith("secn1 wins: with secn2, mean slowdown ")
    assert "% higher [" in headline(summary)
    assert validity_text(summary) == (
        "1 of 10 trials is invalid. It is listed below and excluded from all figures."
    )


@pytest.mark.slow
def test_a_trial_and_a_folder_of_campaigns_are_summed_up_as_well(tmp_path, campaign):
    one = finished_trials(campaign)[0]
    alone = summarise(one)
    assert [trial.id for trial in alone.trials] == [one.name]
    for name in ("first", "second"):
        shutil.copytree(campaign, tmp_path / name)
    both, each = summarise(tmp_path), summarise(campaign)
    assert both.campaign == tmp_path.name
    labels = [condition.label for condition in both.conditions]
    assert labels == [f"{name}, load 0.6" for name in ("first", "second")]
    for condition in both.conditions:
        (same,) = each.conditions
        assert [arm.estimates for arm in condition.arms] == [arm.estimates for arm in same.arms]
        assert condition.comparisons == same.comparisons


def test_a_folder_without_trials_says_what_to_give(tmp_path):
    for folder, said in (
        (tmp_path / "nowhere", "no such folder"),
        (tmp_path, "no finished trial"),
    ):
        with pytest.raises(InputError, match=said) as error:
            summarise(folder)
        assert error.value.problems[0].remedy


def test_every_damaged_trial_is_named_at_once(campaign, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(campaign, copy)
    broken = finished_trials(copy)[:2]
    for folder in broken:
        (folder / "ports.parquet").unlink()
    with pytest.raises(InputError) as error:
        summarise(copy)
    assert [p.where for p in error.value.problems] == [str(f / "ports.parquet") for f in broken]


def test_an_unknown_baseline_lists_the_tuners(campaign):
    with pytest.raises(InputError, match="use one of: secn1, secn2"):
        summarise(campaign, "acc")


def metric_values(fct):
    return {**{metric.key: 1.0 for metric in METRICS.report}, "fct_mean_ns_all": fct}


def verdict(base, other):
    rows = {
        name: {seed: metric_values(value) for seed, value in enumerate(values)}
        for name, values in (("secn1", base), ("secn2", other))
    }
    found = next(item for item in compare_arms(rows, ()) if item.metric == "fct_mean_ns_all")
    return found.real, found.verdict


def test_verdicts_in_words():
    base = [1000.0, 1010.0, 990.0, 1005.0, 995.0]
    lower = [880.0, 885.0, 875.0, 882.0, 870.0]
    assert verdict(base, lower) == (True, "12% lower [12, 13]")
    noisy = [1100.0, 900.0, 1050.0, 960.0, 1000.0]
    assert verdict(base, noisy) == (False, "no difference shown")
    assert verdict(base, base) == (False, "identical in every pair")
    assert verdict(base[:1], base[:1]) == (False, "identical in every pair")
    assert verdict(base[:1], lower[:1]) == (False, "not tested: one pair only")


def test_many_comparisons_ask_for_more_than_one_lucky_p_value():
    """p = 0.02 alone would be significant; as one of nine comparisons it is not."""
    base = [1000.0, 1010.0, 990.0, 1005.0, 995.0]
    other = [value + shift for value, shift in zip(base, (30, 5, 22, 34, 12), strict=True)]
    real, words = verdict(base, other)
    assert not real
    assert words == "no difference shown (Holm)"


def test_timelines_show_the_busiest_queue_with_its_thresholds(summary):
    (queue, *_) = busiest_queues(shown_repeat(summary.conditions[0]), 1_000)
    assert queue.kind == "towards a host"
    assert queue.repeat == 1
    assert [line.arm for line in queue.timelines] == ["secn1", "secn2"]
    assert [int(line.kmin_bytes[0]) for line in queue.timelines] == [5_000, 100_000]
    assert queue.timelines[0].t_ns.max() <= 3_000_000


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=500), st.integers(2, 100))
def test_downsampling_keeps_extremes_order_and_the_limit(values, points):
    t_ns, y = np.arange(len(values)), np.array(values)
    t, kept = downsample(t_ns, y, points)
    assert len(t) <= max(points, 2)
    assert kept.max() == y.max()
    assert kept.min() == y.min()
    assert np.all(np.diff(t) > 0)
    np.testing.assert_array_equal(y[t], kept)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_234_567, "ns", "1.23ms"),
        (999_999, "ns", "1000us"),
        (12_345, "bytes", "12.3KB"),
        (0, "bytes", "0B"),
        (0.0042, "share", "0.42%"),
        (0.5, "share", "50.0%"),
        (3.14159, "ratio", "3.14"),
        (123.4, "ratio", "123"),
        (1234, "count", "1,234"),
        (math.nan, "ns", "–"),
    ],
)
def test_quantities_have_three_digits_and_a_unit(value, unit, text):
    assert quantity(value, unit) == text


def test_differences_have_signs_and_percentages_do_not():
    assert change(12_000, "ns") == "+12us"
    assert change(-12_000, "ns") == "-12us"
    assert percent_change(-0.123) == "12%"
    assert percent_change(0.0123) == "1.2%"


def test_of_many_tuners_the_extremes_are_named():
    values = {"a": 3.0, "b": 1.0, "c": 2.0, "d": 4.0}
    assert extremes(values, "ratio") == "1.00 with b to 4.00 with d"
    assert extremes({"a": math.nan}, "ratio") == "nothing measured"
