"""The dead-man's timer and the guard over real SSH: what outlives the session, what does not."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack, Safety
from orchestration.agent.safety.records import hash_of
from orchestration.agent.safety.shared_folder import SHARED
from orchestration.backends.hardware.safety.guard import Guard, NotRestored
from orchestration.backends.hardware.safety.ledger import Ledger
from orchestration.device.client import AgentClient
from orchestration.device.errors import DeviceError

pytestmark = pytest.mark.ssh

SERVICES = ("state", "deadman", "lease")
_GENEROUS_S = 120.0


@pytest.fixture
def access(loopback):
    return Access(
        "leaf1",
        "127.0.0.1",
        port=loopback.port,
        user=loopback.user,
        key_file=str(loopback.key_file),
        interfaces=("lo",),
    )


@pytest.fixture
def login(loopback, access):
    agents = []

    def login():
        agents.append(AgentClient(access, str(loopback.known_hosts), SERVICES))
        return agents[-1]

    free(login())
    yield login
    for agent in agents:
        agent.close()
    clean(AgentClient(access, str(loopback.known_hosts), SERVICES))


def free(agent):
    status, shown = agent.call("deadman.status"), agent.call("lease.show")
    if status["armed"] or shown["lease"] or shown["unresolved"]:
        pytest.skip("this machine is somebody's device")


def clean(agent):
    """Leave nothing of a test that failed."""
    armed = agent.call("deadman.status")["armed"]
    if armed:
        os.kill(armed["pid"], signal.SIGKILL)
    agent.close()
    for path in SHARED.glob("*/*.json"):
        path.unlink(missing_ok=True)
    for folder in (*SHARED.glob("*"), SHARED):
        with suppress(OSError):
            folder.rmdir()


def eventually(what):
    until = time.monotonic() + _GENEROUS_S
    while not (result := what()):
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.05)
    return result


ANN, BOB = {"nonce": "a" * 32}, {"nonce": "b" * 32}


def arm(agent, after_s, who=ANN):
    snapshot = agent.call("state.snapshot", interfaces=["lo"])
    agent.call("deadman.arm", holder="ann", after_s=after_s, snapshot=snapshot, note="", **who)
    return snapshot


def test_it_outlives_the_session_and_is_found_by_the_next(login):
    agent = login()
    arm(agent, 600)
    agent.close()
    eventually(lambda: not Path(f"/proc/{agent.about['pid']}").exists())

    again = login()
    assert again.call("deadman.status")["armed"]["holder"] == "ann"
    assert again.call("deadman.disarm", **ANN) is True
    assert not list(SHARED.glob("*/*"))


def test_it_fires_when_the_agent_is_killed(login):
    agent = login()
    arm(agent, 0.3)
    os.kill(agent.about["pid"], signal.SIGKILL)

    again = login()
    (record,) = eventually(
        lambda: [r for r in again.call("deadman.status")["records"] if r["fired_at"]]
    )
    assert record["why"] == "its controller was silent for 0.3 s"
    assert record["error"] == ""


def test_a_guard_over_ssh_holds_the_device_and_lets_go_of_it(login, access, tmp_path):
    testbed = load_testbed("graphcc")
    device = testbed.switches[0]
    rack = Rack("lab", testbed, {device: access}, safety=Safety(deadman_s=20.0, lease_s=40.0))
    agent, other = login(), login()
    ledger = Ledger(tmp_path, "lab", "lab.yml")
    with Guard(rack, {device: agent}, ledger, "ann", note="trial 1") as guard:
        guard.tick()
        assert other.call("deadman.status")["armed"]["note"] == "trial 1"
        with pytest.raises(DeviceError, match=r"is held by ann \(account"):
            other.call("lease.take", holder="bob", ttl_s=1, **BOB)
    free(other)
    assert not list(SHARED.glob("*/*"))
    assert guard.findings() == []


def test_the_next_guard_settles_what_a_killed_agent_left(login, access, tmp_path):
    testbed = load_testbed("graphcc")
    device = testbed.switches[0]
    rack = Rack("lab", testbed, {device: access}, safety=Safety(deadman_s=20.0, lease_s=40.0))
    ledger = Ledger(tmp_path, "lab", "lab.yml")

    def trial():
        agent = login()
        with Guard(rack, {device: agent}, ledger, "ann"):
            os.kill(agent.about["pid"], signal.SIGKILL)

    with pytest.raises(NotRestored, match=r"cannot be reached .*restores it within 20 s"):
        trial()
    with Guard(rack, {device: login()}, ledger, "bob") as guard:
        (outcome,) = guard.settled_before
    assert outcome.how == "was restored by its dead-man's timer, on request"
    assert ledger.open_runs() == []


# Two users with accounts of their own on one device.
ACCOUNTS = {"ann": 64_101, "bob": 64_102}


@pytest.fixture(scope="module")
def accounts(loopback):
    """A real sshd that knows ann and bob, in a mount namespace with a passwd of its own."""
    if os.geteuid() != 0:
        pytest.skip("a device with accounts of its own takes root; test_rack has one in a guest")
    # sshd reads the key as the user, who may not enter pytest's folders
    folder = Path(tempfile.mkdtemp(prefix="closloop-accounts-"))
    folder.chmod(0o755)
    shutil.copy(loopback.key_file.with_suffix(".pub"), folder / "authorized")
    users = Path("/etc/passwd").read_text()
    users += "".join(f"{n}:x:{uid}:{uid}::/:/bin/sh\n" for n, uid in ACCOUNTS.items())
    (folder / "passwd").write_text(users)
    shadow = Path("/etc/shadow").read_text()
    (folder / "shadow").write_text(shadow + "".join(f"{n}:*:20000:0:9999:7:::\n" for n in ACCOUNTS))
    (folder / "shadow").chmod(0o600)
    binds = "".join(f"mount --bind {folder / n} /etc/{n} && " for n in ("passwd", "shadow"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = (
        f"HostKey={loopback.key_file.with_name('host')}", "UsePAM=no", "StrictModes=no",
        f"AuthorizedKeysFile={folder / 'authorized'}", "PidFile=none",
        "ListenAddress=127.0.0.1", "MaxStartups=100",
    )  # fmt: skip
    words = " ".join(f"-o {option}" for option in options)
    sshd = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/bin")
    known = folder / "known"
    known.write_text(f"[127.0.0.1]:{port} {' '.join(loopback.host_key.read_text().split()[:2])}\n")
    server = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", f"{binds}exec {sshd} -D -e -f /dev/null -p {port} {words}"],
        stderr=(folder / "log").open("wb"),
    )

    def listening():
        assert server.poll() is None, (folder / "log").read_text()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True

    eventually(listening)
    agents = []

    def login(user):
        access = Access("leaf1", "127.0.0.1", port, user, str(loopback.key_file))
        agents.append(AgentClient(access, str(known), SERVICES))
        return agents[-1]

    free(login("root"))
    yield login
    for agent in agents:
        agent.close()
    clean(login("root"))
    server.terminate()
    server.wait()
    shutil.rmtree(folder)


TTL = {"ttl_s": 600}


def test_two_accounts_cannot_hold_one_device(accounts):
    ann, bob, root = accounts("ann"), accounts("bob"), accounts("root")
    assert [agent.about["uid"] for agent in (ann, bob, root)] == [64_101, 64_102, 0]
    ann.call("lease.take", holder="ann@laptop campaign a", **TTL, **ANN)
    said = r"is held by ann@laptop campaign a \(account ann\) since 2.*the lease ends in"
    for other in (bob, root):
        for op in ("take", "renew", "drop"):
            with pytest.raises(DeviceError, match=said):
                # not even under the same name
                other.call(f"lease.{op}", holder="ann@laptop campaign a", **TTL, **BOB)
    ann.call("lease.renew", **TTL, **ANN)
    ann.call("lease.drop", **ANN)

    # whoever was first made the folder; the others can use it, and none is left behind
    for agent in (bob, root, ann):
        agent.call("lease.take", holder="x", **TTL, **ANN)
        agent.call("lease.drop", **ANN)
    assert not list(SHARED.glob("*/*"))


def test_of_two_accounts_that_ask_at_once_one_gets_the_device(accounts):
    agents = [accounts(user) for user in ("ann", "bob", "root", "ann")]
    for round_ in range(25):
        numbers = [
            agent.post("lease.take", holder="x", nonce=f"{n}" * 32, **TTL)
            for n, agent in enumerate(agents)
        ]
        winners = []
        for number, (agent, posted) in enumerate(zip(agents, numbers, strict=True)):
            with suppress(DeviceError):
                agent.result(posted)
                winners.append(number)
        assert len(winners) == 1, round_
        agents[winners[0]].call("lease.drop", nonce=f"{winners[0]}" * 32)


def test_a_timer_of_one_account_is_everybodys(accounts):
    ann, bob, root = accounts("ann"), accounts("bob"), accounts("root")
    snapshot = arm(ann, 600)
    for other in (bob, root):
        with pytest.raises(DeviceError, match=r"is armed by ann \(account ann\)"):
            arm(other, 600, BOB)
        assert other.call("deadman.status")["armed"]["account"] == "ann"
    with pytest.raises(DeviceError, match=r"is armed by ann \(account ann\)"):
        bob.call("deadman.fire", why="bob is curious")

    os.kill(ann.call("deadman.status")["armed"]["pid"], signal.SIGKILL)
    eventually(lambda: bob.call("deadman.status")["armed"] is None)
    with pytest.raises(DeviceError, match=r"ann \(account ann\) .* did not restore it"):
        bob.call("lease.take", holder="bob", **TTL, **BOB)
    bob.call("lease.take", holder="bob", restoring=True, **TTL, **BOB)
    with pytest.raises(DeviceError, match="only ann and root can restore it"):
        bob.call("deadman.settle", why="closloop restore")
    bob.call("lease.drop", **BOB)
    # root restores by what ann has written only if the ledger proves it
    with pytest.raises(DeviceError, match="root does not restore from what another account"):
        root.call("deadman.settle", why="closloop restore")
    (record,) = root.call(
        "deadman.settle", why="closloop restore", **ANN, snapshot=hash_of(snapshot)
    )
    assert record["resolved"]
    # what is left is ann's to read and remove
    ann.call("deadman.clear", **ANN)
    assert not list(SHARED.glob("*/*"))
