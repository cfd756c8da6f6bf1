"""The playbooks, run by Ansible over SSH: on a virtual rack, and on this machine's own sshd."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.bench.rack import after_undo
from orchestration.core.errors import InputError
from orchestration.device.ssh import Secrets
from orchestration.provision import run
from orchestration.provision.run import provision, save_inventory

pytest.importorskip("ansible_runner")

# The verb, without the ones that are beside it.
_PROGRAM = """
import typer
from orchestration.provision.verbs import provision
typer.run(provision)
"""


@pytest.mark.slow
def test_the_playbooks_are_lint_clean(tmp_path):
    program = shutil.which("ansible-lint", path=str(Path(sys.executable).parent))
    assert program, "ansible-lint comes with the extra `dev`"
    environment = {**os.environ, "ANSIBLE_HOME": str(tmp_path), "NO_COLOR": "1"}
    environment["PATH"] = f"{Path(program).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [program, "--offline", "--project-dir", "."],
        cwd=run.PLAYBOOKS_FOLDER,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def rack(loopback):
    """A rack whose first host is this machine, with an interface that it has not."""
    testbed = load_testbed("graphcc")
    access = {
        device.name: Access(
            device.name,
            "127.0.0.1",
            loopback.port,
            loopback.user,
            str(loopback.key_file),
            interfaces=tuple(f"none{n}" for n in range(len(testbed.ports_of[device.name]))),
        )
        for device in testbed.devices
    }
    return Rack("lab", testbed, access, known_hosts_file=str(loopback.known_hosts))


@pytest.mark.slow
@pytest.mark.ssh
def test_a_device_that_cannot_be_set_up_does_not_stop_the_others(rack):
    access = {**rack.access, "h2": dataclasses.replace(rack.access["h2"], port=1)}
    broken = dataclasses.replace(rack, access=access)
    steps = []
    result = provision(broken, "verify", limit=["h1", "h2"], listener=steps.append)

    assert result.failed == ("h1", "h2")
    # the module ran over SSH, and refused before it changed anything
    assert result.devices["h1"].failure.startswith("there is no interface 'none0'; there are")
    assert result.devices["h1"].remedy.startswith("correct the interfaces in closloop_links")
    assert result.devices["h2"].failure == "nothing listens at 127.0.0.1 port 1"
    assert {(step.device, step.state) for step in steps} >= {("h1", "failed"), ("h2", "failed")}


@pytest.mark.slow
@pytest.mark.ssh
def test_an_unknown_or_another_host_key_is_never_accepted(rack, loopback, tmp_path, monkeypatch):
    # nothing of what this user trusts
    monkeypatch.setenv("HOME", str(tmp_path))
    nothing = tmp_path / "nothing"
    nothing.write_text("")
    stranger = dataclasses.replace(rack, known_hosts_file=str(nothing))
    (h1,) = provision(stranger, "verify", limit=["h1"]).devices.values()
    assert h1.failure == "its host key is not known"
    assert nothing.read_text() == ""

    other = loopback.key_file.with_suffix(".pub").read_text().split()[1]
    nothing.write_text(f"[127.0.0.1]:{loopback.port} ssh-ed25519 {other}\n")
    (h1,) = provision(stranger, "verify", limit=["h1"]).devices.values()
    assert h1.failure.startswith("its host key is not the known one")


@pytest.mark.slow
@pytest.mark.ssh
def test_passwords_are_in_no_argument_no_environment_and_no_file(rack, monkeypatch):
    secret = "correct-horse-battery"
    monkeypatch.setenv("CLOSLOOP_SSH_PASSWORD", secret)
    seen, stop = set(), threading.Event()

    def look():
        places = Path(tempfile.gettempdir())
        while not stop.wait(0.02):
            files = [
                f for p in Path("/proc").glob("[0-9]*") for f in (p / "cmdline", p / "environ")
            ]
            files += places.glob("closloop-provision-*/**/*")
            for file in files:
                with suppress(OSError):
                    if secret.encode() in file.read_bytes():
                        seen.add(str(file))

    access = {**rack.access, "h1": dataclasses.replace(rack.access["h1"], key_file="")}
    unkeyed = dataclasses.replace(rack, access=access)
    secrets = Secrets(login=secret, become=secret)
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        result = provision(unkeyed, "verify", limit=["h1"], secrets=secrets)
    finally:
        stop.set()
        watcher.join()
    assert "refuses the login" in result.devices["h1"].failure
    assert seen == set()


def test_a_device_that_the_rack_has_not_is_refused(tmp_path):
    testbed = load_testbed("graphcc")
    access = {
        device.name: Access(device.name, "192.0.2.1", interfaces=("e",) * len(ports))
        for device in testbed.devices
        for ports in [testbed.ports_of[device.name]]
    }
    rack = Rack("lab", testbed, access)
    with pytest.raises(InputError, match="rack lab has no device 'leaf9'"):
        provision(rack, limit=["leaf9"])
    save_inventory(rack, tmp_path / "inventory.json")
    groups = json.loads((tmp_path / "inventory.json").read_text())["all"]["children"]
    assert len(groups["plain_hosts"]["hosts"]) == 24


CLASSES = """
name: classes
kind: leaf-spine
leaves: 2
spines: 1
hosts_per_leaf: 2
host_link: {rate: 25Gbps, delay: 1us}
uplink: {rate: 100Gbps, delay: 1us}
mtu: 1500B
buffer: 9MB
classes:
  - {name: rdma, weight: 70, congestion_control: dctcp}
  - {name: tcp, weight: 30, congestion_control: cubic}
