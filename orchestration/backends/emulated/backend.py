"""The emulated backend: each trial runs in a guest of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from inventory.rack import scaled
from orchestration.backends.common.dilation import dilated_trial
from orchestration.backends.common.linux import with_dctcp_program
from orchestration.backends.common.machine_monitor import bound_shapers_late_ns
from orchestration.backends.emulated import bpf_programs, memory
from orchestration.backends.emulated.fabric import check_supported, fault_steps, plan_fabric
from orchestration.backends.emulated.job import Job, read_result, write_job
from orchestration.backends.emulated.launcher import Listener, run_guest, run_on_host_kernel
from orchestration.backends.emulated.real_time import (
    check_host_kernel,
    real_time_facts,
    real_time_findings,
)
from orchestration.backends.emulated.remote_tuner import TunerServer
from orchestration.core.errors import TrialError
from orchestration.core.knobs import ECN
from orchestration.core.marking_probability import MarkingProbability
from orchestration.core.ports import TrialBundle, TrialRun
from orchestration.core.records import TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import REAL, FabricSpec, TrialSpec
from orchestration.kernel.cache import require_kernel
from tuners.registry import entry_points

# A learned tuner sets thousands of thresholds; the marking law is computed for the first few.
_LAWS = 20


class EmulatedBackend:
    """Runs trials in virtual time, each in a guest of its own, or in real time on this kernel.

    `flow_table` keeps a flow table even for tuners that do not observe it.
    """

    name = "emulated"

    def __init__(self, *, flow_table: bool = False) -> None:
        self._flow_table = flow_table
        # What the machine's own kernel lacks, once that was tried.
        self._lacks: tuple[str, ...] | None = None

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Raise NotReadyError without a kernel, or without memory for `jobs` guests at once.

        On Linux' fabric, a tuner that observes flows also needs the compiled flow table. Policies
        of one's own are loaded once; raises InputError if the kernel refuses one.
        """
        check_supported(testbed)
        bpf_programs.check_flow_tables(trials)
        if real := [trial for trial in trials if trial.clock == REAL]:
            self._lacks = check_host_kernel(testbed, jobs, real)
        if real and len(real) == len(trials):
            return
        require_kernel()
        bpf_programs.check_policies(trials)
        memory.require_guests(testbed, jobs, trials)
        _prepare(testbed, trials)

    def memory_bytes(self, trial: TrialSpec, testbed: Testbed, flows: int) -> int:
        """Return the memory of a trial's guest."""
        return memory.trial_memory_bytes(trial, testbed, flows)

    def luggage(self) -> TrialBundle:
        """Return the kernel, and the programs that were compiled for it.

        A machine without the compiler can use these. Raises NotReadyError without a kernel.
        """
        return bpf_programs.cached_bundle()

    def run(self, run: TrialRun) -> TrialRecord:
        """Run one trial; raise TrialError with the end of the guest's console if it fails.

        Raises NotReadyError before the trial starts if the machine lacks the memory. If a tuner is
        given, virtual time stands still while it decides, and an exception in it ends the guest.
        """
        trial, testbed, tuner = bpf_programs.with_compiled_policy(run.trial), run.testbed, run.tuner
        ground = self._ground(replace(run, trial=trial))
        lacks, late_ns = ground.lacks, ground.shapers_late_ns
        dctcp = bpf_programs.dctcp_program(trial, lacks)
        told, slow = dilated_trial(trial), scaled(testbed, trial.scale)
        told = with_dctcp_program(told, dctcp[1]) if dctcp else told
        plan = plan_fabric(slow, told.host, trial.seed, trial.fabric, lacks, late_ns)
        job = Job(
            trial,
            testbed,
            plan,
            fault_steps(told, slow, plan),
            run.schedule,
            host_observes=None if tuner is None else tuple(tuner.observes),
            flow_object=bpf_programs.flow_object(trial.fabric),
            keep_flow_table=self._flow_table,
            mark_object=bpf_programs.mark_object(lacks),
            dctcp=dctcp,
            tuners=entry_points(),
        )
        write_job(run.folder, job)
        stages = _StageClock()
        answering = None
        if tuner is not None:
            answering = TunerServer(run.folder, tuner, testbed, trial.seed)

        def listen(message: dict[str, Any]) -> None:
            stages.note(message)
            if answering is not None:
                answering.answer(message)
            if "t_ns" in message:
                run.progress(message["t_ns"], trial.duration_ns)

        ground.start(listen)
        try:
            record = read_result(run.folder)
        except (OSError, ValueError) as error:
            raise TrialError(f"the guest's result cannot be read: {error}") from error
        findings = [*record.facts.get("findings", ()), *ground.findings]
        facts = {
            **record.facts,
            **plan.facts,
            **ground.about,
            **({"findings": findings} if findings else {}),
            "red": _marking_law(record, trial.fabric, lacks),
            "stages_s": dict(stages.seconds),
        }
        record = replace(record, facts=facts)
        return record if answering is None else answering.complete(record)

    def _ground(self, run: TrialRun) -> _TrialGround:
        """Return where a job runs. Raises NotReadyError as `run` does."""
        trial, testbed = run.trial, run.testbed
        if trial.clock != REAL:
            kernel = require_kernel()
            memory_bytes = memory.require_memory(trial, testbed, len(run.schedule))
            start = partial(run_guest, kernel, run.folder, memory_bytes)
            return _TrialGround(start, {"clock": "virtual", "kernel_hash": kernel.hash})
        if self._lacks is None:
            self._lacks = check_host_kernel(testbed, 1, [trial])
        lacks = self._lacks
        late_ns = bound_shapers_late_ns(trial.scale)
        about, findings = (
            real_time_facts(testbed, lacks, late_ns),
            real_time_findings(testbed, lacks),
        )
        return _TrialGround(
            partial(run_on_host_kernel, run.folder), about, lacks, findings, late_ns
        )


