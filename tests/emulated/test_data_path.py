"""The data path of our own: exact times and marks, TCP as on Linux' fabric, RoCE under DCQCN."""

import dataclasses

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.routing import ideal_times_ns
from orchestration.analysis.stamp import stamp
from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.bench.outcome import SECN1, run_trial
from orchestration.bench.repeatable import differing_values, faulty_trial
from orchestration.core.codec import flattened, record_tables
from orchestration.core.parts import SwitchSpec
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE
from orchestration.core.roce import HEADER_BYTES, RoceSpec
from orchestration.core.trial import TCP, FabricSpec, FaultSpec, HostSpec, TrialSpec, TunerSpec
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from tests.testbeds import single_switch
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner
from tuners.ecn.static import Secn1

MS = 1_000_000
OURS = FabricSpec("closloop")
SIXTEEN = single_switch("sixteen", 17, "25Gbps", buffer="BUFFER")


def roce(name="mlx5", **more):
    return HostSpec("dcqcn", roce=RoceSpec(dcqcn=tuple(DCQCN_SETS[name].items()), **more))


def incast(
    tmp_path,
    senders,
    size_bytes,
    host,
    *,
    buffer="64MB",
    tuner=SECN1,
    period_ns=50_000,
    fabric=OURS,
    delay_us=1,
    engine,
):
    path = tmp_path / "sixteen.yml"
    path.write_text(SIXTEEN.replace("BUFFER", buffer).replace("1us", f"{delay_us}us"))
    flows = tuple(SingleFlowSpec(f"h{n + 2}", "h1", size_bytes, 0) for n in range(senders))
    return run_trial(
        str(path),
        flows,
        tuner,
        duration_ns=20 * MS,
        sample_period_ns=period_ns,
        host=host,
        fabric=fabric,
        engine=engine,
    )


def times(run):
    flows = run.record.flows
    assert (flows.status == DONE).all()
    return flows.end_ns - run.schedule.start_ns


