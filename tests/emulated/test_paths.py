"""Switches that choose paths: a capture read by the rules, and sequences worked by hand."""

import base64
import dataclasses
import heapq
import socket

import numpy as np
import pytest

from inventory.addressing import emulated_addresses
from inventory.files import load_testbed
from orchestration.backends.emulated.job import ifindex
from orchestration.backends.emulated.probes import HOP
from orchestration.bench.outcome import SECN1, run_trial
from orchestration.bench.red import run_probe
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.core.records import DONE
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import FabricSpec, HostSpec
from tests.emulated.paths_by_the_book import Flowlets, Line, Packet, Switch, splitmix
from traffic.patterns.poisson import PoissonSpec

MS = 1_000_000
TCP, ROCE = HostSpec(), HostSpec("dcqcn", roce=RoceSpec())
SEED = 5


def captured(name, host, spec, duration_ns, load):
    """Return what arrived at each switch: (time, identity, packet, port), and the flows' end."""
    testbed = load_testbed(name)
    asked = {
        "kind": "hops",
        "capture": list(testbed.switches),
        "kmin_bytes": 30_000,
        "kmax_bytes": 200_000,
        "pmax": 0.2,
    }
    found = run_probe(
        name,
        asked,
        traffic=(PoissonSpec("WebSearch", load, 0, duration_ns),),
        duration_ns=duration_ns,
        drain_ns=200 * MS,
        host=host,
        fabric=FabricSpec("closloop"),
        load_balancing=spec,
        seed=SEED,
    )
    port_of = {ifindex(port): port for port in testbed.ports}
    seen = {}
    for switch, text in found["hops"].items():
        rows = np.frombuffer(base64.b64decode(text), dtype=HOP)
        seen[switch] = [
            (int(row["t_ns"]), *read(int(row["t_ns"]), row["head"].tobytes()), port_of[index])
            for row, index in zip(rows, rows["ifindex"].tolist(), strict=True)
            if row["head"][12:14].tobytes() == b"\x08\x00" and row["t_ns"] >= 0
        ]
    return testbed, seen


def read(t, head):
    """Return what tells a packet from all others at each switch, and the packet."""
    ip, ports = head[14:34], head[34:38]
    words = [int.from_bytes(part, "big") for part in (ip[12:16], ip[16:20], ports[:2], ports[2:])]
    packet = Packet(t, *words, ip[9], int.from_bytes(ip[2:4], "big") + 14)
    # not what switches change: the type of service, the time to live, its sum, telemetry
    return ip[2:6] + ip[9:10] + ip[12:20] + ports + head[38:54], packet


class Network:
    """A testbed as the rules see it: who is below whom, and who is whose partner."""

    def __init__(self, testbed, spec, seed):
        self.testbed = testbed
        host_of = {testbed.ports[i].device: a for i, a in emulated_addresses(testbed).items()}
        number = {
            name: int.from_bytes(socket.inet_aton(word), "big") for name, word in host_of.items()
        }
        self.below = {name: {number[name]} for name in testbed.hosts}
        self.switches = {}
        for place, name in enumerate(testbed.switches):
            tier, ports = testbed.device[name].tier, testbed.ports_of[name]
            peers = {port: testbed.peer_device(port) for port in ports}
            below = [one.name for one in peers.values() if one.tier < tier]
            self.below[name] = set().union(*(self.below[one] for one in below))
            ups = [port for port, peer in peers.items() if peer.tier > tier]
            lines = {port: Line(port.rate_bps, testbed.framing_bytes) for port in ports}
            timeout = spec.timeout_ns(tier)
            self.switches[name] = Switch(place, seed, tier, lines, ups, spec, timeout)

    def above(self, name):
        return {self.testbed.peer_device(port).name for port in self.switches[name].ups}

    def partner(self, name, address):
        """Return the switch of the same tier, below the same ones, above an address."""
        tier = self.switches[name].tier
        for other, switch in self.switches.items():
            beside = tier == 1 or self.above(other) & self.above(name)
            if switch.tier == tier and other != name and beside and address in self.below[other]:
                return other
        return None

    def down(self, name, address):
        """Return the port down to an address, None if the packet goes up."""
        if address not in self.below[name]:
            return None
        for port in self.testbed.ports_of[name]:
            peer = self.testbed.peer_device(port)
            if peer.tier < self.switches[name].tier and address in self.below[peer.name]:
                return port
        return None


