"""The dead-man's timer and the guard over real SSH: what outlives the session, what does not."""

import os
import signal
import time
from pathlib import Path

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack, Safety
from orchestration.backends.hardware.safety.guard import Guard, NotRestored
from orchestration.backends.hardware.safety.ledger import Ledger
from orchestration.device.agent.lease import runtime_folder
from orchestration.device.client import AgentClient
from orchestration.device.errors import DeviceError

pytestmark = pytest.mark.ssh

SERVICES = ("state", "deadman", "lease")
_GENEROUS_S = 30.0


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

    first = login()
    if first.call("deadman.status")["armed"] or first.call("lease.show"):
        pytest.skip("this machine is somebody's device")
    yield login
    for agent in agents:
        agent.close()
    last = AgentClient(access, str(loopback.known_hosts), SERVICES)
    armed = last.call("deadman.status")["armed"]
    if armed:
        os.kill(armed["pid"], signal.SIGKILL)
    last.call("deadman.clear")
    last.close()


def eventually(what):
    until = time.monotonic() + _GENEROUS_S
    while not (result := what()):
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.05)
    return result


def arm(agent, after_s):
    snapshot = agent.call("state.snapshot", interfaces=["lo"])
    agent.call("deadman.arm", holder="ann", after_s=after_s, snapshot=snapshot, note="")


def test_it_outlives_the_session_and_is_found_by_the_next(login):
    agent = login()
    arm(agent, 600)
    agent.close()
    eventually(lambda: not Path(f"/proc/{agent.about['pid']}").exists())

    again = login()
    assert again.call("deadman.status")["armed"]["holder"] == "ann"
    assert again.call("deadman.disarm", holder="ann") is True
    assert not runtime_folder().exists()


def test_it_fires_when_the_agent_is_killed(login):
    agent = login()
    arm(agent, 0.3)
    os.kill(agent.about["pid"], signal.SIGKILL)

    again = login()
    record = eventually(lambda: again.call("deadman.status")["fired"])
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
        with pytest.raises(DeviceError, match="is held by ann since"):
            other.call("lease.take", holder="bob", ttl_s=1)
    assert other.call("deadman.status") == {"armed": None, "fired": None}
    assert other.call("lease.show") is None
    assert not runtime_folder().exists()
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
    assert outcome.how == "was restored by its dead-man's timer, told to"
    assert ledger.open_runs() == []
