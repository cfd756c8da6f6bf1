"""Throughput over time of chosen flows and of the busiest port, by hand."""

import math

import numpy as np
import pytest

from orchestration.analysis.throughput import busiest_port_throughput, throughput_over_time
from orchestration.core.records import MISSING, Samples
from tests.testbeds import star
from tests.trials import result_in_memory, trial_spec
from traffic.patterns.concurrent import ConcurrentSpec
from traffic.patterns.incast import IncastSpec

MS = 10**6
STAR = star(10, 10, 40, 40)
LASTING, INCAST = ConcurrentSpec(4, 0, 0, "h3"), IncastSpec(2, 50_000, MS, 0, 4 * MS)
ENDLESS = (0, None, 5 * MS, "concurrent")
# rows of acknowledged bytes at 0, 1, 2, 3 and 4 ms
T_NS = np.arange(5) * MS


def result_of(*rows, ports=None):
    """Rows: start, end, bytes, pattern, and the samples of the flow."""
    flows = [(start, end, "h0", "h3", size, klass) for start, end, size, klass, _ in rows]
    spec = trial_spec(
        testbed="star", traffic=(LASTING, INCAST), duration_ns=4 * MS, drain_ns=MS,
        sample_period_ns=MS,
    )  # fmt: skip
    acked = np.array([row[-1] for row in rows])
    samples = {"t_ns": np.tile(T_NS[: acked.shape[1]], len(rows)), "acked_bytes": acked.ravel()}
    result = result_in_memory(spec, STAR, flows, flow_samples=samples)
    result.ports = ports or result.ports
    return result


def test_the_largest_of_each_pattern_then_the_slowest_and_the_fastest():
    rows = [
        (*ENDLESS, (0, 100_000, 200_000, 300_000, 400_000)),
        (*ENDLESS, (0, 0, 0, 0, 1_000)),
        (*ENDLESS, (0, 500_000, 500_000, 500_000, 500_000)),
        (*ENDLESS, (0, 0, 0, 50_000, 50_000)),
        (MS, 2 * MS, 50_000, "incast", (0, 0, 50_000, 50_000, 50_000)),
        (3 * MS // 2, 3 * MS, 60_000, "incast", (0, 0, 20_000, 60_000, 60_000)),
    ]
    shown = throughput_over_time(result_of(*rows), 5)
    assert [(one.choice, one.flow_id) for one in shown] == [
        ("largest", 2), ("largest", 5), ("slowest", 1), ("slowest", 3), ("fastest", 0),
    ]  # fmt: skip
    largest, incast = shown[0], shown[1]
    assert largest.t_ns.tolist() == T_NS[1:].tolist()
    assert largest.bps.tolist() == [4e9, 0, 0, 0]
    assert largest.mean_bps == 1e9
    assert (largest.name, largest.pattern, largest.line_bps) == ("h0 to h3", "concurrent", 10**10)
    # from 1.5 to 3 ms; before and after that there is no throughput
    np.testing.assert_array_equal(incast.bps, [math.nan, 160e6, 320e6, math.nan])
    assert incast.mean_bps == 320e6
    assert [one.flow_id for one in throughput_over_time(result_of(*rows), 9)] == [2, 5, 1, 3, 0]


def test_without_long_lived_flows_those_above_100_kb_are_compared():
    acked = (0, 10, 20, 30, 40)
    rows = [
        (0, 4 * MS, 500_000, "incast", acked),
        (0, 2 * MS, 400_000, "incast", acked),
        (0, MS, 1_000, "incast", acked),
        (0, -1, 300_000, "incast", (0, 1_000, 1_000, 1_000, MISSING)),
        (0, -1, 200_000, "incast", (0, 1_000, 1_000, 1_000, 1_000)),
    ]
    shown = throughput_over_time(result_of(*rows))
    assert [(one.choice, one.flow_id) for one in shown] == [
        ("largest", 0), ("slowest", 4), ("fastest", 1),
    ]  # fmt: skip
    assert shown[1].mean_bps == 2e6


def test_without_samples_of_flows_it_is_the_port_that_is_busiest_by_its_rate():
    # packets of 1226 B with 24 B of framing: 40 % of the rate to h0, and 25 % of that to h2
    packets = np.outer(np.arange(5), [400, 0, 1000, 0])
    ports = Samples.of("queue", T_NS, packets * 0, packets * 1226, packets)
    result = result_of((*ENDLESS, (0,)), ports=ports)
    (port,) = throughput_over_time(result)
    assert (port.choice, port.name, port.flow_id) == ("busiest", STAR.queues[0].label, -1)
    assert port.bps == pytest.approx([4e9] * 4)
    assert port.mean_bps == pytest.approx(4e9)
    assert port.line_bps == 10**10
    ports.values["tx_bytes"][2, 0] = MISSING
    missing = busiest_port_throughput(result)
    np.testing.assert_allclose(missing.bps, [4e9, math.nan, math.nan, 4e9])
    assert throughput_over_time(result_of((*ENDLESS, (0,)))) == ()
