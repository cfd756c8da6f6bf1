"""Trials in real ns-3: what only this backend does. The rest is in tests/contract."""

import dataclasses
import os

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.routing import PathTable
from orchestration.analysis.stamp import stamp
from orchestration.backends.simulated import backend as backend_module
from orchestration.backends.simulated.program import Operation, Simulation
from orchestration.core.codec import flattened, record_tables
from orchestration.core.errors import TrialError
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE
from orchestration.core.trial import FaultSpec, HostSpec, TrialSpec, TunerSpec
from orchestration.run import backend_factory
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

pytestmark = pytest.mark.ns3

MS = 1_000_000
GRAPHCC = load_testbed("graphcc")


def trial_of(traffic, testbed="graphcc", **changes):
    trial = TrialSpec("c", testbed, "simulated", TunerSpec("secn1"), traffic, 3, 1, 2 * MS, 50 * MS)
    return dataclasses.replace(trial, **changes)


@pytest.fixture
def run(tmp_path):
    def run_trial(trial, backend="simulated", testbed=None):
        testbed = testbed or load_testbed(trial.testbed)
        trial = dataclasses.replace(trial, backend=backend)
        schedule = make_schedule(trial, testbed)
        work = tmp_path / str(len(list(tmp_path.iterdir())))
        work.mkdir()
        record = backend_factory.backend(backend).run(TrialRun(trial, testbed, schedule, work))
        return schedule, record, stamp(trial, testbed, schedule, record)

    return run_trial


def with_buffers(buffer_bytes):
    ports = (
        dataclasses.replace(port, buffer_bytes=buffer_bytes if port.buffer_bytes else 0)
        for port in GRAPHCC.ports
    )
    return dataclasses.replace(GRAPHCC, ports=tuple(ports))


def test_the_same_seed_gives_the_same_tables(run):
    traffic = (PoissonSpec("WebSearch", 0.4, 0, MS), IncastSpec(8, 64_000, MS, 0, MS))
    trial = trial_of(traffic, tuner=TunerSpec("random"))
    _, first, verdict = run(trial)
    _, again, _ = run(trial)
    assert verdict.valid, verdict.reasons
    assert first.ports.marked_packets[-1].sum() > 0
    one, other = (flattened(record_tables(record)) for record in (first, again))
    assert one.keys() == other.keys()
    for name, column in one.items():
        np.testing.assert_array_equal(column, other[name], err_msg=name)


def test_an_idle_path_has_its_base_rtt_and_a_lone_flow_the_line_rate(run):
    for size_bytes, tolerance in ((1000, 0.001), (20_000_000, 0.01)):
        schedule, record, verdict = run(trial_of((SingleFlowSpec("h1", "h24", size_bytes, 0),)))
        assert verdict.valid, verdict.reasons
        took_ns = int(record.flows.end_ns[0] - schedule.start_ns[0])
        ideal_ns = PathTable(GRAPHCC).ideal_fct_ns("h1", "h24", size_bytes)
        assert took_ns == pytest.approx(ideal_ns, rel=tolerance)


def test_a_mouse_does_not_wait_behind_its_hosts_elephant(run):
    mouse = SingleFlowSpec("h1", "h20", 10_000, MS)
    _, alone, _ = run(trial_of((mouse,)))
    schedule, record, _ = run(trial_of((SingleFlowSpec("h1", "h24", 10_000_000, 0), mouse)))
    at = int(np.flatnonzero(schedule.size_bytes == 10_000)[0])
    frames_ns = 2 * 1538 * 8 / 25
    beside = record.flows.end_ns[at] - alone.flows.end_ns[0]
    assert 0 <= beside <= 4 * frames_ns


def test_hops_are_counted_and_timed(run):
    _, record, _ = run(trial_of((SingleFlowSpec("h1", "h2", 1_448_000, 0),)))
    # 1000 segments over a host's NIC and one switch, and some acknowledgements
    assert 2000 + 2 * 500 <= record.facts["packet_hops"] <= 2000 + 2 * 1010
    assert 0 < record.facts["run_wall_s"] < 60


def test_a_cut_link_loses_what_is_on_it_and_routes_follow(run):
    traffic = tuple(SingleFlowSpec(f"h{n}", f"h{n + 18}", 3_000_000, 0) for n in range(1, 7))
    fault = FaultSpec(300_000, None, 400_000, links=("leaf1-spine1",))
    schedule, record, verdict = run(trial_of(traffic, faults=(fault,)))
    assert [(event.kind, event.t_ns) for event in record.events] == [
        ("links", 300_000),
        ("routes", 700_000),
    ]
    assert verdict.valid, verdict.reasons
    assert (record.flows.status == DONE).all()
    assert record.flows.retransmits.sum() > 0
    assert record.hosts.timeouts[-1].sum() > 0
    cut = next(
        n for n, q in enumerate(GRAPHCC.queues)
        if q.device == "leaf1" and GRAPHCC.peer_device(q).name == "spine1"
    )  # fmt: skip
    sent = record.ports.tx_bytes[:, cut]
    assert sent[2] > 0
    assert sent[-1] == sent[np.searchsorted(record.ports.t_ns, 800_000)]
    assert len(schedule) == 6


