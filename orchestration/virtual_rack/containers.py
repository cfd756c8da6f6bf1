"""Devices as containers of an OCI runtime, in a rack in real time.

The runtime is called in the rack's own PID and mount namespaces. So a container's processes,
mounts and interfaces, and what the runtime remembers of it, go with the rack, whatever ends it.
Control groups alone lie outside (see `groups`).

The first process of a container does nothing; the device's process (`device`) comes in from
outside, as `runc exec` would, and starts the programs. That takes no second interpreter a device.

That this machine runs such containers is found by trying:

    python -m orchestration.virtual_rack.containers TREE     one that ends at once
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestration.backends.emulated.machine import own_namespaces_argv
from orchestration.backends.emulated.system import (
    MS_BIND,
    MS_REC,
    enter_namespaces,
    mount,
    mount_kernel_files,
    unshare_mounts,
)
from orchestration.core.errors import NotReadyError
from orchestration.virtual_rack import groups
from orchestration.virtual_rack.folder import python_path, which
from orchestration.virtual_rack.isolation import (
    DISK_BYTES,
    FileTree,
    Keys,
    device_place,
    make_place,
)
from orchestration.virtual_rack.layout import Layout

# In order of preference. Each takes the same words.
RUNTIMES = ("runc", "crun")
GROUP = "CLOSLOOP_RACK_GROUP"
RUNTIME = "CLOSLOOP_RACK_RUNTIME"
# What the runtime keeps, in the rack's own /run.
_STATE, _BUNDLES = "/run/runtime", Path("/run/bundles")
# The OCI's names of namespaces, and the kernel's. That of mounts is entered last.
_NAMESPACES = {
    "pid": "pid",
    "network": "net",
    "ipc": "ipc",
    "uts": "uts",
    "cgroup": "cgroup",
    "mount": "mnt",
}
_INIT = ("/usr/bin/catatonit", "-P")
# What root may do on a device. Not: modules, clocks, raw devices, nodes, booting.
_CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "FSETID": 4, "KILL": 5,
    "SETGID": 6, "SETUID": 7, "SETPCAP": 8, "NET_BIND_SERVICE": 10, "NET_BROADCAST": 11,
    "NET_ADMIN": 12, "NET_RAW": 13, "IPC_LOCK": 14, "SYS_CHROOT": 18,
    "SYS_ADMIN": 21, "SYS_NICE": 23, "SYS_RESOURCE": 24, "AUDIT_WRITE": 29, "PERFMON": 38,
    "BPF": 39,
}  # fmt: skip
_PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 24, 36
_READ_ONLY = ("/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_MASKED = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi", "/sys/firmware")
_libc = ctypes.CDLL(None, use_errno=True)


def require_runtime() -> str:
    """Return the runtime's path. Raises NotReadyError if there is none that works here."""
    found = [name for name in RUNTIMES if which(name)]
    if not found:
        raise NotReadyError(
            f"there is no runtime for containers ({', '.join(RUNTIMES)})",
            "apt-get install runc; or have plain namespaces: --plain",
        )
    if found == ["crun"] and groups.unified() not in (None, groups.ROOT):
        raise NotReadyError(
            "crun refuses this machine's control groups, which are of both versions",
            "apt-get install runc; or boot with systemd.unified_cgroup_hierarchy=1; "
            "or have plain namespaces: --plain",
        )
    return str(which(found[0]))


def require_containers(runtime: str, tree: Path) -> None:
    """Try a container of an image, in namespaces that are gone afterwards. Raises NotReadyError."""
    group = groups.own_group()
    own = own_namespaces_argv(Path(sys.executable))
    argv = [*own, "-P", "-m", "orchestration.virtual_rack.containers", str(tree)]
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, "PYTHONPATH": python_path(), GROUP: group, RUNTIME: runtime},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        groups.remove(group)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NotReadyError(
            f"{Path(runtime).name} does not start containers here: {said}",
            "in a container that takes --privileged; or have plain namespaces: --plain",
        )


def shortcomings() -> list[str]:
    """Return sentences about what containers do not have on this machine."""
    if groups.unified():
        return []
    return [
        "control groups of version 2 are mounted nowhere: policies as pacing cannot be deployed "
        "(mount -t cgroup2 none /sys/fs/cgroup/unified)"
    ]


def mount_with_groups() -> None:
    """Mount the kernel's file systems anew, with the machine's control groups: for the runtime."""
    held = os.open(groups.ROOT, os.O_PATH | os.O_DIRECTORY)
    mount_kernel_files()
    mount(f"/proc/self/fd/{held}", str(groups.ROOT), flags=MS_BIND | MS_REC)
    os.close(held)


