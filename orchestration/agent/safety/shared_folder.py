"""The folder on a device that all accounts share: leases and records are files there.

`SHARED` is sticky and open to every account, and each account writes into its own folder there,
named by its user id. So nobody can replace what another account wrote, and everybody can read it.
The folder must outlive a reboot, because CONFIG_DB does, too. One lock, on `SHARED`, is for all
accounts.

Another account may have put anything there. So folders are opened without following links, and used
through their descriptors, since their owner may swap them meanwhile. A folder is ignored if it does
not belong to the account that it is named after, or if others may write to it. A file in it is
ignored if it is a link, has a second name or is too large.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ...core.files import sync_path, whole_file
from ..main import OperationError

SHARED = Path("/var/tmp/closloop")

_OPEN_TO_ALL = 0o1777
# The lock is held only for a few file operations.
_LOCK_TIMEOUT_S, _LOCK_EVERY_S = 10.0, 0.01
# A switch of 512 ports with eight queues each has a snapshot of 3 MB.
_MAX_RECORD_BYTES = 8 << 20
# An account leaves one record per run, and its next run removes it.
_MAX_RECORDS = 64
_WRITABLE_BY_OTHERS = 0o022
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def boottime_ns() -> int:
    """Return CLOCK_BOOTTIME in ns, which includes time suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def time_of_day() -> str:
    """Return the time of day, for people: UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def this_boot() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def account_name(uid: int) -> str:
    """Return the name of an account of this device, or its user id."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def own_folder(shared: Path) -> Path:
    """Return this account's folder."""
    return shared / str(os.geteuid())


@contextmanager
def locked(shared: Path) -> Iterator[None]:
    """Hold the device's lock. Creates both folders, and removes those that are empty afterwards.

    Raises OperationError if the lock cannot be had.
    """
    try:
        handle = _lock(shared)
    except OSError as error:
        raise _unwritable(shared, error) from error
    own = own_folder(shared)
    try:
        _make_own(own)
        yield
    except OSError as error:
        raise _unwritable(own, error) from error
    finally:
        for folder in (own, shared):
            with suppress(OSError):
                folder.rmdir()
        os.close(handle)


def _lock(shared: Path) -> int:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        with suppress(FileExistsError):
            shared.mkdir(0o700)
            shared.chmod(_OPEN_TO_ALL)
        handle = -1
        # PermissionError: another account has created the folder, and not yet opened it to all
        with suppress(FileNotFoundError, PermissionError):
            handle = os.open(shared, _FOLDER)
        if handle >= 0 and _is_locked(handle, shared):
            return handle
        if time.monotonic() > deadline:
            raise OperationError(
                f"{shared} could not be locked in {_LOCK_TIMEOUT_S:.0f} s",
                f"see which process holds it (fuser -v {shared}) and who may open it (it should "
                "have mode 1777)",
            )
        time.sleep(_LOCK_EVERY_S)


def _is_locked(handle: int, shared: Path) -> bool:
    """Lock the open folder, and return whether that worked; otherwise close the folder.

    It also fails if the folder at this path is a new one.
    """
    is_held = False
    try:
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            own_status = os.fstat(handle)
            with suppress(FileNotFoundError):
                # the previous holder may have removed the folder
                if os.stat(shared).st_ino == own_status.st_ino:
                    _open_to_all(handle, own_status, shared)
                    is_held = True
    finally:
        if not is_held:
            os.close(handle)
    return is_held


def _open_to_all(handle: int, status: os.stat_result, shared: Path) -> None:
    """Make sure that every account can create a folder here, and nobody can remove another's."""
    if os.geteuid() == 0 and status.st_uid != 0:
        # the owner of a sticky folder may rename what is in it
        os.fchown(handle, 0, 0)
    if stat.S_IMODE(status.st_mode) == _OPEN_TO_ALL:
        return
    if os.geteuid() not in (0, status.st_uid):
        raise OperationError(f"{shared} is not open to all accounts", f"chmod 1777 {shared}")
    os.fchmod(handle, _OPEN_TO_ALL)


