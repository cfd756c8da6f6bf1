"""Several traffic classes on a port of the emulated fabric: shares, counters, thresholds."""

from pathlib import Path

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.analysis.stamp import stamp
from orchestration.bench.outcome import run_trial
from orchestration.core.knobs import ECN
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE, Setup
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.run.backend_factory import backend
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner

MS = 1_000_000
RDMA, TCP = 0, 1  # the queues towards h1
HEADERS = ETHERNET_HEADER_BYTES + TCP_IP_HEADER_BYTES
SETTING = TunerSpec("static", {"kmin_bytes": 100_000, "kmax_bytes": 400_000, "pmax": 0.2})

ONE_TRANSPORT = """
kind: single-switch
name: one-transport
mtu: 1500B
buffer: BUFFER
hosts: 8
host_link: {rate: 100Gbps, delay: 580ns}
classes:
  - {name: rdma, weight: 70, congestion_control: CC}
  - {name: tcp, weight: 30, congestion_control: CC}
"""


def flows(klass, senders, size_bytes):
    return tuple(SingleFlowSpec(host, "h1", size_bytes, 0, queue_class=klass) for host in senders)


def one_transport(folder: Path, name: str, buffer: str = "16MB") -> str:
    path = folder / "one-transport.yml"
    path.write_text(ONE_TRANSPORT.replace("CC", name).replace("BUFFER", buffer))
    return str(path)


def rates_bps(run):
    """Wire rate of the two queues towards h1 between readings, shape (readings - 1, 2)."""
    ports = run.record.ports
    wire = ports.tx_bytes[:, :2] + run.testbed.framing_bytes * ports.tx_packets[:, :2]
    return np.diff(wire, axis=0) * 8e9 / np.diff(ports.t_ns)[:, None]


def valid(run):
    verdict = stamp(run.trial, run.testbed, run.schedule, run.record)
    assert verdict.valid, verdict.reasons
    return {"link rates", "bytes delivered"} <= set(verdict.checked)


@pytest.mark.parametrize("transport", ["dctcp and cubic", "cubic", "dctcp"])
def test_backlogged_classes_share_a_port_by_weight_and_one_alone_has_all_of_it(transport, tmp_path):
    mixed = transport == "dctcp and cubic"
    testbed = "acc-fig8" if mixed else one_transport(tmp_path, transport)
    # rdma ends first, at 70 %, and leaves the port to tcp
    traffic = flows("rdma", ("h2", "h3"), 14_000_000) + flows("tcp", ("h4", "h5"), 14_000_000)
    run = run_trial(testbed, traffic, SETTING, duration_ns=6 * MS)
    assert [queue.label for queue in run.testbed.queues[:2]] == [
        "switch1:eth0/rdma",
        "switch1:eth0/tcp",
    ]
    end_ns = run.record.flows.end_ns
    at_ns, rates = run.record.ports.t_ns[1:], rates_bps(run)
    both = (at_ns > MS) & (at_ns < end_ns[:2].min())
    np.testing.assert_allclose(rates[both].mean(axis=0), [70e9, 30e9], rtol=0.02)
    assert rates[both].sum(axis=1).min() > 0.99e11
    alone = (at_ns > end_ns[:2].max() + 200_000) & (at_ns < end_ns[2:].min())
    assert alone.sum() > 3
    np.testing.assert_allclose(rates[alone], [[0, 100e9]] * int(alone.sum()), atol=0.01e11)
    assert valid(run)


def test_each_class_counts_its_own_packets_and_acknowledgements_travel_with_it():
    traffic = flows("rdma", ("h2",), 5_000_000) + flows("tcp", ("h3",), 3_000_000)
    run = run_trial("acc-fig8", traffic, SETTING, duration_ns=2 * MS)
    ports = run.record.ports
    payload = ports.tx_bytes[-1] - HEADERS * ports.tx_packets[-1]
    # the towards-h1 queues carry the flows, 256 bytes of handshake options allowed
    np.testing.assert_allclose(payload[[RDMA, TCP]], [5_000_000, 3_000_000], atol=256)
    by_port = ports.tx_packets[-1].reshape(8, 2)
    assert by_port[1:3].min(axis=1).tolist() == [0, 0]
    assert by_port[1, RDMA] > 100
    assert by_port[2, TCP] > 100
    assert by_port[3:].sum() == 0
    assert valid(run)


