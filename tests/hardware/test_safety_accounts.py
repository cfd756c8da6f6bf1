"""What other accounts of a device can leave in its shared folder and hold its timer's name with.

Each test runs as root, with processes of another user id beside it.
"""

import json
import os
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestration.agent.main import Decoder, OperationError, encode
from orchestration.agent.safety import deadman_process
from orchestration.agent.safety.deadman import DeadMan, address
from orchestration.agent.safety.lease import Leases
from orchestration.agent.safety.records import canonical, hash_of, new_record
from orchestration.agent.safety.shared_folder import locked, this_boot

pytestmark = pytest.mark.root

ALICE, MALLORY = 64_201, 64_202
RUN, OTHER = "a" * 32, "b" * 32
SNAPSHOT = {"boot": this_boot(), "rows": None, "name": "before"}


@pytest.fixture
def shared() -> Iterator[Path]:
    # pytest's own folders are closed to other accounts
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        folder = Path(place) / "closloop"
        folder.mkdir()
        folder.chmod(0o1777)
        yield folder


class Device:
    """The agent's side of the timer, with a stand-in for what restores."""

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self.restored: list[Any] = []
        self.deadman = DeadMan(shared, self._restore)
        self.leases = Leases(shared, this_boot())

    def _restore(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        self.restored.append(snapshot)
        return {"changed": ["x"], "differences": [], "restarted": False}

    def take(self) -> Any:
        return self.leases.take({"holder": "bob", "nonce": OTHER, "ttl_s": 60})


@pytest.fixture
def device(shared: Path) -> Device:
    return Device(shared)


def record(uid: int, shared: Path, nonce: str = RUN, **changed: Any) -> Path:
    """Leave a record of an account, and return its path."""
    folder = shared / str(uid)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    path = folder / f"run-{nonce}.json"
    content = new_record("somebody", nonce, "", "2026-01-01T00:00:00Z", SNAPSHOT)
    path.write_text(json.dumps({**content, **changed}))
    for item in (folder, path):
        os.chown(item, uid, uid)
    return path


@pytest.fixture
def child() -> Iterator[Callable[..., int]]:
    """Run a function in a process of another account, until the end of the test."""
    pids = []

    def start(uid: int, work: Callable[[], None]) -> int:
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)

                def ready() -> None:
                    os.write(tell, b"x")

                work(ready)  # type: ignore[call-arg]
            finally:
                os._exit(0)
        pids.append(pid)
        os.close(tell)
        assert os.read(told, 1) == b"x"
        os.close(told)
        return pid

    yield start
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_root_names_and_leaves_a_record_that_another_account_keeps(device: Device) -> None:
    path = record(MALLORY, device.shared)
    before = path.read_bytes()

    with pytest.raises(OperationError) as error:
        device.deadman.settle({"why": "closloop restore"})

    assert f"somebody (account user {MALLORY}) took it" in error.value.what
    assert "root does not restore from what another account wrote" in error.value.what
    assert "--forget DEVICE" in error.value.remedy
    assert device.restored == []
    assert path.read_bytes() == before


def test_roots_own_record_is_obeyed_whatever_others_lie_beside_it(device: Device) -> None:
    record(MALLORY, device.shared, OTHER)
    record(0, device.shared)
    with pytest.raises(OperationError, match=f"account user {MALLORY}"):
        device.deadman.settle({"why": "x"})
    assert device.restored == [SNAPSHOT]
    (own,) = (r for r in device.deadman.status({})["records"] if r["trusted"])
    assert own["resolved"]


@pytest.mark.parametrize("nonce", [RUN, OTHER])
def test_a_record_is_obeyed_that_the_ledgers_hash_proves(device: Device, nonce: str) -> None:
    path = record(ALICE, device.shared)
    proof = {"nonce": nonce, "snapshot": hash_of(SNAPSHOT)}
    settled = device.deadman.settle({"why": "x", **proof})
    assert [found["nonce"] for found in settled] == ([RUN] if nonce == RUN else [])
    assert device.restored == ([SNAPSHOT] if nonce == RUN else [])
    if nonce == RUN:
        # it is alice's still, and says that it is done
        assert path.stat().st_uid == ALICE
        assert json.loads(path.read_text())["resolved"] is True


