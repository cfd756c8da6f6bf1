"""The lease and the dead-man's timer, in real agent processes with a stand-in for what restores."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestration.device.agent.deadman_process import Process
from orchestration.device.agent.main import Decoder, encode

# An agent whose folder and restoring are the test's: restoring appends the snapshot to a file.
_AGENT = """
import json, sys
from pathlib import Path
from orchestration.device.agent import deadman, lease
from orchestration.device.agent.main import Agent

folder = Path(sys.argv[1])
outcomes = json.loads(sys.argv[2])

def restore(snapshot):
    log = Path(snapshot["log"])
    lines = log.read_text().splitlines() if log.exists() else []
    with log.open("a") as file:
        file.write(snapshot["name"] + "\\n")
    outcome = outcomes[min(len(lines), len(outcomes) - 1)]
    if isinstance(outcome, str):
        raise OSError(outcome)
    return outcome

agent = Agent(0, 1)
leases = lease.Leases(folder, lease.this_boot())
agent.add({"lease." + name: getattr(leases, name) for name in ("take", "renew", "drop", "show")})
agent.add(deadman.operations(agent, folder, restore))
agent.run()
"""
_GENEROUS_S = 30.0
_RESTORED: dict[str, Any] = {"changed": ["RED at eth0"], "differences": []}


class RefusedError(Exception):
    pass


class LocalAgent:
    def __init__(self, folder: Path, outcomes: list[Any]) -> None:
        command = [sys.executable, "-c", _AGENT, str(folder), json.dumps(outcomes)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.decoder = Decoder()
        assert self.read() == {"event": "ready"}

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        while True:
            piece = os.read(self.process.stdout.fileno(), 65_536)
            if not piece:
                raise EOFError
            for message in self.decoder.feed(piece):
                return message

    def call(self, op: str, **arguments: Any) -> Any:
        assert self.process.stdin
        self.process.stdin.write(encode({"id": 1, "op": op, **arguments}))
        self.process.stdin.flush()
        answer = self.read()
        if "error" in answer:
            raise RefusedError(answer["error"])
        return answer["ok"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Device:
    """A device to log in to, several times over."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "closloop"
        self.log = tmp_path / "restored"
        self.agents: list[LocalAgent] = []

    def login(self, *outcomes: Any) -> LocalAgent:
        agent = LocalAgent(self.folder, list(outcomes) or [_RESTORED])
        self.agents.append(agent)
        return agent

    def snapshot(self, name: str = "first") -> dict[str, Any]:
        return {"log": str(self.log), "name": name}

    def restored(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    device = Device(tmp_path)
    yield device
    for agent in device.agents:
        agent.kill()
    last = device.login()
    armed = last.call("deadman.status")["armed"]
    last.kill()
    if armed:
        os.kill(armed["pid"], signal.SIGKILL)


def eventually(what: Any) -> Any:
    """Wait until `what()` is true, and return it."""
    until = time.monotonic() + _GENEROUS_S
    while not (result := what()):
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.02)
    return result


def ended(pid: int) -> bool:
    """Whether a process has ended; its parent may not have taken note yet."""
    return not Process.of(pid).started


def fired(device: Device) -> dict[str, Any]:
    agent = device.login()
    return eventually(lambda: agent.call("deadman.status")["fired"])


def arm(agent: LocalAgent, device: Device, after_s: float = 0.2, holder: str = "ann") -> Any:
    return agent.call(
        "deadman.arm",
        holder=holder,
        after_s=after_s,
        snapshot=device.snapshot(),
        note="campaign c",
    )


def test_fires_when_the_agent_is_killed(device: Device) -> None:
    agent = device.login()
    arm(agent, device)
    agent.kill()

    record = fired(device)

    assert device.restored() == ["first"]
    assert record["holder"] == "ann"
    assert record["note"] == "campaign c"
    assert record["why"] == "its controller was silent for 0.2 s"
    assert record["changed"] == ["RED at eth0"]
    assert record["error"] == ""


def test_fires_when_the_session_is_hung_up(device: Device) -> None:
    agent = device.login()
    arm(agent, device)
    os.killpg(agent.process.pid, signal.SIGHUP)
    agent.process.wait()

    assert fired(device)["changed"] == ["RED at eth0"]


def test_the_agent_that_is_not_fed_is_ended_before_the_device_is_restored(device: Device) -> None:
    agent = device.login()
    arm(agent, device)

    fired(device)

    assert agent.process.wait(_GENEROUS_S) != 0


