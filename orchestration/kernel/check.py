"""Boots a kernel to check that trials can run on it: virtual time, the options, DCTCP."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestration.core.errors import NotReadyError
from orchestration.kernel import probe
from orchestration.kernel.boot import guest_argv, launch, memory_dir
from orchestration.kernel.config import unmet_options
from orchestration.kernel.source import require_version

_MEMORY_BYTES = 256 << 20
_TIMEOUT_S = 60
_BUSY_LIMIT_NS = 1_000_000
_NS_PER_S = 1_000_000_000
_CONGESTION_CONTROLS = {"cubic", "dctcp"}


@dataclass(frozen=True)
class BootReport:
    """The report of a guest, and the wall time from its start to its end."""

    release: str
    busy_ns: int
    sleep_ns: int
    congestion_controls: str
    red_stream: bool
    config: str
    wall_s: float


def check_kernel(kernel: Path) -> BootReport:
    """Boot `kernel` and return its report if trials can run on it.

    Raises:
        NotReadyError: it does not boot, its clock is not virtual, or it lacks what trials need.
    """
    report = boot(kernel)
    faults = report_faults(report)
    if faults:
        raise NotReadyError(
            f"{kernel} boots, but trials cannot run on it: {'; '.join(faults)}",
            "build one that fits: closloop kernel build --force",
        )
    return report


def boot(kernel: Path) -> BootReport:
    """Boot `kernel` once, with the probe as its init.

    Raises:
        NotReadyError: it ended without a report, or did not end; with the end of its console.
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
        return parse_console(console, wall_s=time.monotonic() - start)


def parse_console(console: str, wall_s: float) -> BootReport:
    """Return the report on a probed guest's console.

    Raises:
        NotReadyError: there is none.
    """
    for line in console.splitlines():
        if line.startswith(probe.MARK):
            found = json.loads(line.removeprefix(probe.MARK))
            packed = base64.b64decode(found.pop("config_gz"))
            config = gzip.decompress(packed).decode() if packed else ""
            return BootReport(**found, config=config, wall_s=wall_s)
    tail = "\n".join(console.splitlines()[-15:])
    raise NotReadyError(
        f"the kernel did not boot to its end; its console ended with:\n{tail}",
        "it needs seccomp filters (not refused by the container) and a program can be run on it as "
        "long as the file tree is readable; docs/kernel.md lists what has gone wrong before",
    )


def report_faults(report: BootReport) -> list[str]:
    """Return what trials need and the guest lacks, in words; [] if it is fit."""
    faults = []
    try:
        require_version(report.release)
    except NotReadyError as error:
        faults.append(error.message)
    if report.busy_ns > _BUSY_LIMIT_NS:
        faults.append(
            f"its clock went on by {report.busy_ns} ns under load: it is not in virtual time"
        )
    if not 0 <= report.sleep_ns - probe.SLEEP_S * _NS_PER_S < _NS_PER_S:
        faults.append(f"a sleep of {probe.SLEEP_S} s took {report.sleep_ns} ns of its time")
    if not report.red_stream:
        faults.append("RED's draws cannot be repeated: its source was not patched for that")
    lacking = _CONGESTION_CONTROLS - set(report.congestion_controls.split())
    if lacking:
        faults.append(f"no congestion control {', '.join(sorted(lacking))}")
    if not report.config:
        faults.append("it does not tell its configuration (CONFIG_IKCONFIG_PROC)")
    else:
        faults += unmet_options(report.config)
    return faults


def _console(guest: subprocess.Popen[bytes]) -> str:
    """Return what the guest printed until it ended or was stopped for taking too long."""
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