def test_a_record_with_any_other_content_is_not_the_ledgers(device: Device) -> None:
    forged = {**SNAPSHOT, "sysctls": {"net/ipv4/ip_forward": "1"}}
    record(MALLORY, device.shared, snapshot=forged)
    with pytest.raises(OperationError, match="root does not restore from what another account"):
        device.deadman.settle({"why": "x", "nonce": RUN, "snapshot": hash_of(SNAPSHOT)})
    assert device.restored == []


def test_a_copy_of_a_runs_nonce_hides_nothing(device: Device) -> None:
    record(0, device.shared)
    record(MALLORY, device.shared, resolved=True, fired_at="2026", why="believe me")
    (settled,) = device.deadman.settle({"why": "x", "nonce": RUN, "snapshot": ""})
    assert settled["trusted"]
    assert device.restored == [SNAPSHOT]
    device.deadman.clear({"nonce": RUN})
    # that something was restored, only root and the account itself may say
    with pytest.raises(OperationError, match="timer does not run"):
        device.deadman.feed({"nonce": RUN})


def test_a_run_is_refused_with_the_account_and_what_ends_it(device: Device) -> None:
    record(MALLORY, device.shared)
    with pytest.raises(OperationError, match=f"account user {MALLORY}") as error:
        device.take()
    assert "--forget DEVICE` as root" in error.value.remedy

    (forgotten,) = device.deadman.forget({})

    assert forgotten["account"] == f"user {MALLORY}"
    assert device.restored == []
    assert device.take()["holder"] == "bob"


NONSENSE = {
    "deep": b"[" * 200_000,
    "a list": b"[]",
    "empty": b"",
    "binary": bytes(range(256)),
    "large": b'{"a": "' + b"x" * (9 << 20) + b'"}',
    "types": json.dumps(
        {
            **new_record("x", RUN, "", "", SNAPSHOT),
            "differences": [5],
            "changed": 7,
            "nonce": ["a"],
        }
    ).encode(),
    "no snapshot": json.dumps({**new_record("x", RUN, "", "", {}), "snapshot": 5}).encode(),
}


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_of_another_account_stops_nobody(device: Device, content: bytes) -> None:
    path = record(MALLORY, device.shared)
    path.write_bytes(content)
    lease = path.with_name("lease.json")
    lease.write_bytes(content)
    os.chown(lease, MALLORY, MALLORY)
    assert device.deadman.status({})["records"] == []
    assert device.leases.show({}) == {"lease": None, "unresolved": []}
    assert device.deadman.settle({"why": "x"}) == []
    device.take()


@pytest.mark.parametrize(
    "changed",
    [
        {"ends_boot_ns": "soon"},
        {"ends_boot_ns": 1e400},
        {"ends_boot_ns": 10**40},
        {"nonce": ["a"]},
        {"holder": 5},
    ],
)
def test_a_lease_of_wrong_types_or_without_an_end_is_none(
    device: Device, changed: dict[str, Any]
) -> None:
    folder = device.shared / str(MALLORY)
    folder.mkdir()
    held = {"holder": "m", "nonce": RUN, "since": "", "boot_id": this_boot(), "ends_boot_ns": 0}
    (folder / "lease.json").write_text(json.dumps({**held, **changed}))
    for item in (folder, folder / "lease.json"):
        os.chown(item, MALLORY, MALLORY)
    device.take()


def test_links_pipes_and_second_names_are_no_records(device: Device, tmp_path: Path) -> None:
    path = record(0, device.shared)
    content = path.read_bytes()
    elsewhere = tmp_path / "elsewhere.json"
    for make in (
        lambda: path.symlink_to(elsewhere),
        lambda: os.link(elsewhere, path),
        lambda: os.mkfifo(path),
        lambda: path.mkdir(),
    ):
        path.unlink()
        elsewhere.write_bytes(content)
        make()
        assert device.deadman.status({})["records"] == []
        if path.is_dir():
            path.rmdir()
            path.touch()