def by_which_ports(testbed, seen):
    """Return the port by which each packet left each switch, by (switch, identity)."""
    left = {}
    for name, packets in seen.items():
        for _, identity, _, port in packets:
            peer = testbed.ports[port.peer]
            if testbed.device[peer.device].kind == "switch":
                assert (peer.device, identity) not in left, f"a loop or a copy at {name}"
                left[peer.device, identity] = peer
    return left


def play(testbed, seen, spec):
    """Play all packets through the rules; return how many choices there were, and the network.

    By which port the hash sends a flow is seen at its first packet there; it must remain the same.
    """
    network, left = Network(testbed, spec, SEED), by_which_ports(testbed, seen)
    headers, ecmp, choices, wrong = {}, {}, 0, []
    partner = {}
    streams = [[(t, n, i, name) for i, (t, *_) in enumerate(seen[name])]
               for n, name in enumerate(seen)]  # fmt: skip
    for t, _, index, name in heapq.merge(*streams):
        _, identity, packet, came_by = seen[name][index]
        switch, conga = network.switches[name], spec.route_by == "conga"
        tier = switch.tier
        for end in (packet.src, packet.dst):
            if (name, end) not in partner:
                partner[name, end] = network.partner(name, end)
        header = headers.setdefault(identity, {})
        if conga and came_by in switch.ups and partner[name, packet.src]:
            switch.hear(partner[name, packet.src], header[tier], t)
        port = network.down(name, packet.dst)
        if port is None:
            towards = partner[name, packet.dst]
            went = left.get((name, identity))  # None for the last ones, still on their way
            port = switch.choose(packet, ecmp.get((name, packet.flow), went), towards)
            if switch.by_hash:
                ecmp.setdefault((name, packet.flow), port)
            choices += 1
            if went not in (port, None):
                wrong.append((t, name, packet, port, went))
                break  # from here on the two have gone apart
            if conga:
                header[tier] = switch.tell(towards, port)
        line = switch.lines[port]
        line.put(t, packet.size)
        if conga and testbed.peer_device(port).kind == "switch":
            line.decay(t, spec.dre_time_ns // 8)
            line.register += packet.size + line.framing
            for one in header.values():
                one.extent = max(one.extent, line.metric(t, spec.dre_time_ns))
    return choices, wrong, network


ALL = [
    ("graphcc", TCP, LoadBalancingSpec("flowlets", 3_000, 3_000), 2 * MS, 0.6, 40_000),
    ("drlet-k4", TCP, LoadBalancingSpec("flowlets", 2_000, 4_000, "conga"), 2 * MS, 0.7, 20_000),
    ("drlet-k4", TCP, LoadBalancingSpec("spray", route_by="drill"), 2 * MS, 0.3, 20_000),
    ("graphcc", ROCE, LoadBalancingSpec("flowlets", MS, MS, "round-robin", 4), 2 * MS, 0.6, 9000),
]  # fmt: skip


@pytest.mark.parametrize(("name", "host", "spec", "duration_ns", "load", "minimum"), ALL)
def test_every_packet_takes_the_port_that_the_rules_say(
    name, host, spec, duration_ns, load, minimum
):
    testbed, seen = captured(name, host, spec, duration_ns, load)
    choices, wrong, network = play(testbed, seen, spec)
    assert wrong == []
    assert choices >= minimum
    counted = network.switches.values()
    if spec.entries == 4:
        assert sum(one.overflows for one in counted) > 100
        return
    assert sum(one.reroutes for one in counted) > 30
    if spec.kind == "flowlets":
        other = dataclasses.replace(spec, edge_timeout_ns=spec.edge_timeout_ns + 1_000)
        assert play(testbed, seen, other)[1], "the capture cannot tell timeouts apart"


def test_reordering_hurts_tcp_that_counts_duplicates():
    resent, times = {}, {}
    for detection in ("rack", "duplicate-acks"):
        run = run_trial(
            "drlet-k4",
            (PoissonSpec("WebSearch", 0.8, 0, 3 * MS),),
            SECN1,
            duration_ns=3 * MS,
            seed=3,
            host=HostSpec(loss_detection=detection),
            load_balancing=LoadBalancingSpec("spray"),
        )
        flows = run.record.flows
        assert (flows.status == DONE).all()
        assert run.record.ports.dropped_packets.max() == 0
        resent[detection] = flows.retransmits.sum()
        times[detection] = (flows.end_ns - flows.sent_ns).mean()
    # nothing was lost: all that is sent again is a mistake
    assert resent["duplicate-acks"] > 4 * max(100, resent["rack"])
    assert times["duplicate-acks"] > times["rack"]


# sequences worked by hand

# the first outputs of SplitMix64 from state 0 by four ways: 0.883, 0.432, 0.026 and 0.971 of them
OUTPUTS = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC)
UPS = ("a", "b", "c", "d")


