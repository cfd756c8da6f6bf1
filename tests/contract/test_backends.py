"""What every backend promises, seen through the record of a tiny trial."""

import dataclasses

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.routing import PathTable
from orchestration.analysis.port_metrics import packet_hops
from orchestration.analysis.stamp import stamp
from orchestration.core.errors import TrialError
from orchestration.core.knobs import ECN
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE, UNFINISHED
from orchestration.core.trial import TunerSpec
from tests.trials import trial_spec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner
from tuners.ecn.static import StaticEcn

MS = 1_000_000
TESTBED = load_testbed("rlcc-7")
HOSTS = TESTBED.hosts
INCAST = IncastSpec(6, 500_000, 100 * MS, 0, MS, receiver=HOSTS[0])


def static(kmin_bytes: int, kmax_bytes: int, pmax: float) -> TunerSpec:
    return TunerSpec("static", {"kmin_bytes": kmin_bytes, "kmax_bytes": kmax_bytes, "pmax": pmax})


def tiny(engine):
    return trial_spec(
        campaign="contract",
        testbed="rlcc-7",
        traffic=(INCAST,),
        seed=3,
        duration_ns=2 * MS,
        drain_ns=20 * MS,
        **engine.fields,
    )


@pytest.fixture
def run(engine, backend, tmp_path):
    def run_trial(**changes):
        trial = dataclasses.replace(tiny(engine), **changes)
        schedule = make_schedule(trial, TESTBED)
        backend.check(TESTBED, 1)
        work = tmp_path / str(len(list(tmp_path.iterdir())))
        work.mkdir()
        record = backend.run(TrialRun(trial, TESTBED, schedule, work))
        return trial, schedule, record

    return run_trial


def test_a_sound_trial_gets_a_valid_stamp(run):
    trial, schedule, record = run()
    verdict = stamp(trial, TESTBED, schedule, record)
    assert verdict.valid, verdict.reasons


def test_the_record_has_the_shapes_of_the_testbed(run):
    _, schedule, record = run()
    samples, queues = len(record.ports.t_ns), len(TESTBED.queues)
    assert samples > 0
    for name in ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets"):
        assert getattr(record.ports, name).shape == (samples, queues)
    assert record.hosts.retransmits.shape == (len(record.hosts.t_ns), len(HOSTS))
    assert record.flows.end_ns.shape == (len(schedule),)
    assert (np.diff(record.ports.t_ns) > 0).all()


def test_packet_hops_are_of_nics_and_of_switch_ports(run, backend):
    flow = SingleFlowSpec(HOSTS[0], HOSTS[1], 1_000 * TESTBED.mss_bytes, 0)
    _, _, record = run(traffic=(flow,))
    links = PathTable(TESTBED).path(HOSTS[0], HOSTS[1]).hops
    hops = packet_hops(TESTBED, record.ports)
    if backend.name == "fluid":
        assert hops == 1_000 * links
    else:  # and every second segment, or each, is acknowledged
        assert 1_500 * links <= hops <= 2_010 * links
    assert record.facts.get("packet_hops", hops) == hops


def test_what_is_applied_is_what_is_read_back(run):
    _, _, record = run(tuner=static(30_000, 90_000, 0.25))
    actions = record.changes["ecn"]
    assert sorted(actions.targets) == list(range(len(TESTBED.queues)))
    assert set(actions.kmin_bytes) == {30_000}
    assert set(actions.kmax_bytes) == {90_000}
    np.testing.assert_allclose(actions.pmax, 0.25, rtol=1e-6)


def test_what_is_applied_takes_effect(run):
    """Marks only with thresholds that the incast reaches, and then shorter queues."""
    _, _, low = run(tuner=static(20_000, 20_000, 1.0))
    _, _, high = run(tuner=static(5_000_000, 5_000_000, 1.0))
    assert low.ports.marked_packets[-1].sum() > 0
    assert high.ports.marked_packets[-1].sum() == 0
    assert low.ports.qlen_bytes.max() < high.ports.qlen_bytes.max()