"""


@pytest.fixture(scope="module")
def virtual(tmp_path_factory):
    """A virtual rack with traffic classes: the spine is SONiC-like, h1 has a RoCE NIC."""
    from orchestration.virtual_rack.control import up

    folder = tmp_path_factory.mktemp("rack")
    (folder / "classes.yml").write_text(CLASSES)
    testbed = load_testbed(str(folder / "classes.yml"))
    handle, _ = up(testbed, sonic=["spine1"], roce=["h1"], folder=folder / "rack")
    yield handle
    handle.down()


# One of each kind; every device more costs seconds.
DEVICES = ("leaf1", "spine1", "h1", "h3")
LIMIT = ("--limit", ",".join(DEVICES))


def states(handle):
    return {name: handle.dump(name) for name in DEVICES}


def in_rack_json(handle, folder, words):
    """Run a program of Python inside the rack, with the inventory as its first argument.

    Returns its exit code and what it printed.
    """
    with (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as err:
        argv = [sys.executable, "-c", words[0], str(handle.inventory), *words[1:]]
        code = handle.run(argv, stdout=out, stderr=err)
    text = (folder / "out").read_text()
    assert text, (folder / "err").read_text()
    return code, json.loads(text)


def closloop_provision(handle, folder, *options):
    """Run the verb inside the rack; return its exit code and what it printed of devices."""
    code, found = in_rack_json(handle, folder, [_PROGRAM, "--json", *options])
    return code, found["devices"]


# Runs on a device: tells when its lease is written and removed, until KEEP is removed.
_WATCH = """
import ctypes, os, struct
folder, moved_to, deleted = "/var/tmp/closloop/0", 0x80, 0x200
os.makedirs(folder, exist_ok=True)
open(folder + "/keep", "w").close()
libc = ctypes.CDLL(None)
fd = libc.inotify_init()
assert libc.inotify_add_watch(fd, folder.encode(), moved_to | deleted) >= 0
print("watching", flush=True)
name = ""
while name != "keep":
    data = os.read(fd, 65536)
    while data:
        _, mask, _, size = struct.unpack_from("iIII", data)
        name = data[16 : 16 + size].rstrip(bytes(1)).decode()
        data = data[16 + size :]
        if name == "lease.json":
            print("given back" if mask & deleted else "taken", flush=True)
"""
# Runs as the controller. Provisions devices, and begins to undo that until Ctrl-C, which comes as
# the first modules are at work, or before. Prints the outcome and what became of h1's lease during
# the first, and the leases left by the second.
_STOPPED = """
import json, os, pathlib, shlex, signal, subprocess, sys
from inventory.ansible import load_rack
from orchestration.core.errors import Interrupted
from orchestration.provision.run import provision

