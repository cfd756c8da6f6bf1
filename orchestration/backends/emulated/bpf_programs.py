"""BPF programs of emulated trials: compiles them, tries them in a guest, bundles them.

The programs are flow tables, users' policies (congestion control of RoCE NICs), and replacements
for RED and DCTCP where the machine's kernel lacks these.
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
from orchestration.core.files import BPF, local_path, packaged_folder
from orchestration.core.ports import TrialBundle
from orchestration.core.signals import wants_flow_table
from orchestration.core.trial import FabricSpec, TrialSpec
from orchestration.kernel.cache import BINARY, MANIFEST, OVERRIDE, find_kernel, require_kernel
from tuners.registry import create

# Files beside `POLICY`: the inputs on which to run the policy, each a struct cl_context of
# policy.h, and the same contexts afterwards.
CONTEXTS, CHANGED = "contexts", "changed"
_MEMORY_BYTES = 256 << 20
CHUNK = 2_000  # the guest sends a message after each so many contexts


def load_in_guest(
    policy: Path, contexts: np.ndarray | None = None, listener: Listener = lambda message: None
) -> np.ndarray | None:
    """Load a policy's object file in a guest, and run the policy once on each of `contexts`.

    Returns the contexts as the policy has changed them. `contexts` is an array of `CONTEXT`. The
    guest sends `listener` a message before the first context and after each `CHUNK` of them. Raises
    TrialError with the verifier's reason, NotReadyError without a kernel.
    """
    kernel = require_kernel()
    with tempfile.TemporaryDirectory(prefix="closloop-policy-") as name:
        folder = Path(name)
        (folder / POLICY).write_text(str(policy.absolute()))
        if contexts is not None:
            contexts.tofile(folder / CONTEXTS)
        run_guest(kernel, folder, _MEMORY_BYTES, listener)
        if contexts is None:
            return None
        return np.fromfile(folder / CHANGED, dtype=CONTEXT)


def run_policy(folder: Path) -> None:
    """In the guest: load the policy that the job names, and run it on the contexts, if any."""
    program = attach(Path((folder / POLICY).read_text()))
    if not (folder / CONTEXTS).exists():
        return
    size = CONTEXT.itemsize
    buffer = ctypes.create_string_buffer(CHUNK * size)
    with (folder / CONTEXTS).open("rb") as contexts, (folder / CHANGED).open("wb") as changed:
        send_message(stage="run", contexts=0)
        while count := contexts.readinto(buffer):
            run_on_each(program, (ctypes.c_char * count).from_buffer(buffer), size)
            changed.write(memoryview(buffer)[:count])
            send_message(stage="run", contexts=count // size)


def check_flow_tables(trials: Sequence[TrialSpec]) -> None:
    """Compile the flow table if a tuner observes flows on Linux' fabric.

    Raises NotReadyError without a compiler.
    """
    on_linux = [trial for trial in trials if trial.fabric.kind == "linux"]
    if any(wants_flow_table(create(trial.tuner).observes) for trial in on_linux):
        flow_table_object()


def check_policies(trials: Sequence[TrialSpec]) -> None:
    """Load each policy that trials name in a guest of its own, which takes a second.

    Without a kernel, only the object file is checked. Raises InputError with the verifier's reason
    in plain words.
    """
    specs = [trial.host.roce for trial in trials if trial.host.roce is not None]
    for program in dict.fromkeys(spec.program for spec in specs if spec.program):
        try:
            policy = policy_object(Path(program))
            if find_kernel() is not None:
                load_in_guest(policy)
        except (PolicyError, TrialError) as error:
            raise InputError(problem.at(program) for problem in error.problems) from error


def cached_bundle() -> TrialBundle:
    """Return the kernel that trials would boot here, and the compiled BPF programs.

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
    folders = [folder for folder in (packaged_folder(BPF), cache_folder()) if folder]
    programs = sorted(path for folder in folders for path in folder.glob("*.o"))
    # the names contain a hash of the source: another machine with a newer source compiles its own
    files |= {os.path.join("closloop", "bpf", path.name): path for path in programs}
    return TrialBundle(files, variables)


def with_compiled_policy(trial: TrialSpec) -> TrialSpec:
    """Return the trial with the path of its policy's compiled object in place of the source's."""
    roce = trial.host.roce
    if roce is None or not roce.program:
        return trial
    roce = replace(roce, program=str(policy_object(Path(local_path(roce.program))).absolute()))
    return replace(trial, host=replace(trial.host, roce=roce))


def flow_object(fabric: FabricSpec) -> str:
    """Return the path of the compiled flow table; "" if it is not needed or cannot be compiled.

    For tuners that observe flows, `check_flow_tables` has raised an error in the second case.
    """
    if fabric.kind != "linux":
        return ""
    try:
        return str(flow_table_object())
    except NotReadyError:
        return ""


def mark_object(lacks: Collection[str]) -> str:
    """Return the path of the program that marks if the kernel has no RED; "" if it has RED.

    Raises NotReadyError without a compiler.
    """
    return str(compiled(RED_LAW)) if "red" in lacks else ""


def dctcp_program(trial: TrialSpec, lacks: Collection[str]) -> tuple[str, str] | None:
    """Return the path and the name of the program in DCTCP's place, None if a trial needs none.

    A trial needs it if its flows use DCTCP and the kernel does not have it.
    """
    name = new_program_name()
    uses_dctcp = with_dctcp_program(trial, name) != trial
    return (str(compiled(DCTCP_SOURCE)), name) if uses_dctcp and replaceable_dctcp(lacks) else None
