"""Moves the agent out of the management VRF in which an sshd may run (`ip vrf exec mgmt sshd`).

A VRF is a separate routing table, here the one of the management port. `ip vrf exec` puts a process
into the control group `PATH/vrf/NAME`, and the kernel binds every socket of that group to the VRF:
no socket of the agent or of its senders would reach the fabric. Like `ip vrf exec default`, the
agent moves to `PATH/vrf`, which is bound to no VRF (iproute2, ip/ipvrf.c).
"""

from __future__ import annotations

import os

from ..small_files import text


def current(root: str = "/") -> str:
    """Return the VRF that this process's sockets are bound to, "" if there is none."""
    return _group(root)[1]


def leave(root: str = "/") -> None:
    """Move this process out of its VRF, if it has the right to."""
    group, name = _group(root)
    mount = cgroup2(root)
    if name and mount:
        try:
            path = os.path.join(root, f"{mount}{group}/vrf/cgroup.procs".lstrip("/"))
            with open(path, "w") as file:
                file.write(str(os.getpid()))
        except OSError:
            pass  # `current` still names the VRF, and the device's survey reports it


def _group(root: str) -> tuple[str, str]:
    """Return the path of the control group above that of a VRF, and the VRF's name."""
    for line in text(os.path.join(root, "proc/self/cgroup")).splitlines():
        number, _, path = line.partition("::")
        if number == "0":
            group, has_vrf, name = path.rpartition("/vrf/")
            return (group, name) if has_vrf else (path, "")
    return "", ""


def cgroup2(root: str = "/") -> str:
    """Return where control groups of version 2 are mounted, "" if they are not mounted."""
    mounts = text(os.path.join(root, "proc/self/mounts")).splitlines()
    fields = (line.split(" ") for line in mounts)
    return next((words[1] for words in fields if len(words) > 2 and words[2] == "cgroup2"), "")