def on(device, *words):
    words = ["ssh", "-o", "BatchMode=yes", device, shlex.join(words)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

rack, devices = load_rack(pathlib.Path(sys.argv[1])), sys.argv[2].split(",")
watcher = on("h1", "python3", "-c", sys.argv[3])
assert watcher.stdout.readline() == "watching\\n"
result = provision(rack, limit=devices)
on("h1", "rm", "/var/tmp/closloop/0/keep").wait()
seen = watcher.communicate()[0].splitlines()

def stop(step):
    os.kill(os.getpid(), signal.SIGINT)

try:
    provision(rack, "undo", limit=devices, listener=stop)
    left = ["not interrupted"]
except Interrupted:
    leases = [on(device, "find", "/var/tmp/closloop", "-type", "f") for device in devices]
    left = [lease.communicate()[0] for lease in leases]
devices = result.to_json()["devices"]
print(json.dumps({"devices": devices, "seen": seen, "left": left}))
"""


@pytest.mark.kernel
@pytest.mark.redis
@pytest.mark.ssh
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_provision_again_verify_and_undo_leave_no_difference(virtual, tmp_path):
    before = states(virtual)

    code, found = in_rack_json(virtual, tmp_path, [_STOPPED, LIMIT[1], _WATCH])
    first = found["devices"]
    assert code == 0
    assert not any(device["failure"] for device in first.values())
    assert all(device["changed"] for device in first.values())
    # Soft-RoCE has none of a RoCE NIC's switches: left out, with the reason, and no failure
    left_out = {entry["step"] for entry in first["h1"]["skipped"]}
    assert {"trust eth0", "pfc eth0 3"} <= left_out
    # h1 was held from its first module to its last
    assert found["seen"] == ["taken", "taken", "given back"]
    # and after Ctrl-C nobody has to wait for a lease to end
    assert found["left"] == [""] * len(DEVICES)

    # which left devices as they were, or undone
    code, _ = closloop_provision(virtual, tmp_path, *LIMIT)
    assert code == 0
    provisioned = states(virtual)
    assert all(provisioned[name] != before[name] for name in DEVICES)

    # somebody's thresholds in our own queues: only they are set again
    red = "red limit 9000000 min 50000 max 200000 avpkt 1000 burst 80 ecn"
    command = f"tc qdisc change dev eth0 parent 8:1 handle 3: {red}"
    assert virtual.run(["ssh", "leaf1", command]) == 0
    code, third = closloop_provision(virtual, tmp_path, *LIMIT)
    assert code == 0
    changed = [(n, len(d["changes"])) for n, d in third.items() if d["changed"]]
    assert changed == [("leaf1", 1)]
    now = states(virtual)
    # a change that keeps what is queued makes the kernel report RED's limit as 0
    now["leaf1"] = now["leaf1"].replace(r"\"limit\": 0,", r"\"limit\": 16000000,")
    assert now == provisioned

    code, _ = closloop_provision(virtual, tmp_path, *LIMIT, "--undo")
    assert code == 0
    assert states(virtual) == after_undo(before)

    code, now = closloop_provision(virtual, tmp_path, *LIMIT, "--verify")
    assert code == 3
    assert all(device["failure"].startswith("not as provisioned") for device in now.values())


@pytest.mark.kernel
@pytest.mark.redis
@pytest.mark.ssh
@pytest.mark.slow
def test_a_full_disk_is_an_error_before_anything_is_changed(virtual, tmp_path):
    before = virtual.dump("h3")
    virtual.inject("h3", "disk full")
    try:
        code, found = closloop_provision(virtual, tmp_path, "--limit", "h3,h4")
    finally:
        virtual.inject("h3", "disk free")
    assert code == 3
    assert found["h3"]["failure"].startswith("its disk is full")
    assert found["h4"]["failure"] == ""
    assert virtual.dump("h3") == before
