"""Tuners of ECN thresholds where no flow answers marks: refused, in plans, found in trials."""

import dataclasses

import numpy as np
import pytest

from orchestration.analysis.counters import UNANSWERED, why_identical
from orchestration.analysis.stamp import stamp
from orchestration.backends.common.linux import host_sysctls
from orchestration.campaign.expand import load_campaign
from orchestration.campaign.unresponsive import unresponsive_conditions
from orchestration.core.capabilities import capabilities
from orchestration.core.congestion import mark_answer, roce_controls
from orchestration.core.errors import InputError
from orchestration.core.knobs import ECN
from orchestration.core.records import MISSING, ChangeRecords, Samples
from orchestration.core.trial import HostSpec
from orchestration.run.checked import checked
from orchestration.training.request import Episodes, TrainRequest

CAMPAIGN = """\
campaign: marks
testbed: graphcc
backend: emulated
host: {congestion_control: dctcp}
tuners: [secn1, secn2, amt]
traffic: [{kind: incast, fan_in: 8, size: 64KB, period: 1ms}]
repeats: 1
duration: 3ms
"""


def campaign(path, **fields):
    lines = {line.partition(":")[0]: line for line in CAMPAIGN.splitlines() if line[0].isalpha()}
    text = CAMPAIGN
    for name, value in fields.items():
        line = f"{name}: {value}"
        text = text.replace(lines[name], line) if name in lines else f"{text}{line}\n"
    file = path / "marks.yml"
    file.write_text(text)
    return load_campaign(file)


def under(control):
    return f"{{congestion_control: {control}}}"


def refused(path, **fields):
    with pytest.raises(InputError) as caught:
        checked(campaign(path, **fields))
    (problem,) = caught.value.problems
    return problem


def sentences_of(path, **fields):
    """Return what the plan of a campaign says, which fits."""
    return checked(campaign(path, **fields)).unresponsive_conditions.sentences


def test_every_congestion_control_says_how_it_answers_marks():
    answered = ("dcqcn", "program")
    assert tuple(one for one in roce_controls() if mark_answer(one) == "always") == answered
    for control in set(roce_controls()) - set(answered):
        assert not any(mode.may_answer_marks(control) for mode in capabilities("emulated").modes)
        assert all(mode.may_answer_marks(control) for mode in capabilities("hardware").modes)


def test_emulated_hosts_ask_for_ecn_only_where_there_is_no_dctcp():
    for control in ("cubic", "reno", "bbr"):
        assert "net/ipv4/tcp_ecn" not in host_sysctls(HostSpec(control))
    assert host_sysctls(HostSpec("reno"), ["dctcp"])["net/ipv4/tcp_ecn"] == "1"


@pytest.mark.parametrize("backend", ["emulated", "simulated"])
@pytest.mark.parametrize(
    ("control", "instead"),
    [
        ("cubic", "dctcp"),
        ("reno", "dctcp"),
        ("timely", "dcqcn"),
        ("swift", "dcqcn"),
        ("hpcc", "dcqcn"),
        ("rlcc", "dcqcn"),
        ("fixed", "dcqcn"),
    ],
)
def test_tuners_of_thresholds_that_no_flow_answers_are_refused(tmp_path, backend, control, instead):
    problem = refused(tmp_path, host=under(control), backend=backend)
    assert problem.where == f"{tmp_path / 'marks.yml'}:5"
    assert problem.what == (
        "tuners amt, secn1 and secn2 set ECN thresholds only, and no flow responds to CE packets: "
        f"all are under {control}"
    )
    assert f"`congestion_control: {instead}`" in problem.remedy


def test_bbr_and_linux_fabrics_are_refused_too(tmp_path):
    assert "all are under bbr" in refused(tmp_path, host=under("bbr")).what
    assert "all are under cubic" in refused(tmp_path, host=under("cubic"), fabric="linux").what


def test_the_first_item_that_is_refused_is_named_by_its_line(tmp_path):
    tuners = "\n  - {name: static, label: b, kmin_bytes: 5KB, kmax_bytes: 9KB}\n  - secn1"
    assert refused(tmp_path, host=under("cubic"), tuners=tuners).where.endswith("marks.yml:6")


def test_levels_of_a_factor_that_are_thresholds_are_one_experiment_too(tmp_path):
    problem = refused(
        tmp_path,
        host=under("cubic"),
        tuners="[{name: static, kmin_bytes: $k, kmax_bytes: 200KB}]",
        factors="{k: [5KB, 50KB]}",
    )
    assert problem.what.startswith("tuners static (k 50KB) and static (k 5KB) set")


