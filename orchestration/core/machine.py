"""This machine and this process: wall time, memory, signals, threads.

In a virtual rack in virtual time all clocks of the kernel are virtual, and waiting takes no time.
What a file's time of change is there, says this machine: its file system is the guest's.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

# A folder of this machine's, in the environment of programs that run in virtual time.
FOLDER_VARIABLE = "CLOSLOOP_WALL_CLOCK"


def is_virtual() -> bool:
    """Return whether this program's clocks are virtual."""
    return FOLDER_VARIABLE in os.environ


def now_s() -> float:
    """Return this machine's time of day, in seconds since 1970."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return _file_time_s(folder) if folder else time.time()


def monotonic_wall_s() -> float:
    """Return seconds of wall time from some moment on: for differences."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return _file_time_s(folder) if folder else time.monotonic()


def _file_time_s(folder: str) -> float:
    """Return when a file that is written now was changed, by the clock outside."""
    try:
        handle, path = tempfile.mkstemp(prefix=".clock-", dir=folder)
    except OSError:  # the rack is being removed
        return time.time()
    try:
        os.write(handle, b".")
        os.close(handle)
        # the open file would have the guest's time
        return os.stat(path).st_mtime
    finally:
        os.unlink(path)


@dataclass(frozen=True)
class ElapsedTime:
    """How long something took: in s by the program's own clock, which may be virtual, and of wall.

    Where the clock is not virtual both are the same.
    """

    own_s: float
    wall_s: float
    virtual: bool = False

    def in_words(self, digits: int = 0) -> str:
        """Return `37 s`, or in virtual time `0.4 s of virtual time in 37 s`."""
        if not self.virtual:
            return f"{self.wall_s:.{digits}f} s"
        return f"{self.own_s:.{max(1, digits)}f} s of virtual time in {self.wall_s:.{digits}f} s"


class Stopwatch:
    """Measures how long something takes, from when it is made."""

    def __init__(self) -> None:
        self._own_s, self._wall_s = time.monotonic(), monotonic_wall_s()

    def took(self) -> ElapsedTime:
        """Return how long it has been."""
        own_s, wall_s = time.monotonic() - self._own_s, monotonic_wall_s() - self._wall_s
        return ElapsedTime(own_s, max(0.0, wall_s), is_virtual())


def available_memory_bytes() -> int:
    """Return what can be used without swapping: MemAvailable of `/proc/meminfo` (proc(5))."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no MemAvailable in /proc/meminfo")


@contextmanager
def deferred_signals(kill: Callable[[], None]) -> Iterator[list[signal.Signals]]:
    """Record SIGINT and SIGTERM instead of ending; a second signal calls `kill`."""
    seen: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(signal.Signals(number))
        if len(seen) > 1:
            kill()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def limit_numpy_threads() -> None:
    """Keep NumPy single-threaded: trials run in parallel, one per core. Call it before NumPy."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
