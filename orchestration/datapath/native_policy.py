"""Congestion controls of the user's own in the packet engine: C, compiled for this machine.

The source is that of the guest's BPF program. It is compiled together with `engine/own_policy.c`,
which gives it what the guest gives a BPF program, into a shared library in the cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from orchestration.core.errors import InputError
from orchestration.core.files import local_path
from orchestration.core.problems import Code
from orchestration.datapath.engine_build import (
    ENGINE,
    FLAGS,
    CompileError,
    Report,
    Source,
    report_on_stderr,
    require_built,
)
from orchestration.datapath.library import load_engine, new_ffi

HEADERS = ENGINE.parent
# These define what BPF defines and C leaves undefined: sums that overflow, words that are read as
# other types.
_FLAGS = (*FLAGS, "-fwrapv", "-fno-strict-aliasing")
_SUFFIXES = (".c", ".so")


class NativePolicy(NamedTuple):
    """A policy for `cl_engine_post`, how many parameters it takes, and if it asks for telemetry."""

    policy: Any
    parameters: int
    asks_telemetry: bool


def runs_natively(path: Path) -> bool:
    """Return whether the packet engine can run a policy's file; an object of BPF it cannot."""
    return path.suffix in _SUFFIXES


def native_policy(path: Path, report: Report = report_on_stderr) -> NativePolicy:
    """Return the policy in a C source, which is compiled first if necessary, or in a library.

    On a worker machine `path` is the one on the machine that planned the trial (`local_path`).
    `report` takes a line of text if compiling takes longer than two seconds. The policy stays
    loaded until the process ends. Raises InputError for a file that the engine cannot run,
    NotReadyError without a compiler.
    """
    if not runs_natively(path):
        raise InputError.single(
            str(path),
            "the packet engine cannot run a BPF object: it needs a policy's C source",
            "give the .c file, or run the campaign in the kernel: --in kernel",
        )
    path = Path(local_path(str(path)))
    if not path.is_file():
        raise InputError.single(str(path), "no such file", "check the path", Code.NO_SUCH_FILE)
    library = path.absolute() if path.suffix == ".so" else _compiled(path, report)
    if library not in _loaded:
        _loaded[library] = _load(library, path)
    return _loaded[library]


# Libraries stay loaded, because an engine may call them at any time: cffi unloads one that nothing
# refers to.
_loaded: dict[Path, NativePolicy] = {}
_libraries: list[Any] = []


def _compiled(path: Path, report: Report) -> Path:
    source = Source(path.name, ENGINE / "own_policy.c", _FLAGS, HEADERS, path)
    try:
        return require_built(source, report).path
    except CompileError as error:
        errors = [line for line in error.output.splitlines() if "error:" in line]
        reason = errors[0].partition("error: ")[2] if errors else error.output.strip()[:2000]
        raise InputError.single(
            str(path), f"the compiler refuses it: {reason}", "correct it: see docs/policies.md"
        ) from error


def _load(library: Path, path: Path) -> NativePolicy:
    ffi = new_ffi(HEADERS / "policy.h", ENGINE / "own_policy.h")
    remedy = "give the policy's C source: it is compiled for this version"
    if library != path.absolute():
        remedy = (
            "end its source with CL_POLICY(name, parameters, telemetry) of policy.h, and call "
            "nothing but functions of its own"
        )
    try:
        lib = ffi.dlopen(str(library))
        abi = tuple(lib.cl_own_abi)
        policy = ffi.addressof(lib, "cl_own_policy")
    except (OSError, AttributeError) as error:
        raise InputError.single(str(path), f"it is not a policy: {error}", remedy) from error
    needed = (lib.CL_POLICY_ABI, ffi.sizeof("struct cl_flow_state"))
    if abi != needed:
        if library != path.absolute():
            remedy = f"remove {library.parent}: it is compiled again"
        raise InputError.single(
            str(path),
            "it was compiled for version {} of the packet engine's policies, with {} bytes for a "
            "flow, and this closloop has version {}, with {}".format(*abi, *needed),
            remedy,
        )
    _libraries.append(lib)
    address = int(ffi.cast("uintptr_t", policy))
    pointer = load_engine().ffi.cast("const struct cl_policy *", address)
    return NativePolicy(pointer, policy.parameters, bool(policy.telemetry))