def _make_own(own: Path) -> None:
    created = False
    with suppress(FileExistsError):
        own.mkdir(0o755)
        created = True
    status = own.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OperationError(
            f"{own} belongs to {account_name(status.st_uid)}", "find out who made it; remove it"
        )
    if created:
        with _opened(os.open(own, _FOLDER)) as handle:
            os.fchmod(handle, 0o755)
            status = os.fstat(handle)
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise OperationError(
            f"{own} can be written by other accounts, so what is in it cannot be relied on",
            f"see what is in it and who made it; then chmod 755 {own}",
        )


def _unwritable(folder: Path, error: OSError) -> OperationError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return OperationError(
                f"{folder} is not a folder: account {account_name(status.st_uid)} has created "
                "something else there",
                f"remove it: rm {folder}",
            )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OperationError(
            "its disk is full: no lease can be written", f"make room for {folder}"
        )
    return OperationError(
        f"{folder} cannot be used: {error.strerror or error}",
        "every account must be able to write there: check its rights and the disk",
    )


def write_record(path: Path, record: dict[str, Any], *, owner: int | None = None) -> None:
    """Replace a JSON file in an account's folder atomically; every account can read it.

    With `owner`, a user id, the file belongs to that account, and is synced to the disk before this
    returns. Raises OSError, also for a folder that is ignored.
    """
    data = json.dumps(record).encode()
    if len(data) > _MAX_RECORD_BYTES:
        raise OperationError(
            f"a record of {len(data)} bytes is too large",
            "give the inventory's device fewer interfaces",
        )
    with _open_folder(path.parent) as folder, whole_file(_within(folder, path.name)) as new:
        # somebody may have put a link there
        with suppress(FileNotFoundError):
            new.unlink()
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with open(handle, "wb") as file:
            os.fchmod(handle, 0o644)
            file.write(data)
            if owner is not None:
                os.fchown(handle, owner, -1)
        if owner is not None:
            sync_path(new)
    if owner is not None:
        sync_path(path.parent)


def read_record(path: Path) -> dict[str, Any] | None:
    """Return what the owner of the folder wrote with `write_record`; None if there is nothing
    valid.

    The folder may belong to another account, so no link is followed, and only regular files are
    read.
    """
    try:
        with _open_folder(path.parent) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(path.name, flags, dir_fd=folder), "rb") as file:
                status = os.fstat(file.fileno())
                if (
                    not stat.S_ISREG(status.st_mode)
                    or status.st_uid != os.fstat(folder).st_uid
                    or status.st_nlink != 1
                    or status.st_size > _MAX_RECORD_BYTES
                ):
                    return None
                record = json.loads(file.read(_MAX_RECORD_BYTES))
    # RecursionError: lists within lists, a hundred thousand deep
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def remove_record(path: Path) -> None:
    """Remove a file from an account's folder, if it exists. Raises OSError."""
    with suppress(FileNotFoundError), _open_folder(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


def record_paths(folder: Path, pattern: str) -> list[Path]:
    """Return the paths of the files in an account's folder whose names match, sorted by name."""
    with suppress(OSError), _open_folder(folder) as handle:
        names = sorted(name for name in os.listdir(handle) if fnmatchcase(name, pattern))
        return [folder / name for name in names[:_MAX_RECORDS]]
    return []


def accounts(shared: Path) -> dict[int, Path]:
    """Return the valid folders of all accounts, by user id."""
    folders = {}
    with suppress(OSError), _opened(os.open(shared, _FOLDER)) as handle:
        for name in os.listdir(handle):
            with suppress(OSError, ValueError), _open_folder(shared / name):
                folders[int(name)] = shared / name
    return dict(sorted(folders.items()))


@contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    """Open an account's folder and yield its descriptor. Raises OSError if it must be ignored."""
    with _opened(os.open(path.parent, _FOLDER)) as shared:
        handle = os.open(path.name, _FOLDER, dir_fd=shared)
    with _opened(handle) as folder:
        status = os.fstat(folder)
        if path.name != str(status.st_uid) or status.st_mode & _WRITABLE_BY_OTHERS:
            raise PermissionError(errno.EACCES, "is not writable for that account only", str(path))
        yield folder


def _within(folder: int, name: str) -> Path:
    """Return a path of a file in an open folder that holds even if the folder is moved."""
    return Path(f"/proc/self/fd/{folder}/{name}")


@contextmanager
def _opened(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)