CLASSES = """\
kind: single-switch
name: two
mtu: 1500B
buffer: 1MB
hosts: 9
host_link: {rate: 25Gbps, delay: 1us}
classes:
  - {name: rdma, weight: 70, congestion_control: dctcp}
  - {name: tcp, weight: 30, congestion_control: cubic}
"""


def pattern(more):
    return f"{{kind: incast, fan_in: 8, size: 64KB, period: 1ms, {more}}}"


@pytest.mark.parametrize(
    ("patterns", "under"),
    [
        ([pattern("class: tcp")], "cubic"),
        ([pattern("class: tcp"), pattern("congestion_control: bbr")], "cubic and bbr"),
        ([pattern("class: tcp"), pattern("class: rdma")], ""),
    ],
)
def test_flows_are_under_the_controls_of_their_patterns_and_classes(tmp_path, patterns, under):
    (tmp_path / "two.yml").write_text(CLASSES)
    fields = {"testbed": "./two.yml", "host": "{}", "traffic": f"[{', '.join(patterns)}]"}
    if not under:
        assert sentences_of(tmp_path, **fields) == []
    else:
        assert refused(tmp_path, **fields).what.endswith(f"all are under {under}")


def test_a_control_that_answers_marks_in_some_conditions_is_enough_to_run(tmp_path):
    sentences = sentences_of(
        tmp_path, host="{congestion_control: $cc}", factors="{cc: [dctcp, cubic]}"
    )
    (sentence,) = sentences
    assert "no flow responds to CE packets under cubic" in sentence
    assert sentence.endswith("so tuners amt, secn1 and secn2 are the same experiment there")


def test_one_static_setting_compares_nothing_and_an_adaptive_one_is_told_of(tmp_path):
    assert sentences_of(tmp_path, host=under("swift"), tuners="[secn1]") == []
    (sentence,) = sentences_of(tmp_path, host=under("swift"), tuners="[amt]")
    assert sentence == (
        "all trials: no flow responds to CE packets under swift, "
        "so what tuner amt sets has no effect"
    )


def test_one_tuner_under_several_controls_is_no_comparison_of_thresholds(tmp_path):
    controls = "{cc: [swift, timely]}"
    assert sentences_of(tmp_path, host=under("$cc"), factors=controls, tuners="[secn1]") == []
    # with two, each condition has the same experiment twice
    with pytest.raises(InputError, match="all are under swift"):
        checked(campaign(tmp_path, host=under("$cc"), factors=controls, tuners="[secn1, secn2]"))


def test_arms_that_differ_in_more_than_thresholds_are_no_comparison_of_them(tmp_path):
    """Whatever the labels of trials say: only those that agree in all else are one experiment."""
    made = campaign(tmp_path, host=under("cubic"), tuners="[secn1, secn2]")
    trials = [
        dataclasses.replace(trial, sample_period_ns=period, cell={"arm": f"{period}"})
        for trial, period in zip(made.trials, (100_000, 200_000), strict=True)
    ]
    found = unresponsive_conditions(trials, made.testbeds)
    assert [len(item.arms) for item in found.conditions] == [1, 1]
    assert found.refused == []
    # and the same tuner twice is one arm
    twice = [
        dataclasses.replace(made.trials[0], cell={"arm": name}, repeat=number)
        for number, name in enumerate("ab", 1)
    ]
    assert unresponsive_conditions(twice, made.testbeds).refused == []


def test_what_may_answer_marks_is_not_refused(tmp_path):
    assert sentences_of(tmp_path) == []
    assert sentences_of(tmp_path, host=under("dcqcn")) == []
    assert sentences_of(tmp_path, host=under("cubic"), backend="hardware") == []
    assert sentences_of(tmp_path, host=under("reno"), clock="real", fabric="linux") == []


def test_a_replay_of_recorded_trials_is_not_refused(tmp_path):
    made = campaign(tmp_path, host=under("cubic"))
    trials = [dataclasses.replace(trial, parent="runs/x sha256:0") for trial in made.trials]
    found = unresponsive_conditions(trials, made.testbeds)
    assert (len(found.refused), len(found.sentences)) == (0, 1)


def test_other_knobs_are_not_of_marks(tmp_path):
    sentences = sentences_of(
        tmp_path, host=under("cubic"), tuners="[secn1, letflow]", load_balancing="flowlets"
    )
    assert sentences == []