def test_a_folder_that_others_made_or_may_write_to_does_not_count(device: Device) -> None:
    path = record(0, device.shared)
    folder = path.parent
    folder.chmod(0o777)
    assert device.deadman.status({})["records"] == []
    with pytest.raises(OperationError, match="can be written by other accounts"):
        device.take()
    folder.chmod(0o755)
    assert len(device.deadman.status({})["records"]) == 1
    os.chown(folder, MALLORY, MALLORY)
    assert device.deadman.status({})["records"] == []
    with pytest.raises(OperationError, match=f"belongs to user {MALLORY}"):
        device.take()


def test_a_link_in_the_shared_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    shared = tmp_path / "closloop"
    shared.symlink_to(tmp_path / "elsewhere")
    os.lchown(shared, MALLORY, MALLORY)
    with pytest.raises(OperationError, match=f"account user {MALLORY} has created"), locked(shared):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_root_writes_nothing_where_an_account_swaps_its_folder_for_a_link(
    device: Device, tmp_path: Path
) -> None:
    """The owner of a folder may rename it, in a sticky folder too."""
    path = record(ALICE, device.shared)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def restore(_: dict[str, Any]) -> dict[str, Any]:
        path.parent.rename(device.shared / "away")
        path.parent.symlink_to(elsewhere)
        return {"changed": [], "differences": []}

    deadman = DeadMan(device.shared, restore)
    with pytest.raises(OperationError, match="cannot be used"):
        deadman.settle({"why": "x", "nonce": RUN, "snapshot": hash_of(SNAPSHOT)})
    assert list(elsewhere.iterdir()) == []


def listens(shared: Path, answer: Callable[[dict[str, Any]], bytes]) -> Any:
    """Return what holds the timer's name, and answers orders."""

    def work(ready: Callable[[], None]) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address(shared))
        listener.listen(5)
        ready()
        links = []
        while True:
            link, _ = listener.accept()
            links.append(link)
            decoder = Decoder()
            with suppress(OSError):
                while piece := link.recv(1 << 16):
                    for order in decoder.feed(piece):
                        link.sendall(answer(order))

    return work


def claims(order: dict[str, Any]) -> bytes:
    return encode(
        {"holder": "root's run", "nonce": RUN, "note": "", "armed_at": "2026", "account": "root",
         "left_s": 5, "fired_at": "2026", "why": "done", "resolved": True, "changed": [],
         "differences": [], "error": "", "restarted": False}
    )  # fmt: skip


def huge(_: dict[str, Any]) -> bytes:
    return struct.pack(">I", 200 << 20) + b"x" * (1 << 20)


def deep(_: dict[str, Any]) -> bytes:
    body = b"[" * 60_000
    return struct.pack(">I", len(body)) + body


def silent(_: dict[str, Any]) -> bytes:
    return b""


