"""This machine and this process: wall time, memory, signals, threads.

In a virtual rack that runs in virtual time, all clocks of the kernel are virtual, and waiting takes
no wall time. Wall time is then read from a file's modification time: the guest uses this machine's
file system, and this machine sets that time when the file is written.
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

# The environment variable, set for programs that run in virtual time, that names a folder of this
# machine. Files in it get their modification times from this machine's clock.
FOLDER_VARIABLE = "CLOSLOOP_WALL_CLOCK"


def is_virtual() -> bool:
    """Return whether this program's clocks are virtual."""
    return FOLDER_VARIABLE in os.environ


def now_s() -> float:
    """Return this machine's time of day, in seconds since 1970."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return _file_time_s(folder) if folder else time.time()


def monotonic_wall_s() -> float:
    """Return wall time in seconds since an arbitrary moment; only differences have a meaning."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return _file_time_s(folder) if folder else time.monotonic()


def _file_time_s(folder: str) -> float:
    """Write a file into `folder`, and return its modification time in seconds since 1970."""
    try:
        handle, path = tempfile.mkstemp(prefix=".clock-", dir=folder)
    except OSError:  # the rack is being removed
        return time.time()
    try:
        os.write(handle, b".")
        os.close(handle)
        # the file has to be closed: while it is open, its time is the guest's
        return os.stat(path).st_mtime
    finally:
        os.unlink(path)


@dataclass(frozen=True)
class ElapsedTime:
    """How long something took, in seconds.

    `own_s` is by the program's own clock, which may be virtual, and `wall_s` is wall time. The two
    are the same if the clock is not virtual.
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
    """Measures how long something takes, from the moment that the stopwatch is created."""

    def __init__(self) -> None:
        self._own_s, self._wall_s = time.monotonic(), monotonic_wall_s()

    def took(self) -> ElapsedTime:
        """Return the time since the stopwatch was created."""
        own_s, wall_s = time.monotonic() - self._own_s, monotonic_wall_s() - self._wall_s
        return ElapsedTime(own_s, max(0.0, wall_s), is_virtual())


def available_memory_bytes() -> int:
    """Return how much memory can be used without swapping (MemAvailable in proc(5))."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no MemAvailable in /proc/meminfo")


@contextmanager
def deferred_signals(kill: Callable[[], None]) -> Iterator[list[signal.Signals]]:
    """Yield a list that SIGINT and SIGTERM are appended to, instead of ending the process.

    From the second signal on, each also calls `kill`.
    """
    received: list[signal.Signals] = []

    def record(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        if len(received) > 1:
            kill()

    former = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Within the context, SIGTERM raises KeyboardInterrupt, as SIGINT does."""
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def limit_numpy_threads() -> None:
    """Make NumPy use one thread, since trials run in parallel, one per core.

    Call this before NumPy is imported.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
