"""Control groups of containers: all that a rack of containers has outside of its PID namespace.

A directory of cgroup outlives its processes. So a rack's groups carry the mark of the process that
removes them, its supervisor, in their name; those of a supervisor that is gone are left over.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from orchestration.agent.safety.deadman_process import Process

PREFIX = "closloop-rack-"
ROOT = Path("/sys/fs/cgroup")
_MARK = re.compile("([0-9]+)-([0-9]+)")
# How long killed processes may take to end: where a user waits, and where a rack ends.
_EMPTY_S, _RACK_ENDS_S = 5.0, 30.0


def own_mark() -> str:
    """Return PID-START of this process, which no other process has until the next boot."""
    return "-".join(map(str, Process.of(os.getpid())))


def has_ended(mark: str) -> bool:
    """Return True if this is the mark of a process, and that does not run any more."""
    found = _MARK.fullmatch(mark)
    return found is not None and not Process(int(found[1]), found[2]).lives


def own_group() -> str:
    """Return the name of the control groups that this process is to remove."""
    return f"{PREFIX}{own_mark()}"


def hierarchies() -> list[Path]:
    """Return where control groups are mounted: one place, or one a controller (version 1)."""
    if (ROOT / "cgroup.procs").exists():
        return [ROOT]
    return sorted(path.parent for path in ROOT.glob("*/cgroup.procs"))


def unified() -> Path | None:
    """Return where control groups of version 2 are mounted."""
    places = (place for place in hierarchies() if (place / "cgroup.controllers").exists())
    return next(places, None)


def enter(group: str) -> None:
    """Move this process into a control group, in each hierarchy that has it."""
    for place in hierarchies():
        procs = place / group / "cgroup.procs"
        if procs.exists():
            procs.write_text("0")


def watch_over(name: str) -> None:
    """Have a rack's control groups removed once this process has ended, by SIGKILL too.

    A process of its own does it, which is nobody's child. It ends with this process.
    """
    ended, held = os.pipe()  # no program inherits it
    between = os.fork()
    if between:
        os.close(ended)
        os.waitpid(between, 0)
        return
    os.setsid()
    if os.fork() == 0:
        os.close(held)
        os.read(ended, 1)
        with suppress(OSError):  # `leftovers` finds it
            remove(name)
    os._exit(0)


def leftovers() -> list[Path]:
    """Return the control groups of racks whose supervisor is gone."""
    found = (path for place in hierarchies() for path in sorted(place.glob(f"{PREFIX}*")))
    return [path for path in found if has_ended(path.name.removeprefix(PREFIX))]


def remove(name: str) -> None:
    """Remove a rack's control groups. Raises OSError if processes stay in them."""
    for place in hierarchies():
        remove_tree(place / name, _RACK_ENDS_S)


def remove_tree(group: Path, within_s: float = _EMPTY_S) -> None:
    """Remove a control group with all below it; its processes have ended, or are about to."""
    deadline = time.monotonic() + within_s
    for folder, _, _ in os.walk(group, topdown=False):
        while True:
            try:
                with suppress(FileNotFoundError):
                    Path(folder).rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
