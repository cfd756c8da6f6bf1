"""`closloop inventory`: pictures, figures, JSON."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inventory.files import known_testbeds, load_testbed
from inventory.generators import Cable, leaf_spine
from inventory.summary import draw_topology
from orchestration.cli.inventory import app
from orchestration.core.errors import InputError
from orchestration.core.topology import Device, LinkSpec, Testbed

GOLDEN = Path(__file__).parents[2] / "golden" / "testbeds" / "show"


def run(*args):
    result = CliRunner().invoke(app, args, env={"COLUMNS": "80", "NO_COLOR": "1"})
    if result.exception:
        raise result.exception
    return result.stdout


@pytest.mark.parametrize("name", ["acc", "acc-fig8", "drlet-k8", "pet", "rlcc-7"])
def test_show(name):
    lines = [line.rstrip() for line in run("show", name).splitlines()]
    assert lines == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", known_testbeds())
def test_picture_fits(name):
    assert max(map(len, draw_topology(load_testbed(name), 80))) <= 80


def test_wide_picture_leaves_nothing_out():
    assert "…" in "\n".join(draw_topology(load_testbed("pet"), 80))
    assert "…" not in "\n".join(draw_topology(load_testbed("pet"), 200))


@pytest.mark.parametrize(("leaves", "hosts"), [(1, 4), (2, 2), (25, 12), (300, 1)])
def test_picture_of_few_and_of_many_hosts(leaves, hosts):
    cable = Cable(25_000_000_000, 1_000)
    fabric = leaf_spine(
        leaves=leaves, spines=2, hosts_per_leaf=hosts, host_cable=cable, uplink_cable=cable
    )
    testbed = Testbed.build("t", *fabric, mtu_bytes=1500, buffer_bytes=1_000_000)
    lines = draw_topology(testbed, 80)
    assert len(lines) == 9
    assert max(map(len, lines)) <= 80
    assert f"leaf{leaves} " in "\n".join(lines)


def test_picture_of_a_fabric_that_is_not_regular():
    devices = [
        *(Device(name, "host", 0) for name in ("alice", "bob", "probe")),
        *(Device(name, "switch", 1) for name in ("tor", "rack2")),
        Device("root", "switch", 2),
    ]
    cables = ["alice tor", "bob rack2", "probe root", "tor root", "rack2 root"]
    links = [LinkSpec(*cable.split(), 10_000_000_000, 1_000) for cable in cables]
    testbed = Testbed.build("lab", devices, links, mtu_bytes=1500, buffer_bytes=1_000_000)
    assert draw_topology(testbed) == [
        "                 ┌──────┐",
        " root            │ root │",
        "                 └───┬──┘",
        " 10Gbps     ┌────────┴┬────────┐",
        "         ┌──┴──┐  ┌───┴───┐    │",
        " tier 1  │ tor │  │ rack2 │    │",
        "         └──┬──┘  └───┬───┘    │",
        " 10Gbps     │         │        │",
        " host     alice      bob     probe",
    ]


def test_json_has_the_figures():
    data = json.loads(run("show", "graphcc", "--json"))
    assert data["port_buffer_bytes"] == 16_000_000
    assert data["paths"] == [
        {"switches": 1, "base_rtt_ns": 4_000, "bdp_bytes": 12_500},
        {"switches": 3, "base_rtt_ns": 8_000, "bdp_bytes": 25_000},
    ]
    assert data["links"][1] == {
        "between": ["leaf", "spine"],
        "links": 8,
        "rate_bps": 100_000_000_000,
        "delay_ns": 1_000,
    }
    assert [tier["oversubscription"] for tier in data["tiers"]] == [None, 0.75, None]


def test_oversubscription_of_a_rack():
    tiers = json.loads(run("show", "rlcc-64", "--json"))["tiers"]
    assert tiers[1]["oversubscription"] == 4.0


def test_list_names_every_testbed():
    text = run("list")
    assert [row["name"] for row in json.loads(run("list", "--json"))] == list(known_testbeds())
    assert all(name in text for name in known_testbeds())


def test_unknown_testbed_is_an_input_error():
    with pytest.raises(InputError, match="did you mean 'graphcc'"):
        run("show", "graphc")


def test_help_gives_examples():
    assert "closloop inventory show graphcc" in run("show", "--help")
