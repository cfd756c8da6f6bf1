"""Generated fabrics, and the numbering of their ports."""

from collections import Counter

import pytest

from inventory.generators import Cable, GeneratorError, fat_tree, leaf_spine, single_switch
from orchestration.core.topology import Device, LinkSpec, Testbed

HOST = Cable(rate_bps=25_000_000_000, delay_ns=500)
UP = Cable(rate_bps=100_000_000_000, delay_ns=900)


def pairs(links):
    return [(link.a, link.b) for link in links]


def test_leaf_spine_is_listed_from_the_hosts_up():
    devices, links = leaf_spine(
        leaves=2, spines=2, hosts_per_leaf=2, host_cable=HOST, uplink_cable=UP
    )
    assert [(d.name, d.kind, d.tier) for d in devices] == [
        *((f"h{i}", "host", 0) for i in (1, 2, 3, 4)),
        *((f"leaf{i}", "switch", 1) for i in (1, 2)),
        *((f"spine{i}", "switch", 2) for i in (1, 2)),
    ]
    assert pairs(links) == [
        ("h1", "leaf1"),
        ("h2", "leaf1"),
        ("h3", "leaf2"),
        ("h4", "leaf2"),
        ("leaf1", "spine1"),
        ("leaf1", "spine2"),
        ("leaf2", "spine1"),
        ("leaf2", "spine2"),
    ]
    assert {(link.rate_bps, link.delay_ns) for link in links[:4]} == {(25_000_000_000, 500)}
    assert {(link.rate_bps, link.delay_ns) for link in links[4:]} == {(100_000_000_000, 900)}


def test_nics_go_to_the_leaves_of_the_rack():
    devices, links = leaf_spine(
        leaves=4,
        spines=2,
        hosts_per_leaf=3,
        nics_per_host=2,
        uplinks_per_spine=2,
        host_cable=HOST,
        uplink_cable=UP,
    )
    assert sum(device.kind == "host" for device in devices) == 3 * 4 // 2
    leaves_of = {f"h{i}": [b for a, b in pairs(links) if a == f"h{i}"] for i in range(1, 7)}
    assert leaves_of == {
        **{f"h{i}": ["leaf1", "leaf2"] for i in (1, 2, 3)},
        **{f"h{i}": ["leaf3", "leaf4"] for i in (4, 5, 6)},
    }
    uplinks = Counter(pair for pair in pairs(links) if pair[0].startswith("leaf"))
    assert set(uplinks.values()) == {2}
    assert len(uplinks) == 8


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_fat_tree_has_the_textbooks_counts(k):
    devices, links = fat_tree(k=k, host_cable=HOST, aggregation_cable=UP, core_cable=UP)
    stems = Counter(device.name.rstrip("0123456789") for device in devices)
    assert stems == {
        "h": k**3 // 4,
        "edge": k * k // 2,
        "agg": k * k // 2,
        "core": k * k // 4,
    }
    degree = Counter(end for pair in pairs(links) for end in pair)
    assert {degree[d.name] for d in devices if d.kind == "host"} == {1}
    assert {degree[d.name] for d in devices if d.kind == "switch"} == {k}
    # Each core switch has one link into every pod.
    uplinks = [(agg, core) for agg, core in pairs(links) if core.startswith("core")]
    pods = Counter((core, (int(agg[3:]) - 1) // (k // 2)) for agg, core in uplinks)
    assert set(pods.values()) == {1}
    assert len(pods) == k * k // 4 * k


def test_single_switch():
    devices, links = single_switch(hosts=3, host_cable=HOST)
    assert [device.name for device in devices] == ["h1", "h2", "h3", "switch1"]
    assert pairs(links) == [("h1", "switch1"), ("h2", "switch1"), ("h3", "switch1")]


LEAF_SPINE = {
    "leaves": 4,
    "spines": 2,
    "hosts_per_leaf": 2,
    "nics_per_host": 1,
    "uplinks_per_spine": 1,
}


@pytest.mark.parametrize(
    ("changed", "parameter", "said"),
    [
        ({"nics_per_host": 3}, "nics_per_host", "4 leaves do not divide into racks of 3"),
        ({"nics_per_host": 8}, "nics_per_host", "4 leaves do not divide into racks of 8"),
        ({"leaves": 0}, "leaves", "leaves is 0: use 1 or more"),
        ({"spines": -1}, "spines", "spines is -1: use 1 or more"),
        ({"uplinks_per_spine": 0}, "uplinks_per_spine", "uplinks_per_spine is 0"),
    ],
)
def test_impossible_leaf_spine(changed, parameter, said):
    with pytest.raises(GeneratorError, match=said) as caught:
        leaf_spine(**{**LEAF_SPINE, **changed}, host_cable=HOST, uplink_cable=UP)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("k", [-2, 0, 1, 3])
def test_impossible_fat_tree(k):
    with pytest.raises(GeneratorError, match="use an even k"):
        fat_tree(k=k, host_cable=HOST, aggregation_cable=UP, core_cable=UP)


def test_lone_host():
    with pytest.raises(GeneratorError, match="hosts is 1: use 2 or more"):
        single_switch(hosts=1, host_cable=HOST)


def build(devices, links):
    return Testbed.build("t", devices, links, mtu_bytes=1500, buffer_bytes=1_000_000)


def test_ports_are_numbered_once_and_face_each_other():
    testbed = build(*leaf_spine(**LEAF_SPINE, host_cable=HOST, uplink_cable=UP))
    assert [port.index for port in testbed.ports] == list(range(2 * len(testbed.links)))
    for port in testbed.ports:
        peer = testbed.ports[port.peer]
        assert peer.peer == port.index
        assert peer.link == port.link
        assert {testbed.links[port.link].a, testbed.links[port.link].b} == {port.index, peer.index}
    assert [port.label for port in testbed.ports_of["leaf2"]] == [f"leaf2:eth{i}" for i in range(4)]
    assert [testbed.peer_device(p).name for p in testbed.ports_of["leaf2"]] == [
        "h3",
        "h4",
        "spine1",
        "spine2",
    ]


def test_queues_are_the_switch_ports_switch_by_switch():
    testbed = build(*leaf_spine(**LEAF_SPINE, host_cable=HOST, uplink_cable=UP))
    labels = [port.label for port in testbed.queues]
    assert labels == [port.label for name in testbed.switches for port in testbed.ports_of[name]]
    assert len(labels) == 4 * (2 + 2) + 2 * 4


def test_link_to_nowhere_is_refused():
    with pytest.raises(ValueError, match="link h1 - x: no device 'x'"):
        build([Device("h1", "host", 0)], [LinkSpec("h1", "x", 1, 1)])


@pytest.mark.parametrize(
    ("payload", "wire"),
    [
        (0, 90),
        (1, 91),
        # 1500 of IP, 14 of header, 24 of framing
        (1448, 1538),
        (1449, 1538 + 91),
        (2 * 1448, 2 * 1538),
    ],
)
def test_wire_bytes_of_a_flow(payload, wire):
    testbed = build(*single_switch(hosts=2, host_cable=HOST))
    assert testbed.mss_bytes == 1448
    assert testbed.wire_bytes(payload) == wire


def test_links_are_named_by_their_ends_in_either_order():
    fabric = leaf_spine(
        leaves=2, spines=1, hosts_per_leaf=1, uplinks_per_spine=2, host_cable=HOST, uplink_cable=UP
    )
    names = build(*fabric).links_by_name
    assert names["h1-leaf1"] == names["leaf1-h1"] == (0,)
    assert names["leaf2-spine1"] == names["spine1-leaf2"] == (4, 5)
