"""Path selection in ns-3: sequences worked by hand for each algorithm, and the emulated twin."""

import random

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.core.knobs import FLOWLET_TIMEOUT
from orchestration.core.load_balancing import (
    ECMP,
    ROUTES,
    LoadBalancingSpec,
    initial_random_state,
    splitmix64,
)
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE, Setup
from orchestration.core.roce import HEADER_BYTES, RoceSpec
from orchestration.core.trial import CLOSLOOP, LINUX, TCP, FaultSpec, HostSpec, TrialSpec, TunerSpec
from orchestration.run import backend_factory
from tests.testbeds import leaf_spine
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner

pytestmark = pytest.mark.ns3

US, MS = 1_000, 1_000_000
SEED = 7
FRAME_BYTES = 1024 + HEADER_BYTES
CLOS = leaf_spine("clos", 3, 4, 4, "HOST", "UP", buffer="4MB", uplinks_per_spine="1")


def paced(mbps, **more):
    """Return hosts whose flows send at this rate, whatever happens."""
    spec = RoceSpec(control="fixed", values=(("rate", mbps),), timeout_ns=1_000 * MS, **more)
    return HostSpec("fixed", roce=spec)


# A packet with its framing each 20 us.
GAP_NS = 20 * US
SLOW = paced(round((FRAME_BYTES + 24) * 8 * 1000 / GAP_NS))


@pytest.fixture
def run(tmp_path):
    def run_trial(
        flows, balancing, host=SLOW, *, rates=("10Gbps", "10Gbps"), backend="simulated", tuner=None,
        fabric=CLOSLOOP, period_ns=10 * US, **more,
    ):  # fmt: skip
        path = tmp_path / "clos.yml"
        path.write_text(CLOS.replace("HOST", rates[0]).replace("UP", rates[1]))
        trial = TrialSpec(
            "c", str(path), backend, TunerSpec("secn1"), flows, SEED, 1, 2 * MS, 100 * MS,
            sample_period_ns=period_ns, action_period_ns=100 * US, host=host, fabric=fabric,
            load_balancing=balancing, **more,
        )  # fmt: skip
        testbed = load_testbed(trial.testbed)
        schedule = make_schedule(trial, testbed)
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        record = backend_factory.backend(backend).run(
            TrialRun(trial, testbed, schedule, folder, tuner=tuner)
        )
        return testbed, record

    return run_trial


def flowlets(timeout_ns, route_by="random", **more):
    return LoadBalancingSpec("flowlets", timeout_ns, timeout_ns, route_by, **more)


def message(source, destination, packets, start_ns=0):
    return SingleFlowSpec(f"h{source}", f"h{destination}", 1024 * packets, start_ns)


def uplinks(testbed, record, leaf):
    """Return how many packets a leaf has sent to each spine, shape (samples, spines)."""
    ours = [
        n for n, queue in enumerate(testbed.queues)
        if queue.device == leaf and testbed.peer_device(queue.port).kind == "switch"
    ]  # fmt: skip
    return record.ports.tx_packets[:, ours]


def sequence(testbed, record, leaf):
    """Return the spines that packets took, one after the other: no two come in one sample."""
    sent = np.diff(uplinks(testbed, record, leaf), axis=0, prepend=0)
    assert sent.max() == 1
    samples, spines = np.nonzero(sent)
    assert len(set(samples)) == len(samples)
    return spines.tolist()


def draws(switch, count=4):
    """Yield a switch's draws among `count`, by the three lines of docs/load-balancing.md."""
    state = initial_random_state(SEED, switch)
    while True:
        yield (splitmix64(state) >> 32) * count >> 32
        state = (state + 0x9E3779B97F4A7C15) % 2**64


def of_switch(record, name, switch):
    return int(getattr(record.samples["switch"], name)[-1, switch])


def test_a_gap_of_more_than_the_timeout_begins_a_flowlet(run):
    flow = (message(1, 5, 40),)
    testbed, by_hash = run(flow, ECMP)
    (path,) = set(sequence(testbed, by_hash, "leaf1"))
    testbed, one = run(flow, flowlets(GAP_NS + 20))
    assert sequence(testbed, one, "leaf1") == [path] * 40
    assert [of_switch(one, name, 0) for name in ("flowlets", "reroutes")] == [1, 0]
    assert one.samples["switch"].flowlet_entries[:, 0].max() == 1
    testbed, many = run(flow, flowlets(GAP_NS - 20))
    stream = draws(0)
    wanted = [path, *(next(stream) for _ in range(39))]
    assert sequence(testbed, many, "leaf1") == wanted
    changes = int(np.count_nonzero(np.diff(wanted)))
    assert [of_switch(many, name, 0) for name in ("flowlets", "reroutes")] == [40, changes]


