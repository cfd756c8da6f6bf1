"""A learned policy in a BlueField-3's NIC: built there with the DOCA SDK, run by its `doca_pcc`.

DOCA PCC (programmable congestion control) lets a program on the NIC's own cores set the rates of
RoCE flows. A version of a policy has

    {"kind": "pcc", "name", "model", "device": "mlx5_0", "files": {path: text}}

`files` are the policy's rendering, its C sources. They replace the template in a copy of the SDK's
applications, and the SDK's own build makes the program (meson, ninja, and dpacc for the NIC's
cores). The program's process lives as long as the algorithm runs. Its name contains the model's
hash; in the NIC, the algorithm's description contains it, and its minor version the first byte.

One such program is active at a time, and another may wait in standby (doca_pcc.h, DOCA_PCC_PS_*).
So a new version is started before the previous one is ended, and takes over then. If it does not
reach standby, the previous one goes on. Programs are ended by SIGINT, as their guide says. Without
a program, the NIC runs its own algorithm.

Sources: NVIDIA's "DOCA PCC" and "DOCA PCC Application Guide" (3.3), doca-samples applications/pcc
(host/pcc.c, build_device_code.sh, meson.build), MFT's mlxconfig and mlxreg.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ...core.files import partial_folder, whole_folder
from ..main import OperationError
from ..safety.deadman_process import Process
from ..survey import run

DOCA = Path("/opt/mellanox/doca")
FOLDER = Path("/var/lib/closloop/policy/pcc")
PROGRAM = "doca_pcc"
TEMPLATE = "pcc/device/rp/rtt_template"
_DEVICES = Path("/sys/class/infiniband")
# Programs of others that run an algorithm in the NIC: NVIDIA's application, and Spectrum-X's.
_OTHERS = (PROGRAM, "doca_spcx_cc")
_BUILD_TIMEOUT_S, _QUERY_TIMEOUT_S, _START_TIMEOUT_S, _END_TIMEOUT_S = 540.0, 30.0, 60.0, 30.0
_POLL_S = 0.1
_STATE = re.compile(r"PCC host status (\w+)", re.ASCII)
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# The command of the register PPCC that asks whether an algorithm is enabled.
_ENABLED = 3
_SDK = (
    "install the DOCA SDK (apt-get install doca-all, of NVIDIA's repository of DOCA 2.9 or newer)"
)
_TOOLS = {
    "meson": "apt-get install meson",
    "ninja": "apt-get install ninja-build",
    "mlxconfig": "install NVIDIA's MFT, which DOCA has (mft)",
    "mlxreg": "install NVIDIA's MFT, which DOCA has (mft)",
}


def refusals(version: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (what is wrong, remedy) for each reason not to run a version; nothing is changed."""
    if os.geteuid():
        return [("only root may load programs into the NIC", "set ansible_become: true")]
    device = str(version["device"])
    problems = [
        (f"{name} is missing", remedy) for name, remedy in _TOOLS.items() if not shutil.which(name)
    ]
    for path in (DOCA / "tools/dpacc", DOCA / "applications" / TEMPLATE):
        if not path.exists():
            problems.append((f"{path} is missing", _SDK))
    if not (_DEVICES / device).exists():
        known = ", ".join(sorted(os.listdir(_DEVICES))) if _DEVICES.exists() else ""
        what = f"it has no RDMA device {device}" + (f" (but {known})" if known else "")
        return [*problems, (what, "correct closloop_pcc: see `rdma link` there")]
    if shutil.which("mlxconfig"):
        problems += _firmware(device)
    for pid, name in _other_programs():
        problems.append(
            (f"{name} (process {pid}) runs an algorithm in the NIC", f"end it: kill -INT {pid}")
        )
    return problems


def put(version: Mapping[str, Any] | None) -> dict[str, Any]:
    """Put a version in force, or none; return `status`.

    Raises OperationError if it cannot be built or does not become active; the previous version
    then stays in force, or is started again.
    """
    previous = list(_policy_processes())
    if version is None:
        for pid, _ in previous:
            _end(pid)
        return status()
    program = _built_program(version)
    if [path for _, path in previous] != [program]:
        _take_over(program, version, previous)
    return status()