@pytest.mark.parametrize("answer", [claims, huge, deep, silent])
def test_another_accounts_process_at_the_timers_name_is_named_and_not_believed(
    device: Device, child: Any, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.agent.safety.deadman_client._FOREIGN_TIMEOUT_S", 0.02)
    pid = child(MALLORY, listens(device.shared, answer))
    record(0, device.shared)

    armed = device.deadman.status({})["armed"]
    assert (armed["trusted"], armed["account"], armed["pid"]) == (False, f"user {MALLORY}", pid)

    for order in (
        lambda: device.deadman.arm(
            {"holder": "bob", "nonce": OTHER, "after_s": 9, "snapshot": SNAPSHOT}
        ),
        lambda: device.deadman.fire({"why": "x"}),
        lambda: device.deadman.feed({"nonce": RUN}),
    ):
        with pytest.raises(OperationError) as error:
            order()
        assert f"(account user {MALLORY}), process {pid}," in error.value.what
        assert f"kill {pid}" in error.value.remedy

    # it neither hides root's record, nor keeps it from being restored
    (kept,) = device.deadman.status({})["records"]
    assert kept["unresolved"]
    assert [r["nonce"] for r in device.deadman.settle({"why": "x"})] == [RUN]
    assert device.restored == [SNAPSHOT]
    assert device.deadman.disarm({"nonce": RUN}) is False
    assert device.deadman.status({})["records"] == []


def test_a_name_that_is_held_without_listening_is_said(
    device: Device, child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.agent.safety.deadman._NAME_TIMEOUT_S", 0.1)

    def work(ready: Callable[[], None]) -> None:
        holder = socket.socket(socket.AF_UNIX)
        holder.bind(address(device.shared))
        ready()
        signal.pause()

    child(MALLORY, work)
    with pytest.raises(OperationError, match="socket is taken by a process") as error:
        device.deadman.arm({"holder": "b", "nonce": RUN, "after_s": 9, "snapshot": SNAPSHOT})
    assert "ss -xap" in error.value.remedy


def test_a_name_whose_holder_takes_no_connection_is_said(device: Device, child: Any) -> None:
    def work(ready: Callable[[], None]) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address(device.shared))
        listener.listen(0)
        mine = socket.socket(socket.AF_UNIX)
        mine.connect(address(device.shared))
        ready()
        signal.pause()

    child(MALLORY, work)
    with pytest.raises(OperationError, match="takes no connection"):
        device.deadman.status({})


def test_a_timer_of_root_is_believed_by_others_and_one_of_theirs_is_in_use(
    device: Device, child: Any
) -> None:
    """Real timers, seen from other accounts."""

    def arms(ready: Callable[[], None]) -> None:
        mine = Device(device.shared)
        mine.deadman.arm(
            {"holder": "alice", "nonce": RUN, "after_s": 600, "snapshot": SNAPSHOT, "note": ""}
        )
        ready()
        signal.pause()

    child(ALICE, arms)
    armed = device.deadman.status({})["armed"]
    try:
        assert (armed["holder"], armed["account"], armed["trusted"]) == (
            "alice", f"user {ALICE}", False,
        )  # fmt: skip
        # the timer itself, not the agent that has armed it
        assert Path(f"/proc/{armed['pid']}/comm").read_text() == "clos-deadman\n"
        # its record is guarded, and not root's to restore
        assert device.deadman.status({})["records"] == []
        assert device.deadman.settle({"why": "x"}) == []
    finally:
        os.kill(armed["pid"], signal.SIGKILL)


def test_other_accounts_cannot_use_a_timer_up(device: Device, child: Any) -> None:
    """It goes on to hear its own account, however many connections others leave open."""
    device.deadman.arm(
        {"holder": "root", "nonce": RUN, "after_s": 600, "snapshot": SNAPSHOT, "note": ""}
    )
    pid = device.deadman.status({})["armed"]["pid"]

    def floods(ready: Callable[[], None]) -> None:
        links = []
        for _ in range(3 * deadman_process._MAX_FOREIGN_LINKS):
            link = socket.socket(socket.AF_UNIX)
            link.connect(address(device.shared))
            link.settimeout(0.01)
            links.append(link)
            with suppress(OSError):
                link.sendall(b"\0\1\0\0" + b"x" * 5000)
        ready()
        signal.pause()

    try:
        child(MALLORY, floods)
        assert device.deadman.feed({"nonce": RUN}) > 500
        assert device.deadman.disarm({"nonce": RUN}) is True
    finally:
        if Path(f"/proc/{pid}/comm").exists():
            os.kill(pid, signal.SIGKILL)
    assert device.restored == []


def test_the_ledger_and_the_device_hash_a_snapshot_alike() -> None:
    snapshot = {"b": [1, None, {"z": "ä", "a": True}], "a": {}}
    assert canonical(json.loads(json.dumps(snapshot))) == canonical(snapshot)
    assert hash_of(snapshot) == hash_of(dict(reversed(snapshot.items())))
