"""System calls that Python 3.11 has no words for: mounts and namespaces."""

from __future__ import annotations

import ctypes
import os

MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
_SYS_PIVOT_ROOT = 155  # x86-64, the machine that user-mode Linux runs on

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None
    )
    _check(result, f"mount {source} on {target}")


def bind(source: str, target: str, *, whole_tree: bool = False) -> None:
    """Make the file or folder `source` appear as `target`."""
    mount(source, target, flags=MS_BIND | (MS_REC if whole_tree else 0))


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags` for new ones."""
    _check(_libc.unshare(flags), "unshare")


def enter_root(root: str) -> None:
    """Make `root`, a mount of its own, the root of this mount namespace and forget the old one."""
    os.chdir(root)
    _check(_libc.syscall(_SYS_PIVOT_ROOT, b".", b"."), f"pivot_root to {root}")
    _check(_libc.umount2(b".", _MNT_DETACH), "unmount the old root")
    os.chdir("/")


def unmount(target: str) -> None:
    """Take a mount away, as soon as nothing uses it."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"unmount {target}")


def power_off() -> None:
    """End the guest."""
    linux_reboot_cmd_power_off = 0x4321FEDC
    _libc.sync()
    _libc.reboot(linux_reboot_cmd_power_off)
