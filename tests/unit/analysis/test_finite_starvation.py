"""Which flows that end starve beside others, from tables made by hand."""

import dataclasses

import numpy as np
import pytest

from orchestration.analysis.finite_starvation import check_finite_starvation
from orchestration.analysis.load import FlowEnds
from orchestration.core.records import DONE, LONG_LIVED, Samples, Schedule
from orchestration.core.topology import Device, LinkSpec, Testbed
from orchestration.core.trial import FaultSpec, HostSpec, TrialSpec, TunerSpec
from traffic.patterns.concurrent import ConcurrentSpec

MS, GBPS, MB = 10**6, 10**9, 10**6


def leaf_spine(spines="xy", rate_bps=10 * GBPS):
    """Two leaves with eight hosts each, joined by spines."""
    ends = [Device(f"h{i}", "host", 0) for i in range(16)]
    switches = [Device(leaf, "switch", 1) for leaf in "ab"]
    switches += [Device(spine, "switch", 2) for spine in spines]
    links = [LinkSpec(f"h{i}", "ab"[i // 8], 10 * GBPS, 1000) for i in range(16)]
    links += [LinkSpec(leaf, spine, rate_bps, 1000) for leaf in "ab" for spine in spines]
    return Testbed.build("clos", [*ends, *switches], links, mtu_bytes=1500, buffer_bytes=10**6)


TRIAL = TrialSpec(
    campaign="c",
    testbed="t",
    backend="emulated",
    tuner=TunerSpec("secn1"),
    traffic=(ConcurrentSpec(8, 0, 0, "h9"),),
    seed=1,
    repeat=1,
    duration_ns=100 * MS,
    drain_ns=0,
    host=HostSpec("cubic"),
)


def found(flows, *, testbed=None, trial=TRIAL, resent=1, lasting=0):
    """Return what is found of flows, each a tuple (src, dst, start ms, end ms, MB)."""
    testbed = testbed or leaf_spine()
    src, dst, start, end, size = np.array(flows, dtype=float).T
    count = len(flows)
    schedule = Schedule(
        (start * MS).astype(int),
        src.astype(int),
        dst.astype(int),
        (size * MB).astype(int),
        np.zeros(count, int),
        ("c",),
    )
    status = np.where(np.arange(count) < lasting, LONG_LIVED, DONE)
    ends = FlowEnds((end * MS).astype(int), status, np.full(count, resent))
    ports = Samples.of("queue", np.zeros(0, int), targets=len(testbed.queues))
    reasons = check_finite_starvation(trial, testbed, schedule, ends, ports)
    return None if reasons is None else list(reasons)


# Two flows to one host for 50 ms: each has a share of about 30 MB.
FAST, SLOW = (0, 1, 0, 50, 30), (2, 1, 0, 50, 1)


def test_a_flow_with_less_than_a_tenth_of_its_share_is_reported():
    (reason,) = found([FAST, SLOW])
    assert (reason.code, reason.severity) == ("finite-flows-starved", "warning")
    assert reason.text.startswith(
        "1 of 2 flows that ended and are long enough to judge received less than 10% of their fair "
        "share meanwhile: flow 1, 1MB from h2 to h1, took 50ms, in which a fair share is 29."
    )


@pytest.mark.parametrize(
    ("flows", "more"),
    [
        ([FAST, (2, 1, 0, 50, 4)], {}),  # 13 % of its share
        ([SLOW], {}),  # it had no competitors
        ([FAST, SLOW, *[(3, 4, 0, 50, 30), (5, 6, 0, 50, 30)] * 10], {}),  # one of many
        ([(0, 1, 0, 50, 1), SLOW], {"resent": 0}),  # all are slow, and lost nothing
        ([*[(i, 1, 0, 50, 5) for i in range(2, 14)], SLOW], {}),  # the shares are small
    ],
)
def test_what_does_not_starve(flows, more):
    assert found(flows, **more) == []


def test_only_the_time_in_which_others_compete_divides_the_port():
    # twelve others, but for the first 5 of 50 ms only
    brief = [(i, 1, 0, 5, 0.4) for i in range(3, 15)]
    (reason,) = found([FAST, SLOW, *brief])
    assert "took 50ms, in which a fair share is 26.86MB" in reason.text


def test_flows_that_may_share_a_link_between_switches_divide_it():
    narrow = leaf_spine("x", GBPS)
    across = [(i, 8 + i, 0, 100, 2.5) for i in range(4)]
    assert found([*across, (4, 12, 0, 100, 0.3)], testbed=narrow) == []
    (reason,) = found([*across, (4, 12, 0, 100, 0.16)], testbed=narrow)
    assert "flow 4, 160KB from h4 to h12, took 100ms, in which a fair share is 2.3" in reason.text
    # links of ten times the rate leave it ten times as much
    (reason,) = found([*across, (4, 12, 0, 100, 0.16)])
    assert "a fair share is 23.5" in reason.text


def test_a_lasting_flow_competes_and_is_judged_elsewhere():
    lasting = (0, 1, 0, -1, 1000)
    (reason,) = found([lasting, SLOW], lasting=1)
    assert reason.text.startswith("1 of 1 flows")


def test_what_is_too_short_or_has_faults_is_not_judged():
    assert found([FAST, (2, 1, 0, 50, 0.01)]) == []  # ten packets: a single loss decides
    assert found([(0, 1, 0, 0.1, 0.2), (2, 1, 0, 0.1, 0.2)]) is None  # as long as few round trips
    broken = dataclasses.replace(TRIAL, faults=(FaultSpec(0, None, 0, share=0.1),))
    assert found([FAST, SLOW], trial=broken) is None