def enter_container(layout: Layout, device: str, keys: Keys) -> tuple[int, int]:
    """Start a device's container and move this process into it; its children are inside.

    Returns the container's first process, and a descriptor of the folder with the files that
    differ from the image's.
    """
    unshare_mounts()
    place = device_place(layout, device, keys, Path(layout.image))
    pid = run_container(place, device)
    differences = os.open(place.upper, os.O_PATH | os.O_DIRECTORY)
    groups.enter(f"{os.environ[GROUP]}/{device}")
    enter_namespaces(pid, _NAMESPACES.values())
    return pid, differences


def adopt_orphans() -> None:
    """Let this process become the parent of descendants whose own parent has ended."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def await_orphans() -> None:
    """Wait until all children of this process have ended.

    The first process of a PID namespace ends after all others in it.
    """
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def settle(differences: int) -> int:
    """Be the parent of orphans, and start programs with a container's capabilities only.

    Returns `differences`, as `roots.enter_device_root` does.
    """
    adopt_orphans()
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for number in {*range(last + 1)} - {*_CAPABILITIES.values()}:
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    return differences


def run_container(place: FileTree, device: str, init: Sequence[str] = _INIT) -> int:
    """Start a container; return its first process. Raises RuntimeError with the runtime's words."""
    group = f"{os.environ[GROUP]}/{device}"
    unified = groups.unified() is not None
    settings = config(place, device, group, init=init, unified=unified, may=_own_capabilities())
    bundle = _BUNDLES / device  # outside of `place`, where the rack's controller finds it
    bundle.mkdir(parents=True)
    (bundle / "config.json").write_text(json.dumps(settings))
    said, number = bundle / "said", bundle / "pid"
    argv = [os.environ[RUNTIME], "--root", _STATE, "run", "--detach"]
    argv += ["--bundle", str(bundle), "--pid-file", str(number), device]
    with said.open("wb") as out:  # a pipe would be open for as long as the container runs
        code = subprocess.call(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    if code:
        words = said.read_text(errors="replace").strip().splitlines() or [f"exit code {code}"]
        raise RuntimeError(f"{Path(argv[0]).name}: {words[-1]}")
    return int(number.read_text())


def config(
    place: FileTree, device: str, group: str, *, init: Sequence[str], unified: bool, may: int
) -> dict[str, Any]:
    """Return a container's settings in the form of the OCI.

    No limits are asked for, and no capability that the rack does not have, so none can be refused.
    """
    capabilities = [f"CAP_{name}" for name, number in _CAPABILITIES.items() if may >> number & 1]
    kinds = ("bounding", "effective", "permitted")
    sysctls = sorted(path.name for path in Path("/proc/sys").iterdir() if path.name != "net")
    shown = [_mount("/sys/fs/cgroup", "cgroup2", "rw")] if unified else []
    return {
        "ociVersion": "1.0.2",
        "hostname": device,
        "root": {"path": str(place.root)},
        "process": {
            "args": list(init),
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "capabilities": dict.fromkeys(kinds, capabilities),
        },
        "mounts": [
            _mount("/proc", "proc"),
            _mount("/dev", "tmpfs", "nosuid", "mode=755", "size=1m"),
            _mount("/dev/pts", "devpts", "newinstance", "mode=620", "ptmxmode=666"),
            _mount("/dev/shm", "tmpfs", f"size={DISK_BYTES}"),
            _mount("/sys", "sysfs", "ro"),
            *shown,
            *(_mount(path, "bind", "bind", "rw", source=str(there)) for path, there in place.binds),
        ],
        "annotations": {"closloop.rack": group.partition("/")[0], "closloop.device": device},
        "linux": {
            "cgroupsPath": f"/{group}",
            "namespaces": [{"type": kind} for kind in _NAMESPACES],
            "readonlyPaths": [*_READ_ONLY, *(f"/proc/sys/{name}" for name in sysctls)],
            "maskedPaths": list(_MASKED),
        },
    }


def _own_capabilities() -> int:
    """Return the capabilities of this process, a bit each: some machines keep some from root."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if "CapEff:" in line)


def _mount(where: str, kind: str, *options: str, source: str = "") -> dict[str, Any]:
    return {"destination": where, "type": kind, "source": source or kind, "options": [*options]}


def _try(tree: Path) -> None:
    mount_with_groups()
    mount("tmpfs", "/run", "tmpfs", options="mode=755")
    run_container(make_place(tree, {}), "tried", ("/usr/bin/true",))


if __name__ == "__main__":
    try:
        _try(Path(sys.argv[1]))
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))
