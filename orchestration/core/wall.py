"""Wall time, which goes on where the clocks of programs are virtual.

In a virtual rack in virtual time all clocks of the kernel are virtual, and waiting takes no time.
What a file's time of change is there, says this machine: its file system is the guest's.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass

# A folder of this machine's, in the environment of programs that run in virtual time.
FOLDER_VARIABLE = "CLOSLOOP_WALL_CLOCK"


def is_virtual() -> bool:
    """Return whether this program's clocks are virtual."""
    return FOLDER_VARIABLE in os.environ


def now_s() -> float:
    """Return this machine's time of day, in seconds since 1970."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return _file_time_s(folder) if folder else time.time()


def steady_s() -> float:
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
class Took:
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
        self._own_s, self._wall_s = time.monotonic(), steady_s()

    def took(self) -> Took:
        """Return how long it has been."""
        own_s, wall_s = time.monotonic() - self._own_s, steady_s() - self._wall_s
        return Took(own_s, max(0.0, wall_s), is_virtual())
