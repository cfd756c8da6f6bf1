"""What a device on the machine's own kernel may not touch, although its users are root.

Its namespaces have interfaces, routes, mounts, processes and the settings below /proc/sys/net of
their own. Everything else that the kernel shows is the machine's, and read-only.
"""

from __future__ import annotations

import os
from pathlib import Path

from orchestration.backends.emulated.system import MS_BIND, bind, mount

_MS_RDONLY, _MS_REMOUNT = 0x1, 0x20
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def shield_machine(root: Path) -> None:
    """Make the machine's settings read-only below a device's root, and give it devices of its own.

    /proc and /sys are mounted there. /dev gets folders for `pts` and `shm`.
    """
    for name in ("proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus", "proc/fs"):
        place = root / name
        if place.exists():
            bind(str(place), str(place))
            _remount(place, _MS_RDONLY)
    _remount(root / "sys", _MS_RDONLY)
    # it inherits read-only
    bind(f"{root}/proc/sys/net", f"{root}/proc/sys/net")
    _remount(root / "proc/sys/net", 0)
    dev = root / "dev"
    mount("tmpfs", str(dev), "tmpfs", options="size=1M,mode=755")
    for name in _NODES:
        (dev / name).touch()
        bind(f"/dev/{name}", str(dev / name))
    for name, target in _LINKS.items():
        os.symlink(target, dev / name)
    for name in ("pts", "shm"):
        (dev / name).mkdir()


def _remount(place: Path, flags: int) -> None:
    """Change the flags of one mount, and of no other one of the same file system."""
    mount("none", str(place), flags=_MS_REMOUNT | MS_BIND | flags)
