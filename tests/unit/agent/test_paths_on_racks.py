"""Load balancing on racks: routes as the kernel tells them, refusals, what switches are told."""

import mmap
import socket
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.agent.linux.fib import Hop
from orchestration.agent.linux.netlink import RTM_NEWROUTE, attribute
from orchestration.agent.linux.sysctls import RUN_SYSCTLS
from orchestration.agent.linux_switch import path_routes, port_program
from orchestration.agent.linux_switch.path_routes import (
    KEY,
    MAX_ROUTES,
    ROUTE_BYTES,
    ROUTE_INDEX,
    ProgramRoutes,
    read_choices,
)
from orchestration.agent.linux_switch.paths import Paths
from orchestration.agent.main import OperationError
from orchestration.backends.hardware import switch_programs as balancing
from orchestration.backends.hardware.settings import Settings
from orchestration.backends.hardware.switch_programs import PathChoice, check_paths, path_services
from orchestration.core.errors import NotReadyError, TrialError
from orchestration.core.knobs import FLOWLET_TIMEOUT
from orchestration.core.load_balancing import ECMP, LoadBalancingSpec, initial_random_state
from orchestration.core.trial import HostSpec, TrialSpec, TunerSpec
from orchestration.device.client import Fleet
from orchestration.device.errors import DeviceError
from traffic.patterns.single_flow import SingleFlowSpec

NAMES = {5: "eth2", 7: "eth10", 6: "eth3"}
DOWN, DEAD, CLONED = 0x10, 0x01, 0x200


def hop(ifindex, router="10.0.0.1", weight=1, flags=0, more=b""):
    inner = (attribute(5, socket.inet_aton(router)) if router else b"") + more
    return struct.pack("=HBBi", 8 + len(inner), flags, weight - 1, ifindex) + inner


def route(to, *hops, table=254, metric=0, kind=1, flags=0, more=b""):
    address, _, bits = to.partition("/")
    body = struct.pack("=8BI", 2, int(bits), 0, 0, min(table, 255), 4, 0, kind, flags)
    if int(bits):
        body += attribute(1, socket.inet_aton(address))
    body += attribute(15, struct.pack("=I", table)) + attribute(6, struct.pack("=I", metric))
    if hops:
        body += attribute(9, b"".join(hops))
    return RTM_NEWROUTE, body + more


@pytest.fixture
def kernel(monkeypatch):
    """A kernel whose main table is the list that is returned."""
    table = []

    class Socket:
        def __enter__(self):
            return SimpleNamespace(dump=lambda _: list(table))

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(path_routes, "RouteSocket", Socket)
    return table


def test_a_choice_is_among_equal_next_hops_those_with_a_link_first_in_the_order_of_ports(kernel):
    kernel += [
        route("10.1.0.0/16", hop(6), hop(7, "10.0.0.2"), hop(5, flags=DOWN)),
        route("10.2.0.0/16", hop(6), hop(9)),  # one is no port of the fabric
        route("10.3.0.0/16", hop(6)),
        route("10.4.0.0/16", kind=6),  # a blackhole
        route("10.5.0.0/16", hop(5), hop(6), table=100),
        route("10.6.0.0/16", hop(5), hop(6), metric=20),
        route("10.6.0.0/16", hop(5), hop(7), metric=10),
        route("10.7.0.0/16", hop(5), hop(6), flags=CLONED),
    ]
    wanted, ports = read_choices(NAMES)
    assert ports == {"10.1.0.0/16": ["eth10", "eth3", "eth2"], "10.6.0.0/16": ["eth2", "eth10"]}
    first = wanted[socket.inet_aton("10.1.0.0"), 16]
    assert [(one.ifindex, one.up) for one in first] == [(7, True), (6, True), (5, False)]
    assert first[0].router == socket.inet_aton("10.0.0.2")
    # shorter prefixes must not apply to what has one port, or none
    left = {socket.inet_ntoa(network): hops for (network, _), hops in wanted.items() if not hops}
    assert left == {"10.2.0.0": (), "10.3.0.0": (), "10.4.0.0": ()}


@pytest.mark.parametrize(
    ("hops", "more", "says"),
    [
        ((hop(5, weight=2), hop(6)), b"", "route 10.1.0.0/16: its ports have different weights"),
        ((hop(5, ""), hop(6)), b"", "a next hop has no router address"),
        ((), attribute(30, struct.pack("=I", 3)), "does not show the next hops"),
    ],
)
def test_a_route_that_cannot_be_followed_is_refused_by_its_prefix(kernel, hops, more, says):
    kernel.append(route("10.1.0.0/16", *hops, more=more))
    with pytest.raises(OperationError) as caught:
        read_choices(NAMES)
    assert says in caught.value.what
    assert caught.value.remedy


def test_a_router_of_ipv6_is_one_too(kernel):
    via = attribute(18, struct.pack("=H", socket.AF_INET6) + bytes(range(16)))
    kernel.append(route("10.1.0.0/16", hop(5, "", more=via), hop(6, "", more=via)))
    ((one, _),) = read_choices(NAMES)[0].values()
    assert (one.family, one.router) == (socket.AF_INET6, bytes(range(16)))