def test_spraying_draws_for_each_packet_and_round_robin_takes_turns(run):
    flow = (message(1, 5, 30),)
    testbed, record = run(flow, LoadBalancingSpec("spray"))
    stream = draws(0)
    assert sequence(testbed, record, "leaf1") == [next(stream) for _ in range(30)]
    for balancing in (LoadBalancingSpec("spray", route_by="round-robin"),
                      flowlets(GAP_NS - 20, "round-robin")):  # fmt: skip
        testbed, record = run(flow, balancing)
        assert sequence(testbed, record, "leaf1") == [n % 4 for n in range(30)]


def test_drill_takes_the_shortest_of_two_draws_and_the_last_best(run):
    """Messages of a packet, 900 ns apart, over uplinks of 1.37 Gbit/s, whose queues are these."""
    packets = 120
    flows = tuple(message(1, 5, 1, 900 * n) for n in range(packets))
    testbed, record = run(flows, flowlets(MS, "drill"), rates=("10Gbps", "1370Mbps"))
    took_ns = (FRAME_BYTES + 24) * 8 / 1.37
    begins: list[list[float]] = [[] for _ in range(4)]  # when each of a port's packets is sent
    stream, best = draws(0), None
    for n in range(packets):
        now_ns = 900 * n
        waiting = [sum(at > now_ns for at in port) for port in begins]
        seen = [next(stream), next(stream), *([] if best is None else [best])]
        best = min(seen, key=lambda port: waiting[port])
        free_ns = begins[best][-1] + took_ns if begins[best] else 0.0
        begins[best].append(max(now_ns, free_ns))
    assert uplinks(testbed, record, "leaf1")[-1].tolist() == [len(port) for port in begins]
    assert max(map(len, begins)) - min(map(len, begins)) < 10


def test_conga_leaves_the_path_that_another_leaf_fills(run):
    """h9 sends at half the rate of its line for ever, h1 a packet each 100 us, all to leaf2."""
    flows = (
        message(9, 5, 1_000),
        *(message(1, 6, 1, 300 * US + n * 100 * US) for n in range(12)),
    )
    half = paced(5_000)
    testbed, record = run(flows, flowlets(50 * US, "conga"), half)
    # at first every metric is 0; then leaf3's own line is at 4 or so, but its flow has no gap
    filled = next(draws(2))
    assert np.flatnonzero(uplinks(testbed, record, "leaf3")[-1]).tolist() == [filled]
    found = sequence(testbed, record, "leaf1")
    # until the acknowledgement of the packet that met the queue, a draw among four
    before = found.index(filled) + 1
    stream = draws(0)
    assert found[:before] == [next(stream) for _ in range(before)]
    assert filled not in found[before:]
    assert len(found) == 12


def test_flows_without_room_in_the_table_take_their_ecmp_path(run):
    flows = tuple(message(1 + n % 4, 5 + n, 20, 1 + n * 3 * US) for n in range(6))
    testbed, record = run(flows, flowlets(GAP_NS * 2, entries=4))
    _, by_hash = run(flows, ECMP)
    # the first four keep their places; the others have none for any of their packets
    assert of_switch(record, "flowlet_overflows", 0) == 2 * 20
    assert of_switch(record, "flowlets", 0) == 4
    np.testing.assert_array_equal(
        uplinks(testbed, record, "leaf1")[-1], uplinks(testbed, by_hash, "leaf1")[-1]
    )
    assert record.facts["load_balancing"]["overflows"]["leaf1"] == 40
    assert [one["code"] for one in record.facts["findings"]] == ["flowlet-overflows"]


