"""Policies of one's own in ns-3: their C source, compiled as a library that the program loads.

ns3/own_policy.c is around it, which gives it what the guest gives a BPF program.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestration.backends.simulated.program import COMPILER, POLICIES
from orchestration.model.errors import InputError, NotReadyError
from orchestration.model.trial import TrialSpec

_AROUND = Path(__file__).parent / "ns3" / "own_policy.c"
# What C leaves undefined and BPF defines: sums that overflow, words read as other types.
_FLAGS = ("-O2", "-fwrapv", "-fno-strict-aliasing", "-shared", "-fPIC")


def policy_library(source: Path, folder: Path) -> Path:
    """Compile a policy's C source; return the library, which is in `folder`.

    Raises InputError for a file that is no C source or does not compile, NotReadyError without a
    compiler.
    """
    if source.suffix != ".c":
        raise InputError.single(
            str(source), "ns-3 needs its C source", "give the .c file, or run --on emulated"
        )
    if shutil.which(COMPILER) is None:
        raise NotReadyError(
            f"a policy of one's own needs a compiler in ns-3, and there is no {COMPILER}",
            "apt-get install g++",
        )
    made = folder / "policy.so"
    around = ("-I", str(POLICIES), f'-DPROGRAM="{source.absolute()}"', "-x", "c", str(_AROUND))
    done = subprocess.run(
        [COMPILER, *_FLAGS, *around, "-o", str(made)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        faults = [line for line in done.stderr.splitlines() if "error:" in line]
        said = faults[0].partition("error: ")[2] if faults else done.stderr.strip()[:2000]
        raise InputError.single(
            str(source), f"the compiler refuses it: {said}", "correct it: see docs/policies.md"
        )
    return made


def check_own_policies(trials: Sequence[TrialSpec]) -> None:
    """Compile the policies that trials name; raise as `policy_library` does."""
    specs = [trial.host.roce for trial in trials if trial.host.roce is not None]
    for program in dict.fromkeys(spec.program for spec in specs if spec.program):
        with tempfile.TemporaryDirectory(prefix="closloop-policy-") as folder:
            policy_library(Path(program), Path(folder))