def test_a_tuner_is_not_trained_where_it_would_learn_nothing(tmp_path):
    campaign(tmp_path, host=under("cubic"), tuners="[acc]")
    with pytest.raises(InputError, match="it would learn nothing"):
        Episodes(TrainRequest("acc", str(tmp_path / "marks.yml")))
    campaign(tmp_path, tuners="[acc]")
    Episodes(TrainRequest("acc", str(tmp_path / "marks.yml")))


def trial_under(case, control, **changes):
    host = HostSpec(control)
    trial = dataclasses.replace(case.trial, **{"backend": "emulated", "host": host, **changes})
    return dataclasses.replace(case, trial=trial)


def found_in(case):
    verdict = stamp(case.trial, case.testbed, case.schedule, case.record)
    assert verdict.valid
    # the flows of the case are too large for its 3 ms
    return {r.code: r.text for r in verdict.reasons if r.code != "overload"}, verdict


def test_a_trial_whose_thresholds_reach_nothing_says_so(case):
    assert found_in(trial_under(case, "dctcp"))[0] == {}
    found, verdict = found_in(trial_under(case, "cubic"))
    assert found == {
        UNANSWERED: "no flow answers ECN marks under cubic: the thresholds that tuner 'secn1' set "
        "have no effect"
    }
    assert "marks" in verdict.checked
    assert why_identical([verdict, verdict]) == "no flow answers ECN marks under cubic"
    other = found_in(trial_under(case, "dctcp"))[1]
    assert why_identical([verdict, other]) == ""


def test_without_thresholds_or_packets_nothing_is_claimed(case):
    bare = trial_under(case, "cubic")
    record = dataclasses.replace(bare.record, changes={})
    bare = dataclasses.replace(bare, record=record)
    assert "marks" not in found_in(bare)[1].checked


def with_queues(case, held_bytes, marked=0, kmax=30_000, at_ns=0):
    """Return the case with one queue of these lengths, no marks but these, and one change."""
    ports = case.record.ports
    values = {name: column.copy() for name, column in ports.values.items()}
    values["qlen_bytes"][:] = 0
    values["qlen_bytes"][: len(held_bytes), 5] = held_bytes
    values["marked_packets"][:] = 0
    values["marked_packets"][-1, 5] = marked
    one = np.array([5])
    change = ChangeRecords(
        one * 0, one * 0, one * 0 + at_ns, one,
        {"kmin_bytes": one * 1_000, "kmax_bytes": one * 0 + kmax, "pmax": one * 0.1},
    )  # fmt: skip
    record = dataclasses.replace(
        case.record,
        samples={**case.record.samples, "queue": Samples(ports.t_ns, values)},
        changes={ECN.name: change},
    )
    return dataclasses.replace(case, record=record)


FRAME = 1_514


@pytest.mark.parametrize(
    ("held", "changes", "readings"),
    [
        ([0, 30_000 + FRAME, 0], {}, 1),
        ([0, 30_000 + FRAME - 1, 0], {}, 0),  # its last packet may have come below kmax
        ([0, 90_000, 90_000, 80_000, 85_000], {}, 2),  # a queue that does not grow proves nothing
        ([0, 90_000], {"marked": 1}, 0),
        ([0, 90_000], {"at_ns": 10**9}, 0),  # thresholds came later
        ([0, 90_000, 95_000], {"at_ns": 150_000}, 1),  # came in the first of the two intervals
        ([MISSING, 90_000], {}, 0),
    ],
)
def test_queues_that_grow_beyond_kmax_without_a_mark_are_told(case, held, changes, readings):
    found, _ = found_in(with_queues(trial_under(case, "dctcp"), held, **changes))
    if readings:
        assert f"although {readings} readings found a queue" in found["marks-missing"]
    else:
        assert "marks-missing" not in found


def test_of_a_rack_only_what_its_switches_have_counted_is_judged(case):
    rack = with_queues(trial_under(case, "cubic", backend="hardware"), [0, 90_000])
    assert "marks-missing" not in found_in(rack)[0]  # the last second and a half of it
    ports = rack.record.ports
    t_ns = ports.t_ns.copy()
    t_ns[-1] += 2 * 10**9
    samples = {**rack.record.samples, "queue": Samples(t_ns, ports.values)}
    later = dataclasses.replace(rack, record=dataclasses.replace(rack.record, samples=samples))
    verdict = stamp(later.trial, later.testbed, later.schedule, later.record)
    assert "marks-missing" in [reason.code for reason in verdict.reasons]
