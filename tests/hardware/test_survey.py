"""Surveys of devices: of this machine, over SSH, from recorded LLDP; other things are refused."""

import dataclasses
import json
import os
import socket
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inventory.ansible import write_rack
from inventory.cabling import DeviceFacts, Neighbour
from inventory.rack import Access, Rack
from orchestration.agent import reach
from orchestration.agent import survey as agent
from orchestration.agent.host import rdma as nic_agent
from orchestration.agent.linux import ethtool
from orchestration.agent.sonic.resp import APPL_DB, STATE_DB, Redis
from orchestration.backends.hardware.survey import (
    checked_facts,
    judge_rack,
    neighbours_of_lldpctl,
    survey_device,
    survey_rack,
)
from orchestration.cli import inventory as cli
from orchestration.cli import inventory_check
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.topology import Device, LinkSpec, Testbed
from orchestration.device.client import AgentClient
from orchestration.device.errors import DeviceError, DeviceGone, LoginRefused
from tests.programs import start_redis

RECORDED = Path(__file__).parent / "recorded"


def recorded(name):
    return neighbours_of_lldpctl((RECORDED / f"lldp-{name}.json").read_text())


def test_one_neighbour():
    mac = "92:42:51:8a:d3:08"
    assert recorded("host") == (Neighbour("eth0", "leaf1", mac, "mac", mac, "eth0"),)


def test_a_neighbour_a_port_by_mac_and_by_name():
    assert [(n.interface, n.system, n.port_type, n.description) for n in recorded("leaf")] == [
        ("eth0", "h1", "mac", "eth0"),
        ("eth1", "h2", "ifname", "eth0"),
        ("eth4", "spine1", "mac", "eth0"),
    ]


def test_no_neighbour():
    assert recorded("none") == ()


def test_several_neighbours_at_a_port_one_without_name_one_hostile():
    """The third announced a name with an escape, braces and a line end: shown, never obeyed."""
    first, second, third = recorded("several-at-a-port")
    assert first.system == "h1"
    assert second == Neighbour("eth0", "", "02:00:00:00:00:aa", "ifname", "Ethernet0", "")
    assert (third.system, third.port, third.description) == (
        "sonic [31m{{ 7*7 }}", "local7", "Ethernet4",
    )  # fmt: skip
    assert third.system.isprintable()


@pytest.mark.parametrize(
    "text", ["", "lldpctl: no", "[]", '{"lldp": []}', '{"lldp": {"interface": 1}}']
)
def test_what_is_no_neighbour(text):
    with pytest.raises((ValueError, TypeError)):
        neighbours_of_lldpctl(text)


def facts(**interfaces):
    return json.loads(json.dumps(agent.survey({"interfaces": list(interfaces) or ["lo"]})))


def test_this_machine():
    survey = checked_facts("h1", facts(lo=1, nosuch0=1))
    assert survey.hostname == socket.gethostname()
    assert survey.interfaces["lo"].exists
    assert survey.interfaces["lo"].speed_bps == -1
    assert survey.interfaces["lo"].mtu_bytes == int(Path("/sys/class/net/lo/mtu").read_text())
    assert not survey.interfaces["nosuch0"].exists
    assert set(survey.macs) == set(os.listdir("/sys/class/net"))
    assert survey.is_root == (os.geteuid() == 0)
    assert survey.system["memory_free_bytes"] > 0
    assert survey.system["disk_free_bytes"] > 0
    assert survey.system["uptime_s"] > 0
    assert survey.system["clock_real_ns"] > 10**18


def test_the_right_to_change_qdiscs_is_the_kernels_answer():
    caps = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line
    )
    assert agent.may_change_qdiscs() == bool(int(caps.split()[1], 16) >> 12 & 1)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("tc utility, iproute2-6.1.0, libbpf 1.1.2", "6.1.0"),
        ("iperf 3.12 (cJSON 1.7.15)\nLinux", "3.12"),
        ("fio-3.33\n", "3.33"),
        ("Version: 6.06\n", "6.06"),
        ("ethtool version 6.1", "6.1"),
        ("redis-cli 7.0.15", "7.0.15"),
        ("", ""),
    ],
)
def test_versions(text, version):
    assert agent.version(text) == version