def test_does_not_fire_while_it_is_fed(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)

    left_s = agent.call("deadman.feed", holder="ann")

    assert 0 < left_s <= 60
    assert agent.call("deadman.status")["fired"] is None
    assert device.restored() == []


def test_disarmed_it_is_gone_and_leaves_nothing(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    pid = agent.call("deadman.status")["armed"]["pid"]

    assert agent.call("deadman.disarm", holder="ann") is True

    assert agent.call("deadman.status") == {"armed": None, "fired": None}
    eventually(lambda: ended(pid))
    assert device.restored() == []
    assert not device.folder.exists()
    assert agent.call("deadman.disarm", holder="ann") is False


def test_can_be_armed_again_at_once(device: Device) -> None:
    agent = device.login()
    for _ in range(5):
        arm(agent, device, after_s=60.0)
        agent.call("deadman.disarm", holder="ann")


def test_an_armed_one_is_refused_to_others_who_are_told_who_has_it(device: Device) -> None:
    arm(device.login(), device, after_s=60.0)
    other = device.login()

    with pytest.raises(RefusedError, match="is armed by ann since"):
        arm(other, device, holder="bob")
    for op in ("feed", "disarm"):
        with pytest.raises(RefusedError, match="is armed by ann"):
            other.call(f"deadman.{op}", holder="bob")


def test_another_agent_of_the_holder_can_feed_and_disarm_it(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    agent.kill()
    again = device.login()

    assert again.call("deadman.feed", holder="ann") > 0
    assert again.call("deadman.disarm", holder="ann") is True


def test_told_to_fire_it_restores_and_says_what_it_did(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    rescuer = device.login()

    record = rescuer.call("deadman.fire", why="closloop restore")

    assert record["why"] == "closloop restore"
    assert device.restored() == ["first"]
    # whoever tells it to is not among the agents that it ends
    assert rescuer.call("deadman.status")["fired"] == record
    assert agent.process.wait(_GENEROUS_S) != 0
    rescuer.call("deadman.clear")
    assert rescuer.call("deadman.status") == {"armed": None, "fired": None}
    assert not device.folder.exists()


def test_told_to_end_it_restores(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    os.kill(agent.call("deadman.status")["armed"]["pid"], signal.SIGTERM)

    assert fired(device)["why"] == "its process was told to end"


def test_feeding_one_that_fired_says_so(device: Device) -> None:
    agent = device.login()
    arm(agent, device)
    agent.kill()
    fired(device)
    again = device.login()

    with pytest.raises(RefusedError, match=r"has restored itself at .* silent for 0\.2 s"):
        again.call("deadman.feed", holder="ann")


def test_feeding_one_that_was_killed_says_so(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    pid = agent.call("deadman.status")["armed"]["pid"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: ended(pid))

    with pytest.raises(RefusedError, match="its dead-man's timer is not there"):
        agent.call("deadman.feed", holder="ann")


def test_a_restore_that_fails_is_tried_again(device: Device) -> None:
    left = {
        "part": "interface",
        "where": "eth1",
        "what": "x",
        "wanted": "there",
        "found": "missing",
    }
    agent = device.login("Redis is away", {"changed": ["a"], "differences": [left]}, _RESTORED)
    arm(agent, device)
    agent.kill()

    reader = device.login()
    record = eventually(
        lambda: (
            ((got := reader.call("deadman.status"))["armed"] is None and not got["fired"]["error"])
            and got["fired"]
        )
    )

    assert record["changed"] == ["a", "RED at eth0"]
    assert record["differences"] == []
    assert device.restored() == ["first"] * 3


def test_what_somebody_else_changed_is_recorded_and_not_tried_again(device: Device) -> None:
    foreign = {"part": "fingerprint", "where": "routes", "what": "x", "wanted": "a", "found": "b"}
    agent = device.login({"changed": [], "differences": [foreign]})
    arm(agent, device)
    agent.kill()

    assert fired(device)["differences"] == [foreign]
    assert device.restored() == ["first"]


def test_arming_again_returns_what_fired_and_forgets_it(device: Device) -> None:
    agent = device.login()
    arm(agent, device)
    agent.kill()
    record = fired(device)
    again = device.login()
    eventually(lambda: again.call("deadman.status")["armed"] is None)

    assert arm(again, device, after_s=60.0) == record
    assert again.call("deadman.status")["fired"] is None


def test_registered_process_groups_are_killed_when_it_fires(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    sender = subprocess.Popen(["sleep", "600"], start_new_session=True)
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        agent.call("deadman.register", holder="ann", pgid=sender.pid)
        device.login().call("deadman.fire", why="test")
        assert sender.wait(_GENEROUS_S) == -signal.SIGKILL
        assert bystander.poll() is None
    finally:
        sender.kill()
        bystander.kill()
        bystander.wait()


def test_the_lease_of_the_holder_ends_when_it_fires(device: Device) -> None:
    agent = device.login()
    agent.call("lease.take", holder="ann", ttl_s=600)
    arm(agent, device)
    agent.kill()
    fired(device)

    again = device.login()
    eventually(lambda: again.call("lease.show") is None)


def test_the_timer_holds_no_file_of_the_agent(device: Device) -> None:
    # an inherited pipe would keep the SSH session open
    agent = device.login()
    arm(agent, device, after_s=60.0)
    pid = agent.call("deadman.status")["armed"]["pid"]

    files = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}

    assert not [name for name in files if name.startswith("pipe:")]
    assert os.getsid(pid) != os.getsid(agent.process.pid)


def test_a_living_lease_is_refused_to_others_with_who_has_it(device: Device) -> None:
    ann, bob = device.login(), device.login()
    ann.call("lease.take", holder="ann@laptop campaign a", ttl_s=600)

    for op in ("take", "renew"):
        with pytest.raises(
            RefusedError, match=r"is held by ann@laptop campaign a since 2.*ends in"
        ):
            bob.call(f"lease.{op}", holder="bob", ttl_s=600)
    with pytest.raises(RefusedError, match="is held by ann"):
        bob.call("lease.drop", holder="bob")
    assert bob.call("lease.show")["holder"] == "ann@laptop campaign a"


def test_a_dropped_lease_is_free_and_leaves_nothing(device: Device) -> None:
    ann, bob = device.login(), device.login()
    ann.call("lease.take", holder="ann", ttl_s=600)

    assert ann.call("lease.drop", holder="ann") is True

    assert not device.folder.exists()
    assert ann.call("lease.drop", holder="ann") is False
    assert bob.call("lease.take", holder="bob", ttl_s=600)["holder"] == "bob"


def test_a_lease_that_is_not_renewed_ends(device: Device) -> None:
    ann, bob = device.login(), device.login()
    ann.call("lease.take", holder="ann", ttl_s=0.05)

    eventually(lambda: bob.call("lease.show") is None)

    # nobody took it meanwhile: its holder may go on
    assert ann.call("lease.renew", holder="ann", ttl_s=0.05)["holder"] == "ann"
    eventually(lambda: bob.call("lease.show") is None)
    bob.call("lease.take", holder="bob", ttl_s=600)
    with pytest.raises(RefusedError, match="is held by bob"):
        ann.call("lease.renew", holder="ann", ttl_s=600)


def test_a_lease_of_an_earlier_boot_is_void(device: Device) -> None:
    from orchestration.device.agent.lease import Leases

    Leases(device.folder, "another boot").take({"holder": "ann", "ttl_s": 600})

    assert device.login().call("lease.take", holder="bob", ttl_s=600)["holder"] == "bob"


def test_of_many_that_ask_at_once_one_gets_the_lease(device: Device) -> None:
    agents = [device.login() for _ in range(4)]
    for round_ in range(5):
        for number, agent in enumerate(agents):
            request = {"id": 1, "op": "lease.take", "holder": f"h{number}", "ttl_s": 600}
            assert agent.process.stdin
            agent.process.stdin.write(encode(request))
            agent.process.stdin.flush()
        answers = [agent.read() for agent in agents]
        winners = [number for number, answer in enumerate(answers) if "ok" in answer]
        assert len(winners) == 1, round_
        agents[winners[0]].call("lease.drop", holder=f"h{winners[0]}")


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    from orchestration.device.agent.lease import Leases
    from orchestration.device.agent.main import OperationError

    if os.geteuid() != 0:
        pytest.skip("giving a folder away takes root")
    folder = tmp_path / "closloop"
    folder.mkdir()
    os.chown(folder, 12345, 12345)

    with pytest.raises(OperationError, match="belongs to user 12345"):
        Leases(folder, "boot").take({"holder": "ann", "ttl_s": 1})
