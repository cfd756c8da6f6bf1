"""A machine of a test file's own: what other tests make and remove meanwhile is not on it."""

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from orchestration.backends.emulated.system import unmount, unshare_mounts, unshare_network

CLONE_FS = 0x200
GROUPS = "/sys/fs/cgroup"
libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace):
    # a thread that a test has left shares this one's working folder, and setns(2) refuses that
    if libc.unshare(CLONE_FS) or libc.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "setns")


@pytest.fixture(scope="module")
def own_machine():
    """Give this process network and mount namespaces of its own, with an empty /run.

    So interfaces, routes, mounts, leases, and containers are those of one file's tests,
    whatever runs beside them. Control groups and BPF objects stay those of the whole machine.
    """
    place = Path.cwd()
    former = [os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY) for kind in ("net", "mnt")]
    unshare_network()
    try:
        unshare_mounts()
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mounted in reversed(mounts):
            if mounted.startswith("/run/"):
                unmount(mounted)  # it may be a namespace, which would not end with its owner
        for line in (
            "mount -t tmpfs -o mode=755 tmpfs /run",
            "ip link set lo up",
            # sysfs has the interfaces of the namespace in which it was mounted
            "mkdir /run/groups",
            f"mount --rbind {GROUPS} /run/groups",
            "umount --recursive /sys",
            "mount -t sysfs sysfs /sys",
            f"mount --move /run/groups {GROUPS}",
            "rmdir /run/groups",
        ):
            subprocess.run(line.split(), check=True)
        yield
    finally:
        for namespace in former:
            enter(namespace)
            os.close(namespace)
        os.chdir(place)  # entering a mount namespace leads to its root