class Program:
    """The program's memory and its map of prefixes, and where a packet would look."""

    def __init__(self, monkeypatch):
        self.memory = mmap.mmap(-1, 64 + MAX_ROUTES * ROUTE_BYTES)
        self.prefixes = {}
        self.writes = 0
        monkeypatch.setattr(path_routes, "put_entry", self._put)
        monkeypatch.setattr(path_routes, "remove_entry", lambda _, key: self.prefixes.pop(key))
        self.copy = ProgramRoutes(self.memory, 64, 3)

    def _put(self, _, key, value):
        self.prefixes[key] = value
        self.writes += 1

    def ports(self, network, bits):
        (place,) = ROUTE_INDEX.unpack(self.prefixes[KEY.pack(bits, network)])
        at = 64 + place * ROUTE_BYTES
        ways, up = struct.unpack_from("=II", self.memory, at)
        ports = [struct.unpack_from("=I", self.memory, at + 8 + 24 * n)[0] for n in range(ways)]
        return place, up, ports


def test_a_changed_route_gets_a_place_of_its_own_before_packets_look_there(monkeypatch):
    program = Program(monkeypatch)
    one, other, plain = (bytes([10, n, 0, 0]) for n in (1, 2, 3))
    both = (Hop(5, 2, b"abcd", 1, True), Hop(6, 2, b"abcd", 1, True))
    program.copy.follow({(one, 16): both, (other, 16): both, (plain, 16): ()})
    first = program.ports(one, 16)
    assert first[1:] == (2, [5, 6])
    assert program.ports(other, 16) == first
    assert program.ports(plain, 16) == (0, 0, [])
    lost = (Hop(6, 2, b"abcd", 1, True), Hop(5, 2, b"abcd", 1, False))
    program.copy.follow({(one, 16): lost, (other, 16): both})
    changed = program.ports(one, 16)
    assert changed[1:] == (1, [6, 5])
    assert changed[0] not in (0, first[0])
    assert program.ports(other, 16) == first
    assert KEY.pack(16, plain) not in program.prefixes
    # what has not changed is not told again, and places are used again
    writes = program.writes
    program.copy.follow({(one, 16): lost, (other, 16): both})
    assert program.writes == writes
    for number in range(2 * MAX_ROUTES):
        program.copy.follow({(one, 16): (Hop(5, 2, struct.pack("=I", number), 1, True), *both)})
    assert program.ports(one, 16)[1:] == (3, [5, 5, 6])
    many = {
        (struct.pack(">I", number << 8), 24): (Hop(5, 2, struct.pack("=I", number), 1, True), *both)
        for number in range(MAX_ROUTES)
    }
    with pytest.raises(OperationError, match="more than 255 different sets"):
        program.copy.follow(many)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    monkeypatch.setattr(port_program.os, "geteuid", lambda: 0)
    monkeypatch.setattr(port_program, "kernel_release", lambda: (6, 6))
    (tmp_path / "lo").mkdir()
    return Paths(SimpleNamespace(at_end=lambda _: None), str(tmp_path)), tmp_path


def test_a_device_that_cannot_is_refused_in_plain_words(agent, monkeypatch):
    paths, net = agent
    asked = {"interfaces": ["lo"], "program": {}}
    (net / "lo" / "phys_switch_id").write_text("248a07b2f400\n")
    with pytest.raises(OperationError, match="lo is a port of an ASIC"):
        paths.try_once(asked)
    monkeypatch.setattr(port_program, "kernel_release", lambda: (6, 5))
    with pytest.raises(OperationError, match=r"older than 6\.6") as caught:
        paths.try_once(asked)
    assert "6.6 or newer" in caught.value.remedy
    monkeypatch.setattr(port_program.os, "geteuid", lambda: 1000)
    with pytest.raises(OperationError, match="only root"):
        paths.try_once(asked)
    with pytest.raises(OperationError, match="no paths are chosen here"):
        paths.read({})


TESTBED = load_testbed("graphcc")
FLOWLETS = LoadBalancingSpec("flowlets", 100_000, 300_000)
LEAVES = [name for name in TESTBED.switches if TESTBED.device[name].tier == 1]


def trial(spec=FLOWLETS):
    return TrialSpec(
        "c", "graphcc", "hardware", TunerSpec("secn1"), (SingleFlowSpec("h1", "h2", 1, 0),), 3, 1,
        1_000_000, 0, load_balancing=spec,
    )  # fmt: skip


def rack_of(**platform):
    access = {
        name: Access(
            name,
            "127.0.0.1",
            platform=platform.get(name, "linux"),
            interfaces=tuple(port.name for port in TESTBED.ports_of[name]),
        )
        for name in (device.name for device in TESTBED.devices)
    }
    return Rack("rack", TESTBED, access)


