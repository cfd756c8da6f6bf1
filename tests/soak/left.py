"""Where nothing else runs: a soak's own processes, /tmp and /dev/shm."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

_INSIDE = "CLOSLOOP_SOAK_IS_ALONE"


def be_alone(program: Path) -> None:
    """Start this program again in namespaces of its own for processes and mounts.

    What is seen there afterwards, it has left. Raises RuntimeError if that is not allowed here.
    """
    if os.environ.get(_INSIDE):
        return
    unshare = shutil.which("unshare")
    if unshare is None:
        raise RuntimeError("there is no unshare (Debian: util-linux)")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    words = [
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--propagation",
        "private",
    ]
    os.environ[_INSIDE] = "1"
    os.execv(unshare, [unshare, *user, *words, sys.executable, str(program), *sys.argv[1:]])


def processes() -> set[int]:
    """Return the processes that run here; those that have ended and were not waited for do not."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if entry.read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.add(int(entry.parent.name))
    return found


def commands_of(pid: int) -> list[str]:
    """Return a process's command line."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return [""]
