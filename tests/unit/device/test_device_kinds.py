"""Devices that are named for what they are: several ASICs, VOQ, locked down, in a VRF."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inventory.cabling import DeviceFacts, InterfaceState, check_rack
from inventory.rack import Access, Rack
from orchestration.agent import survey
from orchestration.agent.host.dcqcn import lockdown
from orchestration.agent.linux import vrf
from orchestration.agent.main import OperationError
from orchestration.agent.sonic import asics
from orchestration.agent.sonic.queue_objects import capabilities
from orchestration.cli.inventory_check import CheckedRack, print_checked
from orchestration.core.topology import Device, LinkSpec, Testbed
from tests.programs import start_redis

ROOT = Path(__file__).resolve().parents[3]
# The folder of a line card in sonic-buildimage, device/nokia.
CARD = "x86_64-nokia_ixr7250e_36x400g-r0"


def test_a_socket_that_is_not_ones_own_is_not_waited_for(monkeypatch):
    from orchestration.agent.sonic import resp

    def refuses(path, timeout_s):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(resp, "_Stream", refuses)
    monkeypatch.setattr(resp.time, "sleep", lambda seconds: pytest.fail("it waits"))
    with pytest.raises(resp.RedisGone, match="may not be opened by this user"):
        resp.Redis("/run/redis.sock").call(0, "PING")


def written(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return f"{root}/"


def test_a_switch_with_several_asics(tmp_path):
    root = written(
        tmp_path,
        {
            "host/machine.conf": f"onie_version=2021.02\nonie_platform={CARD}\n",
            f"usr/share/sonic/device/{CARD}/asic.conf": "NUM_ASIC=2\nDEV_ID_ASIC_0=03:00.0\n",
        },
    )
    what, remedy = asics.unsupported_reason({}, root)
    assert what == "is a multi-ASIC switch: it has 2 ASICs, each with its own CONFIG_DB"
    assert "one ASIC" in remedy
    assert survey.unsupported(root, "/no/redis.sock") == {"unfit": what, "unfit_remedy": remedy}


def test_other_places_of_the_number_of_asics(tmp_path):
    arista = written(
        tmp_path / "arista",
        {
            "host/machine.conf": "aboot_platform=x86_64-arista\n",
            "usr/share/sonic/device/x86_64-arista/asic.conf": "num_asic=3\n",
        },
    )
    assert asics.asic_count(arista) == 3
    folder = {"usr/share/sonic/platform/asic.conf": "NUM_ASIC=4\n"}
    assert asics.asic_count(written(tmp_path / "container", folder)) == 4


def test_a_switch_with_one_asic(tmp_path):
    assert asics.asic_count(f"{tmp_path}/") == 1
    root = written(tmp_path, {"usr/share/sonic/platform/asic.conf": "NUM_ASIC=1\n"})
    for metadata in ({}, {"switch_type": "switch"}, {"switch_type": "chassis-packet"}):
        assert asics.unsupported_reason(metadata, root) == ("", "")


@pytest.mark.parametrize(
    ("kind", "said"), [("voq", "a VOQ switch"), ("fabric", "a fabric card"), ("dpu", "a DPU")]
)
def test_a_switch_with_other_queues(tmp_path, kind, said):
    what, remedy = asics.unsupported_reason({"switch_type": kind}, f"{tmp_path}/")
    assert said in what
    assert f"(switch_type {kind} in its DEVICE_METADATA)" in what
    assert remedy


class Redis:
    """CONFIG_DB of a switch that has nothing but its metadata."""

    def __init__(self, **metadata):
        self.metadata = metadata

    def hash(self, db, key):
        return self.metadata if (db, key) == (4, "DEVICE_METADATA|localhost") else {}


def test_a_run_refuses_it_before_it_looks_for_queues():
    with pytest.raises(OperationError, match="is a VOQ switch") as caught:
        capabilities(Redis(switch_type="voq"), "/no/version")
    assert caught.value.remedy


@pytest.mark.redis
def test_provisioning_refuses_it(tmp_path):
    """The module as Ansible runs it, beside a Redis with a VOQ switch's metadata."""
    path = tmp_path / "redis.sock"
    server = start_redis(path)
    try:
        from orchestration.agent.sonic.resp import CONFIG_DB
        from orchestration.agent.sonic.resp import Redis as Client

        Client(str(path), 20.0).call(
            CONFIG_DB, "HSET", "DEVICE_METADATA|localhost", "switch_type", "voq"
        )
        desired = {"socket": str(path), "tables": {"QUEUE": {}}}
        done = subprocess.run(
            [
                Path(sys.executable).parent / "ansible", "localhost", "-c", "local", "-i",
                "localhost,", "-m", "closloop_sonic", "-e",
                f"ansible_python_interpreter={sys.executable}",
                "-a", json.dumps({"desired": desired, "state": "present"}),
            ],
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(ROOT / "playbooks" / "ansible.cfg"),
                "ANSIBLE_LIBRARY": str(ROOT / "playbooks" / "library"),
                "ANSIBLE_HOME": str(tmp_path / "ansible"),
                "ANSIBLE_STDOUT_CALLBACK": "minimal",
            },
            capture_output=True,
            text=True,
            timeout=120,
        )  # fmt: skip
    finally:
        server.terminate()
        server.wait()
    assert "is a VOQ switch" in done.stdout, done.stdout + done.stderr
    assert "FAILED" in done.stdout


