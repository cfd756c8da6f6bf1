"""The backlog of a trial and its slope, by hand."""

import math

import numpy as np
import pytest

from orchestration.analysis.backlog import backlog_bytes, backlog_over_time, measure_backlog
from orchestration.core.records import Samples
from orchestration.core.trial import HostSpec
from tests.testbeds import star
from tests.trials import result_in_memory, trial_spec
from traffic.patterns.concurrent import ConcurrentSpec
from traffic.patterns.incast import IncastSpec

US, MS = 10**3, 10**6
STAR = star(10, 10, 10)


def result_of(flows, *, warm_up_ns=0, ports=None):
    trial = trial_spec(
        testbed="star", traffic=(IncastSpec(1, 1000, MS, 0, MS), ConcurrentSpec(1, 0, 0, "h2")),
        duration_ns=10 * MS, drain_ns=90 * MS, sample_period_ns=MS, host=HostSpec(),
        warm_up_ns=warm_up_ns,
    )  # fmt: skip
    result = result_in_memory(trial, STAR, flows)
    result.ports = ports or result.ports
    return result


def slope_of(flows, **more):
    return measure_backlog(result_of(flows, **more))["backlog_slope_share"]


def every_100_us(lasts_ns, *, size=10_000):
    """A flow every 100 us that takes so long."""
    return [
        (at, at + lasts_ns(at), "h0", "h2", size, "incast") for at in range(0, 10 * MS, 100 * US)
    ]


def test_a_flow_is_backlog_from_its_start_and_less_by_and_by():
    flows = np.array([0, 50]), np.array([100, 150]), np.array([1000, 3000])
    at = np.array([0.0, 25, 50, 75, 100, 125, 150, 175])
    assert backlog_bytes(*flows, at) == pytest.approx([1000, 750, 3500, 2500, 1500, 750, 0, 0])
    late = [column + 10**12 for column in flows[:2]]
    assert backlog_bytes(*late, flows[2], at + 10**12) == pytest.approx(backlog_bytes(*flows, at))


def test_what_is_delivered_as_it_is_offered_does_not_accumulate():
    steady = every_100_us(lambda at: 200 * US)
    assert slope_of(steady, warm_up_ns=MS) == pytest.approx(0, abs=0.002)


@pytest.mark.parametrize("share", [0.25, 0.5])
@pytest.mark.parametrize("sent_again", [0, 1])
def test_the_share_that_does_not_fit_accumulates(share, sent_again):
    """Flows wait for each other at a port that carries 1 - share of what is offered.

    With `sent_again`, it carries each byte twice.
    """
    takes_ns = 100 * US / (1 - share)
    flows = every_100_us(lambda at: int((at / (100 * US) + 1) * takes_ns) - at)
    t_ns = np.arange(1, 40 * MS, MS // 10)
    payload = np.minimum(t_ns / takes_ns, 100) * 14_480 * (1 + sent_again)
    sent, packets = (np.zeros((len(t_ns), 3)) for _ in range(2))
    packets[:, 2] = payload // 1448
    sent[:, 2] = packets[:, 2] * (1448 + 66)
    ports = Samples.of("queue", t_ns, sent * 0, sent, packets)
    slope = slope_of([(*row[:4], 14_480, "incast") for row in flows], ports=ports)
    assert slope == pytest.approx(share, abs=0.01)
    # at one rate each, flows that end c times as late as they start leave 1 - ln c / (c - 1)
    later = 1 / (1 - share)
    assert slope_of(flows) == pytest.approx(1 - math.log(later) / (later - 1), abs=0.02)


def test_long_lived_flows_do_not_count_and_unfinished_ones_leave_it_unknown():
    steady = every_100_us(lambda at: 200 * US)
    endless = (0, None, "h1", "h2", 10**9, "concurrent")
    assert slope_of([*steady, endless]) == slope_of(steady)
    assert math.isnan(slope_of([endless]))
    assert math.isnan(slope_of([*steady, (5 * MS, -1, "h1", "h2", 10, "incast")]))
    assert math.isnan(slope_of(steady[:9]))
    assert math.isfinite(slope_of(steady[:10]))


def test_the_backlog_over_time_spans_the_measured_time():
    flow = (0, 10 * MS, "h0", "h2", 10_000, "incast")
    t_ns, backlog = backlog_over_time(result_of([flow], warm_up_ns=5 * MS))
    assert (t_ns[0], t_ns[-1]) == (5 * MS, 10 * MS)
    assert (backlog[0], backlog[-1]) == pytest.approx((5_000, 0))