@pytest.mark.parametrize("control", ["reno", "cubic"])
def test_loss_based_senders_fill_the_buffer_and_recover(run, control):
    incast = IncastSpec(8, 1_000_000, 100 * MS, 0, MS, receiver="h1")
    trial = trial_of((incast,), host=HostSpec(control))
    _, record, verdict = run(trial, testbed=with_buffers(200_000))
    assert verdict.valid, verdict.reasons
    assert record.ports.marked_packets[-1].sum() == 0
    assert record.ports.dropped_packets[-1].sum() > 0
    assert record.flows.retransmits.sum() > 0


def test_dctcp_survives_losses_in_the_midst_of_marks(run):
    """Small buffers: losses while the window is reduced, at which ns-3 alone stops."""
    traffic = (
        PoissonSpec("WebSearch", 0.3, 0, MS),
        IncastSpec(16, 200_000, MS // 2, 0, MS),
    )
    _, record, verdict = run(trial_of(traffic), testbed=with_buffers(60_000))
    assert verdict.valid, verdict.reasons
    assert record.ports.dropped_packets[-1].sum() > 0
    assert record.ports.marked_packets[-1].sum() > 0


def test_classes_share_a_port_by_their_weights(run):
    """70 to 30, DCTCP beside cubic, while both have something to send."""
    fig8 = load_testbed("acc-fig8")
    rdma = IncastSpec(4, 8_000_000, 100 * MS, 0, MS, receiver=fig8.hosts[0], queue_class="rdma")
    tcp = dataclasses.replace(rdma, queue_class="tcp")
    trial = trial_of((rdma, tcp), "acc-fig8", tuner=TunerSpec("secn2"), drain_ns=300 * MS)
    _, record, verdict = run(trial)
    assert verdict.valid, verdict.reasons
    ours = [n for n, q in enumerate(fig8.queues) if fig8.peer_device(q).name == fig8.hosts[0]]
    begin, end = 5, 15
    sent = np.diff(record.ports.tx_bytes[[begin, end]][:, ours], axis=0)[0]
    assert sent[0] / sent.sum() == pytest.approx(0.7, abs=0.01)


def test_ns3s_end_is_the_trials_error(run, monkeypatch):
    """A request that ns-3 cannot mean: it ends, and says so."""
    pids = []

    class Spoiled(Simulation):
        def ask(self, operation, *arrays):
            pids.append(self.pid)
            if operation == Operation.READ and len(pids) > 5:
                return super().ask(operation + 90)
            return super().ask(operation, *arrays)

    monkeypatch.setattr(backend_module, "Simulation", Spoiled)
    with pytest.raises(TrialError, match="ns-3 ended with code 3: closloop-ns3: an operation"):
        run(trial_of((SingleFlowSpec("h1", "h2", 1000, 0),)))
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.kernel
def test_flows_take_the_paths_that_they_take_in_the_emulated_fabric(run):
    traffic = tuple(
        SingleFlowSpec(f"h{n}", f"h{25 - n}", 20_000 + 1000 * n, 20_000 * n) for n in range(1, 13)
    )
    sent = {}
    for backend in ("simulated", "emulated"):
        _, record, _ = run(trial_of(traffic, seed=7), backend)
        sent[backend] = record.ports.tx_bytes[-1]
    np.testing.assert_allclose(sent["simulated"], sent["emulated"], atol=3000)


@pytest.mark.kernel
def test_slow_start_fills_a_queue_as_in_the_emulated_fabric(run):
    traffic = (SingleFlowSpec("h1", "h3", 2_000_000, 0), SingleFlowSpec("h8", "h3", 2_000_000, 0))
    trial = trial_of(traffic, sample_period_ns=20_000, tuner=TunerSpec("secn2"))
    _, simulated, _ = run(trial)
    _, emulated, _ = run(trial, backend="emulated")
    port = simulated.ports.qlen_bytes.max(axis=0).argmax()
    ours, linux = (record.ports.qlen_bytes[:5, port] for record in (simulated, emulated))
    # without Linux' deferral (tcp_tso_should_defer) it is a third longer at first
    np.testing.assert_allclose(ours, linux, rtol=0.13)


@pytest.mark.kernel
def test_marks_are_answered_as_by_linux(run):
    """Two senders over a step of marks, which draws nothing: alpha, and what is sent together."""
    step = TunerSpec("static", {"kmin_bytes": 200_000, "kmax_bytes": 200_000, "pmax": 1.0})
    traffic = (
        SingleFlowSpec("h1", "h3", 2_000_000, 0),
        SingleFlowSpec("h8", "h3", 2_000_000, 50_000),
    )
    (_, ours, _), (_, linux, _) = (
        run(trial_of(traffic, tuner=step), backend=backend) for backend in ("simulated", "emulated")
    )
    # with ns-3's alpha, and windows that are used segment by segment, 5 % and a fifth less
    assert ours.flows.end_ns[0] == pytest.approx(linux.flows.end_ns[0], rel=0.025)
    marks = [record.ports.marked_packets[-1].sum() for record in (ours, linux)]
    assert marks[0] == pytest.approx(marks[1], rel=0.1)
