"""Which flows that last starve, from tables made by hand."""

import dataclasses

import numpy as np
import pytest

from orchestration.analysis.load import FlowEnds
from orchestration.analysis.starvation import check_starvation, measure_shares
from orchestration.core.records import DONE, LONG_LIVED, Samples, Schedule
from orchestration.core.roce import RoceSpec
from orchestration.core.topology import Device, LinkSpec, Testbed, TrafficClass
from orchestration.core.trial import FabricSpec, FaultSpec, HostSpec, TrialSpec, TunerSpec
from traffic.patterns.concurrent import ConcurrentSpec

MS = 10**6
GBPS = 10**9
FLOWS = 8
# What 10 Gbit/s carry of RoCE's payload in 10 ms: 1024 of 1024 + 58 + 24 bytes.
PORT_BYTES = 12_500_000 * 1024 / 1106
FAIR = PORT_BYTES / FLOWS


def star(hosts=FLOWS + 2, classes=()):
    ends = [Device(f"h{i}", "host", 0) for i in range(hosts)]
    links = [LinkSpec(host.name, "s", 10 * GBPS, 1000) for host in ends]
    every = [*ends, Device("s", "switch", 1)]
    return Testbed.build("star", every, links, mtu_bytes=1500, buffer_bytes=10**6, classes=classes)