def status() -> dict[str, Any]:
    """Return the hash of the model that runs, "" for none, and the program's and NIC's states."""
    for pid, program in _policy_processes():
        device = program.with_suffix(".device").read_text()
        state = _state(program)
        model = program.name.rpartition("_")[2] if state == "Active" else ""
        return {"model": model, "state": state, "process": pid, "enabled": _enabled(device)}
    return {"model": ""}


def _firmware(device: str) -> list[tuple[str, str]]:
    """Return (what is wrong, remedy) unless the firmware's configuration allows own programs."""
    query = ["mlxconfig", "-d", _pci_address(device), "-e", "query", "USER_PROGRAMMABLE_CC"]
    code, output, errors = run(query, _QUERY_TIMEOUT_S)
    lines = [line.split() for line in output.splitlines() if "USER_PROGRAMMABLE_CC" in line]
    if code or not lines:
        what = f"{device} has no USER_PROGRAMMABLE_CC: {_last_lines(output + errors)}"
        return [(what, "DOCA PCC needs a BlueField-3 or newer, with its firmware up to date")]
    # default, current, at the next boot
    values = [word for word in lines[0] if re.fullmatch(r"(False|True)\([01]\)", word)]
    current = values[1] if len(values) > 1 else values[0] if values else ""
    if current == "True(1)":
        return []
    if values[-1:] == ["True(1)"]:
        what = f"USER_PROGRAMMABLE_CC of {device} takes effect only after a power cycle"
        return [(what, "power it off and on")]
    switch_on = (
        f"mlxconfig -d {_pci_address(device)} -y set USER_PROGRAMMABLE_CC=1, then power cycle it"
    )
    return [(f"USER_PROGRAMMABLE_CC of {device} is off", switch_on)]


