"""Control groups of containers: all that a rack of containers has outside of its PID namespace.

A control group outlives its processes. So the names of a rack's groups contain a mark of the
process that has to remove them, which is the rack's supervisor. Groups whose supervisor has ended
are orphaned.
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
# How long killed processes may take to end: while a user waits, and when a rack ends.
_EMPTY_S, _RACK_ENDS_S = 5.0, 30.0


def own_mark() -> str:
    """Return the mark of this process, PID-START. No other process has it until the next boot."""
    return "-".join(map(str, Process.of(os.getpid())))


def has_ended(mark: str) -> bool:
    """Return whether this is the mark of a process that does not run any more."""
    found = _MARK.fullmatch(mark)
    return found is not None and not Process(int(found[1]), found[2]).lives


def own_group() -> str:
    """Return the name of the control groups that this process has to remove."""
    return f"{PREFIX}{own_mark()}"


def hierarchies() -> list[Path]:
    """Return where control groups are mounted: one folder, or with version 1 one per controller."""
    if (ROOT / "cgroup.procs").exists():
        return [ROOT]
    return sorted(path.parent for path in ROOT.glob("*/cgroup.procs"))


def unified() -> Path | None:
    """Return where control groups of version 2 are mounted; None if they are not."""
    matches = (
        hierarchy for hierarchy in hierarchies() if (hierarchy / "cgroup.controllers").exists()
    )
    return next(matches, None)


def enter(group: str) -> None:
    """Move this process into a control group, in each hierarchy that has the group."""
    for hierarchy in hierarchies():
        procs = hierarchy / group / "cgroup.procs"
        if procs.exists():
            procs.write_text("0")


def remove_after_exit(name: str) -> None:
    """Remove a rack's control groups as soon as this process has ended, even by SIGKILL.

    A second process waits for that and removes them. It is not a child of this process.
    """
    ended, held = os.pipe()  # programs that this process starts do not inherit it
    intermediate = os.fork()
    if intermediate:
        os.close(ended)
        os.waitpid(intermediate, 0)
        return
    os.setsid()
    if os.fork() == 0:
        os.close(held)
        os.read(ended, 1)
        with suppress(OSError):  # `orphaned_groups` finds groups that stay
            remove(name)
    os._exit(0)


def orphaned_groups() -> list[Path]:
    """Return the control groups of racks whose supervisor has ended."""
    found = (path for hierarchy in hierarchies() for path in sorted(hierarchy.glob(f"{PREFIX}*")))
    return [path for path in found if has_ended(path.name.removeprefix(PREFIX))]


def remove(name: str) -> None:
    """Remove a rack's control groups. Raises OSError if processes stay in them."""
    for hierarchy in hierarchies():
        remove_tree(hierarchy / name, _RACK_ENDS_S)


def remove_tree(group: Path, within_s: float = _EMPTY_S) -> None:
    """Remove a control group and all groups below it, whose processes have ended or are ending.

    Raises OSError if processes are in it for longer than `within_s`.
    """
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
