"""A rack in real time whose devices are containers: driven as any other, and nothing left."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestration.bench.rack import closloop, device_dumps
from orchestration.core.errors import NotReadyError
from orchestration.virtual_rack import cleanup, containers, control_groups
from orchestration.virtual_rack.control import find_rack, up
from tuners.pretrained import __path__ as pretrained

sys.path.insert(0, str(Path(__file__).parent))

from machine_state import family, gone, machine
from real_rack import (
    facts_of_a_campaign,
    first_process,
    on,
    provisioned,
)

pytestmark = [
    pytest.mark.root,
    pytest.mark.containers,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("own_machine"),
]
MODEL = Path(pretrained[0]) / "rl-cc-trees.json"
# `kill -9` of the supervisor, and then what is there to remove the groups.
WATCHER_S = 60.0


def groups_of(pid):
    """Return the control groups that a supervisor has made."""
    return [
        path
        for place in control_groups.hierarchies()
        for path in place.glob(f"{control_groups.PREFIX}{pid}-*")
    ]


@pytest.fixture(scope="module")
def prepared(machine_before, four_devices, tmp_path_factory):
    """A provisioned rack, with a folder for files."""
    folder = tmp_path_factory.mktemp("containers")
    with provisioned(four_devices, folder, machine_before, containers=True) as rack:
        yield rack, folder
        supervisor = rack.status()["pid"]
    assert groups_of(supervisor) == []


def test_devices_are_containers_of_the_runtime(prepared, four_devices):
    rack, _ = prepared
    printed = io.BytesIO()
    runtime = containers.require_runtime()
    state = ("--root", "/run/runtime")
    assert rack.run([runtime, *state, "list", "--format", "json"], stdout=printed) == 0
    found = {row["id"]: row for row in json.loads(printed.getvalue())}
    assert found.keys() == {device.name for device in four_devices.devices}
    assert {row["status"] for row in found.values()} == {"running"}
    printed = io.BytesIO()
    assert rack.run([runtime, *state, "exec", "h1", "cat", "/etc/hostname"], stdout=printed) == 0
    assert printed.getvalue() == b"h1\n"
    code, said = on(rack, "leaf1", "lldpctl -f keyvalue | grep chassis.name")
    assert code == 0, said
    assert "chassis.name=h1" in said
    assert "chassis.name=spine1" in said


def test_a_device_has_the_image_and_cannot_touch_the_machine(prepared):
    rack, _ = prepared
    code, said = on(rack, "h1", "cat /proc/1/comm /proc/self/cgroup; ls /sys/fs/cgroup /dev")
    assert code == 0, said
    assert said.startswith("catatonit\n")
    assert "closloop" not in said  # its group is the root of those that it sees
    assert "vda" not in said
    if control_groups.unified():
        assert "cgroup.procs" in said
    code, said = on(rack, "h1", f"ls {Path(__file__).resolve().parents[2]}")
    assert code != 0, said  # the machine's files are not there
    for path in ("/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger", "/sys/class/net/x"):
        code, said = on(rack, "h1", f"echo 1 > {path}")
        assert code != 0, path
    code, said = on(rack, "h1", "sysctl -w net.ipv4.tcp_ecn=1; mknod /tmp/disk b 254 0")
    assert code != 0, said
    assert "tcp_ecn = 1" in said
    assert "not permitted" in said


def test_a_campaign_runs_and_puts_everything_back(prepared):
    rack, folder = prepared
    found = device_dumps(rack)
    facts_of_a_campaign(rack, folder, "reno")
    assert device_dumps(rack) == found


def test_a_policy_paces_the_flows_of_one_host_only(prepared):
    rack, folder = prepared
    if not control_groups.unified():
        pytest.skip("control groups of version 2 are mounted nowhere")
    inventory = ("-i", str(rack.inventory), "--json")
    one = ("--limit", "h1", *inventory)
    code, text = closloop(rack, folder, "deploy", str(MODEL), "--name", "edge", *one)
    assert code == 0, text
    code, text = closloop(rack, folder, "deploy", "--status", *inventory)
    models = {host["device"]: host["reports"]["model"] for host in json.loads(text)}
    assert models["h1"]
    assert not models["h2"]
    code, text = closloop(rack, folder, "deploy", "--undo", "edge", *one)
    assert code == 0, text


@pytest.mark.parametrize("victim", ["its supervisor", "its first process", "a container"])
def test_a_sigkill_leaves_the_machine_as_it_was(machine_before, four_devices, tmp_path, victim):
    rack, _ = up(four_devices, clock="real", containers=True, folder=tmp_path / "rack")
    status = rack.status()
    processes = family(status["pid"])
    assert groups_of(status["pid"])
    first = first_process(status)
    if victim == "a container":
        (one,) = [pid for pid, _ in processes if is_init_of(pid, "h1")]
        os.kill(one, signal.SIGKILL)
        gone({(pid, began) for pid, began in processes if pid == one})
        assert rack.run(["ssh", "-o", "ConnectTimeout=2", "h1", "true"], stderr=io.BytesIO())
        assert on(rack, "h2", "hostname") == (0, "h2\n")
        rack.down()
    else:
        os.kill(first if victim == "its first process" else status["pid"], signal.SIGKILL)
    gone(processes)
    with pytest.raises(NotReadyError, match="not up"):
        find_rack(tmp_path / "rack")
    deadline = time.monotonic() + WATCHER_S
    while groups_of(status["pid"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert groups_of(status["pid"]) == []
    assert machine() == machine_before


def is_init_of(pid, device):
    try:
        comm = Path(f"/proc/{pid}/comm").read_text().strip()
        return comm == "catatonit" and f"/{device}\n" in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def test_a_racks_groups_wait_for_processes_that_end_late(monkeypatch):
    monkeypatch.setattr(control_groups, "_EMPTY_S", 0.0)
    (place, *_) = control_groups.hierarchies()
    mine = place / control_groups.own_group()
    mine.mkdir()
    with subprocess.Popen(["sleep", "0.5"]) as late:
        (mine / "cgroup.procs").write_text(str(late.pid))
        control_groups.remove(mine.name)
    assert not mine.exists()


def test_what_is_left_when_the_watcher_was_killed_too_is_found_by_its_mark(machine_before):
    (place, *_) = control_groups.hierarchies()
    child = os.fork()
    if not child:
        (place / control_groups.own_group() / "h1").mkdir(parents=True)
        os._exit(0)
    os.waitpid(child, 0)
    mine = place / f"{control_groups.own_group()}"
    mine.mkdir()
    try:
        (left,) = groups_of(child)
        assert str(left) in cleanup.remove_orphaned(cleanup.find_control_groups)
        assert not left.exists()
        assert mine.exists()  # its process lives
    finally:
        control_groups.remove(mine.name)
    assert machine() == machine_before
