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
from orchestration.device.ssh import Secrets
from orchestration.model.errors import InputError
from orchestration.provision import run
from orchestration.provision.run import provision, save_inventory
from orchestration.studies.bench.rack import after_undo

pytest.importorskip("ansible_runner")

# The verb, without the ones that are beside it.
_PROGRAM = "import typer; from orchestration.cli.provision import provision; typer.run(provision)"


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
    assert h1.failure.startswith("its host key is another than the known one")


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


@pytest.fixture(scope="module", params=["linux", "sonic"])
def virtual(request, tmp_path_factory):
    """A virtual rack of one switch, which is a Linux or a SONiC-like one, and eight hosts."""
    from orchestration.virtual_rack.control import up

    sonic = ["switch1"] if request.param == "sonic" else []
    folder = tmp_path_factory.mktemp(request.param) / "rack"
    handle, _ = up(load_testbed("acc-fig8"), sonic=sonic, roce=["h1"], folder=folder)
    yield handle
    handle.down()


# One of each kind; every device more costs seconds.
DEVICES = ("switch1", "h1", "h2")
LIMIT = ("--limit", ",".join(DEVICES))


def dumps(handle):
    return {name: handle.dump(name) for name in DEVICES}


def closloop_provision(handle, folder, *options):
    """Run the verb inside the rack; return its exit code and what it printed."""
    with (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as err:
        words = [sys.executable, "-c", _PROGRAM, str(handle.inventory), "--json", *options]
        code = handle.run(words, stdout=out, stderr=err)
        out.seek(0)
        err.seek(0)
        text, complaint = out.read().decode(), err.read().decode()
    assert text, complaint
    return code, json.loads(text)["devices"]


@pytest.mark.kernel
@pytest.mark.redis
@pytest.mark.ssh
@pytest.mark.slow
def test_provision_again_verify_and_undo_leave_no_difference(virtual, tmp_path):
    before = dumps(virtual)

    code, first = closloop_provision(virtual, tmp_path, *LIMIT)
    assert code == 0
    assert all(device["changed"] for device in first.values())
    provisioned = dumps(virtual)
    assert all(provisioned[name] != before[name] for name in DEVICES)

    # Soft-RoCE has none of a RoCE NIC's switches: left out, with the reason, and no failure
    left_out = {entry["step"] for entry in first["h1"]["skipped"]}
    assert {"trust eth0", "pfc eth0 3"} <= left_out

    code, second = closloop_provision(virtual, tmp_path, *LIMIT)
    assert code == 0
    assert [name for name, device in second.items() if device["changed"]] == []
    assert dumps(virtual) == provisioned

    if not virtual.layout.sonic:
        # somebody's thresholds in our own queues: only they are set again
        red = "red limit 9000000 min 50000 max 200000 avpkt 1000 burst 80 ecn"
        command = f"tc qdisc change dev eth0 parent 8:1 handle 3: {red}"
        assert virtual.run(["ssh", "switch1", command]) == 0
        code, third = closloop_provision(virtual, tmp_path, *LIMIT)
        assert code == 0
        assert [(n, len(d["changes"])) for n, d in third.items() if d["changed"]] == [
            ("switch1", 1)
        ]
        assert dumps(virtual) == provisioned

    code, _ = closloop_provision(virtual, tmp_path, *LIMIT, "--undo")
    assert code == 0
    assert dumps(virtual) == after_undo(before)

    code, now = closloop_provision(virtual, tmp_path, *LIMIT, "--verify")
    assert code == 3
    assert all(device["failure"].startswith("not as provisioned") for device in now.values())


# Provisions h1, and undoes that until Ctrl-C, which comes while or before the first module is at
# work. Prints the leases seen on h1 during the first, and the one left by the second.
_TWICE = """
import json, os, pathlib, signal, subprocess, sys
from inventory.ansible import load_rack
from orchestration.model.errors import Interrupted
from orchestration.provision.run import provision

SHOW = "cat /var/tmp/closloop/*/lease.json 2>/dev/null; echo"

def on_h1(command):
    words = ["ssh", "-o", "BatchMode=yes", "h1", command]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

rack = load_rack(pathlib.Path(sys.argv[1]))
watcher = on_h1(f"while [ ! -e /tmp/over ]; do {SHOW}; sleep 0.001; done; rm /tmp/over")
result = provision(rack, limit=["h1"])
on_h1("touch /tmp/over").wait()
seen = watcher.communicate()[0].splitlines()

def stop(step):
    os.kill(os.getpid(), signal.SIGINT)

try:
    provision(rack, "undo", limit=["h1"], listener=stop)
    left = "not interrupted"
except Interrupted:
    left = on_h1(SHOW).communicate()[0].strip()
print(json.dumps({"failed": result.failed, "seen": seen, "left": left}))
"""


@pytest.mark.kernel
@pytest.mark.redis
@pytest.mark.ssh
@pytest.mark.slow
@pytest.mark.parametrize("virtual", ["linux"], indirect=True)
def test_a_device_is_held_from_its_first_module_to_its_last_and_not_after_ctrl_c(virtual, tmp_path):
    before = virtual.dump("h1")
    with (tmp_path / "out").open("w+b") as out, (tmp_path / "err").open("w+b") as err:
        words = [sys.executable, "-c", _TWICE, str(virtual.inventory)]
        assert virtual.run(words, stdout=out, stderr=err) == 0, (tmp_path / "err").read_text()
    found = json.loads((tmp_path / "out").read_text())
    assert found["failed"] == []
    there = [bool(text) for text in found["seen"]]
    first, last = there.index(True), len(there) - there[::-1].index(True)
    held = found["seen"][first:last]
    # one taking, and at no moment none
    assert len({json.loads(text)["nonce"] for text in held}) == 1
    assert "closloop provision (provision)" in json.loads(held[0])["holder"]
    assert found["left"] == ""
    code, _ = closloop_provision(virtual, tmp_path, "--limit", "h1", "--undo")
    assert code == 0
    assert virtual.dump("h1") == before


@pytest.mark.kernel
@pytest.mark.redis
@pytest.mark.ssh
@pytest.mark.slow
@pytest.mark.parametrize("virtual", ["linux"], indirect=True)
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
    closloop_provision(virtual, tmp_path, "--undo", "--limit", "h4")