class Shorter(BaseTuner):
    """Shortens every flowlet timeout at 400 us."""

    knobs = ("flowlet_timeout",)

    def reset(self, testbed, seed):
        self.switches = np.arange(len(testbed.switches))
        return Setup()

    def act(self, observation):
        if observation.t_ns != 400 * US:
            return ()
        return (FLOWLET_TIMEOUT.change(self.switches, np.full(len(self.switches), GAP_NS // 2)),)


def test_a_timeout_that_is_set_at_run_time_holds_from_then_on(run):
    testbed, record = run((message(1, 5, 60),), flowlets(1 * MS), tuner=Shorter())
    found = sequence(testbed, record, "leaf1")
    assert len(set(found[:20])) == 1
    stream = draws(0)
    assert found[20:] == [next(stream) for _ in range(40)]


@pytest.mark.parametrize("balancing", [flowlets(1_000 * MS), LoadBalancingSpec("spray")])
def test_a_port_whose_link_fails_is_left_with_the_next_packet(run, balancing):
    flow = (message(1, 5, 60),)
    testbed, before = run(flow, balancing)
    spine = sequence(testbed, before, "leaf1")[20]
    cut = FaultSpec(410 * US, None, 700 * US, links=(f"leaf1-spine{spine + 1}",))
    testbed, record = run(flow, balancing, faults=(cut,))
    found = sequence(testbed, record, "leaf1")
    assert found[20] == spine
    assert spine not in found[21:]
    assert len(found) == 60
    assert (record.flows.status == DONE).all()
    assert record.facts["resent"] == 0


def test_tcp_lives_with_reordering_and_counts_it(run):
    flows = tuple(message(n, 4 + n % 4 + 1, 3_000, 1_001 * n) for n in range(1, 5))
    found = {
        kind: run(flows, LoadBalancingSpec(kind), TCP, fabric=LINUX)[1]
        for kind in ("ecmp", "spray")
    }
    assert all((one.flows.status == DONE).all() for one in found.values())
    received = {kind: one.hosts.received_packets[-1].sum() for kind, one in found.items()}
    early = {kind: one.hosts.out_of_order_packets[-1].sum() for kind, one in found.items()}
    assert received["ecmp"] >= 4 * -(-3_000 * 1024 // 1448)
    assert early["ecmp"] == 0 < early["spray"] < received["spray"]


def test_acknowledgements_may_come_when_later_ones_have_ended_the_flow(run):
    """Short flows under DRILL: their blocks of SACK are then about nothing that is outstanding."""
    flows = tuple(
        message(a + 1, (a + 4 + n % 4) % 12 + 1, 30 + (n * 7 + a) % 40, n * 60 * US + a * 1_007)
        for n in range(30) for a in range(12)
    )  # fmt: skip
    _, record = run(flows, LoadBalancingSpec("spray", route_by="drill"), TCP, fabric=LINUX)
    assert (record.flows.status == DONE).all()
    assert record.hosts.out_of_order_packets[-1].sum() > 1_000


# the emulated twin


def irregular(flows):
    """Return flows between leaves, begun at times that no two packets meet at."""
    draw = random.Random(1)
    return tuple(
        message(a, draw.choice([b for b in range(1, 13) if (b - 1) // 4 != (a - 1) // 4]), 98,
                n * 9_973 + draw.randrange(4_000))
        for n, a in ((n, n % 12 + 1) for n in range(flows))
    )  # fmt: skip


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["flowlets", "spray"])
@pytest.mark.parametrize("route_by", ROUTES)
def test_the_emulated_switches_choose_the_same_to_the_packet(run, kind, route_by):
    """At 8 Gbit/s a byte takes a nanosecond. Packets are 12,640 ns apart."""
    balancing = LoadBalancingSpec(kind, 12_600, 12_600, route_by)
    host = paced(700, recovery="selective-repeat", ack_every=5)
    (_, ours), (_, theirs) = (
        run(irregular(16), balancing, host, rates=("8Gbps", "8Gbps"), backend=backend)
        for backend in ("simulated", "emulated")
    )
    assert ours.samples["switch"].flowlets[-1].sum() > 1_500
    assert ours.ports.dropped_packets[-1].sum() == ours.facts["resent"] == 0
    np.testing.assert_array_equal(ours.ports.tx_packets[-1], theirs.ports.tx_packets[-1])
    np.testing.assert_array_equal(ours.flows.end_ns, theirs.flows.end_ns)
    for name in ("flowlets", "reroutes", "flowlet_overflows"):
        here, there = (getattr(one.samples["switch"], name)[-1] for one in (ours, theirs))
        np.testing.assert_array_equal(here, there, err_msg=name)
    for name in ("received_packets", "out_of_order_packets"):
        here, there = (getattr(one.hosts, name)[-1] for one in (ours, theirs))
        np.testing.assert_array_equal(here, there, err_msg=name)