def test_a_class_that_asks_for_no_marks_fills_its_share_of_the_buffer_then_drops(tmp_path):
    """Cubic without ECN: RED queues what it cannot mark, thresholds or not; the limit drops."""
    setting = TunerSpec("static", {"kmin_bytes": 5_000, "kmax_bytes": 20_000, "pmax": 1.0})
    traffic = flows("tcp", ("h2", "h3", "h4"), 8_000_000)
    testbed = one_transport(tmp_path, "cubic", buffer="1MB")
    run = run_trial(testbed, traffic, setting, duration_ns=4 * MS)
    ports, share = run.record.ports, run.testbed.queues[TCP].buffer_bytes
    assert ports.marked_packets[-1].sum() == 0
    assert share == 300_000
    assert 0.9 * share < ports.qlen_bytes[:, TCP].max() <= share
    assert ports.dropped_packets[-1, TCP] > 0
    assert (run.record.flows.status == DONE).all()
    assert valid(run)


def test_a_hosts_nic_serves_flows_of_all_classes_alike(tmp_path):
    """Whatever Linux' priorities are: weights are the switches'."""
    names = ("rdma", "tcp")
    traffic = tuple(
        SingleFlowSpec("h2", to, 12_000_000, 0, queue_class=name)
        for name, to in zip(names, ("h1", "h3"), strict=True)
    )
    run = run_trial(one_transport(tmp_path, "cubic"), traffic, SETTING, duration_ns=2 * MS)
    ports = run.record.ports
    steady = (ports.t_ns > 300_000) & (ports.t_ns < run.record.flows.end_ns.min())
    towards_h1, towards_h3 = RDMA, 2 * 2 + TCP
    sent = np.diff(ports.tx_bytes[steady][[0, -1]][:, [towards_h1, towards_h3]], axis=0)[0]
    assert sent[0] / sent.sum() == pytest.approx(0.5, abs=0.02)


class OneQueueTuner(BaseTuner):
    """Lets queues mark when they are full, but one, from `at_ns` on, early."""

    at_ns, early = 100_000, 30_000

    def __init__(self, queue):
        self.queue = queue
        self.seen = []

    def reset(self, testbed, seed):
        full = np.array([queue.buffer_bytes for queue in testbed.queues])
        return Setup((ECN.change(np.arange(len(full)), full, full, 1.0),))

    def act(self, observation):
        self.seen.append((observation.t_ns, observation.settings["ecn"]["kmin_bytes"].copy()))
        if observation.t_ns // 100_000 != self.at_ns // 100_000:
            return ()
        return (ECN.change([self.queue], self.early, self.early, 1.0),)


@pytest.mark.parametrize(("queue", "other"), [(RDMA, TCP), (TCP, RDMA)])
def test_thresholds_of_one_class_leave_the_other_alone(queue, other, tmp_path):
    path = one_transport(tmp_path, "dctcp")
    testbed = load_testbed(path)
    # less than its buffer holds: without the change no class marks
    traffic = flows("rdma", ("h2", "h3"), 5_000_000) + flows("tcp", ("h4", "h5"), 2_000_000)
    trial = TrialSpec("c", path, "emulated", TunerSpec("secn1"), traffic, 1, 1, 3 * MS, 100 * MS)
    schedule = make_schedule(trial, testbed)
    tuner = OneQueueTuner(queue)
    record = backend("emulated").run(TrialRun(trial, testbed, schedule, tmp_path, tuner=tuner))
    (at_ns, before), (_, after) = tuner.seen[0], tuner.seen[-1]
    assert at_ns == pytest.approx(tuner.at_ns, abs=1_000)
    changed = np.flatnonzero(after != before)
    assert changed.tolist() == [queue]
    assert after[queue] == tuner.early
    ports = record.ports
    assert ports.marked_packets[-1, queue] > 0
    assert ports.marked_packets[-1].sum() == ports.marked_packets[-1, queue]
    last = np.flatnonzero(ports.t_ns < record.flows.end_ns.min())[-1]
    assert 0 < ports.qlen_bytes[last, queue] < 2 * tuner.early
    assert ports.qlen_bytes[last, other] > 10 * tuner.early
    assert ports.dropped_packets[-1].sum() == 0
    verdict = stamp(trial, testbed, schedule, record)
    assert verdict.valid, verdict.reasons
