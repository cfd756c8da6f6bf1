"""Testbed files: bad ones are refused with exact words, the package's are the papers' networks."""

import json
from pathlib import Path

import pytest

from inventory import files, testbed_json
from inventory.files import known_testbeds, load_testbed
from inventory.routing import PathTable
from orchestration.core.errors import InputError

GOLDEN = Path(__file__).parents[2] / "golden" / "testbeds"


@pytest.mark.parametrize("path", sorted((GOLDEN / "bad").glob("*.yml")), ids=lambda path: path.stem)
def test_bad_file_is_refused_with_every_problem(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    with pytest.raises(InputError) as caught:
        load_testbed(path.name)
    assert f"{caught.value}\n" == path.with_suffix(".txt").read_text(encoding="utf-8")


# name: hosts, NICs a host, switches, links, line rate of a host, base RTT in a rack and across
PAPERS = {
    "acc": (24, 2, 6, 48 + 16, 50e9, 2_320, 6_128),
    "acc-fig8": (8, 1, 1, 8, 100e9, 2_320, 2_320),
    "drlet-k4": (16, 1, 20, 48, 10e9, 4_000, 12_000),
    "drlet-k8": (128, 1, 80, 384, 10e9, 4_000, 12_000),
    "graphcc": (24, 1, 6, 24 + 8, 25e9, 4_000, 8_000),
    "pet": (288, 1, 18, 288 + 72, 25e9, 4_000, 8_000),
    "rlcc-64": (64, 1, 6, 64 + 16, 100e9, 5_000, 10_000),
    "rlcc-7": (7, 1, 1, 7, 100e9, 5_000, 5_000),
}


def test_the_papers_testbeds_are_known():
    assert known_testbeds() == tuple(PAPERS)


@pytest.mark.parametrize("name", PAPERS)
def test_testbed_is_the_papers(name):
    testbed = load_testbed(name)
    first, second, last = testbed.hosts[0], testbed.hosts[1], testbed.hosts[-1]
    table = PathTable(testbed)
    assert (
        len(testbed.hosts),
        len(testbed.ports_of[first]),
        len(testbed.switches),
        len(testbed.links),
        testbed.host_rate_bps(last),
        table.base_rtt_ns(first, second),
        table.base_rtt_ns(first, last),
    ) == PAPERS[name]
    assert testbed.name == name
    assert testbed.mtu_bytes == 1500
    assert testbed.source


def test_only_switch_ports_have_the_buffer():
    testbed = load_testbed("graphcc")
    assert {port.buffer_bytes for port in testbed.queues} == {16_000_000}
    assert {p.buffer_bytes for host in testbed.hosts for p in testbed.ports_of[host]} == {0}


def test_each_class_has_a_queue_with_its_share_of_the_buffer():
    testbed = load_testbed("acc-fig8")
    first, second, third = testbed.queues[:3]
    assert [queue.label for queue in (first, second)] == ["switch1:eth0/rdma", "switch1:eth0/tcp"]
    assert (first.port, first.klass, second.klass) == (second.port, 0, 1)
    assert third.port == testbed.switch_ports[1]
    assert (first.buffer_bytes, second.buffer_bytes) == (11_200_000, 4_800_000)
    assert first.rate_bps == second.rate_bps == 100_000_000_000
    assert testbed.peer_device(first) == testbed.peer_device(second) == testbed.device["h1"]
    assert (testbed.class_index(""), testbed.class_index("tcp")) == (0, 1)
    with pytest.raises(ValueError, match="no traffic class 'udp'"):
        testbed.class_index("udp")


def test_a_port_without_classes_has_one_queue_that_is_called_as_it_is():
    testbed = load_testbed("graphcc")
    assert [queue.port for queue in testbed.queues] == list(testbed.switch_ports)
    assert [queue.label for queue in testbed.queues] == [p.label for p in testbed.switch_ports]
    assert {queue.klass for queue in testbed.queues} == {0}


@pytest.mark.parametrize("name", ["graphcc", "acc-fig8"])
def test_json_gives_the_testbed_back(name):
    testbed = load_testbed(name)
    data = testbed_json.testbed_to_json(testbed)
    again = testbed_json.testbed_from_json(json.loads(json.dumps(data)))
    assert again.queues == testbed.queues
    assert ("classes" in data) == bool(testbed.classes)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError) as caught:
        load_testbed("grafcc")
    assert str(caught.value) == (
        "unknown testbed 'grafcc'\n"
        "  -> did you mean 'graphcc'? known are acc, acc-fig8, drlet-k4, drlet-k8, graphcc, pet, "
        "rlcc-64, rlcc-7; or give a file's path"
    )


@pytest.mark.parametrize("path", ["./nowhere", "nowhere.yml", "nowhere.yaml"])
def test_a_path_is_not_a_name(path):
    with pytest.raises(InputError, match="no such file"):
        load_testbed(path)


CUSTOM = """
kind: custom
name: lab
mtu: 9000B
buffer: 1MiB
hosts: [alice, bob]
switches:
  - {name: tor, tier: 1}
links:
  - {a: alice, b: tor, rate: 40Gbps, delay: 500ns}
  - {a: tor, b: bob, rate: 10Gbps, delay: 700ns}
"""


def test_custom_fabric(tmp_path):
    path = tmp_path / "lab.yml"
    path.write_text(CUSTOM)
    testbed = load_testbed(str(path))
    assert testbed.hosts == ("alice", "bob")
    assert [(port.label, port.rate_bps) for port in testbed.queues] == [
        ("tor:eth0", 40_000_000_000),
        ("tor:eth1", 10_000_000_000),
    ]
    path = PathTable(testbed).path("alice", "bob")
    assert (path.hops, path.one_way_ns, path.rate_bps) == (2, 1_200, 10_000_000_000)


def test_a_file_that_is_like_another_has_what_differs(tmp_path):
    """A shared buffer takes the place of that of ports; written out, the file stands alone."""
    (tmp_path / "mine.yml").write_text(
        "like: graphcc\nname: mine\nswitch: {buffer: 32MB, pfc: [3]}\nhosts_per_leaf: 8\n"
    )
    (tmp_path / "again.yml").write_text("like: ./mine.yml\nname: again\nbuffer: 16MB\n")
    mine, again = (load_testbed(str(tmp_path / name)) for name in ("mine.yml", "again.yml"))
    assert mine.switch is not None
    assert mine.switch.buffer_bytes == 32_000_000
    assert again.switch is None
    assert {port.buffer_bytes for port in again.queues} == {16_000_000}
    assert [len(it.hosts) for it in (mine, again, load_testbed("graphcc"))] == [32, 32, 24]
    alone = tmp_path / "alone" / "mine.yml"
    alone.parent.mkdir()
    alone.write_text(files.testbed_text(str(tmp_path / "mine.yml")))
    assert load_testbed(str(alone)) == mine
