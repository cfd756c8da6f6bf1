"""ECMP next hops with and without failed links, and the cost of idle paths."""

import dataclasses
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inventory.files import load_testbed
from inventory.generators import Cable, leaf_spine, single_switch
from inventory.routing import PathTable, attachment, next_hops
from orchestration.core.topology import Testbed

CABLE = Cable(rate_bps=25_000_000_000, delay_ns=1_000)


def peers(testbed, ports):
    return [testbed.peer_device(port).name for port in ports]


def link_between(testbed, a, b):
    """Index of the first link between two devices."""
    return next(p.link for p in testbed.ports_of[a] if testbed.peer_device(p).name == b)


def test_leaf_spine_spreads_over_the_spines():
    testbed = load_testbed("graphcc")
    routes = next_hops(testbed)
    assert peers(testbed, routes["leaf1"]["leaf3"]) == ["spine1", "spine2"]
    assert peers(testbed, routes["spine1"]["leaf3"]) == ["leaf3"]
    assert peers(testbed, routes["h1"]["leaf3"]) == ["leaf1"]
    assert "leaf1" not in routes["leaf1"]
    assert set(routes["leaf1"]) == {"leaf2", "leaf3", "leaf4"}


@pytest.mark.parametrize(
    ("name", "device", "target", "width"),
    [
        ("acc", "leaf1", "leaf2", 4),
        ("acc", "spine1", "leaf2", 2),
        ("acc", "h1", "leaf1", 1),
        ("acc", "h1", "leaf3", 2),
        ("drlet-k4", "edge1", "edge2", 2),
        ("drlet-k4", "edge1", "edge3", 2),
        ("drlet-k4", "agg1", "edge3", 2),
        ("drlet-k4", "core1", "edge3", 1),
        ("drlet-k8", "edge1", "edge32", 4),
        ("pet", "leaf1", "leaf12", 6),
        ("rlcc-7", "h1", "switch1", 1),
    ],
)
def test_ecmp_width(name, device, target, width):
    assert len(next_hops(load_testbed(name))[device][target]) == width


def test_switch_of_its_own_has_no_routes():
    assert next_hops(load_testbed("rlcc-7"))["switch1"] == {}


def test_failed_link_removes_exactly_the_paths_over_it():
    testbed = load_testbed("graphcc")
    before = next_hops(testbed)
    after = next_hops(testbed, [link_between(testbed, "leaf3", "spine1")])
    changed = {
        (device, target)
        for device in before
        for target in before[device]
        if before[device][target] != after[device].get(target)
    }
    others = {"leaf1", "leaf2", "leaf4"}
    towards, away = {(leaf, "leaf3") for leaf in others}, {("leaf3", leaf) for leaf in others}
    assert changed == towards | away | {("spine1", "leaf3")}
    for leaf in others:
        assert peers(testbed, after[leaf]["leaf3"]) == ["spine2"]
        assert peers(testbed, after["leaf3"][leaf]) == ["spine2"]
    # spine1 still reaches leaf3, by way of another leaf.
    assert peers(testbed, after["spine1"]["leaf3"]) == ["leaf1", "leaf2", "leaf4"]


def test_one_of_two_parallel_cables_fails():
    testbed = load_testbed("acc")
    failed = link_between(testbed, "leaf3", "spine1")
    after = next_hops(testbed, [failed])
    assert peers(testbed, after["leaf3"]["leaf1"]) == ["spine1", "spine2", "spine2"]
    assert peers(testbed, after["spine1"]["leaf3"]) == ["leaf3"]
    assert all(port.link != failed for port in after["leaf3"]["leaf1"])


def test_fat_tree_loses_one_core_of_an_aggregation_switch():
    testbed = load_testbed("drlet-k4")
    after = next_hops(testbed, [link_between(testbed, "agg1", "core1")])
    # From pod 1 to pod 2, agg1 has core2 left.
    assert peers(testbed, after["agg1"]["edge3"]) == ["core2"]
    assert peers(testbed, after["edge1"]["edge3"]) == ["agg1", "agg2"]
    # Back, agg3 must not use core1, which has lost pod 1.
    assert peers(testbed, after["agg3"]["edge1"]) == ["core2"]


def test_cut_off_leaf_has_no_routes():
    testbed = load_testbed("graphcc")
    down = [p.link for p in testbed.ports_of["leaf3"] if testbed.peer_device(p).kind == "switch"]
    after = next_hops(testbed, down)
    assert all("leaf3" not in after[name] for name in testbed.switches)
    assert after["leaf3"] == {}
    assert peers(testbed, after["h13"]["leaf3"]) == ["leaf3"]