@pytest.mark.parametrize(
    ("payload_bytes", "size_bytes", "delay_us"),
    # what arrives in 12 us is later than the engine's wheel reaches
    [(1024, 10_000_000, 1), (1024, 1, 1), (1000, 999_999, 1), (1000, 999_999, 12)],
)
def test_a_lone_roce_flow_takes_the_computed_time(
    tmp_path, engine, payload_bytes, size_bytes, delay_us
):
    host = roce(payload_bytes=payload_bytes)
    run = incast(tmp_path, 1, size_bytes, host, delay_us=delay_us, engine=engine)
    packets = -(-size_bytes // payload_bytes)
    before_bytes = (packets - 1) * (payload_bytes + HEADER_BYTES + run.testbed.framing_bytes)
    # both ways over two cables, and the packets before the last at 25 Gbit/s
    wanted_ns = 4_000 * delay_us + before_bytes * 8 / 25
    assert times(run)[0] == pytest.approx(wanted_ns, rel=1e-4, abs=4)
    assert ideal_times_ns(run.testbed, run.schedule, run.trial)[0] == pytest.approx(
        wanted_ns, abs=1
    )


def test_a_flow_that_waits_for_its_turn_at_the_nic_is_not_late(tmp_path, engine):
    path = tmp_path / "sixteen.yml"
    path.write_text(SIXTEEN.replace("BUFFER", "64MB"))
    flows = tuple(SingleFlowSpec("h2", f"h{n + 3}", 100_000, 0) for n in range(12))
    more = {"duration_ns": MS, "host": roce(), "fabric": OURS, "engine": engine}
    run = run_trial(str(path), flows, SECN1, **more)
    # the last of twelve begins to be sent after 11 packets of 0.35 us
    assert times(run).min() > 100_000
    assert stamp(run.trial, run.testbed, run.schedule, run.record).valid


def test_a_trial_goes_on_until_the_last_acknowledgement_is_there(tmp_path, engine):
    # received at 2 us, acknowledged at 4, sampled at 3
    run = incast(tmp_path, 1, 1, roce(), period_ns=3_000, engine=engine)
    assert times(run)[0] == pytest.approx(4_000, abs=4)


@pytest.mark.parametrize("marks", ["arrivals", "departures"])
def test_packets_are_marked_by_the_straight_line(tmp_path, engine, marks):
    kmin, kmax, pmax = 100_000, 16_000_000, 0.5
    wide = TunerSpec("static", {"kmin_bytes": kmin, "kmax_bytes": kmax, "pmax": pmax})
    # hosts that hear no CNP fill the queue, and it drains afterwards
    deaf = RoceSpec(dcqcn=(("min_time_between_cnps", 1_000_000),))
    run = incast(
        tmp_path,
        2,
        8_000_000,
        HostSpec("dcqcn", roce=deaf),
        tuner=wide,
        period_ns=10_000,
        fabric=FabricSpec("closloop", marks),
        engine=engine,
    )
    queues = run.testbed.queues
    (queue,) = (i for i, q in enumerate(queues) if run.testbed.peer_device(q.port).name == "h1")
    ports = run.record.ports
    backlog, sent = ports.qlen_bytes[:, queue], np.diff(ports.tx_packets[:, queue])
    marked = np.diff(ports.marked_packets[:, queue])
    share = np.clip(pmax * ((backlog[1:] + backlog[:-1]) / 2 - kmin) / (kmax - kmin), 0, 1)
    # those that arrived are those sent, and what the queue has grown by
    arrived = sent + np.diff(backlog) / (1024 + HEADER_BYTES)
    packets = arrived if marks == "arrivals" else sent
    expected, variance = (packets * share).sum(), (packets * share * (1 - share)).sum()
    assert expected > 1_000
    assert abs(marked.sum() - expected) < 2.58 * variance**0.5


@pytest.mark.parametrize("marks", ["arrivals", "departures"])
@pytest.mark.parametrize("host", [TCP, roce("hpcc")], ids=["tcp", "roce"])
def test_the_same_trial_gives_the_same_tables_to_the_bit(host, marks):
    fabric = FabricSpec("closloop", marks)
    one, other = (faulty_trial("secn2", host=host, fabric=fabric) for _ in range(2))
    differ, values = differing_values(one, other)
    assert values > 10_000
    assert differ == 0
    assert one.record.ports.marked_packets[-1].sum() > 0
    assert (one.record.flows.status == DONE).all()


class Idle(BaseTuner):
    """Decides after each reading, and changes nothing: the loop must wake for each."""

    observes = ("qlen_bytes", "host.cnps")  # hosts are read with each, too

    def reset(self, testbed, seed):
        return Secn1().reset(testbed, seed)


PFC = SwitchSpec(1_500_000, (1 / 8,), lossless=(0,), priorities=(3,))


@pytest.mark.parametrize(
    ("host", "switch"),
    [(TCP, None), (roce("hpcc"), None), (roce("hpcc"), PFC)],
    ids=["tcp", "roce", "pfc"],
)
def test_readings_that_nobody_wakes_for_are_those_of_a_tuner_that_decides(host, switch, tmp_path):
    testbed = dataclasses.replace(load_testbed("graphcc"), switch=switch)
    patterns = (PoissonSpec("WebSearch", 0.6, 0, 2 * MS),)
    trial = TrialSpec(
        "c", "graphcc", "emulated", SECN1, patterns, 1, 1, 2 * MS, 100 * MS,
        host=host, fabric=OURS,
        faults=(FaultSpec(MS, 3 * MS, 130_000, ("leaf1-spine2",)),),
    )  # fmt: skip
    schedule = make_schedule(trial, testbed)
    decides = EmulatedBackend().run(TrialRun(trial, testbed, schedule, tmp_path, tuner=Idle()))
    alone = EmulatedBackend().run(TrialRun(trial, testbed, schedule, tmp_path))
    one, other = (flattened(record_tables(record)) for record in (alone, decides))
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)
    assert (alone.ports.t_ns == 100_000 * np.arange(1, len(alone.ports.t_ns) + 1)).all()
    # the last reading is the first after the last flow's end, or at it
    late_ns = alone.ports.t_ns[-1] - alone.flows.end_ns.max()
    assert 0 <= late_ns < 100_000
    assert alone.facts["decisions"] == decides.facts["decisions"] > 20
    assert alone.ports.marked_packets[-1].sum() > 0
    if switch is not None:
        assert alone.samples["priority"].paused_ns[-1].sum() > 0
    # the guest goes no further than that
    assert alone.facts["end_ns"] == decides.facts["end_ns"] < alone.ports.t_ns[-1] + 100_000


@pytest.mark.parametrize("name", ["paper", "hpcc"])
def test_sixteen_flows_share_a_port_fairly_and_nothing_is_dropped(tmp_path, engine, name):
    run = incast(tmp_path, 16, 4_000_000, roce(name), engine=engine)
    rates = 1 / times(run)
    jain = rates.sum() ** 2 / (len(rates) * (rates**2).sum())
    assert jain > 0.98
    assert run.record.ports.dropped_packets[-1].sum() == 0
    assert run.record.facts["resent"] == 0
    assert run.record.facts["cnps"] > 0


def test_what_is_dropped_is_sent_again(tmp_path, engine):
    run = incast(tmp_path, 16, 1_000_000, roce(), buffer="300KB", engine=engine)
    times(run)
    facts = run.record.facts
    assert run.record.ports.dropped_packets[-1].sum() > 0
    assert facts["resent"] > 0
    assert facts["naks"] > 0
    # go-back-N sends again at most what it was told to go back by
    packets = 16 * -(-1_000_000 // 1024)
    assert packets < facts["packets"] <= packets + facts["resent"]


def test_tcp_is_as_on_the_fabric_of_linux():
    ours, linux = (
        run_trial(
            "graphcc",
            (PoissonSpec("WebSearch", 0.5, 0, 5 * MS),),
            SECN1,
            duration_ns=5 * MS,
            fabric=fabric,
        )
        for fabric in (OURS, FabricSpec())
    )
    ratio = times(ours) / times(linux)
    assert np.median(ratio) == pytest.approx(1, abs=0.03)
    assert times(ours).mean() == pytest.approx(times(linux).mean(), rel=0.1)
    packets = [run.record.ports.tx_packets[-1].sum() for run in (ours, linux)]
    assert packets[0] == pytest.approx(packets[1], rel=0.02)
