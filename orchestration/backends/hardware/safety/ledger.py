"""The ledger: what runs are about to change on a rack's devices, written before they do.

    $XDG_STATE_HOME/closloop/ledgers/RACK/      or ~/.local/state
      ledger.jsonl        one entry a line, never rewritten
      HASH.json           a device's snapshot, named by its content
      RUN.lock            held by the run while it lives

An entry is on disk when the call returns. Thresholds may change many times a second, so one entry
per device announces that beforehand, and the snapshot has the former values.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from orchestration.model.errors import NotReadyError
from orchestration.model.files import sync_path

_FILE = "ledger.jsonl"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,80}")


@dataclass
class OpenRun:
    """A run that was not closed: its controller died, or devices were not restored.

    `run` is the nonce of its leases and timers too. `snapshots` are the names of the devices'
    snapshots, `changed` the devices that it may have changed, `restored` the devices restored
    since. `alive` says that it is still running.
    """

    run: str
    holder: str
    inventory: str
    opened_at: str
    alive: bool = False
    snapshots: dict[str, str] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    restored: set[str] = field(default_factory=set)

    @property
    def outstanding(self) -> list[str]:
        """The devices that must still be restored."""
        return sorted(self.changed - self.restored)


class Ledger:
    """The ledger of one rack."""

    def __init__(self, folder: Path, rack: str, inventory: str) -> None:
        self.folder = folder
        self._rack = rack
        self._inventory = inventory
        self._locks: dict[str, int] = {}

    @classmethod
    def of(cls, rack: str, inventory: Path) -> Ledger:
        """Return the ledger of the rack of this name, in the user's state folder."""
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
        plain = bool(_PLAIN_NAME.fullmatch(rack))
        name = rack if plain else hashlib.sha256(rack.encode()).hexdigest()[:16]
        folder = Path(base) / "closloop" / "ledgers" / name
        return cls(folder, rack, str(inventory.resolve()))

    def open_run(self, holder: str, nonce: str = "") -> str:
        """Record that a run begins; return its name in the ledger: the nonce of its leases."""
        run = nonce or uuid4().hex
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._lock_path(run), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from error
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._locks[run] = lock
        self._add(run, "run-opened", holder=holder, rack=self._rack, inventory=self._inventory)
        return run

    def snapshot(self, run: str, device: str, content: dict[str, Any]) -> None:
        """Store a device's snapshot."""
        data = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        name = hashlib.sha256(data).hexdigest()
        path = self._snapshot_path(name)
        try:
            if not path.exists():
                new = path.with_suffix(f".{uuid4().hex[:8]}.new")
                _write_through(new, data)
                os.replace(new, path)
                sync_path(self.folder)
        except OSError as error:
            raise self._unwritable(error) from error
        self._add(run, "snapshot", device=device, snapshot=name)

    def change(self, run: str, device: str, what: str, before: str, after: str) -> None:
        """Record a change that is about to be made. Raises NotReadyError if that is impossible."""
        self._add(run, "change", device=device, what=what, before=before, after=after)

    def restored(self, run: str, device: str, differences: Sequence[Any], how: str) -> None:
        """Record that a device was restored: how, and what still differs."""
        self._add(run, "restored", device=device, differences=list(differences), how=how)

    def close_run(self, run: str) -> None:
        """Record that every device of a run is settled."""
        self._add(run, "run-closed")
        self.release(run)
        self._lock_path(run).unlink(missing_ok=True)

    def release(self, run: str) -> None:
        """Release a run without closing it; its open devices are left to a later restore."""
        lock = self._locks.pop(run, None)
        if lock is not None:
            os.close(lock)

    def load_snapshot(self, name: str) -> dict[str, Any]:
        """Return a snapshot by its name. Raises NotReadyError if it is missing or damaged."""
        path = self._snapshot_path(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise NotReadyError(
                f"the ledger's snapshot {path} cannot be read: {error.strerror}",
                "undo with `closloop provision --undo`, or put the device right by hand",
            ) from error
        if hashlib.sha256(data).hexdigest() != name:
            raise NotReadyError(
                f"the ledger's snapshot {path} is damaged",
                "undo with `closloop provision --undo`, or put the device right by hand",
            )
        content: dict[str, Any] = json.loads(data)
        return content

    def open_runs(self) -> list[OpenRun]:
        """Return the runs that are not closed, oldest first."""
        runs: dict[str, OpenRun] = {}
        for entry in self._entries():
            name, kind = str(entry.get("run")), entry["entry"]
            if kind == "run-opened":
                runs[name] = OpenRun(
                    name, str(entry["holder"]), str(entry["inventory"]), str(entry["at"])
                )
            elif name not in runs:
                continue
            elif kind == "run-closed":
                del runs[name]
            elif kind == "snapshot":
                runs[name].snapshots[str(entry["device"])] = str(entry["snapshot"])
            elif kind == "change":
                runs[name].changed.add(str(entry["device"]))
            elif kind == "restored":
                runs[name].restored.add(str(entry["device"]))
        for run in runs.values():
            run.alive = self._is_alive(run.run)
        return list(runs.values())

    def _entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries; skip lines that a crash has cut off."""
        try:
            lines = (self.folder / _FILE).read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and "entry" in entry:
                    yield entry

    def _is_alive(self, run: str) -> bool:
        if run in self._locks:
            return True
        try:
            lock = os.open(self._lock_path(run), os.O_RDWR | os.O_CLOEXEC)
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
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        said = {"at": now, "run": run, "entry": entry, **details}
        line = json.dumps(said, separators=(",", ":")).encode() + b"\n"
        path = self.folder / _FILE
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
                    raise OSError(0, "only part of the entry fitted")
                os.fsync(handle)
            finally:
                os.close(handle)
            if new:
                sync_path(self.folder)
        except OSError as error:
            raise self._unwritable(error) from error

    def _snapshot_path(self, name: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", name):
            raise NotReadyError(
                f"the ledger names no snapshot: {name!r}", "see " + str(self.folder)
            )
        return self.folder / f"{name}.json"

    def _lock_path(self, run: str) -> Path:
        return self.folder / f"{run}.lock"

    def _unwritable(self, error: OSError) -> NotReadyError:
        return NotReadyError(
            f"the ledger in {self.folder} cannot be written: {error.strerror or error}; nothing "
            "may be changed that is not noted first",
            "make room or correct its rights, or set XDG_STATE_HOME to another place",
        )


def _write_through(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