def test_a_change_in_the_middle_takes_effect_at_once_and_loses_nothing(run):
    """From never marking to marking early: between two readings, without a lost packet."""
    at_ns = 300_000
    incast = dataclasses.replace(INCAST, size_bytes=2_000_000)  # takes 1 ms
    never, early = 5_000_000, 20_000
    params = {"at_ns": at_ns, "pmax": 1.0, "then_pmax": 1.0}
    params |= {"kmin_bytes": never, "kmax_bytes": never}
    params |= {"then_kmin_bytes": early, "then_kmax_bytes": early}
    trial, _, record = run(traffic=(incast,), tuner=TunerSpec("step", params))
    actions = record.changes["ecn"]
    changed = actions.observed_ns > 0
    assert sorted(actions.targets[changed]) == list(range(len(TESTBED.queues)))
    assert set(actions.kmin_bytes[changed]) == {early}
    assert actions.observed_ns[changed].min() >= at_ns
    late_ns = actions.applied_ns[changed] - actions.observed_ns[changed]
    assert late_ns.max() < trial.sample_period_ns

    marked = record.ports.marked_packets.sum(axis=1)
    before = record.ports.t_ns <= actions.observed_ns[changed].min()
    assert marked[before].max() == 0
    assert marked[~before][0] > 0
    assert (record.flows.status == DONE).all()
    assert record.ports.dropped_packets[-1].sum() == 0
    assert record.flows.retransmits.sum() == 0


@pytest.mark.parametrize("latency_ns", [0, 20_000, 99_000])
def test_a_decision_is_charged_its_latency(run, latency_ns):
    incast = dataclasses.replace(INCAST, size_bytes=2_000_000)
    _, _, record = run(traffic=(incast,), tuner=TunerSpec("random"), decision_latency_ns=latency_ns)
    actions = record.changes["ecn"]
    changed = actions.observed_ns > 0
    assert changed.any()
    late_ns = actions.applied_ns[changed] - actions.observed_ns[changed]
    assert latency_ns <= late_ns.min() <= late_ns.max() <= latency_ns + 50


class NoNumber(BaseTuner):
    """Sets a queue's pmax to NaN at its first decision."""

    def reset(self, testbed, seed):
        return StaticEcn(30_000, 90_000, 0.1).reset(testbed, seed)

    def act(self, observation):
        return (ECN.change([1], 5_000, 9_000, np.nan),)


def test_thresholds_that_are_no_numbers_fail_the_trial(engine, backend, tmp_path):
    trial = tiny(engine)
    schedule = make_schedule(trial, TESTBED)
    with pytest.raises(TrialError) as caught:
        backend.run(TrialRun(trial, TESTBED, schedule, tmp_path, tuner=NoNumber()))
    label = TESTBED.queues[1].label
    assert f"'secn1' set impossible thresholds at queue {label}, after 10" in caught.value.message
    assert "pmax nan" in caught.value.message
    assert caught.value.remedy


def test_all_that_was_sent_arrives(run):
    """Payload, and headers of 66 B a packet, at the ports to the hosts; nothing is dropped."""
    _, schedule, record = run()
    assert (record.flows.status == DONE).all()
    assert record.ports.dropped_packets[-1].sum() == 0
    to_receiver = [
        n for n, p in enumerate(TESTBED.queues) if TESTBED.peer_device(p).name == HOSTS[0]
    ]
    sent = record.ports.tx_bytes[-1, to_receiver].sum()
    packets = record.ports.tx_packets[-1, to_receiver].sum()
    assert sent - 66 * packets == pytest.approx(schedule.size_bytes.sum(), rel=0.01)


def test_flows_that_do_not_end_in_time_are_reported(run):
    long = SingleFlowSpec(HOSTS[1], HOSTS[2], 10**9, 0)
    short = SingleFlowSpec(HOSTS[3], HOSTS[4], 1000, 0)
    _, schedule, record = run(traffic=(long, short), drain_ns=0)
    assert len(record.flows.status) == len(schedule) == 2
    by_size = dict(zip(schedule.size_bytes.tolist(), record.flows.status.tolist(), strict=True))
    assert by_size == {10**9: UNFINISHED, 1000: DONE}
    assert record.flows.end_ns[record.flows.status == UNFINISHED].tolist() == [-1]


def test_flows_start_as_scheduled(run):
    _, schedule, record = run()
    assert np.abs(record.flows.sent_ns - schedule.start_ns).max() <= 2000


def test_every_backend_is_sent_the_same_flows(run):
    trial, schedule, _ = run()
    for name in ("fluid", "emulated", "simulated"):
        other = make_schedule(dataclasses.replace(trial, backend=name), TESTBED)
        for field in ("start_ns", "src", "dst", "size_bytes", "klass"):
            np.testing.assert_array_equal(getattr(schedule, field), getattr(other, field))


def test_progress_is_in_virtual_time(engine, backend, tmp_path):
    told = []
    trial = tiny(engine)
    schedule = make_schedule(trial, TESTBED)
    backend.run(
        TrialRun(trial, TESTBED, schedule, tmp_path, lambda now, end: told.append((now, end)))
    )
    assert told
    assert all(now >= 0 and end == trial.duration_ns for now, end in told)
    assert [now for now, _ in told] == sorted(now for now, _ in told)
