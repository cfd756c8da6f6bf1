"""Which trials deliver too little of what is offered to them, from tables made by hand."""

import dataclasses

import numpy as np
import pytest

from orchestration.analysis.load import FlowEnds
from orchestration.analysis.overload import check_overload
from orchestration.core.records import DONE, LONG_LIVED, Samples, Schedule
from orchestration.core.roce import RoceSpec
from orchestration.core.topology import Device, LinkSpec, Testbed
from orchestration.core.trial import FabricSpec, HostSpec, TrialSpec, TunerSpec
from traffic.patterns.concurrent import ConcurrentSpec

MS, GBPS = 10**6, 10**9
HOSTS = 10
# Every ms, eight flows of 1 MB to one host: 64 Gbit/s to a link of 10.
SIZE, FAN_IN, PERIODS = 10**6, 8, 10


def star():
    ends = [Device(f"h{i}", "host", 0) for i in range(HOSTS)]
    links = [LinkSpec(host.name, "s", 10 * GBPS, 1000) for host in ends]
    every = [*ends, Device("s", "switch", 1)]
    return Testbed.build("star", every, links, mtu_bytes=1500, buffer_bytes=10**6)


TESTBED = star()
TRIAL = TrialSpec(
    campaign="c",
    testbed="t",
    backend="emulated",
    tuner=TunerSpec("secn1"),
    traffic=(ConcurrentSpec(FAN_IN, 0, 0, "h9"),),
    seed=1,
    repeat=1,
    duration_ns=PERIODS * MS,
    drain_ns=200 * MS,
    host=HostSpec("dcqcn", roce=RoceSpec()),
    fabric=FabricSpec("closloop"),
)


def found(share, *, size=SIZE, start_ns=None, dst=9, trial=TRIAL, lasting=()):
    """Return the findings if each flow delivered `share` of its size by the window's end."""
    start = np.repeat(np.arange(PERIODS) * MS, FAN_IN) if start_ns is None else start_ns
    count = len(start)
    sizes = np.full(count, size)
    schedule = Schedule(
        start, np.arange(count) % FAN_IN, np.full(count, dst), sizes, np.zeros(count, int), ("c",)
    )
    got = (np.broadcast_to(share, count) * sizes).astype(int)
    end_ns = np.where(got < sizes, trial.duration_ns + 50 * MS, start + MS)
    status = np.full(count, DONE)
    status[list(lasting)] = LONG_LIVED
    acked = Samples(np.array([trial.duration_ns]), {"acked_bytes": got[None, :]})
    ends = FlowEnds(end_ns, status, np.zeros(count, int), acked)
    ports = Samples.of("queue", np.zeros(0, int), targets=len(TESTBED.queues))
    reasons = check_overload(trial, TESTBED, schedule, ends, ports)
    return None if reasons is None else list(reasons)


def test_a_backlog_that_grows_is_reported_with_its_figures_and_the_remedy():
    (reason,) = found(0.1)
    assert (reason.code, reason.severity) == ("overload", "warning")
    assert reason.text == (
        "of the payload that was offered in the measured 10ms (64.0% of the hosts' line rate), 10% "
        "was delivered in that time (6.4%): the backlog grew by 7.2MB each ms to 72MB, in 80 "
        "flows. Links that are never idle would deliver 15%: the flows are too large for so short "
        "a time. Lengthen warm_up and duration, or judge by the load that was delivered"
    )


def test_where_links_could_carry_it_the_load_is_to_be_lowered():
    dst = np.arange(FAN_IN * PERIODS) % FAN_IN + 1  # each to a link of its own
    (reason,) = found(0.5, dst=dst)
    assert reason.text.endswith("flows. Lower the load, or judge by the load that was delivered")


@pytest.mark.parametrize("share", [0.8, 0.9, 1.0])
def test_flows_in_flight_are_no_overload(share):
    assert found(share) == []


def test_flows_that_come_at_the_very_end_are_no_overload():
    start = np.sort(np.r_[np.arange(60) * MS // 10, np.full(20, 9.5 * MS).astype(int)])
    late = np.where(start >= 9 * MS, 0.05, 1.0)
    assert found(late, start_ns=start) == []
    (reason,) = found(np.where(start >= 5 * MS, 0.05, 1.0), start_ns=start)
    assert reason.code == "overload"


def test_what_is_not_offered_throughout_or_not_known_is_not_judged():
    burst = np.zeros(80, int)
    assert found(0.1, start_ns=burst) is None
    assert found(0.1, lasting=range(80)) is None
    # the flows that end are judged beside ones that last
    (reason,) = found(0.1, lasting=range(8, 16))
    assert reason.code == "overload"
    # what began before the warm-up's end is not offered in the measured time
    warmed = dataclasses.replace(TRIAL, warm_up_ns=5 * MS)
    assert found(0.1, start_ns=np.full(80, 2 * MS), trial=warmed) is None
