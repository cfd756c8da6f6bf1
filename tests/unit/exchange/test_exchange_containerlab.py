"""Testbeds as labs of containerlab, and back: folder, commands, refusals, the round trip."""

import json
import stat
import subprocess
from ipaddress import IPv4Network

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from typer.testing import CliRunner

from inventory.addressing import DEFAULT_PREFIX
from inventory.ansible import load_rack
from inventory.files import load_testbed
from inventory.generators import Cable, leaf_spine, single_switch
from orchestration.cli.main import app
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.topology import Testbed
from orchestration.exchange.containerlab.lab import (
    MANAGEMENT_PREFIX,
    SWITCH_KINDS,
    Lab,
    notes,
    write_lab,
)
from orchestration.exchange.containerlab.read import read_lab
from orchestration.exchange.containerlab.testbed import LinkDefaults, to_testbed, write_testbed

LINUX, SONIC = SWITCH_KINDS


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call(*words)
    return [(problem.where, problem.what) for problem in caught.value.problems]


def switch_of(hosts):
    cable = Cable(10**9, 1000)
    fabric = single_switch(hosts=hosts, host_cable=cable)
    return Testbed.build("wide", *fabric, mtu_bytes=1500, buffer_bytes=10**6)


@pytest.mark.slow
def test_the_folder_is_a_rack_of_the_labs_nodes(tmp_path):
    folder = tmp_path / "lab"
    said = run("export", "containerlab", "graphcc", "-o", folder)
    assert "shapes the ports of Linux devices" in said.output
    assert f"containerlab deploy -t {folder}/graphcc.clab.yml" in said.output
    rack, testbed = load_rack(folder / "inventory.yml"), load_testbed("graphcc")
    assert rack.testbed == testbed
    lab = read_lab(folder / "graphcc.clab.yml")
    assert list(lab.nodes) == list(rack.access)
    # each link of the topology file is one of the inventory, port by port
    ends = {
        frozenset((port.device, rack.interface(port)) for port in (ports[link.a], ports[link.b]))
        for ports in (testbed.ports,)
        for link in testbed.links
    }
    assert ends == {frozenset((e.node, e.interface) for e in c.ends) for c in lab.cables}
    assert {access.user for access in rack.access.values()} == {"root"}
    assert all(access.shape for access in rack.access.values())


