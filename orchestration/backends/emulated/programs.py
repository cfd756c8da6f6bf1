"""Has the guest's kernel look at policies of one's own before a trial needs them."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collectors.bpf.compile import cache_folder
from collectors.bpf.policy import CONTEXT, PolicyError, policy_object
from orchestration.agent.bpf.load import run_on_each
from orchestration.backends.emulated.console import say
from orchestration.backends.emulated.job import POLICY
from orchestration.backends.emulated.launcher import Listener, run_guest
from orchestration.core.errors import InputError, TrialError
from orchestration.core.packaged import BPF, packaged
from orchestration.core.ports import Luggage
from orchestration.core.trial import TrialSpec
from orchestration.kernel.cache import (
    BINARY,
    MANIFEST,
    OVERRIDE,
    find_kernel,
    require_kernel,
)

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


def run_contexts(program: int, folder: Path) -> None:
    """In the guest: run a program on the folder's contexts, if it has any."""
    if not (folder / CONTEXTS).exists():
        return
    size = CONTEXT.itemsize
    buffer = ctypes.create_string_buffer(CHUNK * size)
    with (folder / CONTEXTS).open("rb") as given, (folder / CHANGED).open("wb") as changed:
        say(stage="run", contexts=0)
        while count := given.readinto(buffer):
            run_on_each(program, (ctypes.c_char * count).from_buffer(buffer), size)
            changed.write(memoryview(buffer)[:count])
            say(stage="run", contexts=count // size)


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


def cached_luggage() -> Luggage:
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
    return Luggage(files, variables)