def _built_program(version: Mapping[str, Any]) -> Path:
    """Return the program of a version, which is built if it does not exist yet.

    Raises OperationError.
    """
    text = json.dumps([version["device"], version["files"]], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = f"{version['name']}_{version['model']}_{digest}"
    program = FOLDER / name / f"{PROGRAM}_{version['model']}"
    if program.exists():
        return program
    try:
        with partial_folder(FOLDER / "build") as work:
            _build(work, version["files"])
            with whole_folder(program.parent, sync=True) as ready:
                shutil.copy2(work / "build" / "pcc" / PROGRAM, ready / program.name)
                (ready / program.with_suffix(".device").name).write_text(str(version["device"]))
    except OSError as error:
        raise OperationError(
            f"the program cannot be built: {error}", f"make room in {FOLDER}"
        ) from error
    return program


def _build(work: Path, files: Mapping[str, str]) -> None:
    _copy_sources(work, files)
    source, build = work / "applications", work / "build"
    options = ["-Denable_all_applications=false", "-Denable_pcc=true"]
    for argv in (
        ["meson", "setup", str(build), str(source), *options],
        ["ninja", "-C", str(build)],
    ):
        code, output, errors = run(argv, _BUILD_TIMEOUT_S)
        if code:
            raise OperationError(
                f"the SDK's build fails: {argv[0]}: {_last_lines(output + errors)}",
                f"try it in {DOCA}/applications with NVIDIA's own template first",
            )


def _copy_sources(work: Path, files: Mapping[str, str]) -> None:
    """Copy the SDK's applications into `work`, with `files` instead of the template."""
    shutil.copytree(DOCA / "applications", work / "applications", symlinks=True)
    # its meson.build reads ../VERSION
    with suppress(FileNotFoundError):
        shutil.copy2(DOCA / "VERSION", work / "VERSION")
    template_folder = work / "applications" / TEMPLATE
    shutil.rmtree(template_folder)
    for name, text in files.items():
        path = template_folder / name
        if template_folder not in path.resolve().parents:
            raise OperationError(f"{name!r} is not a file of a rendering")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _take_over(
    program: Path, version: Mapping[str, Any], previous: Sequence[tuple[int, Path]]
) -> None:
    """Start a program, end the previous one, and wait until the new one is active."""
    pid = _start(program, str(version["device"]))
    ready = ("Active", "Standby") if previous else ("Active",)
    if _wait_until(pid, lambda: _state(program) in ready):
        for number, _ in previous:
            _end(number)
        if _wait_until(pid, partial(_is_active, program)):
            return
    log = _last_lines(program.with_suffix(".log").read_text(errors="replace"))
    _end(pid)
    for _, path in previous:
        # the previous one may have ended for the new one
        if path not in [running for _, running in _policy_processes()]:
            restarted_pid = _start(path, path.with_suffix(".device").read_text())
            _wait_until(restarted_pid, partial(_is_active, path))
    raise OperationError(
        f"{program.name} does not become active: {log}",
        "check whether others use the NIC's DPA cores (dpaeumgmt), and the firmware's version",
    )


def _start(program: Path, device: str) -> int:
    """Start a program that outlives this agent, and return its process id.

    Its output goes to a log file beside it.
    """
    log = os.open(program.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # line-buffered, because the program prints its state and then waits
        argv = ["stdbuf", "-oL", str(program), "-d", device]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
    finally:
        os.close(log)
    return process.pid


def _wait_until(pid: int, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and _is_running(pid):
        if condition():
            return True
        time.sleep(_POLL_S)
    return condition() and _is_running(pid)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + _END_TIMEOUT_S
    while _is_running(pid):
        if time.monotonic() > deadline:
            raise OperationError(
                f"process {pid} ({PROGRAM}) does not end, so its algorithm still runs",
                "see its log; SIGKILL leaves its context in the NIC until the NIC restarts",
            )
        time.sleep(_POLL_S)


def _is_running(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return bool(Process.of(pid).started)


def _policy_processes() -> Iterator[tuple[int, Path]]:
    for pid, arguments in _processes():
        for argument in arguments[:2]:
            if Path(argument).is_relative_to(FOLDER):
                yield pid, Path(argument)
                break


def _other_programs() -> Iterator[tuple[int, str]]:
    own_pids = {pid for pid, _ in _policy_processes()}
    for pid, arguments in _processes():
        name = Path(arguments[0]).name
        if pid not in own_pids and name in _OTHERS:
            yield pid, name


def _processes() -> Iterator[tuple[int, list[str]]]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            arguments = Path(f"/proc/{name}/cmdline").read_text(errors="replace").split("\0")
            if arguments[0]:
                yield int(name), arguments


def _is_active(program: Path) -> bool:
    return _state(program) == "Active"


def _state(program: Path) -> str:
    """Return the last state in a program's log, "" if there is none yet."""
    try:
        states = _STATE.findall(program.with_suffix(".log").read_text(errors="replace"))
    except OSError:
        return ""
    return states[-1] if states else ""


def _enabled(device: str) -> int | None:
    """Return whether the NIC reports slot 0's algorithm as enabled (1) or not (0), else None."""
    indexes = "local_port=1,pnat=0,lp_msb=0,algo_slot=0,algo_param_index=0"
    argv = ["mlxreg", "-d", _pci_address(device), "-y", "--get", "--op", f"cmd_type={_ENABLED}"]
    _, output, _ = run([*argv, "--reg_name", "PPCC", "--indexes", indexes], _QUERY_TIMEOUT_S)
    for line in output.splitlines():
        name, bar, value = line.partition("|")
        if bar and name.strip() == "value":
            with suppress(ValueError):
                return int(value.strip(), 16)
    return None


def _pci_address(device: str) -> str:
    """Return the PCI address of an RDMA device, or its name if it has none."""
    address = os.path.basename(os.path.realpath(_DEVICES / device / "device"))
    return address if _PCI.fullmatch(address) else device


def _last_lines(text: str) -> str:
    return " ".join(" ".join(text.split("\n")[-8:]).split())[-600:]
