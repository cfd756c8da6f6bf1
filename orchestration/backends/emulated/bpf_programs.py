"""BPF programs of emulated trials: compiled, tried in a guest, taken to another machine.

They are flow tables, policies of one's own, and what stands for RED and DCTCP where the machine's
kernel lacks them.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from collectors.bpf.compile import DCTCP as DCTCP_SOURCE
from collectors.bpf.compile import RED_LAW, cache_folder, compiled, flow_table_object
from collectors.bpf.policy import CONTEXT, PolicyError, attach, policy_object
from orchestration.agent.bpf.load import run_on_each
from orchestration.backends.common.linux import new_program_name, with_dctcp_program
from orchestration.backends.emulated.job import POLICY
from orchestration.backends.emulated.launcher import Listener, run_guest
from orchestration.backends.emulated.real_time import replaceable_dctcp
from orchestration.backends.emulated.system import send_message
from orchestration.core.errors import InputError, NotReadyError, TrialError
from orchestration.core.files import BPF, here, packaged
from orchestration.core.ports import TrialBundle
from orchestration.core.signals import wants_flow_table
from orchestration.core.trial import FabricSpec, TrialSpec
from orchestration.kernel.cache import BINARY, MANIFEST, OVERRIDE, find_kernel, require_kernel
from tuners.registry import create

# Beside `POLICY`: what to run it on, each a struct cl_context of policy.h, and what each becomes.
CONTEXTS, CHANGED = "contexts", "changed"
_MEMORY_BYTES = 256 << 20
CHUNK = 2_000  # the guest tells of each so many


def load_in_guest(
    made: Path, contexts: np.ndarray | None = None, listener: Listener = lambda message: None
) -> np.ndarray | None:
    """Load a policy's object in a guest; run it once on each of `contexts`, and return these.

    `contexts` is an array of `CONTEXT`. The guest tells `listener` before the first, and after each
    `CHUNK` of them. Raises TrialError with the verifier's reason, NotReadyError without a kernel.
    """
    kernel = require_kernel()
    with tempfile.TemporaryDirectory(prefix="closloop-policy-") as place:
        folder = Path(place)
        (folder / POLICY).write_text(str(made.absolute()))
        if contexts is not None:
            contexts.tofile(folder / CONTEXTS)
        run_guest(kernel, folder, _MEMORY_BYTES, listener)
        if contexts is None:
            return None
        return np.fromfile(folder / CHANGED, dtype=CONTEXT)


def run_policy(folder: Path) -> None:
    """In the guest: load the policy that the job names, and run it on its contexts, if any."""
    program = attach(Path((folder / POLICY).read_text()))
    if not (folder / CONTEXTS).exists():
        return
    size = CONTEXT.itemsize
    buffer = ctypes.create_string_buffer(CHUNK * size)
    with (folder / CONTEXTS).open("rb") as given, (folder / CHANGED).open("wb") as changed:
        send_message(stage="run", contexts=0)
        while count := given.readinto(buffer):
            run_on_each(program, (ctypes.c_char * count).from_buffer(buffer), size)
            changed.write(memoryview(buffer)[:count])
            send_message(stage="run", contexts=count // size)


def check_flow_tables(trials: Sequence[TrialSpec]) -> None:
    """Compile the flow table for tuners that observe flows on Linux' fabric.

    Raises NotReadyError without a compiler.
    """
    on_linux = [trial for trial in trials if trial.fabric.kind == "linux"]
    if any(wants_flow_table(create(trial.tuner).observes) for trial in on_linux):
        flow_table_object()


def check_policies(trials: Sequence[TrialSpec]) -> None:
    """Load the policies that trials name, each in a guest of its own, which takes a second.

    Without a kernel only what can be read from the object is checked. Raises InputError with the
    verifier's reason in plain words.
    """
    specs = [trial.host.roce for trial in trials if trial.host.roce is not None]
    for program in dict.fromkeys(spec.program for spec in specs if spec.program):
        try:
            made = policy_object(Path(program))
            if find_kernel() is not None:
                load_in_guest(made)
        except (PolicyError, TrialError) as error:
            raise InputError(one.at(program) for one in error.problems) from error


def cached_bundle() -> TrialBundle:
    """Return the kernel that trials would boot here, and the BPF programs that are compiled.

    Raises NotReadyError without a kernel, InputError as `require_kernel` does.
    """
    kernel = require_kernel()
    folder = f"closloop/kernel/{kernel.hash}"
    files = {f"{folder}/{BINARY}": kernel.path}
    variables = {}
    if kernel.manifest is None:
        variables[OVERRIDE] = f"{folder}/{BINARY}"
    else:
        files[f"{folder}/{MANIFEST}"] = kernel.path.with_name(MANIFEST)
    folders = [folder for folder in (packaged(BPF), cache_folder()) if folder]
    programs = sorted(path for folder in folders for path in folder.glob("*.o"))
    # the same names as here, which are made of the source's hash: a newer source is compiled there
    files |= {os.path.join("closloop", "bpf", path.name): path for path in programs}
    return TrialBundle(files, variables)


def with_compiled_policy(trial: TrialSpec) -> TrialSpec:
    """Let a trial name its policy's compiled object in place of its source."""
    roce = trial.host.roce
    if roce is None or not roce.program:
        return trial
    made = replace(roce, program=str(policy_object(Path(here(roce.program))).absolute()))
    return replace(trial, host=replace(trial.host, roce=made))


def flow_object(fabric: FabricSpec) -> str:
    """Return the path of the compiled flow table; "" if it cannot be compiled, or is not needed.

    `check_flow_tables` refuses the first case for tuners that observe flows.
    """
    if fabric.kind != "linux":
        return ""
    try:
        return str(flow_table_object())
    except NotReadyError:
        return ""


def mark_object(lacks: Collection[str]) -> str:
    """Return the path of the program that marks where the kernel has no RED, "" if it has.

    Raises NotReadyError without a compiler.
    """
    return str(compiled(RED_LAW)) if "red" in lacks else ""


def dctcp_program(trial: TrialSpec, lacks: Collection[str]) -> tuple[str, str] | None:
    """Return the program that is DCTCP for a trial on a kernel without it, and its name."""
    name = new_program_name()
    wants = with_dctcp_program(trial, name) != trial
    return (str(compiled(DCTCP_SOURCE)), name) if wants and replaceable_dctcp(lacks) else None
