"""The emulated backend without a kernel: each trial in closloop's packet engine, in its process.

It runs only trials for which the packet engine has all that they need (`engines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestration.backends.emulated import memory
from orchestration.backends.emulated.process_rig import run_in_process
from orchestration.core.engines import PROCESS, engine_facts
from orchestration.core.files import local_path
from orchestration.core.ports import TrialBundle, TrialRun
from orchestration.core.records import TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.datapath.engine_build import MANIFEST, engine_source, find_built
from orchestration.datapath.library import load_engine
from orchestration.datapath.native_policy import native_policy


class ProcessBackend:
    """Runs trials in virtual time, each in the process that calls `run`."""

    name = "emulated"

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Raise NotReadyError without the packet engine, or memory for `jobs` trials at once.

        The engine, and policies that trials name, are compiled if necessary, which takes seconds,
        once. Raises InputError if the engine refuses a policy.
        """
        self.engine_facts(trials)
        check_policies(trials)
        memory.require_processes(testbed, jobs)

    def memory_bytes(self, trial: TrialSpec, testbed: Testbed, flows: int) -> int:
        """Return an upper bound of the memory of a trial's process with so many flows."""
        return memory.process_memory_bytes(testbed, flows, trial)

    def engine_facts(self, trials: Sequence[TrialSpec] = ()) -> dict[str, Any]:
        """Return the packet engine's version, its compiler, and its interface's version.

        Raises NotReadyError if there is no library, and none can be compiled.
        """
        about = load_engine().about
        return engine_facts(
            PROCESS,
            str(about["engine"]),
            engine_compiler=about["compiler"],
            engine_abi=about["abi"],
        )

    def bundle(self) -> TrialBundle:
        """Return the compiled packet engine; nothing if the package itself contains it.

        A machine with another compiler compiles its own. Raises NotReadyError as `engine_facts`.
        """
        self.engine_facts()
        built = find_built(engine_source())
        files = () if built is None else (built.path, built.path.with_name(MANIFEST))
        return TrialBundle({f"closloop/engine/{p.parent.name}/{p.name}": p for p in files})

    def run(self, run: TrialRun) -> TrialRecord:
        """Run one trial. Raises TrialError if it fails, NotReadyError as `engine_facts`."""
        facts = {"clock": "virtual", **self.engine_facts()}
        record = run_in_process(replace(run, trial=_with_local_policy(run.trial)))
        return replace(record, facts={**facts, **record.facts})


def check_policies(trials: Sequence[TrialSpec]) -> None:
    """Compile and load each policy that trials name.

    Raises InputError if the packet engine refuses one, NotReadyError without a compiler.
    """
    specs = [trial.host.roce for trial in trials if trial.host.roce is not None]
    for program in dict.fromkeys(spec.program for spec in specs if spec.program):
        native_policy(Path(local_path(program)))


def _with_local_policy(trial: TrialSpec) -> TrialSpec:
    """Return the trial with its policy's path on this machine."""
    roce = trial.host.roce
    if roce is None or not roce.program:
        return trial
    return replace(
        trial, host=replace(trial.host, roce=replace(roce, program=local_path(roce.program)))
    )