def test_its_keys_open_it_and_nothing_else_reads_them(tmp_path):
    folder = tmp_path / "lab"
    write_lab(Lab(load_testbed("acc-fig8")), "acc-fig8", folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    rack = load_rack(folder / "inventory.yml")
    assert rack.access["h1"].key_file == str(folder / "key")
    assert rack.known_hosts_file == str(folder / "known_hosts")
    for name, access in rack.access.items():
        private = folder / "host_keys" / name
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
        argv = ["ssh-keygen", "-F", access.address, "-f", rack.known_hosts_file]
        known = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        (line,) = (line for line in known.splitlines() if not line.startswith("#"))
        public = private.with_name(f"{name}.pub").read_text().split()
        assert line.split() == [access.address, *public[:2]]


def test_a_testbed_file_goes_along_with_what_only_it_can_say(tmp_path):
    file = tmp_path / "own.yml"
    file.write_text(
        "kind: single-switch\nname: own\nmtu: 1500B\nhosts: 3\n"
        "host_link: {rate: 1Gbps, delay: 1us}\n"
        "switch: {buffer: 1MB, alpha: 1}\n"
    )
    written = write_lab(Lab(load_testbed(str(file))), str(file), tmp_path / "lab")
    assert (written.folder / "testbed.yml").read_text() == file.read_text()
    assert load_rack(written.inventory).testbed == load_testbed(str(file))
    assert any("shared buffers" in note for note in written.notes)


def test_sonic_switches_have_sonics_names_and_no_shaper(tmp_path):
    folder = tmp_path / "lab"
    options = ("--switch", "sonic-vs", "--switch-image", "sonic:1", "--host-image", "mine:2")
    data = json.loads(
        run("export", "containerlab", "graphcc", "-o", folder, *options, "--json").stdout
    )
    rack = load_rack(folder / "inventory.yml")
    assert rack.access["leaf1"].interfaces == tuple(f"Ethernet{4 * n}" for n in range(8))
    assert (rack.access["leaf1"].platform, rack.access["leaf1"].shape) == ("sonic", False)
    assert (rack.access["h1"].platform, rack.access["h1"].shape) == ("linux", True)
    assert data["nodes"]["h1"] == rack.access["h1"].address == "172.20.64.2"
    assert any("marks no packets" in note for note in data["notes"])
    lab = read_lab(folder / "graphcc.clab.yml")
    assert {node.kind for node in lab.nodes.values()} == {"linux", "sonic-vs"}
    assert {c.ends[1].interface for c in lab.cables if c.ends[1].node == "leaf1"} == {
        f"eth{n}" for n in range(1, 7)
    }
    text = (folder / "graphcc.clab.yml").read_text()
    assert text.count('image: "sonic:1"') == 2
    assert text.count('image: "mine:2"') == 1


def test_a_campaign_is_planned_with_the_inventory(tmp_path):
    folder = tmp_path / "lab"
    write_lab(Lab(load_testbed("graphcc")), "graphcc", folder)
    (tmp_path / "c.yml").write_text(
        "campaign: c\ntestbed: graphcc\nbackend: hardware\ntuners: [secn1]\nrepeats: 2\n"
        "traffic: [{kind: poisson, workload: WebSearch, load: 0.3}]\nduration: 200ms\n"
        "sample_period: 10ms\n"
    )
    from orchestration.campaign.expand import load_campaign

    trials = load_campaign(tmp_path / "c.yml").trials
    rack = load_rack(folder / "inventory.yml")
    assert {trial.testbed for trial in trials} == {rack.testbed.name}
    assert load_testbed(trials[0].testbed) == rack.testbed


def test_what_containerlab_cannot_hold_is_refused(tmp_path):
    assert refused(Lab(switch_of(33), SONIC).topology) == [
        ("testbed wide", "switch1 has 33 ports; SONiC's container has 32")
    ]
    assert Lab(switch_of(32), SONIC).topology()
    assert Lab(switch_of(33), LINUX).topology()
    ((where, what),) = refused(Lab(switch_of(1023)).topology)
    assert where == "testbed wide"
    assert "1024 devices" in what
    small = Lab(switch_of(6), management=IPv4Network("10.9.0.0/29"))
    expected = "10.9.0.0/29 has too few addresses for 7 nodes"
    assert refused(small.topology) == [("--management", expected)]
    assert Lab(switch_of(4), management=IPv4Network("10.9.0.0/29")).topology()
    ((where, what),) = refused(Lab(switch_of(2), management=IPv4Network(DEFAULT_PREFIX)).topology)
    assert "fabric's own addresses" in what
    file = tmp_path / "taken.yml"
    file.write_text(
        "kind: custom\nname: taken\nmtu: 1500B\nbuffer: 1MB\nhosts: [host, h2]\n"
        "switches: [{name: leaf, tier: 1}]\nlinks:\n"
        "  - {a: host, b: leaf, rate: 1Gbps, delay: 1us}\n"
        "  - {a: h2, b: leaf, rate: 1Gbps, delay: 1us}\n"
    )
    ((where, what),) = refused(Lab(load_testbed(str(file))).topology)
    assert "is the machine itself" in what


def test_wrong_options_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    folder = tmp_path / "lab"

    def told(*options):
        return refused(run, "export", "containerlab", "graphcc", "-o", folder, *options)[0][0]

    assert told("--switch", "sonic") == "--switch"
    assert told("--host-image", "an image") == "--host-image"
    assert told("--switch-image", "$IMAGE") == "--switch-image"
    assert told("--management", "172.20.64.1/20") == "--management"
    assert told("--management", DEFAULT_PREFIX) == "--management"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotReadyError, match="ssh-keygen"):
        run("export", "containerlab", "graphcc", "-o", folder)
    assert not list(tmp_path.iterdir())
    folder.mkdir()
    monkeypatch.undo()
    assert told() == str(folder)


def test_names_that_yaml_takes_for_something_else_stay_names(tmp_path):
    file = tmp_path / "2024.yml"
    file.write_text(
        "kind: custom\nname: '2024'\nmtu: 1500B\nbuffer: 16MB\nhosts: ['true', 'on']\n"
        "switches: [{name: 'null', tier: 1}]\nlinks:\n"
        "  - {a: 'true', b: 'null', rate: 1Gbps, delay: 1us}\n"
        "  - {a: 'on', b: 'null', rate: 1Gbps, delay: 1us}\n"
    )
    testbed = load_testbed(str(file))
    text = Lab(testbed).topology()
    # containerlab reads YAML 1.1, where `on` is true
    data = YAML(typ="safe", pure=True).load("%YAML 1.1\n---\n" + text)
    assert data["name"] == "2024"
    assert list(data["topology"]["nodes"]) == ["true", "on", "null"]
    (tmp_path / "x.clab.yml").write_text(text)
    write_testbed(
        tmp_path / "again.yml", to_testbed(read_lab(tmp_path / "x.clab.yml"), LinkDefaults())
    )
    again = load_testbed(str(tmp_path / "again.yml"))
    assert (again.name, again.devices, again.ports) == (
        testbed.name, testbed.devices, testbed.ports,
    )  # fmt: skip


