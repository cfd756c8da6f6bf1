"""The simulated backend: runs each trial in an ns-3 program of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestration.backends.common.linux import TSQ_LIMIT_BYTES
from orchestration.backends.simulated.job import check_supported
from orchestration.backends.simulated.program import (
    Simulation,
    check_own_policies,
    policy_library,
    require_program,
)
from orchestration.backends.simulated.rig import SimulatedRig
from orchestration.core.files import local_path
from orchestration.core.ports import TrialRun
from orchestration.core.records import TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.session import run_trial
from tuners import registry


class SimulatedBackend:
    """Runs trials in ns-3, each in a process of its own."""

    name = "simulated"

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Compile the program if necessary; raise NotReadyError if that is impossible.

        Raises InputError for a testbed that does not fit into the program's addresses, and for a
        policy that is not C source or does not compile.
        """
        check_supported(testbed)
        require_program()
        check_own_policies(trials)

    def run(self, run: TrialRun) -> TrialRecord:
        """Run one trial; raise TrialError, with the output of ns-3, if it fails."""
        trial = run.trial
        check_supported(run.testbed)
        program = require_program()
        tuner = run.tuner or registry.create(trial.tuner)
        begin_s = time.monotonic()
        policy = _compiled_policy(trial, run.folder)
        with Simulation(program, run.folder, policy=policy) as simulation:
            rig = SimulatedRig(simulation, trial, run.testbed, run.schedule, tuner.observes)
            build_s = round(time.monotonic() - begin_s, 3)
            record = run_trial(rig, tuner, run)
        facts = {
            "clock": "virtual",
            "model": f"ns-3 {program.ns3_version}",
            "program_hash": program.hash,
            "offloads_on": [],
            **(_roce_facts(trial) if trial.host.roce else _tcp_facts(trial)),
            "stages_s": {"build": build_s, "run": record.facts["run_wall_s"]},
        }
        return replace(record, facts={**facts, **record.facts})


def _compiled_policy(trial: TrialSpec, folder: Path) -> tuple[Path, str] | None:
    """Return the library and the argument (none) of the policy program that a trial names."""
    spec = trial.host.roce
    return (
        (policy_library(Path(local_path(spec.program)), folder), "")
        if spec and spec.program
        else None
    )


def _tcp_facts(trial: TrialSpec) -> dict[str, Any]:
    """Return the settings of the hosts' TCP, and the kinds of queues."""
    return {
        "tcp": {
            "congestion_control": trial.host.congestion_control,
            "min_rto_ns": trial.host.min_rto_ns,
            "small_queue_bytes": TSQ_LIMIT_BYTES,
            "initial_window_segments": 10,
        },
        "qdiscs": {"host": "tbf > fq", "switch": "tbf > red per queue"},
        "red": {"Linux_RED_on": "the instantaneous queue"},
    }


def _roce_facts(trial: TrialSpec) -> dict[str, Any]:
    """Return the kinds of NICs and ports, and how ports mark."""
    marks = trial.fabric.marks
    return {
        "qdiscs": {"host": "RoCE NIC", "switch": f"closloop, marks {marks}"},
        "red": {"straight_line_on": f"the instantaneous queue, {marks}"},
    }
