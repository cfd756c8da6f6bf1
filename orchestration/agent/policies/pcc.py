"""A policy in a BlueField-3's NIC: built there with the DOCA SDK, and run by its `doca_pcc`.

A version (`policy.Version`) has

    {"kind": "pcc", "name", "model", "device": "mlx5_0", "files": {path: text}}

The rendering takes the place of the template in a copy of the SDK's applications, and the SDK's own
build makes the program of it (meson, ninja, and dpacc for the NIC's cores). That program stays
alive as long as the algorithm runs. Its name has the model's hash; in the NIC the algorithm's
description has it, and its minor version the first byte.

One such program is active at a time, another waits in standby (doca_pcc.h, DOCA_PCC_PS_*). So a new
version is started before the former one is told to end, and takes over when it has: if it does not
come that far the former one goes on. Programs are ended by SIGINT, as their guide says. Without
one, NICs run their own algorithm.

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
# Other programs that run an algorithm in the NIC: NVIDIA's application, and that of Spectrum-X.
_OTHERS = (PROGRAM, "doca_spcx_cc")
_BUILD_S, _ASK_S, _START_S, _END_S = 540.0, 30.0, 60.0, 30.0
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
    """Return why this device cannot run a version, and what to do; nothing is changed."""
    if os.geteuid():
        return [("only root may load programs into the NIC", "set ansible_become: true")]
    device = str(version["device"])
    found = [
        (f"{name} is missing", remedy) for name, remedy in _TOOLS.items() if not shutil.which(name)
    ]
    for path in (DOCA / "tools/dpacc", DOCA / "applications" / TEMPLATE):
        if not path.exists():
            found.append((f"{path} is missing", _SDK))
    if not (_DEVICES / device).exists():
        known = ", ".join(sorted(os.listdir(_DEVICES))) if _DEVICES.exists() else ""
        what = f"it has no RDMA device {device}" + (f" (but {known})" if known else "")
        return [*found, (what, "correct closloop_pcc: see `rdma link` there")]
    if shutil.which("mlxconfig"):
        found += _firmware(device)
    for pid, name in _strangers():
        found.append(
            (f"{name} (process {pid}) runs an algorithm in the NIC", f"end it: kill -INT {pid}")
        )
    return found


def put(version: Mapping[str, Any] | None) -> dict[str, Any]:
    """Bring a version into force, or none; return what `status` does.

    Raises OperationError if it cannot be built or does not become active; what was in force then
    stays, or is started again.
    """
    former = list(_ours())
    if version is None:
        for pid, _ in former:
            _end(pid)
        return status()
    program = _built(version)
    if [path for _, path in former] != [program]:
        _take_over(program, version, former)
    return status()


def status() -> dict[str, Any]:
    """Return the model that runs, "" for none, what its program says, and what the NIC does."""
    for pid, program in _ours():
        device = program.with_suffix(".device").read_text()
        state = _state(program)
        model = program.name.rpartition("_")[2] if state == "Active" else ""
        return {"model": model, "state": state, "process": pid, "enabled": _enabled(device)}
    return {"model": ""}


def _firmware(device: str) -> list[tuple[str, str]]:
    """Return what the firmware's configuration lacks."""
    query = ["mlxconfig", "-d", _address(device), "-e", "query", "USER_PROGRAMMABLE_CC"]
    code, said, errors = run(query, _ASK_S)
    lines = [line.split() for line in said.splitlines() if "USER_PROGRAMMABLE_CC" in line]
    if code or not lines:
        what = f"{device} has no USER_PROGRAMMABLE_CC: {_last(said + errors)}"
        return [(what, "DOCA PCC needs a BlueField-3 or newer, with its firmware up to date")]
    # default, current, at the next boot
    values = [word for word in lines[0] if re.fullmatch(r"(False|True)\([01]\)", word)]
    current = values[1] if len(values) > 1 else values[0] if values else ""
    if current == "True(1)":
        return []
    if values[-1:] == ["True(1)"]:
        what = f"USER_PROGRAMMABLE_CC of {device} holds after a power cycle only"
        return [(what, "power it off and on")]
    switch_on = (
        f"mlxconfig -d {_address(device)} -y set USER_PROGRAMMABLE_CC=1, then power cycle it"
    )
    return [(f"USER_PROGRAMMABLE_CC of {device} is off", switch_on)]


