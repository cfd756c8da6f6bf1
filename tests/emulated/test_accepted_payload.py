"""What receivers accept under go-back-N, and flows that starve: of RoCE NICs, in both engines."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.analysis.device_metrics import measure_devices
from orchestration.analysis.load import load_facts
from orchestration.analysis.report.report_tables import load_table
from orchestration.analysis.stamp import stamp
from orchestration.analysis.summary import summarise
from orchestration.bench.outcome import Run, bench_trial
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import FabricSpec, HostSpec, TunerSpec
from orchestration.results.reader import LOAD_FACT, read_trial
from orchestration.results.stamp import Stamp
from orchestration.results.writer import write_trial
from orchestration.run.backend_factory import backend
from tests.testbeds import single_switch
from traffic.patterns.concurrent import ConcurrentSpec
from traffic.patterns.incast import IncastSpec
from traffic.schedule import make_schedule

MS = 1_000_000
TESTBED = single_switch("lossy", 9, "25Gbps", buffer="BUFFER")
NEVER_MARKS = TunerSpec(
    "static", {"kmin_bytes": 64_000_000, "kmax_bytes": 64_000_000, "pmax": 0.01}
)
VALID = Stamp(valid=True, reasons=(), checked=())
ONE_MS = RoceSpec(timeout_ns=MS)
HARDLY_MARKS = TunerSpec("static", {"kmin_bytes": 50_000, "kmax_bytes": 60_000, "pmax": 0.01})


@pytest.fixture
def run(tmp_path, engine):
    def run(traffic, *, buffer="60KB", roce=ONE_MS, **more):
        path = tmp_path / f"lossy-{buffer}.yml"
        path.write_text(TESTBED.replace("BUFFER", buffer))
        testbed = load_testbed(str(path))
        trial = bench_trial(
            (traffic,),
            testbed=str(path),
            backend="emulated",
            sample_period_ns=100_000,
            action_period_ns=100_000,
            host=HostSpec("dcqcn", roce=roce),
            fabric=FabricSpec("closloop"),
            **{"tuner": HARDLY_MARKS, **more},
        )
        schedule = make_schedule(trial, testbed)
        work = Path(tempfile.mkdtemp(dir=tmp_path))
        record = backend("emulated", engine=engine).run(TrialRun(trial, testbed, schedule, work))
        return Run(trial, testbed, schedule, record, 0.0)

    return run


def load_of(one):
    return load_facts(one.trial, one.testbed, one.schedule, one.record)[LOAD_FACT]


def carried_bytes(one, at_ns):
    """Payload that the port to h9 had sent by a time: all of it full packets of data."""
    ports = one.record.ports
    (row,) = np.flatnonzero(ports.t_ns == at_ns)
    return int(ports.tx_packets[row, -1]) * 1024


@pytest.mark.parametrize("warm_up_ns", [0, MS // 2])
def test_delivered_is_what_receivers_kept_of_what_arrived(run, warm_up_ns):
    incast = IncastSpec(8, 256_000, 2 * MS, 0, 2 * MS, "h9")
    given = {"duration_ns": 2 * MS, "warm_up_ns": warm_up_ns}
    plain, sampled = (
        run(incast, **given, **more) for more in ({}, {"flow_sample_period_ns": 100_000})
    )
    assert (plain.record.flows.status == DONE).all()
    assert plain.record.flows.end_ns.max() > 2 * MS
    flows = sampled.record.samples["flow"]
    kept = {int(t): int(row.sum()) for t, row in zip(flows.t_ns, flows["acked_bytes"], strict=True)}
    for one in (plain, sampled):
        load = load_of(one)
        assert load["delivered_bytes"] == kept[2 * MS] - kept[warm_up_ns]
        arrived = carried_bytes(one, 2 * MS) - (carried_bytes(one, warm_up_ns) if warm_up_ns else 0)
        assert load["delivered_bytes"] + load["discarded_bytes"] == pytest.approx(arrived, abs=2)
        assert load["discarded_bytes"] > 0.1 * load["delivered_bytes"]
        assert load["patterns"]["incast"]["discarded_bytes"] == load["discarded_bytes"]


def test_of_flows_that_end_in_time_delivered_is_their_size(run):
    one = run(IncastSpec(8, 256_000, 8 * MS, 0, 8 * MS, "h9"), duration_ns=8 * MS)
    assert one.record.flows.end_ns.max() < 8 * MS
    load = load_of(one)
    assert load["delivered_bytes"] == load["offered_bytes"] == 8 * 256_000
    assert load["discarded_bytes"] > 0


def test_a_nic_counts_the_timeouts_of_its_own_flows(run, tmp_path):
    """A flow ends as many timeouts of 1 ms after its start as its NIC has counted."""
    one = run(IncastSpec(8, 256_000, 8 * MS, 0, 8 * MS, "h9"), duration_ns=8 * MS)
    assert (one.record.flows.status == DONE).all()
    by_host = one.record.samples["host"]["timeouts"][-1]
    waited_ms = one.record.flows.end_ns[np.argsort(one.schedule.src)] // MS
    assert by_host[:8].tolist() == waited_ms.tolist()
    assert by_host[8] == 0
    assert by_host.sum() == one.record.facts["timeouts"] > 8
    write_trial(tmp_path / "one", one.trial, one.testbed, one.schedule, one.record, VALID, {})
    result = read_trial(tmp_path / "one")
    found = measure_devices(result)
    assert found["timeouts"] == by_host.sum()
    assert found["nacks"] == result.facts["naks"] > 0


LONG_LIVED = ConcurrentSpec(8, 0, 0, "h9")


def test_a_trial_whose_flows_starve_is_invalid(run):
    one = run(LONG_LIVED, duration_ns=5 * MS, roce=RoceSpec(timeout_ns=16 * MS))
    verdict = stamp(one.trial, one.testbed, one.schedule, one.record)
    assert not verdict.valid
    (found,) = (reason for reason in verdict.reasons if reason.severity == "invalid")
    assert found.code == "flows-starved"
    assert "of 8 flows that last as long as the trial" in found.text
    assert "the port to h9" in found.text
    load = load_of(one)
    assert load["offered_bytes"] is None
    assert load["delivered_load"] < 0.2 / 9
    assert load["delivered_load"] + load["discarded_load"] > 0.8 / 9


def test_flows_that_share_a_port_evenly_do_not_starve(run):
    roce = RoceSpec(timeout_ns=16 * MS, window_bytes=16 * 1024)
    one = run(LONG_LIVED, duration_ns=5 * MS, buffer="64MB", tuner=NEVER_MARKS, roce=roce)
    verdict = stamp(one.trial, one.testbed, one.schedule, one.record)
    assert "starvation" in verdict.checked
    assert verdict.valid, verdict.reasons
    load = load_of(one)
    assert load["offered_bytes"] is None
    assert load["delivered_load"] > 0.9 / 9
    assert load["discarded_bytes"] == 0


def test_a_report_names_what_receivers_discarded(run, tmp_path):
    one = run(IncastSpec(8, 256_000, 8 * MS, 0, 8 * MS, "h9"), duration_ns=8 * MS)
    facts = load_facts(one.trial, one.testbed, one.schedule, one.record)
    verdict = stamp(one.trial, one.testbed, one.schedule, one.record)
    folder = tmp_path / "runs" / one.trial.id
    folder.parent.mkdir()
    write_trial(folder, one.trial, one.testbed, one.schedule, one.record, verdict, facts)
    (condition,) = summarise(folder.parent).conditions
    shown = load_table(condition)
    heads = [column.name.split(",")[0] for column in shown.columns]
    assert heads == ["load", "offered", "delivered", "discarded"]
    (name, offered, delivered, discarded) = shown.rows[0].cells
    assert len(shown.rows) == 1
    assert (name, offered) == ("incast", delivered)
    assert discarded not in ("", "–", "0.00%", delivered)
    assert "Discarded: payload that arrives twice" in shown.caption