def test_a_program_that_hangs_is_killed():
    code, text, said = agent.run(["/bin/sh", "-c", "echo begun; sleep 600"], timeout_s=0.2)
    assert (code, text) == (-1, "")
    assert "no answer" in said


def test_files_of_a_sonic_switch(tmp_path):
    (tmp_path / "etc" / "sonic").mkdir(parents=True)
    (tmp_path / "etc" / "os-release").write_text('PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\n')
    (tmp_path / "etc" / "sonic" / "sonic_version.yml").write_text(
        "---\nbuild_version: '202505.1-abc'\nasic_type: broadcom\n"
    )
    found = agent.system(str(tmp_path))
    assert (found["os"], found["sonic"], found["asic"]) == (
        "Debian GNU/Linux 12", "202505.1-abc", "broadcom",
    )  # fmt: skip
    assert found["memory_free_bytes"] == -1024


def fake_program(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_lldpctl_is_asked_first(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "_FOLDERS", ())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake_program(tmp_path, "lldpctl", f"cat {RECORDED / 'lldp-leaf.json'}")
    found = agent.lldp(["eth0"], str(tmp_path / "no.sock"))
    assert (found["source"], found["problem"]) == ("lldpctl", "")
    assert neighbours_of_lldpctl(found["text"]) == recorded("leaf")


def test_lldpctl_that_refuses(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "_FOLDERS", ())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake_program(tmp_path, "lldpctl", "echo 'unable to connect' >&2; exit 1")
    found = agent.lldp(["eth0"], str(tmp_path / "no.sock"))
    assert found == {"source": "", "problem": "lldpctl: unable to connect"}
    lldp = {"system": {"hostname": "h1"}, "lldp": found}
    assert checked_facts("h1", {**facts(), **lldp}).neighbours is None


@pytest.mark.redis
def test_neighbours_and_rates_of_a_sonic_switch(tmp_path, monkeypatch):
    """Without lldpctl, and with a docker that has no such container, APPL_DB is read."""
    monkeypatch.setattr(agent, "_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_program(tmp_path, "docker", "echo 'No such container: lldp' >&2; exit 1")
    path = tmp_path / "redis.sock"
    server = start_redis(path)
    try:
        redis = Redis(str(path), restart_timeout_s=20.0)
        row = ("h1", "02:00:00:00:00:01", "02:00:00:00:00:02", "eth0\nnext line")
        fields = [word for pair in zip(agent.LLDP_FIELDS, row, strict=True) for word in pair]
        redis.call(APPL_DB, "HSET", "LLDP_ENTRY_TABLE:Ethernet0", *fields)
        found = agent.lldp(["Ethernet0", "Ethernet4"], str(path))
        redis.call(STATE_DB, "HSET", "PORT_TABLE|Ethernet0", "speed", "100000")
        rates = agent.asic_rates(["Ethernet0", "Ethernet4"], str(path))
    finally:
        server.terminate()
        server.wait()
    assert rates == {"Ethernet0": 100_000_000_000}
    assert agent.asic_rates(["eth0"], str(tmp_path / "none")) == {}
    assert found["source"] == "redis"
    assert checked_facts("leaf1", {**facts(), "lldp": found}).neighbours == (
        Neighbour("Ethernet0", row[0], row[1], "mac", row[2], "eth0 next line"),
    )


@pytest.mark.parametrize(
    "change",
    [
        {"macs": ["lo"]},
        {"interfaces": {"lo": {"exists": True}}},
        {"programs": {"tc": 6}},
        {"lldp": {"source": "lldpctl", "text": "no", "problem": ""}},
        {"rights": None},
    ],
)
def test_what_is_no_survey(change):
    with pytest.raises(DeviceError, match="h1: its survey cannot be read"):
        checked_facts("h1", {**facts(), **change})
    with pytest.raises(DeviceError):
        checked_facts("h1", None)


def test_statistics_of_a_driver_as_ethtool_prints_them(monkeypatch):
    """Recorded from a veth by `ethtool -S`; read here by the same ioctls, from a stand-in."""
    lines = (RECORDED / "nic-ethtool-veth.txt").read_text().splitlines()[1:]
    expected = {
        name.strip(): int(value) for name, _, value in (line.partition(":") for line in lines)
    }

    def ioctl(interface, request):
        command = int.from_bytes(request[:4], "little")
        if command == 0x37:
            return request[:16] + len(expected).to_bytes(4, "little")
        if command == 0x1B:
            assert len(request) == 12 + 32 * len(expected)
            return request[:12] + b"".join(name.encode().ljust(32, b"\0") for name in expected)
        assert len(request) == 8 + 8 * len(expected)
        return request[:8] + b"".join(v.to_bytes(8, "little") for v in expected.values())

    monkeypatch.setattr(ethtool, "ethtool", ioctl)
    assert nic_agent.ethtool_statistics("eth0") == expected
    assert expected["peer_ifindex"] == 2


def lab(access):
    devices = [Device("h1", "host", 0), Device("h2", "host", 0), Device("leaf1", "switch", 1)]
    links = [LinkSpec(host, "leaf1", 10**9, 1000) for host in ("h1", "h2")]
    testbed = Testbed.build("lab", devices, links, mtu_bytes=1500, buffer_bytes=10**6)
    return Rack("lab", testbed, access)


def reached(loopback, **devices):
    access = {}
    for name, change in devices.items():
        wanted = Access(
            name, "127.0.0.1", loopback.port, loopback.user, str(loopback.key_file),
            interfaces=("lo", "nosuch0") if name == "leaf1" else ("lo",),
        )  # fmt: skip
        access[name] = dataclasses.replace(wanted, **change)
    return dataclasses.replace(lab(access), known_hosts_file=str(loopback.known_hosts))


@pytest.mark.ssh
def test_a_device_over_ssh(loopback):
    rack = reached(loopback, h1={}, h2={}, leaf1={})
    survey = survey_device(rack.access["h1"], rack.known_hosts_file)
    assert (survey.device, survey.hostname) == ("h1", socket.gethostname())
    assert survey.interfaces["lo"].exists


@pytest.mark.ssh
def test_a_rack_side_by_side(loopback, tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()[1]
        rack = reached(loopback, h1={"port": nobody}, h2={"key_file": "/nosuch"}, leaf1={})
        done = []
        found = survey_rack(rack, on_done=done.append)
    assert sorted(done) == ["h1", "h2", "leaf1"]
    assert isinstance(found["h1"], DeviceGone)
    assert isinstance(found["h2"], LoginRefused)
    assert isinstance(found["leaf1"], DeviceFacts)
    findings = {(f.device, f.check): f for f in judge_rack(rack, found)}
    assert {("h1", "reachable"), ("h2", "login"), ("leaf1", "cabling")} <= set(findings)
    assert all(finding.remedy for finding in findings.values())


@pytest.mark.ssh
def test_the_command(loopback, tmp_path, monkeypatch):
    """Three devices that are this machine: no cable is proven, and the table says so."""
    rack = reached(loopback, h1={}, h2={}, leaf1={})
    access = {
        name: dataclasses.replace(item, address=address)
        for (name, item), address in zip(
            rack.access.items(), ("127.0.0.1", "localhost", "127.1"), strict=True
        )
    }
    known = tmp_path / "known"
    key = loopback.known_hosts.read_text().split(maxsplit=1)[1]
    known.write_text("".join(f"[{a.address}]:{a.port} {key}" for a in access.values()))
    write_rack(
        dataclasses.replace(rack, access=access, known_hosts_file=str(known)), tmp_path / "rack.yml"
    )
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(cli.app, ["check", str(tmp_path / "rack.yml")])
    assert result.exit_code == 3, result.output
    lines = [line for line in result.output.splitlines() if not line.startswith("─")]
    assert lines[0].split() == ["device", *inventory_check.CHECKS]
    assert lines[1].split()[:4] == ["h1", "ok", "ok", "?"]
    assert lines[3].split()[:4] == ["leaf1", "ok", "ok", "WRONG"]
    assert "leaf1: has no interface nosuch0" in result.output
    assert "  -> correct closloop_links" in result.output

    result = CliRunner().invoke(cli.app, ["check", str(tmp_path / "rack.yml"), "--json"])
    assert result.exit_code == 3
    told = json.loads(result.stdout)
    assert told["devices"]["h1"]["login"] == "ok"
    assert not told["proven"]
    assert told["surveys"]["h1"]["hostname"] == socket.gethostname()


def test_a_skeleton_is_written_once_and_not_checked_as_it_is(tmp_path):
    path = tmp_path / "rack.yml"
    assert CliRunner().invoke(cli.app, ["write", "graphcc", "-o", str(path)]).exit_code == 0
    again = CliRunner().invoke(cli.app, ["write", "graphcc", "-o", str(path)])
    assert isinstance(again.exception, InputError)
    checked = CliRunner().invoke(cli.app, ["check", str(path)])
    assert isinstance(checked.exception, NotReadyError)
    assert "30 addresses are still placeholders" in checked.exception.message


@pytest.mark.ssh
def test_a_nic_over_ssh(loopback):
    """The loopback interface is no RoCE NIC: that is said, by the agent as it is sent."""
    access = reached(loopback, h1={"rdma_devices": ("mlx5_0",)}).access["h1"]
    client = AgentClient(access, str(loopback.known_hosts), ["nic"])
    try:
        of_nic = {"interface": "lo", "rdma_device": "mlx5_0"}
        assert client.call("nic.optional", **of_nic) == []
        assert client.call("nic.gids") == []
        sources = ["hw", "ethtool", "rdma"]
        found = client.call("nic.counters", **of_nic, sources=sources)
        assert {source: [*row] for source, row in found.items()} == {
            source: ["problem"] for source in sources
        }
    finally:
        client.close()


@pytest.mark.slow
def test_pings_are_sent_from_own_addresses_and_say_who_does_not_answer():
    """All of 127/8 answers; 192.0.2.1 (RFC 5737) is nobody's, nor is 198.51.100.1 this host's."""
    said = reach.reach(
        {"own": ["127.0.0.1", "198.51.100.1"], "others": ["127.0.0.2", "192.0.2.1", "127.0.0.3"]}
    )
    assert said["own"] == ["127.0.0.1"]
    assert [pair[:2] for pair in said["unreached"]] == [["127.0.0.1", "192.0.2.1"]]
    assert said["unreached"][0][2]
    assert said["problem"] == ""


def test_an_answer_is_only_that_of_the_request():
    """A stranger's reply, another sequence number and a request are not taken for it."""
    echo = reach._HEADER.pack(0, 0, 0, 0, 1)
    token = b"8 bytes!"

    class Line:
        type = socket.SOCK_DGRAM

        def __init__(self, packet, sender):
            self.packet, self.sender = packet, sender

        def recvfrom(self, size):
            return self.packet[:size], (self.sender, 0)

    def answers(packet, sender="10.0.0.2"):
        return reach._answered_by(Line(packet, sender), ["10.0.0.1", "10.0.0.2"], token)

    assert answers(echo + token) == "10.0.0.2"
    assert answers(echo + token, "10.0.0.1") == ""
    assert answers(echo + b"strange!") == ""
    assert answers(reach._HEADER.pack(8, 0, 0, 0, 1) + token) == ""
    assert answers(reach._HEADER.pack(0, 0, 0, 0, 9) + token) == ""
    assert answers(b"") == answers(b"\0" * 7) == ""


@pytest.mark.ssh
def test_the_check_pings_all_pairs_of_hosts(loopback, monkeypatch):
    """Both hosts are this machine: 127.0.0.1 is there, 198.51.100.2 is not."""
    rack = reached(loopback, h1={}, h2={}, leaf1={})
    addresses = {"h1": ["127.0.0.1"], "h2": ["127.0.0.2"]}
    for module in ("orchestration.backends.hardware.survey", "inventory.cabling"):
        monkeypatch.setattr(f"{module}.fabric_addresses", lambda rack: addresses)

    def fabric():
        found = survey_rack(rack)
        assert found["leaf1"].reach is None
        return [f for f in judge_rack(rack, found) if f.check == "fabric"]

    assert fabric() == []
    addresses["h2"] = ["198.51.100.2"]
    (finding,) = fabric()
    assert (finding.device, finding.what) == ("h2", "lacks its fabric address 198.51.100.2")
    addresses["h1"] = ["198.51.100.1"]
    assert fabric() == []