def packet(t, sport=1, size=1_000):
    return Packet(t, 10 << 24, 11 << 24, sport, 80, 6, size)


def switch(route_by, ups=UPS, timeout=100, entries=16):
    spec = LoadBalancingSpec("flowlets", timeout, timeout, route_by, entries)
    made = Switch(0, 0, 1, {port: Line(8 * 10**9, 0) for port in ups}, list(ups), spec, timeout)
    made.chance.state = 0
    return made


def test_draws_by_hand():
    assert tuple(splitmix(n * 0x9E3779B97F4A7C15) for n in range(4)) == OUTPUTS
    leaf = switch("random")
    assert [leaf.route(packet(0), None, None) for _ in OUTPUTS] == ["d", "b", "a", "d"]


def test_flowlets_by_hand():
    leaf = switch("round-robin")
    # gaps of 100 are none, gaps of 101 are; another flow has its own
    times = ((0, 1), (100, 1), (201, 1), (210, 2), (301, 1), (402, 1), (403, 2))
    assert [leaf.choose(packet(t, flow), "x") for t, flow in times] == [*"aabcbda"]
    assert (leaf.flowlets, leaf.reroutes, leaf.overflows) == (5, 3, 0)
    by_hash = switch("random")
    # a flow's first flowlet goes by its hash, the next one is drawn
    assert [by_hash.choose(packet(t), "c") for t in (0, 50, 151, 152)] == ["c", "c", "d", "d"]
    table = Flowlets(4, 100)
    found = [table.find(packet(0, flow)) for flow in range(5)]
    assert [one is None for one, _ in found] == [False] * 4 + [True]
    assert table.find(packet(101, 9))[1], "what is longer ago than the timeout gives way"


def test_drill_by_hand():
    leaf = switch("drill")
    for port, size in (("a", 3_000), ("b", 1_000), ("d", 2_000)):
        leaf.lines[port].put(0, 500)  # on the wire
        leaf.lines[port].put(0, size)
    # draws d and b: b has less; draws a and d beside b, the best before
    assert leaf.route(packet(1), None, None) == "b"
    leaf.lines["b"].put(1, 1_500)  # 2,500 wait there now
    assert leaf.route(packet(2), None, None) == "d"
    # a byte a ns: a waits no more after 500, b has 1,500 left, d none
    assert [leaf.lines[port].queued(501) for port in "abd"] == [0, 1_500, 0]


def test_conga_by_hand():
    leaf = switch("conga", ups=("a", "b"))
    # 8 Gbit/s for 160 us are 160,000 bytes; a unit of the metric is an eighth of that
    leaf.lines["a"].register = 60_000
    assert [leaf.lines[port].metric(0, 160_000) for port in "ab"] == [3, 0]
    # at 20 us an eighth is gone: 52,500 are two units
    assert leaf.lines["a"].metric(20_000, 160_000) == 2
    assert leaf.route(packet(20_000), None, "far") == "b"
    leaf.toward["far", 1] = (5, 20_000)  # the path behind b is fuller than a
    assert leaf.route(packet(20_001), None, "far") == "a"
    # without news for 10 ms it fades by one, and by one each ms; the registers are empty by then
    assert [leaf.believed("far", 1, 20_000 + 10**6 * n + 1) for n in (9, 10, 11, 14, 15)] == [
        5, 4, 3, 0, 0,
    ]  # fmt: skip
    # of equals, the former; without one a draw: 0.883 of two is the second
    assert leaf.route(packet(30 * 10**6), "a", "far") == "a"
    assert leaf.route(packet(30 * 10**6), None, "far") == "b"