class Switch:
    """A switch's agent: answers from `said`, keeps what it is asked."""

    def __init__(self, device):
        self.device = device
        ports = [
            port.name
            for port in TESTBED.ports_of[device]
            if TESTBED.peer_device(port).kind == "switch"
        ]
        self.said = {"paths.try": {"10.0.0.0/8": ports}, "paths.begin": {"10.0.0.0/8": ports}}
        self.asked = []

    def post(self, op, **arguments):
        self.asked.append((op, arguments))
        return len(self.asked) - 1

    def result(self, number, timeout_s=0):
        op, arguments = self.asked[number]
        answer = arguments if op == "paths.set" else self.said.get(op)
        if isinstance(answer, DeviceError):
            raise answer
        return answer


@pytest.fixture
def switches(monkeypatch):
    monkeypatch.setattr(
        balancing, "_path_program", lambda rack, device, spec: {"program": spec.entries}
    )
    return {name: Switch(name) for name in LEAVES}


def test_only_switches_with_a_choice_are_asked_and_none_by_the_flow():
    spines = set(TESTBED.switches) - set(LEAVES)
    rack = rack_of(**dict.fromkeys(spines, "sonic"))
    assert path_services(rack, [trial(ECMP)]) == {}
    assert path_services(rack, [trial(ECMP), trial()]) == dict.fromkeys(LEAVES, ("paths",))
    check_paths(rack, Fleet({}), [trial(ECMP)])


def test_what_a_rack_lacks_is_said_of_every_switch_at_once(switches):
    second, third, *others = LEAVES
    rack = rack_of()
    switches[second].said["paths.try"] = DeviceError(second, "its kernel is old", "use a newer one")
    switches[third].said["paths.try"] = {"0.0.0.0/0": ["eth0", "eth1"]}
    with pytest.raises(NotReadyError) as caught:
        check_paths(rack, Fleet(switches), [trial()])
    text = str(caught.value)
    assert "switches cannot do load balancing by flowlets" in text
    assert "its kernel is old (use a newer one)" in text
    assert f"{third}: has no route through " in text
    assert not any(name in text for name in others)


def test_switches_are_told_their_streams_and_timeouts_and_report_theirs(switches):
    paths = PathChoice(rack_of(), Fleet(switches), trial())
    paths.begin()
    for place, name in enumerate(TESTBED.switches):
        if name in switches:
            ((_, told),) = switches[name].asked
            assert told["stream"] == initial_random_state(3, place)
            assert (told["timeout_ns"], told["spray"]) == (100_000, False)
    switches[LEAVES[1]].said["paths.read"] = [9, 4, 2, 7]
    for name in LEAVES:
        switches[name].said.setdefault("paths.read", [1, 0, 1, 0])
    values = paths.values()
    place = TESTBED.switches.index(LEAVES[1])
    assert [int(column[place]) for column in values.values()] == [9, 4, 2, 7]
    assert values["switch.flowlets"].sum() == 9 + len(LEAVES) - 1
    assert paths.facts()["load_balancing"]["overflows"] == {LEAVES[1]: 7}
    assert "7 packets" in paths.facts()["findings"][0]["text"]


def test_a_timeout_is_set_where_there_is_a_choice_and_known_everywhere(switches):
    paths = PathChoice(rack_of(), Fleet(switches), trial())
    spine = next(n for n, name in enumerate(TESTBED.switches) if name not in switches)
    leaf = TESTBED.switches.index(LEAVES[0])
    change = paths.timeouts.apply(FLOWLET_TIMEOUT.change([leaf, spine], [5_000, 6_000]))
    assert change["timeout_ns"].tolist() == [5_000, 6_000]
    assert switches[LEAVES[0]].asked == [("paths.set", {"timeout_ns": 5_000})]
    assert not any(switches[name].asked for name in LEAVES[1:])
    known = paths.timeouts.known["timeout_ns"]
    assert (known[leaf], known[spine]) == (5_000, 6_000)
    assert np.isin(known, (5_000, 6_000, 100_000, 300_000)).all()


def test_spray_remembers_ports_long_and_lost_routes_end_a_trial(switches):
    paths = PathChoice(rack_of(), Fleet(switches), trial(LoadBalancingSpec("spray")))
    paths.begin()
    ((_, told),) = switches[LEAVES[0]].asked
    assert (told["timeout_ns"], told["spray"]) == (10**9, True)
    switches[LEAVES[0]].said["paths.begin"] = {}
    with pytest.raises(TrialError, match=f"{LEAVES[0]}: has no route through") as caught:
        paths.begin()
    assert "provision" in caught.value.remedy


@pytest.mark.parametrize("detection", ["rack", "duplicate-acks"])
def test_all_settings_that_a_trial_writes_are_those_that_are_put_back(detection):
    host = HostSpec(loss_detection=detection)
    for spec in (ECMP, FLOWLETS):
        names = Settings(rack_of(), replace(trial(spec), host=host)).names()
        assert set(names) == {device.name for device in TESTBED.devices}
        assert set().union(*names.values()) <= set(RUN_SYSCTLS)


def test_a_lost_carrier_leaves_the_kernels_hash_only_where_paths_are_chosen():
    name = "net/ipv4/conf/all/ignore_routes_with_linkdown"
    plain, chosen = (Settings(rack_of(), trial(spec)).names() for spec in (ECMP, FLOWLETS))
    assert not any(name in names for names in plain.values())
    assert {device for device, names in chosen.items() if name in names} == set(TESTBED.switches)
