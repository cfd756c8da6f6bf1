"""A spool on disk: records of running trials, appended by one process and read by another.

Each run of a trial has a folder of segments, `000000.seg` and so on. A segment is deleted when all
of it has arrived. It is a sequence of frames: length, CRC-32 and kind, then the payload. The first
frame describes the run. Appending writes to the page cache: it waits for no network, and the data
survives the end of the process, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEGMENT_BYTES = 4 << 20
# The spool's whole size is checked again after so many bytes: other trials write to it too.
_LOOK_EVERY_BYTES = 1 << 20
_HEAD = struct.Struct("<IIB")
_ABOUT = 0
_SUFFIX, _LOCK, _RUN_SUFFIX = ".seg", "writer.lock", ".run"


class DamagedSpool(ValueError):  # noqa: N818 (a finding)
    """A segment's frames are not what was written."""


@dataclass(frozen=True, order=True)
class Place:
    """A position in a run's spool: the number of a segment and the byte in it."""

    segment: int = 0
    byte: int = 0


class SpoolWriter:
    """Appends the frames of one run. It never raises; a full spool refuses frames instead.

    `full` is the reason why frames were refused, or "" if none was. After one refused frame all
    others are refused too, so that the spool has no gaps.
    """

    def __init__(self, spool: Path, name: str, about: Mapping[str, Any], limit_bytes: int) -> None:
        """Begin the run `name` in the folder `spool`, which may hold `limit_bytes` in total."""
        self._handle = self._lock = -1
        self.full = ""
        self._spool, self._folder, self._limit = spool, spool / f"{name}{_RUN_SUFFIX}", limit_bytes
        self._about = frame(_ABOUT, json.dumps(about).encode())
        self._segment = self._size = 0
        self._unseen = _LOOK_EVERY_BYTES
        try:
            # Rename after locking, so that a reader never sees it without its lock.
            new = self._folder.with_suffix(".new")
            new.mkdir(parents=True)
            self._lock = os.open(new / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self._folder)
        except OSError as error:
            self.full = f"{self._folder} cannot be written: {error.strerror}"

    def __del__(self) -> None:
        self.close()

    def add(self, kind: int, payload: bytes) -> bool:
        """Append a frame; return whether it was accepted."""
        if self.full:
            return False
        data = frame(kind, payload)
        if self._unseen + len(data) >= _LOOK_EVERY_BYTES:
            self._unseen = 0
            if spooled_bytes(self._spool) + len(data) > self._limit:
                self.full = f"the spool has its {self._limit} bytes"
                return False
        try:
            if self._handle < 0 or self._size >= SEGMENT_BYTES:
                self._next_segment()
            written = os.write(self._handle, data)
        except OSError as error:
            self.full = f"{self._folder} cannot be written: {error.strerror}"
            return False
        if written != len(data):  # the disk became full within the frame
            self.full = f"{self._folder}: no space left"
            return False
        self._size += written
        self._unseen += written
        return True

    def close(self) -> None:
        """End the run: readers see that nothing more will be written."""
        for handle in (self._handle, self._lock):
            if handle >= 0:
                os.close(handle)
        self._handle = self._lock = -1
        self.full = self.full or "closed"

    def _next_segment(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._segment += 1
        path = self._folder / f"{self._segment:06}{_SUFFIX}"
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.write(self._handle, self._about)


class SpooledRun:
    """The remaining records of a run in the spool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        """The name that its writer gave it."""
        return self.folder.name.removesuffix(_RUN_SUFFIX)

    def about(self) -> dict[str, Any] | None:
        """Return the description of the run, None if nothing is written yet.

        Raises DamagedSpool.
        """
        for segment in self._segments():
            for kind, payload, _ in _frames(self._path(segment), 0):
                if kind != _ABOUT:
                    raise DamagedSpool(f"{self._path(segment)} does not begin as a segment does")
                try:
                    found: dict[str, Any] = json.loads(payload)
                except ValueError as error:
                    raise DamagedSpool(str(error)) from error
                return found
        return None

    def is_written(self) -> bool:
        """Return whether its writer still runs."""
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

    def frames(self, after: Place) -> Iterator[tuple[int, bytes, Place]]:
        """Yield (kind, payload, place after it) of the frames from the place `after` on.

        Stops at a frame that is not complete yet. Raises DamagedSpool.
        """
        for segment in self._segments():
            if segment < after.segment:
                continue
            start = after.byte if segment == after.segment else 0
            for kind, payload, end in _frames(self._path(segment), start):
                if kind != _ABOUT:
                    yield kind, payload, Place(segment, end)

    def forget(self, before: Place) -> None:
        """Delete the segments that are entirely before a place."""
        for segment in self._segments():
            if segment < before.segment:
                self._path(segment).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _segments(self) -> list[int]:
        try:
            return sorted(int(path.stem) for path in self.folder.glob(f"*{_SUFFIX}"))
        except ValueError as error:
            raise DamagedSpool(f"{self.folder} holds foreign files") from error

    def _path(self, segment: int) -> Path:
        return self.folder / f"{segment:06}{_SUFFIX}"


def spooled_runs(spool: Path) -> list[SpooledRun]:
    """Return the runs in a spool, sorted by name; empty if the spool does not exist."""
    return [SpooledRun(folder) for folder in sorted(spool.glob(f"*{_RUN_SUFFIX}"))]


def spooled_bytes(spool: Path) -> int:
    """Return the total size of the runs in a spool in bytes."""
    total = 0
    for run in _names(spool):
        if run.endswith(_RUN_SUFFIX):
            for file in _names(f"{spool}/{run}"):
                with suppress(OSError):  # it may just have been sent and deleted
                    total += os.stat(f"{spool}/{run}/{file}").st_size
    return total


def _names(folder: Path | str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def frame(kind: int, payload: bytes) -> bytes:
    """Return a frame's bytes."""
    return _HEAD.pack(len(payload), zlib.crc32(payload), kind) + payload


def _frames(path: Path, start: int) -> Iterator[tuple[int, bytes, int]]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with os.fdopen(handle, "rb") as file:
        file.seek(start)
        at = start
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, crc, kind = _HEAD.unpack(head)
            payload = file.read(length) if length <= SEGMENT_BYTES else b""
            if len(payload) < length:
                if length > SEGMENT_BYTES:
                    raise DamagedSpool(f"{path} is damaged at byte {at}")
                return
            if zlib.crc32(payload) != crc:
                raise DamagedSpool(f"{path} is damaged at byte {at}")
            at += _HEAD.size + length
            yield kind, payload, at
