"""The ledger: what runs are about to change on a rack's devices, written before they change it.

    $XDG_STATE_HOME/closloop/ledgers/RACK-PATH/      or ~/.local/state
      ledger.jsonl        one entry a line, never rewritten
      HASH.json           a device's snapshot, named by its content
      RUN.lock            held by the run while it lives

PATH is the beginning of a hash of the inventory's path (symbolic links resolved), so that two
inventories of the same name write to different folders. But a user's open runs are read from all
folders: inventories are moved, copied and edited, so the identities of a run's devices tell on
which rack it was (`runs_on_rack`). closloop 0.2.0 had folders RACK, without identities.

An entry is on disk when the call returns. Thresholds may change many times per second, so one entry
per device announces all changes beforehand, and the snapshot has the former values.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from orchestration.agent.safety.identity import same_device
from orchestration.agent.safety.records import canonical, hash_of
from orchestration.core.errors import NotReadyError
from orchestration.core.files import state_folder, sync_path
from orchestration.device.client import AgentClient, Request, gather
from orchestration.device.errors import DeviceError

_FILE = "ledger.jsonl"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,80}")


@dataclass
class OpenRun:
    """A run that was not closed: its controller died, or devices were not restored.

    `run` is its name in the ledger, which is also the nonce of its leases and timers. Its entries
    are in `folder`. `alive` says that its process is still running. Devices have the names of the
    run's `inventory`. By device, `snapshots` has the hash of the snapshot, and `identities` has the
    identity of the device, if it is known. `changed` are the devices that the run may have changed,
    `restored` the devices that have been restored since.
    """

    run: str
    holder: str
    inventory: str
    opened_at: str
    folder: Path
    alive: bool = False
    identities: dict[str, dict[str, Any]] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    restored: set[str] = field(default_factory=set)

    @property
    def outstanding(self) -> list[str]:
        """The devices that must still be restored."""
        return sorted(self.changed - self.restored)


class Ledger:
    """The ledger of the runs with one inventory. It also reads the same user's other ledgers.

    `inventory` is the inventory's resolved path. `ledgers` is the folder that contains the folders
    of all ledgers; None if there are no others.
    """

    def __init__(
        self, folder: Path, rack: str, inventory: str, ledgers: Path | None = None
    ) -> None:
        self.folder = folder
        self.inventory = inventory
        self._rack = rack
        self._ledgers = ledgers
        self._locks: dict[str, int] = {}
        self._folders: dict[str, Path] = {}

    @classmethod
    def of(cls, rack: str, inventory: Path) -> Ledger:
        """Return the ledger of this inventory's rack, in the user's state folder."""
        path = str(inventory.resolve())
        plain = bool(_PLAIN_NAME.fullmatch(rack))
        name = rack if plain else hashlib.sha256(rack.encode()).hexdigest()[:16]
        path_hash = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
        ledgers = state_folder("ledgers")
        return cls(ledgers / f"{name}-{path_hash}", rack, path, ledgers)

    def open_run(self, holder: str, nonce: str = "") -> str:
        """Record that a run begins; return its name in the ledger, which is its nonce."""
        run = nonce or uuid4().hex
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._lock_path(self.folder, run)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from error
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._locks[run] = lock
        self._add(run, "run-opened", holder=holder, rack=self._rack, inventory=self.inventory)
        return run

    def snapshot(self, run: str, device: str, content: dict[str, Any]) -> None:
        """Store a device's snapshot."""
        data, name = canonical(content), hash_of(content)
        path = self._snapshot_path(self._folder_of(run), name)
        try:
            if not path.exists():
                new = path.with_suffix(f".{uuid4().hex[:8]}.new")
                _write_through(new, data)
                os.replace(new, path)
                sync_path(path.parent)
        except OSError as error:
            raise self._unwritable(error) from error
        identity = content.get("identity")
        self._add(run, "snapshot", device=device, snapshot=name, identity=identity)

    def change(self, run: str, device: str, what: str, before: str, after: str) -> None:
        """Record a change that is about to be made. Raises NotReadyError if that is impossible."""
        self._add(run, "change", device=device, what=what, before=before, after=after)

    def restored(self, run: str, device: str, differences: Sequence[Any], how: str) -> None:
        """Record that a device was restored: how, and which settings still differ."""
        self._add(run, "restored", device=device, differences=list(differences), how=how)

    def close_run(self, run: str) -> None:
        """Record that nothing is left to do on any device of a run."""
        self._add(run, "run-closed")
        self.release(run)
        self._lock_path(self._folder_of(run), run).unlink(missing_ok=True)

    def release(self, run: str) -> None:
        """Release a run without closing it; a later restore handles the devices that are left."""
        lock = self._locks.pop(run, None)
        if lock is not None:
            os.close(lock)

    def load_snapshot(self, name: str, run: str = "") -> dict[str, Any]:
        """Return a snapshot by its hash: of an open run of any ledger, or of this ledger.

        Raises NotReadyError if it is missing or damaged.
        """
        path = self._snapshot_path(self._folder_of(run), name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise NotReadyError(
                f"the ledger's snapshot {path} cannot be read: {error.strerror}",
                "undo with `closloop provision --undo`, or restore the device by hand",
            ) from error
        if hashlib.sha256(data).hexdigest() != name:
            raise NotReadyError(
                f"the ledger's snapshot {path} is damaged",
                "undo with `closloop provision --undo`, or restore the device by hand",
            )
        content: dict[str, Any] = json.loads(data)
        return content

    def open_runs(self) -> list[OpenRun]:
        """Return all of the user's runs that are not closed, with any inventory, oldest first."""
        runs: dict[str, OpenRun] = {}
        for folder in self._all_folders():
            runs.update(_open_runs(folder))
        self._folders.update({name: run.folder for name, run in runs.items()})
        for run in runs.values():
            run.alive = self._is_alive(run.folder, run.run)
        return sorted(runs.values(), key=lambda run: run.opened_at)

    def _all_folders(self) -> list[Path]:
        others: list[Path] = []
        if self._ledgers is not None:
            with suppress(FileNotFoundError):
                others = [path for path in sorted(self._ledgers.iterdir()) if path != self.folder]
        return [*others, self.folder]

    def _folder_of(self, run: str) -> Path:
        return self._folders.get(run, self.folder)

    def _is_alive(self, folder: Path, run: str) -> bool:
        if run in self._locks:
            return True
        try:
            lock = os.open(self._lock_path(folder, run), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _add(self, run: str, entry: str, **details: Any) -> None:
        """Append an entry, and return when it is on disk. Raises NotReadyError if that fails."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        fields = {"at": now, "run": run, "entry": entry, **details}
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        path = self._folder_of(run) / _FILE
        try:
            new = not path.exists()
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":
                    # a crash has cut off the last line: end it here
                    line = b"\n" + line
                if os.write(handle, line) != len(line):
                    raise OSError(0, "there was space for a part of the entry only")
                os.fsync(handle)
            finally:
                os.close(handle)
            if new:
                sync_path(path.parent)
        except OSError as error:
            raise self._unwritable(error) from error

    @staticmethod
    def _snapshot_path(folder: Path, name: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", name):
            raise NotReadyError(f"the ledger has an invalid snapshot: {name!r}", f"see {folder}")
        return folder / f"{name}.json"

    @staticmethod
    def _lock_path(folder: Path, run: str) -> Path:
        return folder / f"{run}.lock"

    def _unwritable(self, error: OSError) -> NotReadyError:
        return NotReadyError(
            f"the ledger in {self.folder} cannot be written: {error.strerror or error}; a change "
            "must be recorded before it is made",
            "free some space, correct the folder's rights, or set XDG_STATE_HOME to another folder",
        )


def _open_runs(folder: Path) -> dict[str, OpenRun]:
    """Return a ledger's runs that are not closed, by name."""
    runs: dict[str, OpenRun] = {}
    for entry in _entries(folder):
        name, kind = str(entry.get("run")), entry["entry"]
        if kind == "run-opened":
            runs[name] = OpenRun(
                name, str(entry["holder"]), str(entry["inventory"]), str(entry["at"]), folder
            )
        elif name not in runs:
            continue
        elif kind == "run-closed":
            del runs[name]
        elif kind == "snapshot":
            device, identity = str(entry["device"]), entry.get("identity")
            runs[name].snapshots[device] = str(entry["snapshot"])
            if isinstance(identity, dict):
                runs[name].identities[device] = identity
        elif kind == "change":
            runs[name].changed.add(str(entry["device"]))
        elif kind == "restored":
            runs[name].restored.add(str(entry["device"]))
    return runs


def _entries(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a ledger's entries; skip lines that a crash has cut off."""
    try:
        lines = (folder / _FILE).read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return
    for line in lines:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and "entry" in entry:
                yield entry


def _write_through(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class RunOnRack:
    """An open run that was on this rack.

    A run belongs to the devices on which it was, not to the inventory's file. A device is
    recognised by the identity in its snapshot (`agent.safety.identity`). So a run is found again
    with an inventory that was moved, copied or edited, or is another one of the same rack, and it
    is not found with another rack's inventory. If an identity is not known (in snapshots of
    closloop 0.2.0, or because a device does not answer), the device with the same name is taken if
    the run had the same inventory, by its resolved path.

    `names` has this inventory's names of the run's devices, by the run's names. `elsewhere` are the
    run's devices that this inventory does not have.
    """

    run: OpenRun
    names: Mapping[str, str]
    elsewhere: tuple[str, ...]


def runs_on_rack(
    ledger: Ledger, runs: Sequence[OpenRun], agents: Mapping[str, AgentClient], timeout_s: float
) -> list[RunOnRack]:
    """Return those of the user's open runs that were on the devices of `agents`, oldest first."""
    identities: Mapping[str, Any] = {}
    if any(run.identities for run in runs):
        requests: dict[str, tuple[AgentClient, Request]] = {
            device: (agent, ("state.identity", {})) for device, agent in agents.items()
        }
        identities = {
            device: answer
            for device, answer in gather(requests, timeout_s).items()
            if not isinstance(answer, DeviceError)
        }
    runs_here = []
    for run in runs:
        same_inventory = run.inventory == ledger.inventory
        devices = sorted({*run.snapshots, *run.changed})
        matches = {device: _name(device, run, identities, same_inventory) for device in devices}
        names = {device: name for device, name in matches.items() if name}
        if names or (same_inventory and not devices):
            elsewhere = tuple(device for device, name in matches.items() if not name)
            runs_here.append(RunOnRack(run, names, elsewhere))
    return runs_here


def _name(device: str, run: OpenRun, identities: Mapping[str, Any], same_inventory: bool) -> str:
    """Return this inventory's name of a run's device, "" if it has none.

    `identities` has the identities of this inventory's devices.
    """
    recorded = run.identities.get(device)
    same = [name for name, identity in identities.items() if same_device(recorded, identity)]
    if device in same or (same_inventory and len(same) != 1):
        return device
    return same[0] if len(same) == 1 else ""
