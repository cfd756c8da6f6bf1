"""Agents over real SSH: what is started, what is said when it cannot be, what is left behind."""

import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from inventory.rack import Access
from orchestration.device.bundle import STARTER
from orchestration.device.client import AgentClient, Fleet, open_agents
from orchestration.device.errors import DeviceError, DeviceGone, LoginRefused
from orchestration.device.ssh import Secrets

pytestmark = pytest.mark.ssh


def access(server, **changes):
    values = {
        "device": "leaf1",
        "address": "127.0.0.1",
        "port": server.port,
        "user": server.user,
        "key_file": str(server.key_file),
    }
    return Access(**{**values, **changes})


@pytest.fixture
def agent(loopback):
    client = AgentClient(access(loopback), str(loopback.known_hosts), ["kernel"])
    yield client
    client.close()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid):
    deadline = time.monotonic() + 60
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def test_an_agent_answers_in_the_order_of_the_questions_or_any_other(agent):
    first, second = agent.post("clock"), agent.post("hello")
    assert agent.result(second)["pid"] == agent.about["pid"]
    assert agent.result(first)["monotonic_ns"] > 0


def test_an_agent_ends_with_the_connection(loopback):
    client = AgentClient(access(loopback), str(loopback.known_hosts), [])
    pid = client.about["pid"]
    assert alive(pid)
    client.close()
    wait_until_gone(pid)


def test_nothing_on_the_command_line_but_the_starter(agent):
    words = Path(f"/proc/{agent.about['pid']}/cmdline").read_bytes().split(b"\0")
    assert words[1] == b"-c"
    assert words[2] == STARTER.encode()
    assert len(STARTER) < 220


def test_an_operation_that_fails_names_the_device_and_the_agent_goes_on(agent):
    with pytest.raises(DeviceError, match=r"leaf1: .*no operation 'nonsense'"):
        agent.call("nonsense")
    with pytest.raises(
        DeviceError, match="'kernel/core_pattern' is not a setting that runs may write"
    ):
        agent.call("sysctl.write", values={"kernel/core_pattern": "|/bin/true"})
    assert agent.call("clock")


def test_a_killed_agent_is_a_device_that_is_gone(agent):
    os.kill(agent.about["pid"], signal.SIGKILL)
    with pytest.raises(DeviceGone, match=r"leaf1: .*agent"):
        agent.call("clock")


def test_an_unknown_host_key_is_refused_with_the_remedy(loopback, tmp_path):
    nothing = tmp_path / "known"
    with pytest.raises(LoginRefused, match=r"host key of 127.0.0.1 is not known") as caught:
        AgentClient(access(loopback), str(nothing), [])
    assert "ssh-keyscan" in caught.value.remedy
    assert not nothing.exists()


def test_a_changed_host_key_is_refused(loopback, tmp_path):
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    key = " ".join(other.with_suffix(".pub").read_text().split()[:2])
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{loopback.port} {key}\n")
    with pytest.raises(LoginRefused, match="another host key"):
        AgentClient(access(loopback), str(known), [])


def test_a_key_that_is_not_accepted_and_a_wrong_password_are_refused(loopback, tmp_path):
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    stranger = access(loopback, key_file=str(key))
    with pytest.raises(LoginRefused, match=r"leaf1: .* refuses the login") as caught:
        AgentClient(stranger, str(loopback.known_hosts), [], Secrets(login="sesame"))
    assert "sesame" not in str(caught.value)
    missing = access(loopback, key_file=str(tmp_path / "none"))
    with pytest.raises(LoginRefused, match="there is no key file"):
        AgentClient(missing, str(loopback.known_hosts), [])


def test_a_device_that_is_not_there_is_named(loopback):
    with pytest.raises(DeviceGone, match=r"spine1: .* cannot be reached"):
        AgentClient(access(loopback, device="spine1", port=1), str(loopback.known_hosts), [])


def test_refused_sudo_is_said_and_the_password_is_nowhere(loopback, tmp_path, monkeypatch):
    # a sudo that refuses, first in the server's path: real ones ask for a password there
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = folder / "sudo"
    fake.write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("orchestration.device.start.SUDO", str(fake), raising=True)
    with pytest.raises(DeviceError, match="sudo is refused to") as caught:
        AgentClient(access(loopback, become=True), str(loopback.known_hosts), [])
    assert "--ask-become-pass" in caught.value.remedy


def test_devices_are_opened_side_by_side_and_each_problem_is_kept(loopback):
    good = [access(loopback, device=f"leaf{n}") for n in range(1, 4)]
    bad = access(loopback, device="leaf9", port=1)
    services = {item.device: () for item in (*good, bad)}
    agents, problems = open_agents([*good, bad], str(loopback.known_hosts), services)
    with Fleet(agents) as fleet:
        assert sorted(fleet.agents) == ["leaf1", "leaf2", "leaf3"]
        assert [error.device for error in problems] == ["leaf9"]
        clocks = fleet.clocks()
        # the same machine: its clock is the same but for the way there
        assert all(abs(clock.offset_ns) <= clock.error_ns for clock in clocks.values())
