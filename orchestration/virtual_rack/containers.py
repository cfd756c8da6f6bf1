"""Devices as containers of an OCI runtime (runc or crun), in a rack in real time.

The runtime is called in the rack's own PID and mount namespaces. So a container's processes, mounts
and interfaces, and the runtime's own records of it, disappear with the rack, whatever ends it. Only
control groups lie outside (see `control_groups`).

The first process of a container does nothing. The device's process (`device`) enters the container
from outside, as `runc exec` would, and starts the programs. So a device needs no Python interpreter
in its container.

Whether this machine can run such containers is found out by starting one that ends at once:

    python -m orchestration.virtual_rack.containers TREE
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

from orchestration.backends.emulated.host_kernel import own_namespaces_argv
from orchestration.backends.emulated.system import (
    MS_BIND,
    MS_REC,
    enter_namespaces,
    mount,
    mount_kernel_files,
    unshare_mounts,
)
from orchestration.core.errors import NotReadyError
from orchestration.virtual_rack import control_groups
from orchestration.virtual_rack.folder import python_path, which
from orchestration.virtual_rack.isolation import (
    DISK_BYTES,
    DeviceIdentity,
    FileTree,
    mount_device_tree,
    mount_tree,
)
from orchestration.virtual_rack.layout import Layout

# In order of preference. Both take the same command line.
RUNTIMES = ("runc", "crun")
GROUP_VARIABLE = "CLOSLOOP_RACK_GROUP"
RUNTIME_VARIABLE = "CLOSLOOP_RACK_RUNTIME"
# Where the runtime keeps its records, in the rack's own /run.
_STATE, _BUNDLES = "/run/runtime", Path("/run/bundles")
# Namespaces: the OCI's name -> the kernel's name. The mount namespace is entered last.
_NAMESPACES = {
    "pid": "pid",
    "network": "net",
    "ipc": "ipc",
    "uts": "uts",
    "cgroup": "cgroup",
    "mount": "mnt",
}
_INIT = ("/usr/bin/catatonit", "-P")
# What root may do on a device. Left out are kernel modules, clocks, raw I/O, device nodes,
# rebooting.
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
    """Return the path of the container runtime. Raises NotReadyError if none works here."""
    found = [name for name in RUNTIMES if which(name)]
    if not found:
        raise NotReadyError(
            f"there is no container runtime ({', '.join(RUNTIMES)})",
            "apt-get install runc; or use plain namespaces: --plain",
        )
    if found == ["crun"] and control_groups.unified() not in (None, control_groups.ROOT):
        raise NotReadyError(
            "crun does not support this machine's control groups: both versions are mounted",
            "apt-get install runc; or boot with systemd.unified_cgroup_hierarchy=1; "
            "or use plain namespaces: --plain",
        )
    return str(which(found[0]))


def require_containers(runtime: str, tree: Path) -> None:
    """Start one container from the image's file tree, in namespaces that then disappear.

    Raises NotReadyError if that fails.
    """
    group = control_groups.own_group()
    own = own_namespaces_argv(Path(sys.executable))
    argv = [*own, "-P", "-m", "orchestration.virtual_rack.containers", str(tree)]
    try:
        done = subprocess.run(
            argv,
            env={
                **os.environ,
                "PYTHONPATH": python_path(),
                GROUP_VARIABLE: group,
                RUNTIME_VARIABLE: runtime,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        control_groups.remove(group)
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NotReadyError(
            f"{Path(runtime).name} does not start containers here: {last_line}",
            "if this machine is a container itself, start it with --privileged; "
            "or use plain namespaces: --plain",
        )


def limitations() -> list[str]:
    """Return sentences about what does not work in containers on this machine."""
    if control_groups.unified():
        return []
    return [
        "control groups of version 2 are not mounted: policies cannot be deployed as pacing "
        "(mount -t cgroup2 none /sys/fs/cgroup/unified)"
    ]


def mount_with_control_groups() -> None:
    """Mount the kernel's file systems anew, but keep the machine's control groups."""
    held = os.open(control_groups.ROOT, os.O_PATH | os.O_DIRECTORY)
    mount_kernel_files()
    mount(f"/proc/self/fd/{held}", str(control_groups.ROOT), flags=MS_BIND | MS_REC)
    os.close(held)


def enter_container(layout: Layout, device: str, identity: DeviceIdentity) -> tuple[int, int]:
    """Start a device's container, and move this process into it: its children are inside.

    Returns the process id of the container's first process, and a descriptor of the folder of the
    files that differ from the image's.
    """
    unshare_mounts()
    tree = mount_device_tree(layout, device, identity, Path(layout.image))
    pid = run_container(tree, device)
    differences = os.open(tree.upper, os.O_PATH | os.O_DIRECTORY)
    control_groups.enter(f"{os.environ[GROUP_VARIABLE]}/{device}")
    enter_namespaces(pid, _NAMESPACES.values())
    return pid, differences


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends (a child subreaper)."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def await_orphans() -> None:
    """Wait until all children of this process have ended.

    When the first process of a PID namespace has ended, so have all others in it.
    """
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def restrict_capabilities(differences: int) -> int:
    """Drop all capabilities that a container does not have, and adopt orphans.

    Returns `differences`, so that it can be called in place of `isolation.enter_device_root`.
    """
    adopt_orphans()
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for number in {*range(last + 1)} - {*_CAPABILITIES.values()}:
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    return differences


def run_container(tree: FileTree, device: str, init: Sequence[str] = _INIT) -> int:
    """Start a container; return the process id of its first process.

    Raises RuntimeError with the runtime's message.
    """
    group = f"{os.environ[GROUP_VARIABLE]}/{device}"
    unified = control_groups.unified() is not None
    settings = oci_config(
        tree, device, group, init=init, unified=unified, held_capabilities=_own_capabilities()
    )
    bundle = (
        _BUNDLES / device
    )  # not in the device's tree, so that the rack's controller can read it
    bundle.mkdir(parents=True)
    (bundle / "config.json").write_text(json.dumps(settings))
    output, pid_file = bundle / "output", bundle / "pid"
    argv = [os.environ[RUNTIME_VARIABLE], "--root", _STATE, "run", "--detach"]
    argv += ["--bundle", str(bundle), "--pid-file", str(pid_file), device]
    with output.open("wb") as out:  # a pipe would stay open for as long as the container runs
        code = subprocess.call(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    if code:
        lines = output.read_text(errors="replace").strip().splitlines() or [f"exit code {code}"]
        raise RuntimeError(f"{Path(argv[0]).name}: {lines[-1]}")
    return int(pid_file.read_text())


def oci_config(
    tree: FileTree,
    device: str,
    group: str,
    *,
    init: Sequence[str],
    unified: bool,
    held_capabilities: int,
) -> dict[str, Any]:
    """Return a container's settings as the OCI runtime specification defines them (config.json).

    `held_capabilities` are the capabilities of this process, one bit each. The settings ask for no
    others and for no limits, so that the runtime cannot refuse them.
    """
    capabilities = [
        f"CAP_{name}" for name, number in _CAPABILITIES.items() if held_capabilities >> number & 1
    ]
    kinds = ("bounding", "effective", "permitted")
    sysctls = sorted(path.name for path in Path("/proc/sys").iterdir() if path.name != "net")
    shown = [_mount("/sys/fs/cgroup", "cgroup2", "rw")] if unified else []
    return {
        "ociVersion": "1.0.2",
        "hostname": device,
        "root": {"path": str(tree.root)},
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
            *(_mount(path, "bind", "bind", "rw", source=str(there)) for path, there in tree.binds),
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
    """Return the capabilities of this process, one bit each. On some machines root lacks some."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if "CapEff:" in line)


def _mount(where: str, kind: str, *options: str, source: str = "") -> dict[str, Any]:
    return {"destination": where, "type": kind, "source": source or kind, "options": [*options]}


def _run_once(tree: Path) -> None:
    mount_with_control_groups()
    mount("tmpfs", "/run", "tmpfs", options="mode=755")
    run_container(mount_tree(tree, {}), "tried", ("/usr/bin/true",))


if __name__ == "__main__":
    try:
        _run_once(Path(sys.argv[1]))
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))
