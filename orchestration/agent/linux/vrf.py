"""Leave the management VRF in which an sshd may run (`ip vrf exec mgmt sshd`, `ssh@mgmt`).

The kernel binds every socket of a process in such a control group, `PATH/vrf/NAME`, to the VRF, so
that nothing that the agent or its senders open would reach the fabric. Like `ip vrf exec default`,
the agent moves to PATH/vrf, which is bound to nothing (iproute2, ip/ipvrf.c).
"""

from __future__ import annotations

import os

from ..small_files import text


def current(root: str = "/") -> str:
    """Return the VRF that this process's sockets are bound to, "" if there is none."""
    return _group(root)[1]


def leave(root: str = "/") -> None:
    """Move this process out of its VRF, if it may."""
    group, name = _group(root)
    mount = cgroup2(root)
    if name and mount:
        try:
            path = os.path.join(root, f"{mount}{group}/vrf/cgroup.procs".lstrip("/"))
            with open(path, "w") as file:
                file.write(str(os.getpid()))
        except OSError:
            pass  # `current` still names it, and the survey says so


def _group(root: str) -> tuple[str, str]:
    """Return the control group above a VRF's, and the VRF."""
    for line in text(os.path.join(root, "proc/self/cgroup")).splitlines():
        number, _, path = line.partition("::")
        if number == "0":
            group, found, name = path.rpartition("/vrf/")
            return (group, name) if found else (path, "")
    return "", ""


def cgroup2(root: str = "/") -> str:
    """Return where control groups of version 2 are mounted, "" for nowhere."""
    mounts = text(os.path.join(root, "proc/self/mounts")).splitlines()
    fields = (line.split(" ") for line in mounts)
    return next((words[1] for words in fields if len(words) > 2 and words[2] == "cgroup2"), "")
