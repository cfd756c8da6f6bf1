"""A spool on disk: points of running trials, appended by one process and read by another.

Each run of a trial has a folder. It contains `about.json`, the lock of the writer, and the parts
that the writer has appended: `00000000.part` and so on, each a CRC-32 and a payload. A part is
written under another name and then renamed, so that it is complete or not there. It is deleted when
the database has it. Appending writes to the page cache: it does not wait for a network, and the
data survives the end of the process, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestration.core.files import write_whole

# After so many bytes the size of the whole spool is measured again: other trials write to it too.
_CHECK_EVERY_BYTES = 1 << 20
_CRC_BYTES = 4
_ABOUT, _LOCK, _PART, _RUN = "about.json", "writer.lock", ".part", ".run"


class DamagedSpool(ValueError):  # noqa: N818 (a finding)
    """A part, or the description of a run, is not what was written."""


class SpoolWriter:
    """Appends the parts of one run. It never raises an error; a full spool refuses parts instead.

    `full` is the reason why parts are refused, "" if they are not. After one refused part all later
    ones are refused too, so that there are no gaps.
    """

    def __init__(self, spool: Path, name: str, about: Mapping[str, Any], limit_bytes: int) -> None:
        """Begin the run `name` in the folder `spool`, which may hold `limit_bytes` in total."""
        self._lock = -1
        self.full = ""
        self._spool, self._folder, self._limit = spool, spool / f"{name}{_RUN}", limit_bytes
        self._parts, self._unchecked_bytes = 0, _CHECK_EVERY_BYTES
        try:
            # the folder is locked before it is renamed, so that readers never see it without a lock
            new = self._folder.with_suffix(".new")
            new.mkdir(parents=True)
            self._lock = os.open(new / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_whole(new / _ABOUT, json.dumps(about), 0o600)
            new.rename(self._folder)
        except OSError as error:
            self.full = f"{self._folder} cannot be written: {error.strerror}"

    def __del__(self) -> None:
        self.close()

    def add(self, payload: bytes) -> bool:
        """Append a part; return whether it was accepted."""
        if self.full:
            return False
        data = zlib.crc32(payload).to_bytes(_CRC_BYTES, "little") + payload
        self._unchecked_bytes += len(data)
        if self._unchecked_bytes >= _CHECK_EVERY_BYTES:
            self._unchecked_bytes = 0
            if spooled_bytes(self._spool) + len(data) > self._limit:
                self.full = f"the spool has reached its limit of {self._limit} bytes"
                return False
        path = self._folder / f"{self._parts:08}{_PART}"
        try:
            write_whole(path, data, 0o600)
        except OSError as error:
            self.full = f"{self._folder} cannot be written: {error.strerror}"
            return False
        self._parts += 1
        return True

    def close(self) -> None:
        """End the run, so that readers see that nothing more will be written."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1
        self.full = self.full or "closed"


class SpooledRun:
    """The remaining parts of a run in the spool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def about(self) -> dict[str, Any] | None:
        """Return the description of the run; None if an earlier version wrote it without one.

        Raises DamagedSpool.
        """
        try:
            about: dict[str, Any] = json.loads((self.folder / _ABOUT).read_bytes())
        except OSError:
            return None
        except ValueError as error:
            raise DamagedSpool(str(error)) from error
        return about

    def is_written(self) -> bool:
        """Return whether the writer of the run is still running."""
        try:
            handle = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def parts(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield number and payload of each part, from number `first` on. Raises DamagedSpool."""
        for number in self._numbers():
            if number >= first:
                data = self._path(number).read_bytes()
                crc, payload = data[:_CRC_BYTES], data[_CRC_BYTES:]
                if zlib.crc32(payload).to_bytes(_CRC_BYTES, "little") != crc:
                    raise DamagedSpool(f"{self._path(number)} is damaged")
                yield number, payload

    def forget(self, before: int) -> None:
        """Delete the parts whose number is less than `before`."""
        for number in self._numbers():
            if number < before:
                self._path(number).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob(f"*{_PART}"))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08}{_PART}"


def spooled_runs(spool: Path) -> list[SpooledRun]:
    """Return the runs in a spool, sorted by name; empty if the spool does not exist."""
    return [SpooledRun(folder) for folder in sorted(spool.glob(f"*{_RUN}"))]


def spooled_bytes(spool: Path) -> int:
    """Return the total size of the runs in a spool in bytes."""
    total = 0
    for file in spool.glob(f"*{_RUN}/*"):
        with suppress(OSError):  # another process may just have sent and deleted it
            total += file.stat().st_size
    return total