def test_hosts_never_forward():
    testbed = load_testbed("acc")
    uplinks = [
        p.link for p in testbed.ports_of["leaf1"] if testbed.peer_device(p).name.startswith("spine")
    ]
    after = next_hops(testbed, uplinks)
    # h1 is on leaf1 and leaf2; leaf1 without uplinks is not reached through it.
    assert "leaf2" not in after["leaf1"]
    assert peers(testbed, after["h1"]["leaf3"]) == ["leaf2"]


@st.composite
def leaf_spines(draw):
    nics = draw(st.sampled_from([1, 1, 2]))
    devices, links = leaf_spine(
        leaves=nics * draw(st.integers(1, 4)),
        spines=draw(st.integers(1, 4)),
        hosts_per_leaf=draw(st.integers(2, 4)),
        nics_per_host=nics,
        uplinks_per_spine=draw(st.integers(1, 2)),
        host_cable=CABLE,
        uplink_cable=CABLE,
    )
    return Testbed.build("random", devices, links, mtu_bytes=1500, buffer_bytes=1_000_000)


@given(leaf_spines())
@settings(max_examples=30)
def test_every_host_reaches_every_host_by_an_even_path(testbed):
    table = PathTable(testbed)
    for src in testbed.hosts:
        for dst in testbed.hosts:
            if src != dst:
                near = set(attachment(testbed, src)) & set(attachment(testbed, dst))
                path = table.path(src, dst)
                assert path.hops == (2 if near else 4)
                back = table.path(dst, src)
                assert len(path.links) == len(back.links) == path.hops
                assert dataclasses.replace(path, links=()) == dataclasses.replace(back, links=())
    lengths_are_those_of_paths(testbed)


def lengths_are_those_of_paths(testbed):
    pairs, table = list(permutations(range(len(testbed.hosts)), 2)), PathTable(testbed)
    paths = [table.path(testbed.hosts[src], testbed.hosts[dst]) for src, dst in pairs]
    src, dst = np.array(pairs).T
    assert table.hops(src, dst).tolist() == [path.hops for path in paths]
    routes = next_hops(testbed)
    used = {link for path in paths for link in path.links[1:-1]}
    assert used <= {port.link for of in routes.values() for to in of.values() for port in to}


@pytest.mark.parametrize("name", ["drlet-k4", "rlcc-7", "acc"])
def test_lengths_of_paths_follow_from_their_switches(name):
    lengths_are_those_of_paths(load_testbed(name))


@given(leaf_spines(), st.data())
@settings(max_examples=30)
def test_every_next_hop_is_one_link_nearer_whatever_fails(testbed, data):
    down = set(data.draw(st.lists(st.integers(0, len(testbed.links) - 1), max_size=6)))
    routes = next_hops(testbed, down)

    def distance(device, target):
        """Links to `target` along any choice of next hops; all choices must agree."""
        if device == target:
            return 0
        lengths = {
            distance(testbed.peer_device(port).name, target) for port in routes[device][target]
        }
        assert len(lengths) == 1
        return 1 + lengths.pop()

    for device, targets in routes.items():
        for target, ports in targets.items():
            assert ports
            assert all(port.device == device and port.link not in down for port in ports)
            assert distance(device, target) < len(testbed.devices)


def test_ideal_fct_counts_headers_and_one_base_rtt():
    table = PathTable(load_testbed("graphcc"))
    assert table.ideal_fct_ns("h1", "h2", 1) == 4_000
    assert table.ideal_fct_ns("h1", "h2", 1448) == 4_000
    # The second full packet is 1538 bytes on a wire of 25 Gbit/s, rounded up.
    assert table.ideal_fct_ns("h1", "h2", 2 * 1448) == 4_000 + 493
    assert table.ideal_fct_ns("h1", "h24", 2 * 1448) == 8_000 + 493


def test_no_path_is_an_error():
    devices, links = single_switch(hosts=3, host_cable=CABLE)
    testbed = Testbed.build("cut", devices, links[:2], mtu_bytes=1500, buffer_bytes=1_000_000)
    table = PathTable(testbed)
    with pytest.raises(ValueError, match="no path from h1 to h3 on testbed cut"):
        table.path("h1", "h3")
    with pytest.raises(ValueError, match="no path from h1 to h3 on testbed cut"):
        table.hops(np.array([0, 0]), np.array([1, 2]))
    with pytest.raises(ValueError, match="h1 has no path to itself"):
        table.path("h1", "h1")
