import dataclasses

import numpy as np
import pytest

from orchestration.analysis.flow_metrics import in_class
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.port_metrics import QUEUE_GRID_BYTES
from orchestration.analysis.stamp import stamp
from orchestration.analysis.trial_metrics import measure
from orchestration.results.reader import read_trial
from orchestration.results.writer import write_trial


@pytest.fixture
def measured(tmp_path, case):
    def write_and_measure(record=case.record):
        folder = tmp_path / "trial"
        verdict = stamp(case.trial, case.testbed, case.schedule, record)
        write_trial(folder, case.trial, case.testbed, case.schedule, record, verdict, {})
        return measure(read_trial(folder))

    return write_and_measure


@pytest.mark.parametrize(
    ("size", "klass"),
    [
        (1, "small"),
        (100_000, "small"),
        (100_001, "medium"),
        (9_999_999, "medium"),
        (10_000_000, "large"),
    ],
)
def test_size_classes_meet_where_the_papers_say(size, klass):
    found = [name for name in ("small", "medium", "large") if in_class(np.array([size]), name)[0]]
    assert found == [klass]


def test_every_metric_has_a_value(measured):
    assert set(measured().scalars) == {metric.key for metric in METRICS.report}


def test_slowdown_is_fct_over_ideal(measured, case):
    found = measured()
    fct = case.record.flows.end_ns - case.schedule.start_ns
    assert found.scalars["fct_mean_ns_all"] == pytest.approx(fct.mean())
    assert found.scalars["slowdown_p99_all"] == pytest.approx(np.quantile(found.slowdown, 0.99))
    small = case.schedule.size_bytes <= 100_000
    assert found.scalars["fct_mean_ns_small"] == pytest.approx(fct[small].mean())
    assert found.slowdown.min() >= 1


def test_a_flow_that_is_not_done_has_no_slowdown(measured, case):
    status = case.record.flows.status.copy()
    status[:5] = 1
    flows = dataclasses.replace(case.record.flows, status=status)
    found = measured(dataclasses.replace(case.record, flows=flows))
    assert len(found.slowdown) == len(found.size_bytes) == len(status) - 5


def test_queues_are_measured_while_flows_arrive(measured, case):
    """A long drain must not dilute queues: only 30 of the samples lie within 3 ms."""
    queue = case.record.ports.qlen_bytes[:30]
    found = measured()
    assert found.scalars["queue_mean_bytes"] == pytest.approx(queue.mean())
    assert found.scalars["queue_max_bytes"] == queue.max()
    assert found.scalars["queue_busiest_bytes"] == pytest.approx(queue.mean(axis=0).max())
    np.testing.assert_allclose(found.queue_mean_bytes, queue.mean(axis=0))


def test_the_distribution_says_how_often_a_queue_is_longer(measured, case):
    found, queue = measured().queue_ccdf, case.record.ports.qlen_bytes[:30]
    for place in (0, 40, 120):
        assert found[place] == pytest.approx((queue > QUEUE_GRID_BYTES[place]).mean())


def test_marks_and_utilisation_follow_from_the_counters(measured, case):
    ports, testbed = case.record.ports, case.testbed
    found = measured().scalars
    sent = ports.tx_packets[29] - ports.tx_packets[0]
    marked = ports.marked_packets[29] - ports.marked_packets[0]
    assert found["marked_share"] == pytest.approx(marked.sum() / sent.sum())
    rate = np.array([port.rate_bps for port in testbed.queues])
    wire = ports.tx_bytes[29] - ports.tx_bytes[0] + 24 * sent
    busy = wire * 8 / (rate * 2.9e-3)
    to_host = rate == 25_000_000_000
    assert found["utilisation_hosts"] == pytest.approx(busy[to_host].mean())
    assert found["utilisation_fabric"] == pytest.approx(busy[~to_host].mean())
    assert found["utilisation_max"] == pytest.approx(busy.max())


def test_a_trial_without_samples_has_no_queue_figures(measured, case):
    empty = case.record.ports.upto(0)
    samples = {**case.record.samples, "queue": empty}
    found = measured(dataclasses.replace(case.record, samples=samples))
    assert np.isnan(found.scalars["queue_p99_bytes"])
    assert np.isnan(found.scalars["utilisation_max"])
    assert np.isnan(found.scalars["dropped_packets"])
