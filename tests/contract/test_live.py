"""Every backend shows a running trial, in its work folder, as its tables say afterwards."""

import numpy as np
import pytest

from collectors import snapshot
from collectors.snapshot import SNAPSHOT_FILE, decode_snapshot
from inventory.files import load_testbed
from orchestration.core.engines import KERNEL, PROCESS
from orchestration.core.ports import TrialRun
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import FabricSpec, HostSpec, TrialSpec, TunerSpec
from orchestration.run import backend_factory
from tests.trials import trial_spec
from traffic.patterns.incast import IncastSpec
from traffic.schedule import make_schedule

MS = 1_000_000
TESTBED = load_testbed("rlcc-7")


def test_the_last_picture_agrees_with_the_tables(engine, backend, tmp_path):
    traffic = (IncastSpec(6, 500_000, 100 * MS, 0, MS, receiver=TESTBED.hosts[0]),)
    trial = trial_spec(
        testbed="rlcc-7", tuner=TunerSpec("amt"), traffic=traffic, seed=3,
        duration_ns=2 * MS, drain_ns=20 * MS, **engine.fields,
    )  # fmt: skip
    schedule = make_schedule(trial, TESTBED)
    record = backend.run(TrialRun(trial, TESTBED, schedule, tmp_path))
    shown = decode_snapshot((tmp_path / SNAPSHOT_FILE).read_bytes())
    row = shown.samples - 1
    assert record.ports.t_ns[row] == shown.t_ns
    for name in ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets"):
        assert np.array_equal(getattr(shown, name), getattr(record.ports, name)[row]), name
    ended = np.count_nonzero((record.flows.end_ns >= 0) & (record.flows.end_ns <= shown.t_ns))
    assert abs(shown.flows_done - ended) <= 1  # one may end while it is being read
    applied_ns = record.changes["ecn"].applied_ns
    assert shown.changes == len(np.unique(applied_ns[applied_ns <= shown.t_ns]))
    hosts = record.samples["host"]
    (row,) = np.flatnonzero(hosts.t_ns == shown.hosts_ns)
    for name in ("retransmits", "timeouts", "tx_bytes"):
        assert np.array_equal(shown.hosts[name], hosts[name][row]), name
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("engine", [PROCESS, pytest.param(KERNEL, marks=pytest.mark.kernel)])
def test_pauses_buffers_and_nics_are_shown_as_the_tables_have_them(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "EVERY_S", 0.0)  # in the process a trial is over before that
    path = tmp_path / "one.yml"
    path.write_text(
        "{kind: single-switch, name: one, mtu: 1500B, hosts: 10, "
        "host_link: {rate: 25Gbps, delay: 1us}, switch: {buffer: 1MB, alpha: 1/8, pfc: [3]}}"
    )
    testbed = load_testbed(str(path))
    backend = backend_factory.backend("emulated", engine=engine)
    traffic = (IncastSpec(9, 400_000, 100 * MS, 0, MS, receiver=testbed.hosts[0]),)
    tuner, host = TunerSpec("secn1"), HostSpec("dcqcn", roce=RoceSpec())
    trial = TrialSpec(
        *("contract", str(path), backend.name, tuner, traffic, 3, 1, 2 * MS, 20 * MS),
        host=host,
        fabric=FabricSpec("closloop"),
    )
    schedule = make_schedule(trial, testbed)
    record = backend.run(TrialRun(trial, testbed, schedule, tmp_path))
    shown = decode_snapshot((tmp_path / SNAPSHOT_FILE).read_bytes())
    row = shown.samples - 1
    for scope in ("priority", "switch"):
        values = record.samples[scope].values
        names = [name for name in shown.values if name.startswith(f"{scope}.")]
        assert names
        for name in names:
            assert np.array_equal(shown.values[name], values[name.partition(".")[2]][row]), name
    assert shown.values["priority.pausing_ns"].sum() > 0
    hosts = record.samples["host"]
    (row,) = np.flatnonzero(hosts.t_ns == shown.hosts_ns)
    (before,) = np.flatnonzero(hosts.t_ns == shown.hosts_before_ns)
    assert before < row
    for name in ("cnps", "rate_bps", "rtt_ns"):
        assert np.array_equal(shown.hosts[name], hosts[name][row]), name
        assert np.array_equal(shown.hosts_before[name], hosts[name][before]), name
    assert hosts["cnps"][row].sum() > 0