def _prepare(testbed: Testbed, trials: Sequence[TrialSpec]) -> None:
    """Encode the requests that these trials share, for the workers that are forked next."""
    planned: list[tuple[bool, FabricSpec]] = []
    for trial in trials:
        kind = trial.host.is_roce, trial.fabric
        if kind not in planned and trial.clock != REAL:
            planned.append(kind)
            plan_fabric(testbed, trial.host, trial.seed, trial.fabric)


@dataclass(frozen=True)
class _TrialGround:
    """Where a trial runs, what is known of it, what its kernel lacks, and what the stamp says."""

    start: Callable[[Listener], None]
    about: dict[str, Any]
    lacks: tuple[str, ...] = ()
    findings: Sequence[dict[str, str]] = ()
    shapers_late_ns: int = 0


def _marking_law(record: TrialRecord, fabric: FabricSpec, lacks: Collection[str]) -> dict[str, str]:
    """Describe how the ports marked, and how far that is from the requested straight line."""
    if "red" in lacks:
        return {"straight_line_on": "the instantaneous queue, arrivals, by a BPF program"}
    if fabric.kind != "linux":
        return {"straight_line_on": f"the instantaneous queue, {fabric.marks}"}
    thresholds = record.changes[ECN.name]
    columns = [thresholds["kmin_bytes"], thresholds["kmax_bytes"], np.round(thresholds["pmax"], 6)]
    settings = np.unique(np.column_stack(columns), axis=0)
    laws = [
        MarkingProbability(int(kmin), int(kmax), float(pmax))
        for kmin, kmax, pmax in settings[:_LAWS]
    ]
    worst = max((law.worst_departure() for law in laws), default=0.0)
    return {
        "Linux_RED_on": "the instantaneous queue",
        "farthest_from_the_straight_line": f"{worst:.1%} of pmax",
    }


class _StageClock:
    """Measures the wall time of each stage of a guest, from its messages.

    `seconds` are by stage: start (kernel), boot (imports), build, connect, run, write.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._stage = "start"
        self.seconds: dict[str, float] = {}

    def note(self, message: dict[str, Any]) -> None:
        if "stage" in message:
            now = time.monotonic()
            self.seconds[self._stage] = round(now - self._begin, 3)
            self._begin, self._stage = now, message["stage"]
