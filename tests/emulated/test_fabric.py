"""The emulated fabric against its own testbed: what `closloop bench` measures, in small."""

import numpy as np
import pytest

from orchestration.bench.outcome import run_trial
from orchestration.bench.red import last_hop_bytes, round_trips, threshold_change
from orchestration.core.records import DONE
from orchestration.core.trial import CLOSLOOP, LINUX, FabricSpec, FaultSpec, TunerSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec

MS = 1_000_000
SECN1 = TunerSpec("secn1")


def queue_to(run, host):
    testbed = run.testbed
    return next(i for i, p in enumerate(testbed.queues) if testbed.peer_device(p).name == host)


def test_pings_see_the_base_rtt():
    assert round_trips().holds


@pytest.mark.parametrize(("testbed", "gigabit"), [("graphcc", 25), ("rlcc-7", 100)])
def test_a_lone_flow_reaches_line_rate(testbed, gigabit):
    size = 25_000_000
    flow = (SingleFlowSpec("h1", "h7", size, 0),)
    run = run_trial(testbed, flow, SECN1, duration_ns=MS)
    goodput_bps = size * 8e9 / run.record.flows.end_ns[0]
    # 25 MB feel the slow start a little: 94.15 % is what framing leaves
    assert 0.935 <= goodput_bps / (gigabit * 1e9) <= 0.943
    assert run.record.facts["offloads_on"] == []


@pytest.mark.parametrize("fabric", [CLOSLOOP, LINUX], ids=lambda fabric: fabric.kind)
def test_bytes_are_conserved_and_every_flow_starts_on_time(fabric):
    poisson = (PoissonSpec("WebSearch", 0.6, 0, 2 * MS),)
    run = run_trial("graphcc", poisson, SECN1, duration_ns=2 * MS, fabric=fabric)
    sent, expected = last_hop_bytes(run)
    assert sent == pytest.approx(expected, rel=0.01)
    assert (run.record.flows.status == DONE).all()
    late_ns = run.record.flows.sent_ns - run.schedule.start_ns
    assert 0 <= late_ns.min() <= late_ns.max() <= 2_000


def test_thresholds_change_at_once_and_harm_nothing():
    outcome = threshold_change()
    assert outcome.holds, outcome.figures


def test_a_step_threshold_is_where_marking_begins():
    """Below K nothing is marked, above K everything: DCTCP settles at K."""
    k_bytes = 100_000
    params = {"kmin_bytes": k_bytes, "kmax_bytes": k_bytes, "pmax": 1.0}
    incast = (IncastSpec(4, 3_000_000, 100 * MS, 0, MS, receiver="h1"),)
    run = run_trial("graphcc", incast, TunerSpec("static", params), duration_ns=2 * MS)
    queue, ports = queue_to(run, "h1"), run.record.ports
    steady = (ports.t_ns > MS) & (ports.t_ns < run.record.flows.end_ns.min())
    lengths = ports.qlen_bytes[steady, queue]
    assert np.median(lengths) == pytest.approx(k_bytes, rel=0.25)
    idle = [i for i in range(len(run.testbed.queues)) if ports.qlen_bytes[:, i].max() < k_bytes / 2]
    assert ports.marked_packets[-1, idle].sum() == 0


def test_a_failed_link_costs_flows_until_routes_follow():
    faults = (FaultSpec(MS, 4 * MS, 500_000, links=("leaf1-spine1",)),)
    poisson = (PoissonSpec("WebSearch", 0.3, 0, 4 * MS),)
    run = run_trial("graphcc", poisson, SECN1, duration_ns=4 * MS, faults=faults)
    record, testbed = run.record, run.testbed
    assert [event.kind for event in record.events] == ["links", "routes", "links", "routes"]
    assert (record.flows.status == DONE).all()
    assert record.hosts.retransmits[-1].sum() > 0
    (link,) = testbed.links_by_name["leaf1-spine1"]
    ends = [i for i, p in enumerate(testbed.queues) if p.link == link]
    t_ns, sent = record.ports.t_ns, record.ports.tx_packets[:, ends]
    around = sent[(t_ns > 2 * MS) & (t_ns < 4 * MS)]
    assert (around[0] == around[-1]).all(), "no packet takes the link once routes avoid it"
    assert sent[-1].sum() > around[-1].sum(), "it carries traffic again when it is back"


def test_the_same_seed_takes_the_same_paths_under_two_tuners():
    poisson = (PoissonSpec("FB_Hadoop", 0.2, 0, MS),)
    shares = []
    for name in ("secn1", "secn2"):
        run = run_trial("graphcc", poisson, TunerSpec(name), duration_ns=MS)
        between = [
            i
            for i, port in enumerate(run.testbed.queues)
            if run.testbed.peer_device(port).kind == "switch"
        ]
        header = 66
        ports = run.record.ports
        shares.append(ports.tx_bytes[-1, between] - header * ports.tx_packets[-1, between])
    # payload by link between switches; a handshake's few option bytes are all that may differ
    assert np.allclose(shares[0], shares[1], atol=5_000)


@pytest.mark.parametrize("kind", ["linux", "closloop"])
def test_a_small_flow_does_not_wait_at_its_own_busy_nic(kind):
    """A NIC serves its flows in turn, and one that begins first: a packet's time, no more."""
    long = [SingleFlowSpec("h1", dst, 4_000_000, 0) for dst in ("h2", "h3")]
    small = [SingleFlowSpec("h1", "h7", 5_000, MS + n * 50_000) for n in range(20)]
    fabric = FabricSpec(kind)
    run = run_trial("graphcc", (*long, *small), SECN1, duration_ns=3 * MS, fabric=fabric)
    small_ones = run.schedule.size_bytes == 5_000
    fct_ns = (run.record.flows.end_ns - run.schedule.start_ns)[small_ones]
    # 8 us there and back, its packets in turn with those of two others
    assert np.median(fct_ns) < 15_000
    assert fct_ns.max() < 25_000
    # the long ones share the line, and keep it busy
    both_ns = (run.record.flows.end_ns - run.schedule.start_ns)[~small_ones]
    sent_bytes = sum(run.schedule.size_bytes) * 1538 / 1448
    assert both_ns.max() == pytest.approx(sent_bytes * 8 / 25, rel=0.02)
    assert both_ns.min() > 0.95 * both_ns.max()