def rack_of(**changes):
    devices = [Device("h1", "host", 0), Device("h2", "host", 0), Device("leaf1", "switch", 1)]
    links = [LinkSpec(host, "leaf1", 10**9, 1000) for host in ("h1", "h2")]
    testbed = Testbed.build("lab", devices, links, mtu_bytes=1500, buffer_bytes=10**6)
    access = {
        name: Access(name, f"10.9.0.{number}", interfaces=("eth0", "eth1")[: number // 3 + 1])
        for number, name in enumerate(("h1", "h2", "leaf1"), 1)
    }
    for name, change in changes.items():
        access[name] = dataclasses.replace(access[name], **change)
    return Rack("lab", testbed, access)


def findings(rack, device, **system):
    state = InterfaceState(True, "up", 10**9, 1500)
    item = DeviceFacts(
        device,
        device,
        dict.fromkeys(rack.access[device].interfaces, state),
        neighbours=(),
        programs=dict.fromkeys(("redis-cli", "ip", "tc"), ""),
        is_root=True,
        may_change_qdiscs=True,
        system=system,
    )
    return [f for f in check_rack(rack, {device: item}) if f.check != "cabling"], item


def test_the_check_names_what_makes_a_device_unfit():
    rack = rack_of(leaf1={"platform": "sonic"})
    (finding,), _ = findings(
        rack, "leaf1", sonic="202505", unfit="is a VOQ switch", unfit_remedy="leave it out"
    )
    assert (finding.check, finding.severity) == ("tools", "wrong")
    assert (finding.what, finding.remedy) == ("is a VOQ switch", "leave it out")
    (finding,), _ = findings(rack, "h1", vrf="mgmt")
    assert finding.what.startswith("its sshd runs in the VRF mgmt")
    assert "ansible_become" in finding.remedy


# Lockdown.


def test_the_level_of_lockdown(tmp_path):
    assert lockdown(f"{tmp_path}/") == ""
    file = "sys/kernel/security/lockdown"
    for text, level in (
        ("[none] integrity confidentiality\n", ""),
        ("none [integrity] confidentiality\n", "integrity"),
        ("none integrity [confidentiality]\n", "confidentiality"),
    ):
        assert lockdown(written(tmp_path, {file: text})) == level


def test_the_check_says_that_lockdown_closes_debugfs(capsys):
    rack = rack_of(h1={"nic": "roce"})
    for device, said in (("h1", True), ("h2", False)):
        _, item = findings(rack, device, lockdown="integrity")
        print_checked(CheckedRack(rack, {device: item}, ()))
        text = capsys.readouterr().out
        line = f"{device}: kernel lockdown (integrity) closes debugfs: its DCQCN parameters"
        assert (line in text) is said


# A management VRF: its control group, as `ip vrf exec` makes it.


def in_group(root, path):
    return written(
        root,
        {
            "proc/self/cgroup": f"12:cpu:/x\n0::{path}\n",
            "proc/self/mounts": "tmpfs /run tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        },
    )


def test_the_agent_leaves_a_management_vrf(tmp_path):
    root = in_group(tmp_path, "/system.slice/ssh@mgmt.service/vrf/mgmt")
    procs = tmp_path / "sys/fs/cgroup/system.slice/ssh@mgmt.service/vrf/cgroup.procs"
    written(tmp_path, {procs.relative_to(tmp_path): ""})
    assert vrf.current(root) == "mgmt"
    assert survey.system(root)["vrf"] == "mgmt"
    vrf.leave(root)
    assert procs.read_text() == str(os.getpid())


def test_an_agent_that_may_not_leave_it_goes_on_and_names_it(tmp_path):
    root = in_group(tmp_path, "/vrf/mgmt")
    vrf.leave(root)
    assert vrf.current(root) == "mgmt"


def test_an_agent_in_no_vrf_stays_where_it_is(tmp_path):
    root = in_group(tmp_path, "/user.slice/session-1.scope")
    assert vrf.current(root) == vrf.current(f"{tmp_path}/none/") == ""
    vrf.leave(root)
    assert not (tmp_path / "sys").exists()