def _built(version: Mapping[str, Any]) -> Path:
    """Return the program of a version; build it if it is not there. Raises OperationError."""
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
    _lay_out(work, files)
    source, build = work / "applications", work / "build"
    options = ["-Denable_all_applications=false", "-Denable_pcc=true"]
    for argv in (
        ["meson", "setup", str(build), str(source), *options],
        ["ninja", "-C", str(build)],
    ):
        code, said, errors = run(argv, _BUILD_S)
        if code:
            raise OperationError(
                f"the SDK's build fails: {argv[0]}: {_last(said + errors)}",
                f"try it in {DOCA}/applications with NVIDIA's own template first",
            )


def _lay_out(work: Path, files: Mapping[str, str]) -> None:
    """Copy the SDK's applications, with the rendering in the template's place."""
    shutil.copytree(DOCA / "applications", work / "applications", symlinks=True)
    # its meson.build reads ../VERSION
    with suppress(FileNotFoundError):
        shutil.copy2(DOCA / "VERSION", work / "VERSION")
    place = work / "applications" / TEMPLATE
    shutil.rmtree(place)
    for name, text in files.items():
        path = place / name
        if place not in path.resolve().parents:
            raise OperationError(f"{name!r} is no file of a rendering")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _take_over(
    program: Path, version: Mapping[str, Any], former: Sequence[tuple[int, Path]]
) -> None:
    """Start a program, end the former one, and wait until the new one is active."""
    pid = _start(program, str(version["device"]))
    ready = ("Active", "Standby") if former else ("Active",)
    if _awaited(pid, lambda: _state(program) in ready):
        for number, _ in former:
            _end(number)
        if _awaited(pid, partial(_is_active, program)):
            return
    said = _last(program.with_suffix(".log").read_text(errors="replace"))
    _end(pid)
    for _, path in former:
        # the former one may have ended for it
        if path not in [running for _, running in _ours()]:
            back = _start(path, path.with_suffix(".device").read_text())
            _awaited(back, partial(_is_active, path))
    raise OperationError(
        f"{program.name} does not become active: {said}",
        "see whether others use the NIC's DPA cores (dpaeumgmt), and its firmware's version",
    )


def _start(program: Path, device: str) -> int:
    """Start a program that outlives this agent; what it says goes to a file."""
    log = os.open(program.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # a line at a time: it prints, and waits then
        argv = ["stdbuf", "-oL", str(program), "-d", device]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
    finally:
        os.close(log)
    return process.pid


def _awaited(pid: int, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and _lives(pid):
        if condition():
            return True
        time.sleep(_POLL_S)
    return condition() and _lives(pid)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    end = time.monotonic() + _END_S
    while _lives(pid):
        if time.monotonic() > end:
            raise OperationError(
                f"process {pid} ({PROGRAM}) does not end, so its algorithm runs on",
                "see its log; SIGKILL leaves its context in the NIC until that restarts",
            )
        time.sleep(_POLL_S)


def _lives(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return bool(Process.of(pid).started)


def _ours() -> Iterator[tuple[int, Path]]:
    for pid, words in _processes():
        for word in words[:2]:
            if Path(word).is_relative_to(FOLDER):
                yield pid, Path(word)
                break


def _strangers() -> Iterator[tuple[int, str]]:
    ours = {pid for pid, _ in _ours()}
    for pid, words in _processes():
        name = Path(words[0]).name
        if pid not in ours and name in _OTHERS:
            yield pid, name


def _processes() -> Iterator[tuple[int, list[str]]]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_text(errors="replace").split("\0")
            if words[0]:
                yield int(name), words


def _is_active(program: Path) -> bool:
    return _state(program) == "Active"


def _state(program: Path) -> str:
    """Return what a program said last of its state, "" for nothing yet."""
    try:
        said = _STATE.findall(program.with_suffix(".log").read_text(errors="replace"))
    except OSError:
        return ""
    return said[-1] if said else ""


def _enabled(device: str) -> int | None:
    """Return what the NIC says of slot 0's algorithm: 1 enabled, 0 not, None nothing."""
    indexes = "local_port=1,pnat=0,lp_msb=0,algo_slot=0,algo_param_index=0"
    argv = ["mlxreg", "-d", _address(device), "-y", "--get", "--op", f"cmd_type={_ENABLED}"]
    _, said, _ = run([*argv, "--reg_name", "PPCC", "--indexes", indexes], _ASK_S)
    for line in said.splitlines():
        name, bar, value = line.partition("|")
        if bar and name.strip() == "value":
            with suppress(ValueError):
                return int(value.strip(), 16)
    return None


def _address(device: str) -> str:
    """Return the PCI address of an RDMA device, or its name if it has none."""
    found = os.path.basename(os.path.realpath(_DEVICES / device / "device"))
    return found if _PCI.fullmatch(found) else device


def _last(text: str) -> str:
    return " ".join(" ".join(text.split("\n")[-8:]).split())[-600:]
