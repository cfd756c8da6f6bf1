"""The lease on a device: one campaign at a time may change it.

    lease.take   {holder, ttl_s}   refused while another holder's lease is valid
    lease.renew  {holder, ttl_s}   refused if another holder has taken it meanwhile
    lease.drop   {holder}          whether it was held; refused if another holder has it
    lease.show                     the valid lease, or null

A lease is {"holder", "since" (time of day, UTC), "left_s"}. It expires when it is not renewed for
`ttl_s` seconds of CLOCK_BOOTTIME, which includes time suspended, and at a reboot. It is stored in
lease.json in `runtime_folder()` and removed when it is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestration.device.agent.main import Agent, Operation, OperationError
from orchestration.model.files import write_whole

_FILE = "lease.json"
_HOLDER_CHARACTERS = 500


def boottime_ns() -> int:
    """Return CLOCK_BOOTTIME in ns, which includes time suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def time_of_day() -> str:
    """Return the time of day, for people: UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def runtime_folder() -> Path:
    """Return the folder of the lease and the dead-man's record: in memory, lost at a reboot."""
    uid = os.geteuid()
    if uid == 0:
        return Path("/run/closloop")
    users = Path(f"/run/user/{uid}")
    return users / "closloop" if users.is_dir() else Path(f"/tmp/closloop-{uid}")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Creates the folder; removes it afterwards if it is empty.

    Raises OperationError if the folder belongs to another user.
    """
    handle = _lock(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()
        os.close(handle)


def _lock(folder: Path) -> int:
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            mine = os.fstat(handle)
            if mine.st_uid != os.geteuid():
                raise OperationError(
                    f"{folder} belongs to user {mine.st_uid}", "find out who made it; remove it"
                )
            # the previous holder may have removed the folder
            with suppress(FileNotFoundError):
                if os.stat(folder).st_ino == mine.st_ino:
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Replace a small JSON file atomically; only its owner can read it."""
    write_whole(path, json.dumps(record), 0o600)


def read_record(path: Path) -> dict[str, Any] | None:
    """Return what `write_record` wrote; None if the file is missing or unreadable."""
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def drop_lease(folder: Path, holder: str) -> None:
    """Remove a holder's lease, expired or not."""
    with locked(folder):
        record = read_record(folder / _FILE)
        if record is not None and record.get("holder") == holder:
            (folder / _FILE).unlink()


class Leases:
    """The lease of one device. `boot_id` identifies the current boot."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._folder = folder
        self._path = folder / _FILE
        self._boot_id = boot_id

    def take(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take the lease. The holder may take it again."""
        holder = _holder(request)
        with locked(self._folder):
            record = self._living()
            if record is not None and record["holder"] != holder:
                raise _refused(record)
            since = time_of_day() if record is None else record["since"]
            return self._write(holder, since, request)

    def renew(self, request: dict[str, Any]) -> dict[str, Any]:
        """Extend the lease. An expired one is renewed if nobody has taken it."""
        holder = _holder(request)
        with locked(self._folder):
            record = read_record(self._path)
            if record is None:
                raise OperationError(
                    "its lease is gone: the device was restored meanwhile, or has restarted",
                    "run the trial again",
                )
            if record.get("holder") != holder:
                raise _refused(record)
            return self._write(holder, str(record["since"]), request)

    def drop(self, request: dict[str, Any]) -> bool:
        """Give the lease back. Return whether it was held."""
        holder = _holder(request)
        with locked(self._folder):
            record = self._living()
            if record is not None and record["holder"] != holder:
                raise _refused(record)
            held = self._path.exists()
            self._path.unlink(missing_ok=True)
            return held

    def show(self, _: dict[str, Any]) -> dict[str, Any] | None:
        """Return the valid lease, or None."""
        record = self._living()
        return None if record is None else _public(record)

    def _living(self) -> dict[str, Any] | None:
        record = read_record(self._path)
        if record is None or record.get("boot_id") != self._boot_id:
            return None
        return record if record["ends_boot_ns"] > boottime_ns() else None

    def _write(self, holder: str, since: str, request: dict[str, Any]) -> dict[str, Any]:
        ttl_s = float(request["ttl_s"])
        if not 0 < ttl_s < float("inf"):
            raise OperationError(f"a lease of {ttl_s} s makes no sense", "give a positive number")
        record = {
            "holder": holder,
            "since": since,
            "ends_boot_ns": boottime_ns() + int(ttl_s * 1e9),
            "boot_id": self._boot_id,
        }
        write_record(self._path, record)
        return _public(record)


def _holder(request: dict[str, Any]) -> str:
    holder = request["holder"]
    if not isinstance(holder, str) or not 0 < len(holder) <= _HOLDER_CHARACTERS:
        raise OperationError("a lease needs a holder's name of 1 to 500 characters")
    return holder


def _public(record: dict[str, Any]) -> dict[str, Any]:
    left_s = max(0.0, (record["ends_boot_ns"] - boottime_ns()) / 1e9)
    return {"holder": record["holder"], "since": record["since"], "left_s": round(left_s, 3)}


def _refused(record: dict[str, Any]) -> OperationError:
    lease = _public(record)
    return OperationError(
        f"is held by {lease['holder']} since {lease['since']}; the lease ends in "
        f"{lease['left_s']:.0f} s unless it is renewed",
        "wait for that run to end; if it is dead, wait for the lease to end, or run "
        "`closloop restore`",
    )


def this_boot() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    leases = Leases(runtime_folder(), this_boot())
    names = ("take", "renew", "drop", "show")
    return {f"lease.{name}": getattr(leases, name) for name in names}
