"""Bytes that a host has sent: those that its edge switch passes on, of TCP and RoCE."""

import pytest

from inventory.files import load_testbed
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import CLOSLOOP, LINUX, TCP, HostSpec, TrialSpec, TunerSpec
from orchestration.run import backend_factory
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

MS = 1_000_000
ETHERNET_BYTES = 14
TESTBED = load_testbed("drlet-k4")
ROCE = HostSpec("fixed", roce=RoceSpec(control="fixed", values=(("rate", 3_000),)))
# each below an edge switch of its own, all to a host below another
SENDERS = {"h1": "edge1", "h3": "edge2"}


@pytest.mark.parametrize(
    ("backend", "host", "fabric"),
    [
        pytest.param("simulated", TCP, LINUX, marks=pytest.mark.ns3),
        pytest.param("simulated", ROCE, CLOSLOOP, marks=pytest.mark.ns3),
    ],
)
def test_a_host_has_sent_what_its_edge_switch_sends_on(tmp_path, backend, host, fabric):
    flows = tuple(SingleFlowSpec(name, "h9", 1_000_000, MS) for name in SENDERS)
    trial = TrialSpec(
        "c", "drlet-k4", backend, TunerSpec("secn1"), flows, 1, 1, 3 * MS, 50 * MS,
        host=host, fabric=fabric,
    )  # fmt: skip
    schedule = make_schedule(trial, TESTBED)
    record = backend_factory.backend(backend).run(TrialRun(trial, TESTBED, schedule, tmp_path))
    assert (record.flows.status == DONE).all()
    ports = record.ports
    for name, edge in SENDERS.items():
        up = [
            place for place, queue in enumerate(TESTBED.queues)
            if queue.device == edge and TESTBED.peer_device(queue.port).kind == "switch"
        ]  # fmt: skip
        passed = ports.tx_bytes[-1][up].sum() - ETHERNET_BYTES * ports.tx_packets[-1][up].sum()
        assert passed > 1_000_000
        # of connections too, which are made before time 0
        assert record.hosts.tx_bytes[-1][TESTBED.hosts.index(name)] == passed
    sent = record.hosts.tx_bytes[:, TESTBED.hosts.index("h1")]
    assert (sent[1:] >= sent[:-1]).all()
    assert record.hosts.tx_bytes[-1][TESTBED.hosts.index("h2")] == 0