def leaf_spine():
    """Two leaves with 8 hosts each, joined by two spines with links as fast as a host's."""
    ends = [Device(f"h{i}", "host", 0) for i in range(16)]
    switches = [
        Device(name, "switch", tier) for name, tier in zip("abxy", (1, 1, 2, 2), strict=True)
    ]
    links = [LinkSpec(f"h{i}", "ab"[i // 8], 10 * GBPS, 1000) for i in range(16)]
    links += [LinkSpec(leaf, spine, 10 * GBPS, 1000) for leaf in "ab" for spine in "xy"]
    return Testbed.build("clos", [*ends, *switches], links, mtu_bytes=1500, buffer_bytes=10**6)


def trial_of(roce=None, **more):
    return TrialSpec(
        campaign="c",
        testbed="t",
        backend="emulated",
        tuner=TunerSpec("secn1"),
        traffic=(ConcurrentSpec(FLOWS, 0, 0, "h9"),),
        seed=1,
        repeat=1,
        duration_ns=10 * MS,
        drain_ns=0,
        sample_period_ns=MS,
        host=HostSpec("dcqcn", roce=roce or RoceSpec()),
        fabric=FabricSpec("closloop"),
        **more,
    )


def case_of(got, *, resent=1, dst=9, start_ns=0, more=()):
    """Flows that last, from h0, h1, ... to one host, with what each got; and finite ones."""
    lasting, count = len(got), len(got) + len(more)
    size = np.array([10**8] * lasting + list(more))
    start = np.array([start_ns] * lasting + [0] * len(more))
    schedule = Schedule(
        start, np.arange(count), np.full(count, dst), size, np.zeros(count, int), ("c",)
    )
    status = np.array([LONG_LIVED] * lasting + [DONE] * len(more))
    acked = Samples(np.array([10 * MS]), {"acked_bytes": np.array([[*got, *more]])})
    ends = FlowEnds(np.where(status == DONE, 9 * MS, -1), status, np.full(count, resent), acked)
    return schedule, ends


def found(testbed, trial, schedule, ends):
    reasons = check_starvation(trial, testbed, schedule, ends, no_ports(testbed))
    return None if reasons is None else list(reasons)


def no_ports(testbed):
    return Samples.of("queue", np.zeros(0, int), targets=len(testbed.queues))


def evenly(part, count=FLOWS):
    return [int(part * FAIR)] * count


def test_flows_below_a_tenth_of_their_share_make_a_trial_invalid():
    schedule, ends = case_of([*evenly(1.0, 5), *evenly(0.11, 1), *evenly(0.09, 1), 1024])
    (reason,) = found(star(), trial_of(), schedule, ends)
    assert (reason.code, reason.severity) == ("flows-starved", "invalid")
    assert reason.text.startswith(
        "2 of 8 flows that last as long as the trial received less than 10% of their fair share at "
        "s:eth9, the port to h9: in 10ms the minimum is 1.02KB, the mean "
    )
    assert "a fair share at least 1.45MB (Jain's index 0.6" in reason.text
    assert "roce.timeout (16ms)" in reason.text
    # where that is a result, it is told and counts
    allowed = trial_of(allow_starvation=True)
    assert TrialSpec.from_json(allowed.to_json()) == allowed != trial_of()
    assert "allow_starvation" not in trial_of().to_json()
    (reason,) = found(star(), allowed, schedule, ends)
    assert (reason.code, reason.severity) == ("flows-starved", "warning")


@pytest.mark.parametrize("part", [0.11, 0.5, 1.0])
def test_flows_above_a_tenth_do_not_starve(part):
    assert found(star(), trial_of(), *case_of(evenly(part))) == []


def test_all_can_starve_together():
    (reason,) = found(star(), trial_of(), *case_of(evenly(0.01)))
    assert reason.text.startswith("8 of 8 flows")
    (nothing,) = found(star(), trial_of(), *case_of([0] * FLOWS))
    assert "Jain's index none: all got 0" in nothing.text


def test_a_control_that_is_slow_by_itself_starves_nobody():
    assert found(star(), trial_of(), *case_of(evenly(0.05), resent=0)) == []
    # but others took what these did not get
    (reason,) = found(star(), trial_of(), *case_of([*evenly(1.0, 4), *evenly(0.05, 4)], resent=0))
    assert reason.text.startswith("4 of 8 flows")


def test_hosts_are_counted_and_the_worst_is_named():
    schedule, ends = case_of([*evenly(0.01, 8)])
    split = dataclasses.replace(schedule, dst=np.array([9] * 5 + [8] * 3))
    (reason,) = found(star(), trial_of(), split, ends)
    assert reason.text.startswith("5 of 5 flows")
    assert "the port to h9" in reason.text
    assert "so did flows to 1 more host" in reason.text


def test_a_flow_is_judged_once_it_had_time_and_room():
    late = case_of(evenly(0.0), start_ns=10 * MS - 300_000)  # 70 round trips before the end
    assert found(star(), trial_of(), *late) is None
    few = case_of([0] * 8, more=())
    narrow = trial_of(RoceSpec(dcqcn=(("rpg_max_rate", 80),)))  # 97 packets in 10 ms
    assert found(star(), narrow, *few) is None


@pytest.mark.parametrize(
    "roce",
    [
        RoceSpec(dcqcn=(("rpg_max_rate", 100),)),
        RoceSpec(control="fixed", values=(("rate", 100),)),
    ],
)
def test_nobody_starves_by_a_bound_of_its_own(roce):
    testbed, case = star(), case_of([100_000] * 8)
    assert len(found(testbed, trial_of(), *case)) == 1
    fair = measure_shares(trial_of(roce), testbed, *case, no_ports(testbed)).fair
    assert (fair < FAIR).all()
    assert found(testbed, trial_of(roce), *case) == []


def test_a_window_bounds_what_a_flow_could_have():
    """1 KiB in flight on a path of 4 us and more is less than a fifth of 10 Gbit/s."""
    alone = case_of([int(0.05 * PORT_BYTES)])
    assert len(found(star(), trial_of(), *alone)) == 1
    assert found(star(), trial_of(RoceSpec(window_bytes=1024)), *alone) == []


def test_what_waits_in_a_long_queue_is_not_withheld():
    case, testbed = case_of(evenly(0.05)), star()
    for held, judged in ((1_000_000, True), (1_300_000, False)):  # 0.8 and 1.04 of 10 ms
        ports = Samples.of(
            "queue", np.array([MS]), np.full((1, len(testbed.queues)), held), targets=10
        )
        assert (check_starvation(trial_of(), testbed, *case, ports) is not None) is judged


def test_finite_flows_and_other_classes_come_off_first():
    # a finite flow takes 80 % of the port to h9
    crowded = case_of(evenly(0.03), more=[int(0.8 * PORT_BYTES)])
    assert found(star(), trial_of(), *crowded) == []
    assert len(found(star(), trial_of(), *case_of(evenly(0.03)))) == 1
    weighted = star(classes=[TrafficClass("rdma", 10), TrafficClass("tcp", 90)])
    assert found(weighted, trial_of(), *case_of(evenly(0.05))) == []


def test_a_shared_uplink_is_no_starvation_whatever_hash_chose():
    """Eight flows to eight hosts of the other leaf may all be on one uplink: an eighth each."""
    schedule, ends = case_of([int(FAIR * 0.5)] * 8)
    across = dataclasses.replace(schedule, dst=np.arange(8) + 8)
    testbed = leaf_spine()
    assert found(testbed, trial_of(), across, ends) == []
    shares = measure_shares(trial_of(), testbed, across, ends, no_ports(testbed))
    assert shares.fair == pytest.approx([FAIR] * 8, rel=1e-6)
    local = dataclasses.replace(schedule, dst=np.roll(np.arange(8), 1))
    shares = measure_shares(trial_of(), testbed, local, ends, no_ports(testbed))
    assert shares.fair == pytest.approx([PORT_BYTES] * 8, rel=1e-6)
    assert len(found(testbed, trial_of(), local, ends)) == 1


def test_it_is_not_checked_where_it_cannot_be():
    schedule, ends = case_of(evenly(0.01))
    fails = trial_of(faults=(FaultSpec(1 * MS, 2 * MS, 100_000, ("h1-s",)),))
    assert found(star(), fails, schedule, ends) is None
    assert found(star(), trial_of(), schedule, dataclasses.replace(ends, acked=None)) is None
    done = dataclasses.replace(ends, status=np.full(8, DONE), end_ns=np.full(8, 5 * MS))
    assert found(star(), trial_of(), schedule, done) is None
