"""Every backend shows a running trial, in its work folder, as its tables say afterwards."""

import numpy as np
import pytest

from collectors.snapshot import SNAPSHOT_FILE, decode_snapshot
from inventory.files import load_testbed
from orchestration import wiring
from orchestration.model.trial import IncastSpec, TrialSpec, TunerSpec
from traffic.schedule import make_schedule

MS = 1_000_000
TESTBED = load_testbed("rlcc-7")


@pytest.fixture(
    params=[
        "fluid",
        pytest.param("emulated", marks=pytest.mark.kernel),
        pytest.param("simulated", marks=pytest.mark.ns3),
    ]
)
def backend(request):
    return wiring.backend(request.param)


def test_the_last_picture_agrees_with_the_tables(backend, tmp_path):
    traffic = (IncastSpec(6, 500_000, 100 * MS, 0, MS, receiver=TESTBED.hosts[0]),)
    trial = TrialSpec(
        "contract", "rlcc-7", backend.name, TunerSpec("amt"), traffic, 3, 1, 2 * MS, 20 * MS
    )
    schedule = make_schedule(trial, TESTBED)
    record = backend.run(trial, TESTBED, schedule, tmp_path, lambda now_ns, end_ns: None)
    shown = decode_snapshot((tmp_path / SNAPSHOT_FILE).read_bytes())
    row = shown.samples - 1
    assert record.ports.t_ns[row] == shown.t_ns
    for name in ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets"):
        assert np.array_equal(getattr(shown, name), getattr(record.ports, name)[row]), name
    ended = np.count_nonzero((record.flows.end_ns >= 0) & (record.flows.end_ns <= shown.t_ns))
    assert abs(shown.flows_done - ended) <= 1  # one may end while it is being read
    applied_ns = record.changes["ecn"].applied_ns
    assert shown.changes == len(np.unique(applied_ns[applied_ns <= shown.t_ns]))
    assert not list(tmp_path.glob("*.partial"))
