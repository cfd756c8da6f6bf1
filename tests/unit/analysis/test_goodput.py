"""Goodput in bit/s: in total, by pattern and by class of flow sizes, by hand."""

import math

import numpy as np
import pytest

from orchestration.analysis.goodput import measure_goodput
from orchestration.analysis.load import LOAD_FACT, measure_load, to_json
from tests.testbeds import star
from tests.trials import result_in_memory, trial_spec
from traffic.patterns.concurrent import ConcurrentSpec
from traffic.patterns.incast import IncastSpec

MS = 10**6
STAR = star(10, 10, 10, 10)
INCAST, ENDLESS = IncastSpec(2, 50_000, MS, 0, 4 * MS), ConcurrentSpec(2, 0, 0, "h3")
SMALL = (0, MS, "h0", "h2", 50_000, "incast")
MEDIUM = (MS, 2 * MS, "h1", "h2", 200_000, "incast")
LATE = (4 * MS, 5 * MS, "h0", "h1", 50_000, "incast")


def trial_of(*traffic, **more):
    return trial_spec(
        testbed="star", traffic=traffic, duration_ns=4 * MS, drain_ns=8 * MS,
        sample_period_ns=MS, **more,
    )  # fmt: skip


def test_goodput_is_what_receivers_accepted_over_the_measured_time():
    result = result_in_memory(trial_of(INCAST), STAR, [SMALL, MEDIUM, LATE])
    load = measure_load(result)
    # 250 KB in 4 ms, all to one of the hosts; the flow that starts later does not count
    assert measure_goodput(result, load) == {
        "goodput_total_bps": 500e6,
        "goodput_bps": 500e6,
        "goodput_long_lived_bps": pytest.approx(math.nan, nan_ok=True),
    }
    parts = {**load.patterns, **load.classes}
    goodput = {name: load.goodput_bps(part) for name, part in parts.items()}
    assert goodput == {"incast": 500e6, "small": 100e6, "medium": 400e6, "large": 0}
    assert load.classes["small"].offered_bytes == 50_000


def test_of_two_receiving_hosts_it_is_the_mean():
    to_h3 = (0, 2 * MS, "h0", "h3", 50_000, "incast")
    result = result_in_memory(trial_of(INCAST), STAR, [SMALL, to_h3])
    found = measure_goodput(result, measure_load(result))
    assert (found["goodput_total_bps"], found["goodput_bps"]) == (200e6, 100e6)


def test_long_lived_flows_have_their_own_and_offer_what_is_unknown():
    flows = [
        (0, None, "h0", "h3", 5 * MS, "concurrent"),
        (0, None, "h1", "h3", 5 * MS, "concurrent"),
        SMALL,
    ]
    acked = np.array([0, 100_000, 300_000, 0, 0, 100_000, 0, 50_000, 50_000])
    t_ns = np.tile([0, 2 * MS, 4 * MS], 3)
    samples = {"t_ns": t_ns, "acked_bytes": acked}
    result = result_in_memory(trial_of(ENDLESS, INCAST), STAR, flows, flow_samples=samples)
    load = measure_load(result)
    found = measure_goodput(result, load)
    # 300 KB and 100 KB in 4 ms
    assert found["goodput_long_lived_bps"] == 400e6
    assert found["goodput_total_bps"] == 900e6
    assert found["goodput_bps"] == 450e6
    assert math.isnan(load.total.offered_bytes)
    assert math.isnan(load.classes["medium"].offered_bytes)
    assert load.classes["small"].offered_bytes == 50_000
    # a trial that recorded its load has the same, and one of an earlier version no classes
    fact = to_json(load)
    assert fact["offered_load"] is None
    assert fact["goodput_bps"] == 900_000_000
    result.facts[LOAD_FACT] = fact
    assert measure_goodput(result, measure_load(result)) == found
    assert to_json(measure_load(result)) == fact
    del fact["classes"]
    assert measure_load(result).classes == {}
