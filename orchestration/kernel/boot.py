"""Boots the virtual-time kernel, and checks that trials can run on it.

A running kernel is called a guest. It is a user-mode Linux: one process group of this machine.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from orchestration.core.errors import NotReadyError
from orchestration.core.machine import available_memory_bytes
from orchestration.kernel import probe
from orchestration.kernel.fetch import require_version
from orchestration.kernel.patches import unmet_options

_MEBIBYTE = 1 << 20
_SHM = Path("/dev/shm")
# Mounts a file system with pages of 2 MB that only the guest sees, and puts the guest's memory
# there. With pages of 4 KB the host spends a tenth of a trial's time on looking them up.
_MOUNT = 'mount -t tmpfs -o huge=within_size,size=100%,mode=0700 closloop "$1"'
_IN_LARGE_PAGES = f'{_MOUNT} && TMPDIR=$1; shift; exec "$@"'
_OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")


def guest_argv(
    kernel: Path, *, memory_bytes: int, init: Path, real_time: bool = False
) -> list[str]:
    """Return the command line that boots `kernel` and runs `init` as its process 1.

    The guest's clock shows virtual time. With `real_time` it shows the machine's time, so that
    computing takes time too.

    The guest's root is the host's file tree with the caller's rights; its console is standard input
    and output. `init` must be executable and must end by powering off. `KEY=VALUE` words appended
    to the list become init's environment.
    """
    return [
        str(kernel),
        "seccomp=on",
        # Without periodic ticks, each timer that ends an idle time (one per packet) would do the
        # accounting of that time. A thousand ticks per second of virtual time cost a millisecond.
        *([] if real_time else ["time-travel=inf-cpu", "nohz=off"]),
        f"mem={memory_bytes // _MEBIBYTE}M",
        "rootfstype=hostfs",
        "rootflags=/",
        "rw",
        f"init={init}",
        "con=null",
        "con0=fd:0,fd:1",
        # The pid file goes to the working folder; in ~/.uml, a killed guest would leave it behind.
        "uml_dir=.",
        "quiet",
    ]


def pinned_argv(argv: Sequence[str], cpu: int | None) -> list[str]:
    """Return `argv` wrapped so that it runs on one CPU and dies with the thread that starts it.

    Without `cpu` it is not pinned. Pinning makes guests much faster: see `docs/kernel.md`.
    """
    pin = [] if cpu is None else ["taskset", "--cpu-list", str(cpu)]
    return ["setpriv", "--pdeathsig", "KILL", *pin, *argv]


def launch(
    argv: Sequence[str],
    *,
    cpu: int | None,
    cwd: Path,
    stdin: int | IO[bytes],
    stdout: int | IO[bytes],
    memory_dir: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a guest from the list of `guest_argv` and return its process.

    The guest runs on `cpu` alone, in a session of its own (its process id is also the id of its
    process group), with standard error on `stdout`. It is killed when the *thread* that called this
    function ends, so call it from a thread that outlives the guest; the guest's helper processes
    die with it. `memory_dir` is the return value of `memory_dir()`. `cwd` must be writable. Where
    the caller may mount, the memory is in pages of 2 MB, in a file system that only the guest sees
    and that disappears with it.

    Raises NotReadyError if setpriv or taskset is not installed.
    """
    environment = dict(os.environ)
    if memory_dir is not None:
        environment["TMPDIR"] = str(memory_dir)
    if memory_dir is not None and has_large_pages():
        own = cwd / "memory"
        own.mkdir(exist_ok=True)
        argv = [*_OWN_MOUNTS, "sh", "-c", _IN_LARGE_PAGES, "sh", str(own), *argv]
    command = pinned_argv(argv, cpu)
    try:
        return subprocess.Popen(
            command,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NotReadyError(
            f"cannot start a guest: {error}",
            "install setpriv and taskset: apt-get install util-linux",
        ) from error


@cache
def has_large_pages() -> bool:
    """Return whether a guest's memory can be in pages of 2 MB: for root, on most kernels."""
    if os.geteuid():
        return False
    with tempfile.TemporaryDirectory(prefix="closloop-pages-") as folder:
        tried = [*_OWN_MOUNTS, "sh", "-c", _MOUNT, "sh", folder]
        try:
            return not subprocess.run(tried, capture_output=True, check=False).returncode
        except FileNotFoundError:
            return False


def memory_dir(memory_bytes: int) -> Path:
    """Return a folder for the memory files of guests that have `memory_bytes` of memory in total.

    A guest's memory is an unlinked file, mapped executable, that grows as the guest touches it. The
    folder is /dev/shm if possible, else the temporary folder, where the disk makes guests slower.

    Raises NotReadyError if neither folder has the space, or less memory is available.
    """
    available = available_memory_bytes()
    if available < memory_bytes:
        raise NotReadyError(
            f"guests need {_mib(memory_bytes)} of memory, and {_mib(available)} are available",
            "run fewer trials side by side, or end other programs",
        )
    reasons = []
    for folder in (_SHM, Path(tempfile.gettempdir())):
        reason = _why_unusable(folder, memory_bytes)
        if not reason:
            return folder
        reasons.append(reason)
    raise NotReadyError(
        f"no folder can hold {_mib(memory_bytes)} of guest memory: {'; '.join(reasons)}",
        "enlarge /dev/shm (mount -o remount,exec,size=… /dev/shm; in a container --shm-size and a "
        "tmpfs mounted exec), or name a folder with enough space in TMPDIR",
    )


def _why_unusable(folder: Path, memory_bytes: int) -> str:
    """Return why guests' memory cannot be in `folder`, "" if it can."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written"
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return f"{folder} is mounted noexec"
    free = shutil.disk_usage(folder).free
    return "" if free >= memory_bytes else f"{folder} has {_mib(free)} free"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes // _MEBIBYTE} MiB"


_MEMORY_BYTES = 256 << 20
_TIMEOUT_S = 60
_BUSY_LIMIT_NS = 1_000_000
_NS_PER_S = 1_000_000_000
_CONGESTION_CONTROLS = {"cubic", "dctcp"}


@dataclass(frozen=True)
class BootReport:
    """What the probe reported from a guest, and the wall time from the guest's start to its end."""

    release: str
    busy_ns: int
    sleep_ns: int
    congestion_controls: str
    red_stream: bool
    config: str
    wall_s: float


def check_kernel(kernel: Path) -> BootReport:
    """Boot `kernel` and return its report if trials can run on it.

    Raises NotReadyError if it does not boot, has no virtual clock, or lacks what trials need.
    """
    report = boot(kernel)
    problems = kernel_problems(report)
    if problems:
        raise NotReadyError(
            f"{kernel} boots, but trials cannot run on it: {'; '.join(problems)}",
            "build a kernel that fits: closloop kernel build --force",
        )
    return report


def boot(kernel: Path) -> BootReport:
    """Boot `kernel` once with the probe as its init, and return the probe's report.

    Raises NotReadyError, with the end of the console, if the guest ended without a report or did
    not end.
    """
    memory = memory_dir(_MEMORY_BYTES)
    with tempfile.TemporaryDirectory(prefix="closloop-boot-") as folder:
        init = Path(folder) / "init"
        init.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, '-I', probe.__file__])}\n")
        init.chmod(0o755)
        start = time.monotonic()
        console = _console(
            launch(
                guest_argv(kernel, memory_bytes=_MEMORY_BYTES, init=init),
                cpu=min(os.sched_getaffinity(0)),
                cwd=Path(folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                memory_dir=memory,
            )
        )
        return parse_report(console, wall_s=time.monotonic() - start)


def parse_report(console: str, wall_s: float) -> BootReport:
    """Return the probe's report from a guest's console. Raises NotReadyError if there is none."""
    for line in console.splitlines():
        if line.startswith(probe.REPORT_PREFIX):
            fields = json.loads(line.removeprefix(probe.REPORT_PREFIX))
            packed = base64.b64decode(fields.pop("config_gz"))
            config = gzip.decompress(packed).decode() if packed else ""
            return BootReport(**fields, config=config, wall_s=wall_s)
    tail = "\n".join(console.splitlines()[-15:])
    raise NotReadyError(
        f"the kernel did not finish booting; its console ended with:\n{tail}",
        "it needs seccomp filters, which a container may refuse, and a file tree that it can read; "
        "docs/kernel.md lists what has gone wrong before",
    )


def kernel_problems(report: BootReport) -> list[str]:
    """Return sentences on what trials need and the guest lacks; [] if trials can run on it."""
    problems = []
    try:
        require_version(report.release)
    except NotReadyError as error:
        problems.append(error.message)
    if report.busy_ns > _BUSY_LIMIT_NS:
        problems.append(
            f"its clock advanced by {report.busy_ns} ns under load: it is not in virtual time"
        )
    if not 0 <= report.sleep_ns - probe.SLEEP_S * _NS_PER_S < _NS_PER_S:
        problems.append(f"a sleep of {probe.SLEEP_S} s took {report.sleep_ns} ns of its time")
    if not report.red_stream:
        problems.append(
            "RED's random numbers cannot be repeated: its source was not patched for that"
        )
    lacking = _CONGESTION_CONTROLS - set(report.congestion_controls.split())
    if lacking:
        problems.append(f"it has no congestion control {', '.join(sorted(lacking))}")
    if not report.config:
        problems.append("it does not show its configuration (CONFIG_IKCONFIG_PROC)")
    else:
        problems += unmet_options(report.config)
    return problems


def _console(guest: subprocess.Popen[bytes]) -> str:
    """Return what the guest printed until it ended, or was killed because it took too long."""
    try:
        printed, _ = guest.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _kill(guest)
        printed, _ = guest.communicate()
    except BaseException:
        _kill(guest)
        raise
    return printed.decode(errors="replace").replace("\r", "")


def _kill(guest: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(guest.pid, signal.SIGKILL)
