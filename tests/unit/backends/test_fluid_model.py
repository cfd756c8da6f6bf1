"""The fluid model behaves like a fabric: ideal times, shared links, queues, losses, faults."""

import dataclasses

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.routing import PathTable
from orchestration.analysis.stamp import stamp
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.backends.fluid.network import Paths
from orchestration.core.codec import flattened
from orchestration.core.errors import TrialError
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE, UNFINISHED
from orchestration.core.topology import Device, LinkSpec, Testbed
from orchestration.core.trial import FaultSpec, HostSpec, TrialSpec, TunerSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

MS = 1_000_000
GRAPHCC = load_testbed("graphcc")
NEVER_MARK = TunerSpec("static", {"kmin_bytes": 10**9, "kmax_bytes": 10**9, "pmax": 1.0})


def run(tmp_path, *traffic, testbed=GRAPHCC, **changes):
    trial = TrialSpec(
        "c", testbed.name, "fluid", TunerSpec("secn1"), traffic, 5, 1, 5 * MS, 100 * MS
    )
    trial = dataclasses.replace(trial, **changes)
    schedule = make_schedule(trial, testbed)
    record = FluidBackend().run(TrialRun(trial, testbed, schedule, tmp_path))
    return trial, schedule, record


def fct_ns(schedule, record):
    return record.flows.end_ns - schedule.start_ns


def to_hosts(testbed):
    return [n for n, port in enumerate(testbed.queues) if testbed.peer_device(port).kind == "host"]


@pytest.mark.parametrize("size", [1, 1448, 10_000, 100_000, 1_000_000, 20_000_000])
@pytest.mark.parametrize("ends", [(0, 1), (0, 23)], ids=["one leaf", "across spines"])
def test_a_lone_flow_takes_its_ideal_time(tmp_path, size, ends):
    src, dst = (GRAPHCC.hosts[end] for end in ends)
    _, schedule, record = run(tmp_path, SingleFlowSpec(src, dst, size, 12_345))
    ideal_ns = PathTable(GRAPHCC).ideal_fct_ns(src, dst, size)
    # Above the ideal: slow start costs a round trip or two.
    assert 1.0 <= fct_ns(schedule, record)[0] / ideal_ns < 1.12


def test_two_flows_share_a_link_evenly(tmp_path):
    hosts = GRAPHCC.hosts
    flows = [SingleFlowSpec(hosts[n], hosts[0], 5_000_000, 0) for n in (1, 8)]
    _, schedule, record = run(tmp_path, *flows)
    alone_ns = PathTable(GRAPHCC).ideal_fct_ns(hosts[1], hosts[0], 5_000_000)
    assert fct_ns(schedule, record) == pytest.approx([2 * alone_ns] * 2, rel=0.1)


def test_larger_thresholds_let_an_incast_queue_longer(tmp_path):
    incast = IncastSpec(16, 2_000_000, 100 * MS, 0, MS, receiver=GRAPHCC.hosts[0])
    queue = {}
    for tuner in ("secn1", "secn2"):
        _, _, record = run(tmp_path, incast, tuner=TunerSpec(tuner))
        assert record.ports.dropped_packets[-1].sum() == 0
        lengths = record.ports.qlen_bytes.max(axis=1)
        queue[tuner] = np.median(lengths[5:-5])
    assert 5_000 < queue["secn1"] < 250_000
    assert queue["secn2"] > 1.15 * queue["secn1"]


def test_nothing_is_marked_below_kmin_and_all_above_kmax(tmp_path):
    incast = IncastSpec(16, 500_000, 100 * MS, 0, MS, receiver=GRAPHCC.hosts[0])
    _, _, record = run(tmp_path, incast, tuner=NEVER_MARK)
    assert record.ports.marked_packets[-1].sum() == 0
    always = TunerSpec("static", {"kmin_bytes": 0, "kmax_bytes": 0, "pmax": 1.0})
    _, _, record = run(tmp_path, incast, tuner=always)
    queue = int(record.ports.tx_packets[-1].argmax())
    busy = record.ports.qlen_bytes[:, queue] > 0
    marked = np.diff(record.ports.marked_packets[:, queue])[busy[:-1] & busy[1:]]
    sent = np.diff(record.ports.tx_packets[:, queue])[busy[:-1] & busy[1:]]
    assert marked == pytest.approx(sent, abs=1)


