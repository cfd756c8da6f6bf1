"""System calls, programs and messages of guests and of a virtual rack's devices.

Messages from a guest to the host are JSON lines on the guest's console, after `MESSAGE_PREFIX`.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_MNT_DETACH = 2
# CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET
_OWN = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
# CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWCGROUP
_OWN_MOUNTS, _OWN_NETWORK, _OWN_CGROUP = 0x00020000, 0x40000000, 0x02000000
_SYS_PIVOT_ROOT = 155  # on x86-64, the architecture of user-mode Linux
_REBOOT_POWER_OFF = 0x4321FEDC

# The state of RED's random stream in a guest: see `kernel.patches`.
RED_STREAM = Path("/sys/module/sch_red/parameters/stream")

MESSAGE_PREFIX = "@closloop "

_libc = ctypes.CDLL(None, use_errno=True)


def send_message(**message: Any) -> None:
    """Send the host a message (in the guest)."""
    os.write(1, f"{MESSAGE_PREFIX}{json.dumps(message)}\n".encode())


def run(argv: Sequence[str], text: str = "") -> str:
    """Run a program to its end and return its output.

    Raises RuntimeError with its error output if it fails.
    """
    import subprocess  # most guests run none

    done = subprocess.run(
        argv, input=text, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        output = (done.stderr or done.stdout).strip()[-500:]
        raise RuntimeError(f"{' '.join(argv)}: {output}")
    return done.stdout


def run_batch(program: str, lines: Iterable[str]) -> None:
    """Run `lines` as a batch of iproute2's `ip` or `tc`, if there are any."""
    if text := "".join(f"{line}\n" for line in lines):
        run([program, "-batch", "-"], text)


def _check(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system."""
    words = (source.encode(), target.encode(), kind.encode() or None)
    _check(_libc.mount(*words, flags, options.encode() or None), f"mount {source} on {target}")


def mount_kernel_files(root: str = "") -> None:
    """Mount the kernel's own file systems below `root`."""
    mount("proc", f"{root}/proc", "proc")
    mount("sysfs", f"{root}/sys", "sysfs")


def bind(source: str, target: str) -> None:
    """Make the file or folder `source` appear as `target`."""
    mount(source, target, flags=MS_BIND)


def unshare(flags: int = _OWN) -> None:
    """Enter new mount, UTS, IPC and network namespaces; children get a new PID namespace too."""
    _check(_libc.unshare(flags), "unshare")


def unshare_mounts() -> None:
    """Enter a new mount namespace, whose mounts nobody else sees."""
    unshare(_OWN_MOUNTS)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def enter_namespaces(pid: int, names: Iterable[str]) -> None:
    """Enter namespaces of a process, by their names below /proc/PID/ns."""
    fds = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in names]
    for fd in fds:
        _check(_libc.setns(fd, 0), "setns")
        os.close(fd)


def unshare_network() -> None:
    """Enter a new network namespace."""
    unshare(_OWN_NETWORK)


def enter_cgroup(name: str) -> None:
    """Make this process the first in a control group, which it then sees as the root group."""
    folder = "/run/cgroup"
    os.makedirs(folder, exist_ok=True)
    mount("none", folder, "cgroup2")
    group = os.path.join(folder, name)
    os.makedirs(group, exist_ok=True)
    with open(os.path.join(group, "cgroup.procs"), "w") as file:
        file.write("0")
    unshare(_OWN_CGROUP)
    unmount(folder)


def enter_root(root: str) -> None:
    """Make the mount `root` the root of this mount namespace, and unmount the old root."""
    os.chdir(root)
    _check(_libc.syscall(_SYS_PIVOT_ROOT, b".", b"."), f"pivot_root to {root}")
    _check(_libc.umount2(b".", _MNT_DETACH), "unmount the old root")
    os.chdir("/")


def unmount(target: str) -> None:
    """Unmount `target` as soon as nothing uses it."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"unmount {target}")


def power_off() -> None:
    """Power the guest off."""
    _libc.sync()
    _libc.reboot(_REBOOT_POWER_OFF)
