"""Settings that change nothing: reported by plans and stamps with the reason, and as identical."""

import dataclasses

import pytest

from orchestration.analysis.counters import UNUSED, why_identical
from orchestration.analysis.stamp import stamp
from orchestration.campaign.expand import load_campaign
from orchestration.campaign.unused import unused_in_campaign
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.core.trial import FaultSpec
from traffic.schedule import make_schedule

CAMPAIGN = """\
campaign: unused
testbed: {testbed}
host: {host}
tuners: [secn1]
traffic: [{traffic}]
repeats: 2
duration: 3ms
"""
INCAST = "{kind: incast, fan_in: 3, size: 64KB, period: 1ms%s}"
SWITCH = """\
kind: single-switch
name: one
mtu: 1500B
switch: {buffer: 2MB%s}
hosts: 5
host_link: {rate: 25Gbps, delay: 1us}
"""


def unused(path, more="", testbed="graphcc", host="{congestion_control: dcqcn}", traffic=""):
    """Return what the plan of a campaign says is unused."""
    traffic = traffic or INCAST % ""
    text = CAMPAIGN.format(testbed=testbed, host=host, traffic=traffic)
    (path / "unused.yml").write_text(f"{text}{more}\n")
    made = load_campaign(path / "unused.yml")
    return [one.sentence for one in unused_in_campaign(made.trials, made.testbeds, make_schedule)]


def on_switch(path, settings):
    (path / "one.yml").write_text(SWITCH % settings)
    return unused(path, testbed="./one.yml")


def test_parameters_of_dcqcn_are_used_under_dcqcn_only(tmp_path):
    roce = "roce: {dcqcn: {rpg_ai_rate: 40}}"
    (sentence,) = unused(tmp_path, host=f"{{congestion_control: swift, {roce}}}")
    assert sentence == (
        "all trials: RoCE flows are under swift: roce.dcqcn (rpg_ai_rate) changes nothing; remove "
        "it, or use `congestion_control: dcqcn`"
    )
    assert unused(tmp_path, host=f"{{congestion_control: dcqcn, {roce}}}") == []
    # a comparison of controls gives all of them the parameters of each
    both = "factors: {cc: [dcqcn, swift]}"
    assert unused(tmp_path, both, host=f"{{congestion_control: $cc, {roce}}}") == []


def test_a_timeout_of_tcp_is_used_by_tcp_only(tmp_path):
    (sentence,) = unused(tmp_path, host="{congestion_control: swift, min_rto: 5ms}")
    assert "no flow is TCP, all are under swift: min_rto changes nothing" in sentence
    assert unused(tmp_path, host="{congestion_control: cubic, min_rto: 5ms}") == []


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (", quanta: 100, xoff: 30KB", "switch.xoff and switch.quanta"),
        (", headroom: 10KB, watchdog: {detect: 5ms}", "switch.headroom and switch.watchdog"),
        (", quanta: 100, xoff: 30KB, pfc: [3]", ""),
        (", alpha: 1/8", ""),
    ],
)
def test_settings_of_pauses_are_used_by_lossless_classes_only(tmp_path, settings, names):
    found = on_switch(tmp_path, settings)
    assert len(found) == bool(names)
    if names:
        expected = f"0 lossless classes, and only these send pauses: {names} changes nothing"
        assert expected in found[0]


@pytest.fixture
def flowlets(case):
    balancing = LoadBalancingSpec("flowlets")
    trial = dataclasses.replace(case.trial, backend="emulated", load_balancing=balancing)
    return dataclasses.replace(case, trial=trial)


def between(case, pairs):
    """Return the case with its flows between these hosts, in turn."""
    count = len(case.schedule)
    src, dst = ([pairs[i % len(pairs)][side] for i in range(count)] for side in (0, 1))
    arrays = {"src": case.schedule.src * 0 + src, "dst": case.schedule.dst * 0 + dst}
    return dataclasses.replace(case, schedule=dataclasses.replace(case.schedule, **arrays))


def found_in(case):
    verdict = stamp(case.trial, case.testbed, case.schedule, case.record)
    return [reason for reason in verdict.reasons if reason.code == UNUSED], verdict


def same_leaf(testbed):
    """Return two hosts of one leaf, and a host of another."""
    leaf = {host: testbed.peer_device(testbed.ports_of[host][0]).name for host in testbed.hosts}
    first = testbed.hosts[0]
    near = next(h for h in testbed.hosts[1:] if leaf[h] == leaf[first])
    far = next(h for h in testbed.hosts if leaf[h] != leaf[first])
    return 0, testbed.hosts.index(near), testbed.hosts.index(far)


def test_load_balancing_has_nothing_to_choose_within_a_leaf(flowlets):
    first, near, far = same_leaf(flowlets.testbed)
    within = between(flowlets, [(first, near), (near, first)])
    (reason,), verdict = found_in(within)
    assert reason.severity == "warning"
    assert reason.text == (
        "there is 1 path between each of the 2 pairs of hosts that send: load_balancing: flowlets "
        "changes nothing; send between hosts of different leaves, or leave it out"
    )
    # one flow between leaves has a choice
    assert found_in(between(flowlets, [(first, near), (first, far)]))[0] == []
    # arms that differ in it are the same, although the arm with ECMP says nothing
    ecmp = dataclasses.replace(within.trial, load_balancing=LoadBalancingSpec())
    other = found_in(dataclasses.replace(within, trial=ecmp))[1]
    cause = "there is 1 path between each of the 2 pairs of hosts that send"
    assert why_identical([verdict, other]) == why_identical([verdict, verdict]) == cause
    assert why_identical([other, other]) == ""
    # where links fail, there may be more shortest paths than before
    faults = (FaultSpec(0, None, 0, share=0.1),)
    failing = dataclasses.replace(within.trial, faults=faults)
    assert found_in(dataclasses.replace(within, trial=failing))[0] == []