def test_bytes_are_conserved_to_the_last(tmp_path):
    traffic = (
        PoissonSpec("WebSearch", 0.6, 0, 5 * MS),
        IncastSpec(16, 64_000, 2 * MS, MS, 5 * MS),
    )
    trial, schedule, record = run(tmp_path, *traffic)
    assert (record.flows.status == DONE).all()
    packets = np.maximum(1, -(-schedule.size_bytes // GRAPHCC.mss_bytes))
    last = record.ports.tx_bytes[-1][to_hosts(GRAPHCC)].sum()
    assert last == pytest.approx((schedule.size_bytes + 66 * packets).sum(), abs=len(schedule))
    verdict = stamp(trial, GRAPHCC, schedule, record)
    assert verdict.valid, verdict.reasons


def small_buffers() -> Testbed:
    devices = [Device(f"h{n}", "host", 0) for n in range(9)] + [Device("s1", "switch", 1)]
    links = [LinkSpec(f"h{n}", "s1", 25 * 10**9, 1000) for n in range(9)]
    return Testbed.build("small", devices, links, mtu_bytes=1500, buffer_bytes=100_000)


def test_a_full_buffer_drops_and_the_senders_send_again(tmp_path):
    testbed = small_buffers()
    incast = IncastSpec(8, 1_000_000, 100 * MS, 0, MS, receiver="h0")
    _, schedule, record = run(tmp_path, incast, testbed=testbed, tuner=NEVER_MARK)
    dropped = record.ports.dropped_packets[-1].sum()
    assert dropped > 0
    assert record.ports.qlen_bytes.max() > 50_000
    assert (record.flows.status == DONE).all()
    assert record.flows.retransmits.sum() == pytest.approx(dropped, abs=len(schedule) / 2)
    assert record.hosts.retransmits[-1].sum() == record.flows.retransmits.sum()
    packets = -(-schedule.size_bytes // testbed.mss_bytes)
    last = record.ports.tx_bytes[-1][to_hosts(testbed)].sum()
    assert last == pytest.approx((schedule.size_bytes + 66 * packets).sum(), abs=1000)


def test_a_failed_link_carries_nothing_and_its_flows_go_round_it(tmp_path):
    hosts = GRAPHCC.hosts
    flows = [SingleFlowSpec(hosts[n], hosts[12 + n], 10_000_000, 0) for n in range(6)]
    fault = FaultSpec(MS, 3 * MS, MS // 2, links=("leaf1-spine1",))
    _, _, record = run(tmp_path, *flows, faults=(fault,))
    assert [(event.t_ns, event.kind) for event in record.events] == [
        (MS, "links"),
        (MS + MS // 2, "routes"),
        (3 * MS, "links"),
        (3 * MS + MS // 2, "routes"),
    ]
    assert "down: leaf1-spine1" in record.events[0].detail
    uplink = next(
        n
        for n, port in enumerate(GRAPHCC.queues)
        if port.device == "leaf1" and GRAPHCC.peer_device(port).name == "spine1"
    )
    t_ns, sent = record.ports.t_ns, record.ports.tx_bytes[:, uplink]
    assert sent[t_ns == MS][0] > 0
    assert sent[t_ns == 3 * MS][0] == sent[t_ns == MS][0]
    assert record.ports.dropped_packets[-1, uplink] > 0
    assert (record.flows.status == DONE).all()
    assert record.flows.retransmits.sum() > 0


def test_a_host_that_is_cut_off_leaves_its_flow_unfinished(tmp_path):
    testbed = small_buffers()
    fault = FaultSpec(MS, None, 0, links=("h0-s1",))
    flows = (SingleFlowSpec("h1", "h0", 50_000_000, 0), SingleFlowSpec("h1", "h2", 1000, 2 * MS))
    _, _, record = run(tmp_path, *flows, testbed=testbed, faults=(fault,), drain_ns=5 * MS)
    assert record.flows.status.tolist() == [UNFINISHED, DONE]
    assert record.hosts.timeouts[-1].sum() > 0


def test_a_long_idle_time_is_skipped_but_sampled(tmp_path):
    hosts = GRAPHCC.hosts
    flows = [SingleFlowSpec(hosts[0], hosts[9], 1000, at) for at in (0, 4 * MS)]
    _, schedule, record = run(tmp_path, *flows)
    assert record.ports.t_ns.tolist() == list(range(100_000, 4 * MS + 100_001, 100_000))
    assert fct_ns(schedule, record)[0] == fct_ns(schedule, record)[1]


def test_the_same_trial_gives_the_same_record(tmp_path):
    traffic = (PoissonSpec("WebSearch", 0.5, 0, 2 * MS),)
    records = (run(tmp_path, *traffic)[2] for _ in range(2))
    one, other = (
        flattened(
            {
                "flows": vars(record.flows),
                "samples": {scope: vars(held) for scope, held in record.samples.items()},
                "changes": {knob: vars(held) for knob, held in record.changes.items()},
            }
        )
        for record in records
    )
    assert one.keys() == other.keys()
    assert {"flows/end_ns", "samples/queue/values/tx_bytes", "changes/ecn/values/pmax"} <= set(one)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], name)


def test_a_congestion_control_that_is_not_modelled_is_refused(tmp_path):
    flow = SingleFlowSpec(GRAPHCC.hosts[0], GRAPHCC.hosts[1], 1000, 0)
    with pytest.raises(TrialError, match="cubic"):
        run(tmp_path, flow, host=HostSpec("cubic"))


def test_paths_are_connected_and_shortest():
    testbed = load_testbed("drlet-k4")
    paths = Paths(testbed, seed=1)
    table = PathTable(testbed)
    rng = np.random.default_rng(0)
    for flow in range(200):
        src, dst = (testbed.hosts[n] for n in rng.choice(len(testbed.hosts), 2, replace=False))
        ports = [testbed.ports[n] for n in paths.path(flow, src, dst) if n < paths.nowhere]
        assert ports[0].device == src
        ends = [testbed.ports[port.peer].device for port in ports]
        assert ends[:-1] == [port.device for port in ports[1:]]
        assert ends[-1] == dst
        assert len(ports) == table.path(src, dst).hops


def test_flows_spread_over_equal_paths_by_seed():
    paths = Paths(GRAPHCC, seed=1)
    src, dst = GRAPHCC.hosts[0], GRAPHCC.hosts[-1]
    chosen = [tuple(paths.path(flow, src, dst)) for flow in range(200)]
    counts = [chosen.count(path) for path in set(chosen)]
    assert len(counts) == 2
    assert min(counts) > 70
    assert chosen == [tuple(Paths(GRAPHCC, 1).path(flow, src, dst)) for flow in range(200)]
    assert chosen != [tuple(Paths(GRAPHCC, 2).path(flow, src, dst)) for flow in range(200)]


def test_paths_around_failures_may_go_up_and_down_twice():
    """leaf1 has only spine1, leaf4 only spine2: the way leads over another leaf."""
    down = [
        link.index
        for link in GRAPHCC.links
        for pair in (("leaf1", "spine2"), ("leaf4", "spine1"))
        if {GRAPHCC.ports[link.a].device, GRAPHCC.ports[link.b].device} == set(pair)
    ]
    paths = Paths(GRAPHCC, 1, down)
    column = paths.path(0, GRAPHCC.hosts[0], GRAPHCC.hosts[-1])
    devices = [GRAPHCC.ports[n].device for n in column if n != paths.nowhere]
    assert devices[1] == "leaf1"
    assert devices[2] == "spine1"
    assert devices[3] in ("leaf2", "leaf3")
    assert devices[4:] == ["spine2", "leaf4"]


def test_flows_end_on_such_paths_too(tmp_path):
    faults = (FaultSpec(MS, None, 0, links=("leaf1-spine2", "leaf4-spine1")),)
    flow = SingleFlowSpec(GRAPHCC.hosts[0], GRAPHCC.hosts[-1], 10_000_000, 0)
    late = SingleFlowSpec(GRAPHCC.hosts[1], GRAPHCC.hosts[-2], 1_000_000, 2 * MS)
    _, schedule, record = run(tmp_path, flow, late, faults=faults)
    assert (record.flows.status == DONE).all()
    ideal_ns = PathTable(GRAPHCC).ideal_fct_ns(GRAPHCC.hosts[1], GRAPHCC.hosts[-2], 1_000_000)
    assert fct_ns(schedule, record)[1] < 3 * ideal_ns
