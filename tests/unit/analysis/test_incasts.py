"""Incast completion times, by hand."""

import math

import numpy as np
import pytest

from orchestration.analysis.incasts import incasts, measure_incasts
from orchestration.analysis.trial_metrics import figures
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import FabricSpec, HostSpec
from tests.testbeds import star
from tests.trials import result_in_memory, trial_spec
from traffic.patterns.all_to_all import AllToAllSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import incast_of_flow, make_schedule

US, MS = 10**3, 10**6
STAR = star(10, 10, 10, 10)
BASE_NS = 4_000
INCAST = IncastSpec(2, 10_240, MS, 0, 2 * MS)
POISSON = PoissonSpec("WebSearch", 0.3, 0, 2 * MS)
ROCE = HostSpec("dcqcn", roce=RoceSpec())
# 10 packets of 1024 B with 58 B of headers and 24 B of framing take 8.848 us at 10 Gbit/s
PACKET_NS = (1024 + 58 + 24) * 8 / 10


def trial_of(*traffic, host=ROCE, **more):
    return trial_spec(
        testbed="star", traffic=traffic or (INCAST,), duration_ns=2 * MS, drain_ns=8 * MS,
        sample_period_ns=MS, host=host, fabric=FabricSpec("closloop"), **more,
    )  # fmt: skip


def flow(start_us, end_us, src="h0", dst="h2", size=10_240, klass="incast"):
    return start_us * US, end_us * US if end_us >= 0 else -1, src, dst, size, klass


def test_an_incast_takes_until_its_last_flow_ends():
    flows = [
        flow(0, 30),
        flow(0, 40, "h1"),
        flow(1000, 1020, "h1", "h3"),
        flow(1000, 1080, "h0", "h3"),
    ]
    found = incasts(result_in_memory(trial_of(), STAR, flows))
    assert found.start_ns.tolist() == [0, MS]
    assert found.receiver.tolist() == [2, 3]
    assert found.flows.tolist() == [2, 2]
    assert found.size_bytes.tolist() == [20_480] * 2
    assert found.completion_ns.tolist() == [40 * US, 80 * US]
    # 20 packets one behind the other, of which the first is part of the base RTT
    assert found.ideal_ns == pytest.approx([BASE_NS + 19 * PACKET_NS] * 2, abs=1)
    # throughputs are as 4 to 3, and as 4 to 1
    assert found.fairness == pytest.approx([49 / (2 * 25), 25 / (2 * 17)])
    metrics = measure_incasts(result_in_memory(trial_of(), STAR, flows))
    assert metrics["incast_completion_mean_ns"] == 60 * US
    assert metrics["incast_completion_p99_ns"] == pytest.approx(79.6 * US)
    assert metrics["incast_completion_ratio"] == pytest.approx(60 * US / found.ideal_ns[0])
    # 20,480 B in 40 us and in 80 us
    assert metrics["incast_goodput_bps"] == pytest.approx(3.072e9)
    assert metrics["incasts_unfinished"] == 0


def test_an_incast_with_an_unfinished_flow_is_only_counted():
    flows = [flow(0, 30), flow(0, -1, "h1"), flow(1000, 1050), flow(1000, 1020, "h1")]
    metrics = measure_incasts(result_in_memory(trial_of(), STAR, flows))
    assert metrics["incasts_unfinished"] == 1
    assert metrics["incast_completion_mean_ns"] == 50 * US
    none = measure_incasts(result_in_memory(trial_of(), STAR, flows[:2]))
    assert none["incasts_unfinished"] == 1
    assert math.isnan(none["incast_completion_ratio"])
    assert math.isnan(none["incast_fairness"])


def test_only_incasts_after_the_warm_up_count_and_no_other_pattern():
    flows = [flow(0, 30), flow(500, 900, klass="poisson:WebSearch"), flow(1000, 1050)]
    both = result_in_memory(trial_of(INCAST, POISSON, warm_up_ns=MS // 2), STAR, flows)
    assert incasts(both).start_ns.tolist() == [MS]
    assert measure_incasts(result_in_memory(trial_of(POISSON), STAR, flows[1:2])) == {}
    imported = result_in_memory(trial_of(INCAST), STAR, flows[:1])
    imported.table("schedule")["class"][:] = "flows"
    assert measure_incasts(imported) == {}


def test_a_slow_sender_bounds_the_ideal():
    fast = star(1, 10, 10, 10)
    found = incasts(result_in_memory(trial_of(), fast, [flow(0, 200), flow(0, 40, "h1")]))
    assert found.ideal_ns == pytest.approx([BASE_NS + 9 * 10 * PACKET_NS], abs=1)


def test_tcp_has_its_own_headers():
    flows = [flow(0, 30, size=14_480), flow(0, 40, "h1", size=14_480)]
    tcp = incasts(result_in_memory(trial_of(host=HostSpec()), STAR, flows))
    # 10 segments of 1448 B each, with 52 B of TCP/IP, 14 B of Ethernet and 24 B of framing
    assert tcp.ideal_ns == pytest.approx([BASE_NS + 19 * (1448 + 90) * 0.8], abs=2)


def test_flows_with_one_start_and_receiver_are_one_incast_of_their_pattern():
    """At random starts too, and although flows of several patterns are sorted by start."""
    traffic = (INCAST, POISSON, INCAST)
    klass, start = np.array([0, 0, 1, 2, 0, 0, 2]), np.array([5, 5, 5, 5, 5, 9, 9])
    dst = np.array([2, 2, 2, 2, 1, 2, 2])
    assert incast_of_flow(traffic, klass, start, dst).tolist() == [1, 1, -1, 2, 0, 3, 4]
    assert incast_of_flow((POISSON,), klass * 0, start, dst).tolist() == [-1] * 7
    empty = np.zeros(0, dtype=np.int64)
    assert incast_of_flow(traffic, empty, empty, empty).tolist() == []


def test_a_schedule_has_as_many_incasts_as_periods():
    schedule = make_schedule(trial_of(IncastSpec(3, 10_240, MS // 4, 0, 2 * MS), POISSON), STAR)
    traffic = (IncastSpec(3, 10_240, MS // 4, 0, 2 * MS), POISSON)
    number = incast_of_flow(traffic, schedule.klass, schedule.start_ns, schedule.dst)
    assert np.bincount(number[number >= 0]).tolist() == [3] * 8
    assert ((number < 0) == (schedule.klass == 1)).all()


def test_an_iteration_is_of_a_collective_and_not_of_other_patterns():
    collective = AllToAllSpec(10_240, MS, 0, 2 * MS)
    flows = [
        *(flow(0, end, src, dst, klass="all-to-all") for end, src, dst in
          ((30, "h0", "h1"), (40, "h1", "h0"), (35, "h2", "h0"))),
        flow(1000, 1060, klass="all-to-all"), flow(1000, 1900), flow(1, 900),
    ]  # fmt: skip
    result = result_in_memory(trial_of(collective, INCAST), STAR, flows)
    assert figures(result, ["iteration_mean"]) == {"iteration_mean": 50 * US}