LAB = """
name: Two
topology:
  nodes: {c1: {kind: linux}, c2: {kind: linux}, leaf: {kind: nokia_srlinux}, r: {kind: linux}}
  links:
    - endpoints: ["c1:eth1", "leaf:e1-1"]
    - endpoints: ["c2:eth1", "leaf:e1-2"]
    - endpoints: ["leaf:e1-3", "r:eth1"]
"""


def test_an_import_says_what_it_took(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.clab.yml").write_text(LAB)
    words = ("import", "containerlab", "two.clab.yml", "--rate", "10Gbps")
    said = run(*words, "-o", "two.yml").output
    assert "two.yml: 3 hosts, 1 switches, 3 links" in said
    assert "next: closloop inventory show ./two.yml" in said
    testbed = load_testbed("two.yml")
    assert (testbed.name, testbed.mtu_bytes) == ("two", 9216)
    assert refused(run, *words, "-o", "two.yml") == [("two.yml", "is there already")]

    chosen = ("--hosts", "c*", "--uplink-rate", "40Gbps", "--delay", "5us", "--mtu", "1500B")
    data = json.loads(run(*words, *chosen, "--name", "x", "-o", "x.yml", "--json").stdout)
    assert data["tiers"] == {"c1": 0, "c2": 0, "leaf": 1, "r": 2}
    testbed = load_testbed("x.yml")
    assert [link.rate_bps for link in testbed.links] == [10**10, 10**10, 4 * 10**10]
    assert {link.delay_ns for link in testbed.links} == {5000}
    assert testbed.mtu_bytes == data["mtu_bytes"] == 1500

    def told(*options):
        return refused(run, *words, "-o", "y.yml", *options)[0][0]

    assert told("--hosts", "d*") == "--hosts"
    assert told("--delay", "5") == "--delay"
    assert told("--mtu", "9300B") == "--mtu"
    assert told("--buffer", "2KB") == "--buffer"
    assert told("--rate", "0bps") == "--rate"
    assert told("--name", "X Y") == "two.clab.yml:2"
    assert not (tmp_path / "y.yml").exists()


@st.composite
def fabrics(draw):
    """A leaf-spine testbed with figures of its own, its links in any order."""
    cables = st.builds(
        Cable,
        st.integers(1, 800 * 10**9) | st.sampled_from([25 * 10**9, 400 * 10**9]),
        st.integers(1, 10**9),
    )
    nics = draw(st.sampled_from([1, 2]))
    devices, specs = leaf_spine(
        leaves=nics * draw(st.integers(1, 2)),
        spines=draw(st.integers(1, 3)),
        hosts_per_leaf=draw(st.sampled_from([2, 4])),
        nics_per_host=nics,
        uplinks_per_spine=draw(st.integers(1, 2)),
        host_cable=draw(cables),
        uplink_cable=draw(cables),
    )
    return Testbed.build(
        "drawn",
        devices,
        draw(st.permutations(list(specs))),
        mtu_bytes=draw(st.integers(576, 9216)),
        buffer_bytes=draw(st.integers(10**5, 10**8)),
    )


@pytest.mark.slow
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(testbed=fabrics(), kind=st.sampled_from(SWITCH_KINDS))
def test_a_lab_that_is_exported_and_imported_is_the_same_testbed(tmp_path, testbed, kind):
    lab = Lab(testbed, kind)
    (tmp_path / "drawn.clab.yml").write_text(lab.topology())
    buffer_bytes = testbed.switch_ports[0].buffer_bytes
    found = to_testbed(
        read_lab(tmp_path / "drawn.clab.yml"), LinkDefaults(buffer_bytes=buffer_bytes)
    )
    assert found.notes == ("tiers are those of the nodes' groups",)
    (tmp_path / "drawn.yml").unlink(missing_ok=True)
    write_testbed(tmp_path / "drawn.yml", found)
    again = load_testbed(str(tmp_path / "drawn.yml"))
    assert again.links == testbed.links
    assert again.ports == testbed.ports
    assert set(again.devices) == set(testbed.devices)
    assert again.mtu_bytes == testbed.mtu_bytes
    network = IPv4Network(MANAGEMENT_PREFIX)
    addresses = [IPv4Network(address) for address in lab.address.values()]
    assert len(set(addresses)) == len(testbed.devices)
    assert all(address.subnet_of(network) for address in addresses)
    assert notes(lab)
