"""The lease and the dead-man's timer, in real agent processes with a stand-in for what restores."""

import errno
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

from orchestration.agent.main import Decoder, OperationError, encode
from orchestration.agent.safety.deadman_process import Process
from orchestration.agent.safety.lease import Leases

# most of them wait for timers
pytestmark = pytest.mark.slow

# An agent whose folder and restoring are the test's: restoring appends the snapshot to a file.
_AGENT = """
import json, sys
from pathlib import Path
from orchestration.agent.safety import deadman, lease
from orchestration.agent.main import Agent

shared = Path(sys.argv[1])
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

boot = sys.argv[3]
deadman.this_boot = lambda: boot
agent = Agent(0, 1)
leases = lease.Leases(shared, boot)
agent.add({"lease." + name: getattr(leases, name) for name in ("take", "renew", "drop", "show")})
agent.add(deadman.operations(agent, shared, restore))
agent.run()
"""
_GENEROUS_S = 120.0
_RESTORED: dict[str, Any] = {"changed": ["RED at eth0"], "differences": []}


class RefusedError(Exception):
    pass


class LocalAgent:
    def __init__(self, shared: Path, outcomes: list[Any], boot: str) -> None:
        command = [sys.executable, "-c", _AGENT, str(shared), json.dumps(outcomes), boot]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.decoder = Decoder()
        self.remedy = ""
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
            self.remedy = answer.get("remedy", "")
            raise RefusedError(answer["error"])
        return answer["ok"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Device:
    """A device to log in to, several times over."""

    def __init__(self, tmp_path: Path) -> None:
        self.shared = tmp_path / "closloop"
        self.log = tmp_path / "restored"
        self.agents: list[LocalAgent] = []

    def login(self, *outcomes: Any, boot: str = "boot 1") -> LocalAgent:
        agent = LocalAgent(self.shared, list(outcomes) or [_RESTORED], boot)
        self.agents.append(agent)
        return agent

    def snapshot(self, name: str = "first", rows: Any = None) -> dict[str, Any]:
        return {"log": str(self.log), "name": name, "boot": "boot 1", "rows": rows}

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
    """Wait until a timer has fired; return its record."""
    agent = device.login()

    def over() -> Any:
        status = agent.call("deadman.status")
        return status["armed"] is None and status["records"]

    (record,) = eventually(over)
    return record


# The nonces of two takings of the device.
ANN, BOB = {"nonce": "a" * 32}, {"nonce": "b" * 32}


def arm(
    agent: LocalAgent, device: Device, after_s: float = 0.2, who: Any = ANN, rows: Any = None
) -> Any:
    return agent.call(
        "deadman.arm",
        holder="ann",
        after_s=after_s,
        snapshot=device.snapshot(rows=rows),
        note="campaign c",
        **who,
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

    left_s = agent.call("deadman.feed", **ANN)

    assert 0 < left_s <= 60
    assert agent.call("deadman.status")["records"] == []
    assert device.restored() == []


def test_disarmed_it_is_gone_and_leaves_nothing(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    pid = agent.call("deadman.status")["armed"]["pid"]

    assert agent.call("deadman.disarm", **ANN) is True

    assert agent.call("deadman.status") == {"boot": "boot 1", "armed": None, "records": []}
    eventually(lambda: ended(pid))
    assert device.restored() == []
    assert not device.shared.exists()
    assert agent.call("deadman.disarm", **ANN) is False


def test_can_be_armed_again_at_once(device: Device) -> None:
    agent = device.login()
    for _ in range(5):
        arm(agent, device, after_s=60.0)
        agent.call("deadman.disarm", **ANN)


def test_an_armed_one_is_refused_to_others_who_are_told_who_has_it(device: Device) -> None:
    """The holder's name is the same, the taking is not."""
    arm(device.login(), device, after_s=60.0)
    other = device.login()

    with pytest.raises(RefusedError, match=r"is armed by ann \(account \w+\) since"):
        arm(other, device, who=BOB)
    for op in ("feed", "disarm"):
        with pytest.raises(RefusedError, match="is armed by ann"):
            other.call(f"deadman.{op}", **BOB)


def test_another_agent_of_the_taking_can_feed_and_disarm_it(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    agent.kill()
    again = device.login()

    assert again.call("deadman.feed", **ANN) > 0
    assert again.call("deadman.disarm", **ANN) is True


def test_told_to_fire_it_restores_and_says_what_it_did(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    rescuer = device.login()

    record = rescuer.call("deadman.fire", why="closloop restore")

    assert record["why"] == "closloop restore"
    assert device.restored() == ["first"]
    # whoever tells it to is not among the agents that it ends
    (kept,) = rescuer.call("deadman.status")["records"]
    assert kept.items() >= record.items()
    assert agent.process.wait(_GENEROUS_S) != 0
    rescuer.call("deadman.clear", **ANN)
    assert rescuer.call("deadman.status")["records"] == []
    assert not device.shared.exists()


def test_told_to_end_it_restores(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    os.kill(agent.call("deadman.status")["armed"]["pid"], signal.SIGTERM)

    assert fired(device)["why"] == "its process received SIGTERM"


def test_feeding_one_that_fired_says_so(device: Device) -> None:
    agent = device.login()
    arm(agent, device)
    agent.kill()
    fired(device)
    again = device.login()

    with pytest.raises(RefusedError, match=r"has restored itself at .* silent for 0\.2 s"):
        again.call("deadman.feed", **ANN)


def test_feeding_one_that_was_killed_says_so(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    pid = agent.call("deadman.status")["armed"]["pid"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: ended(pid))

    with pytest.raises(RefusedError, match="its dead-man's timer does not run"):
        agent.call("deadman.feed", **ANN)


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

    record = fired(device)

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


_LEFT = {
    "part": "row", "where": "WRED_PROFILE|P", "what": "ecn", "wanted": "a", "found": "b",
}  # fmt: skip


@pytest.fixture
def given_up(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device whose timer has fired, and used up its tries without success."""
    monkeypatch.setattr(f"{__name__}._AGENT", _AGENT.replace("\nboot =", _TRY_TWICE + "\nboot ="))
    agent = device.login({"changed": [], "differences": [_LEFT]})
    agent.call("lease.take", holder="ann", ttl_s=600, **ANN)
    arm(agent, device)
    agent.kill()
    record = fired(device)
    assert (record["resolved"], record["unresolved"]) == (False, True)
    assert device.restored() == ["first"] * 2
    return device


_TRY_TWICE = """
from orchestration.agent.safety import deadman_process
deadman_process._TRIES, deadman_process._RETRY_S = 2, 0.01
"""


def test_a_timer_that_gives_up_drops_neither_lease_nor_record(given_up: Device) -> None:
    agent = given_up.login()
    shown = agent.call("lease.show")
    assert shown["lease"]["holder"] == "ann"
    with pytest.raises(RefusedError, match=r"did not restore it.*1 settings still differ"):
        agent.call("deadman.clear", **ANN)
    assert agent.call("deadman.status")["records"][0]["differences"] == [_LEFT]


def test_an_unresolved_record_refuses_whoever_comes_next(given_up: Device) -> None:
    # the lease has ended meanwhile
    next(given_up.shared.glob("*/lease.json")).unlink()
    bob = given_up.login()
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"ann .* did not restore it"):
            bob.call("lease.take", holder="bob", ttl_s=600, **BOB)
        with pytest.raises(RefusedError, match=r"ann .* did not restore it"):
            arm(bob, given_up, who=BOB)
    assert "closloop restore" in bob.remedy
    (left,) = bob.call("lease.show")["unresolved"]
    assert left["nonce"] == ANN["nonce"]


def test_restoring_deals_with_it(given_up: Device) -> None:
    next(given_up.shared.glob("*/lease.json")).unlink()
    bob = given_up.login()
    bob.call("lease.take", holder="bob", ttl_s=600, restoring=True, **BOB)

    (record,) = bob.call("deadman.settle", why="closloop restore")

    assert record["resolved"]
    assert record["changed"] == ["RED at eth0"]
    assert given_up.restored() == ["first"] * 3
    assert bob.call("deadman.settle", why="closloop restore") == []
    bob.call("lease.drop", **BOB)
    bob.call("lease.take", holder="bob", ttl_s=600, **BOB)
    # what is left is the notice for ann's controller, without the snapshot
    bob.call("deadman.clear", **ANN)
    assert not list(given_up.shared.glob("*/run-*"))


def test_a_timer_that_was_killed_leaves_the_device_unresolved(device: Device) -> None:
    agent = device.login()
    arm(agent, device, after_s=60.0)
    os.kill(agent.call("deadman.status")["armed"]["pid"], signal.SIGKILL)
    agent.kill()

    bob = device.login()
    eventually(lambda: bob.call("deadman.status")["armed"] is None)
    with pytest.raises(RefusedError, match="did not restore it"):
        bob.call("lease.take", holder="bob", ttl_s=600, **BOB)
    # the run's own controller may go on to settle it
    heir = {"holder": "ann", "ttl_s": 600, "heir_of": [ANN["nonce"]]}
    assert bob.call("lease.take", **heir, **BOB)["holder"] == "ann"


def killed_with_its_timer(device: Device, rows: Any) -> LocalAgent:
    """Arm a timer and kill it; return an agent of the device after its reboot."""
    agent = device.login()
    arm(agent, device, after_s=60.0, rows=rows)
    os.kill(agent.call("deadman.status")["armed"]["pid"], signal.SIGKILL)
    eventually(lambda: agent.call("deadman.status")["armed"] is None)
    agent.kill()
    return device.login(boot="boot 2")


def test_a_reboot_resets_what_a_run_changes_on_linux(device: Device) -> None:
    bob = killed_with_its_timer(device, rows=None)
    assert bob.call("lease.take", holder="bob", ttl_s=600, **BOB)["holder"] == "bob"


def test_a_reboot_does_not_reset_what_a_run_changes_in_configdb(device: Device) -> None:
    bob = killed_with_its_timer(device, rows={"WRED_PROFILE|P": {"ecn": "ecn_all"}})
    with pytest.raises(RefusedError, match="did not restore it"):
        bob.call("lease.take", holder="bob", ttl_s=600, **BOB)
    bob.call("lease.take", holder="bob", ttl_s=600, restoring=True, **BOB)
    assert bob.call("deadman.settle", why="closloop restore")[0]["resolved"]
    assert device.restored() == ["first"]


def test_the_lease_of_the_holder_ends_when_it_fires(device: Device) -> None:
    agent = device.login()
    agent.call("lease.take", holder="ann", ttl_s=600, **ANN)
    arm(agent, device)
    agent.kill()
    fired(device)

    again = device.login()
    eventually(lambda: again.call("lease.show") == FREE)


def test_the_timer_holds_no_file_of_the_agent(device: Device) -> None:
    # an inherited pipe would keep the SSH session open
    agent = device.login()
    arm(agent, device, after_s=60.0)
    pid = agent.call("deadman.status")["armed"]["pid"]

    files = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}

    assert not [name for name in files if name.startswith("pipe:")]
    assert os.getsid(pid) != os.getsid(agent.process.pid)


FREE = {"lease": None, "unresolved": []}


def test_a_living_lease_is_refused_to_others_with_who_has_it(device: Device) -> None:
    ann, bob = device.login(), device.login()
    ann.call("lease.take", holder="ann@laptop campaign a", ttl_s=600, **ANN)

    said = r"is held by ann@laptop campaign a \(account \w+\) since 2.*ends in"
    for op in ("take", "renew", "drop"):
        with pytest.raises(RefusedError, match=said):
            bob.call(f"lease.{op}", holder="bob", ttl_s=600, **BOB)
    assert bob.call("lease.show")["lease"]["holder"] == "ann@laptop campaign a"


def test_a_holder_of_the_same_name_does_not_share_a_lease(device: Device) -> None:
    ann, other = device.login(), device.login()
    ann.call("lease.take", holder="ann@laptop", ttl_s=600, **ANN)

    for op in ("take", "renew", "drop"):
        with pytest.raises(RefusedError, match="is held by ann@laptop"):
            other.call(f"lease.{op}", holder="ann@laptop", ttl_s=600, **BOB)
    # the same taking may repeat itself: an answer may have been lost
    ann.call("lease.take", holder="ann@laptop", ttl_s=600, **ANN)
    with pytest.raises(RefusedError, match="nonce"):
        other.call("lease.take", holder="ann@laptop", ttl_s=600)


def test_a_dropped_lease_is_free_and_leaves_nothing(device: Device) -> None:
    ann, bob = device.login(), device.login()
    ann.call("lease.take", holder="ann", ttl_s=600, **ANN)

    assert ann.call("lease.drop", **ANN) is True

    assert not device.shared.exists()
    assert ann.call("lease.drop", **ANN) is False
    assert bob.call("lease.take", holder="bob", ttl_s=600, **BOB)["holder"] == "bob"


def test_a_lease_that_is_not_renewed_ends(device: Device) -> None:
    ann, bob = device.login(), device.login()
    ann.call("lease.take", holder="ann", ttl_s=0.05, **ANN)

    eventually(lambda: bob.call("lease.show") == FREE)

    # nobody took it meanwhile: its holder may go on
    assert ann.call("lease.renew", ttl_s=0.05, **ANN)["holder"] == "ann"
    eventually(lambda: bob.call("lease.show") == FREE)
    bob.call("lease.take", holder="bob", ttl_s=600, **BOB)
    with pytest.raises(RefusedError, match="is held by bob"):
        ann.call("lease.renew", ttl_s=600, **ANN)


def test_a_lease_of_an_earlier_boot_is_void(device: Device) -> None:
    earlier = device.login(boot="boot 0")
    earlier.call("lease.take", holder="ann", ttl_s=600, **ANN)

    assert device.login().call("lease.take", holder="bob", ttl_s=600, **BOB)["holder"] == "bob"


def test_of_many_that_ask_at_once_one_gets_the_lease(device: Device) -> None:
    agents = [device.login() for _ in range(4)]
    for round_ in range(5):
        for number, agent in enumerate(agents):
            nonce = f"{number}" * 32
            request = {"id": 1, "op": "lease.take", "holder": "h", "nonce": nonce, "ttl_s": 600}
            assert agent.process.stdin
            agent.process.stdin.write(encode(request))
            agent.process.stdin.flush()
        answers = [agent.read() for agent in agents]
        winners = [number for number, answer in enumerate(answers) if "ok" in answer]
        assert len(winners) == 1, round_
        agents[winners[0]].call("lease.drop", nonce=f"{winners[0]}" * 32)


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a folder away takes root")


def test_a_folder_that_another_account_has_made_in_ones_place_is_refused(
    tmp_path: Path, as_root: None
) -> None:
    shared = tmp_path / "closloop"
    (shared / "0").mkdir(parents=True)
    os.chown(shared / "0", 12345, 12345)

    with pytest.raises(OperationError, match="belongs to user 12345"):
        Leases(shared, "boot").take({"holder": "ann", "ttl_s": 1, **ANN})


def test_root_takes_the_shared_folder_over_and_opens_it_to_all(
    tmp_path: Path, as_root: None
) -> None:
    shared = tmp_path / "closloop"
    shared.mkdir(0o700)
    os.chown(shared, 12345, 12345)

    Leases(shared, "boot").take({"holder": "ann", "ttl_s": 1, **ANN})

    about = shared.stat()
    assert (about.st_uid, oct(about.st_mode & 0o7777)) == (0, "0o1777")
    assert oct((shared / "0" / "lease.json").stat().st_mode & 0o777) == "0o644"


def test_a_file_that_is_not_the_accounts_own_is_no_lease(tmp_path: Path, as_root: None) -> None:
    """A link or a file that somebody else has put into an account's folder counts for nothing."""
    shared = tmp_path / "closloop"
    leases = Leases(shared, "boot")
    leases.take({"holder": "ann", "ttl_s": 600, **ANN})
    lease = shared / "0" / "lease.json"
    os.chown(lease, 12345, 12345)
    assert leases.show({})["lease"] is None
    lease.rename(tmp_path / "elsewhere")
    lease.symlink_to(tmp_path / "elsewhere")
    assert leases.show({})["lease"] is None


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("orchestration.agent.safety.lease.write_record", full)
    with pytest.raises(OperationError, match="its disk is full"):
        Leases(tmp_path / "closloop", "boot").take({"holder": "ann", "ttl_s": 1, **ANN})
