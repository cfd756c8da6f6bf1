"""The emulated backend with kernels: each trial in a guest, or on this machine's own kernel.

A guest is a booted virtual-time kernel: a user-mode Linux whose clock advances only when the
emulated devices have done their work. Trials in real time run in network namespaces of the
machine's own kernel instead. Trials that need no kernel run in the process: `process_backend`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from inventory.rack import scaled
from orchestration.backends.common.dilation import dilated_trial
from orchestration.backends.common.linux import with_dctcp_program
from orchestration.backends.common.machine_monitor import bound_shapers_late_ns
from orchestration.backends.emulated import bpf_programs, memory
from orchestration.backends.emulated.fabric import check_supported, fault_steps, plan_fabric
from orchestration.backends.emulated.job import Job, read_result, write_job
from orchestration.backends.emulated.launcher import Listener, run_guest, run_on_host_kernel
from orchestration.backends.emulated.marking import marking_facts
from orchestration.backends.emulated.real_time import (
    check_host_kernel,
    real_time_facts,
    real_time_findings,
)
from orchestration.backends.emulated.remote_tuner import TunerServer
from orchestration.core.errors import TrialError
from orchestration.core.ports import TrialBundle, TrialRun
from orchestration.core.records import TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import REAL, FabricSpec, TrialSpec
from orchestration.kernel import kernel_for, require_kernel
from tuners.registry import entry_points


class EmulatedBackend:
    """Runs trials in virtual time, each in a guest of its own, or in real time on this kernel.

    With `flow_table`, switches keep a flow table even if the tuner does not observe its signals.
    """

    name = "emulated"
    to_build = staticmethod(kernel_for)

    def __init__(self, *, flow_table: bool = False) -> None:
        self._flow_table = flow_table
        # The parts that the machine's own kernel lacks; None until that was tried.
        self._lacks: tuple[str, ...] | None = None

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Raise NotReadyError without a kernel, or without memory for `jobs` guests at once.

        With `fabric: linux`, a tuner that observes flows also needs the compiled flow table.
        Policies that trials name are loaded once; raises InputError if the kernel refuses one.
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
        """Return the memory of a trial's guest with so many flows."""
        return memory.trial_memory_bytes(trial, testbed, flows)

    def bundle(self) -> TrialBundle:
        """Return the kernel and the compiled BPF programs, as files for another machine.

        That machine needs no compiler. Raises NotReadyError without a kernel.
        """
        return bpf_programs.cached_bundle()

    def engine_facts(self, trials: Sequence[TrialSpec]) -> dict[str, Any]:
        """Return the facts about the kernel of guests; none for trials in real time.

        Raises NotReadyError without a kernel.
        """
        return {} if any(trial.clock == REAL for trial in trials) else require_kernel().facts

    def run(self, run: TrialRun) -> TrialRecord:
        """Run one trial; raise TrialError with the end of the guest's console if it fails.

        Raises NotReadyError before the trial starts if the machine lacks the memory. If a tuner is
        given, virtual time stands still while it decides, and an exception in it ends the guest.
        """
        run = replace(run, trial=bpf_programs.with_compiled_policy(run.trial))
        trial, tuner = run.trial, run.tuner
        kernel = self._kernel(run)
        job = self._job(run, kernel)
        write_job(run.folder, job)
        stages = _StageClock()
        server = None
        if tuner is not None:
            server = TunerServer(run.folder, tuner, run.testbed, trial.seed)

        def listen(message: dict[str, Any]) -> None:
            stages.note(message)
            if server is not None:
                server.answer(message)
            if "t_ns" in message:
                run.progress(message["t_ns"], trial.duration_ns)

        kernel.start(listen)
        try:
            record = read_result(run.folder)
        except (OSError, ValueError) as error:
            raise TrialError(f"the guest's result cannot be read: {error}") from error
        findings = [*record.facts.get("findings", ()), *kernel.findings]
        facts = {
            **record.facts,
            **job.plan.facts,
            **kernel.facts,
            **({"findings": findings} if findings else {}),
            "red": marking_facts(record, trial.fabric, kernel.lacks),
            "stages_s": dict(stages.seconds),
        }
        record = replace(record, facts=facts)
        return record if server is None else server.complete(record)

    def _job(self, run: TrialRun, kernel: _TrialKernel) -> Job:
        """Return the job of a trial: its plans are in the time of the clock."""
        trial, testbed = run.trial, run.testbed
        dctcp = bpf_programs.dctcp_program(trial, kernel.lacks)
        clock_trial, slow = dilated_trial(trial), scaled(testbed, trial.scale)
        if dctcp:
            clock_trial = with_dctcp_program(clock_trial, dctcp[1])
        plan = plan_fabric(
            slow,
            clock_trial.host,
            trial.seed,
            trial.fabric,
            kernel.lacks,
            kernel.shapers_late_ns,
        )
        return Job(
            trial,
            testbed,
            plan,
            fault_steps(clock_trial, slow, plan),
            run.schedule,
            host_observes=None if run.tuner is None else tuple(run.tuner.observes),
            flow_object=bpf_programs.flow_object(trial.fabric),
            keep_flow_table=self._flow_table,
            mark_object=bpf_programs.mark_object(kernel.lacks),
            dctcp=dctcp,
            tuners=entry_points(),
        )

    def _kernel(self, run: TrialRun) -> _TrialKernel:
        """Return the kernel on which a trial runs. Raises NotReadyError as `run` does."""
        trial, testbed = run.trial, run.testbed
        if trial.clock != REAL:
            kernel = require_kernel()
            memory_bytes = memory.require_memory(trial, testbed, len(run.schedule))
            start = partial(run_guest, kernel, run.folder, memory_bytes)
            return _TrialKernel(start, {"clock": "virtual", **kernel.facts})
        if self._lacks is None:
            self._lacks = check_host_kernel(testbed, 1, [trial])
        lacks = self._lacks
        late_ns = bound_shapers_late_ns(trial.scale)
        return _TrialKernel(
            partial(run_on_host_kernel, run.folder),
            real_time_facts(testbed, lacks, late_ns),
            lacks,
            real_time_findings(testbed, lacks),
            late_ns,
        )


def _prepare(testbed: Testbed, trials: Sequence[TrialSpec]) -> None:
    """Encode the netlink requests that these trials share, for the workers that are forked next.

    `link_requests` caches them: a forked worker then encodes none.
    """
    planned: list[tuple[bool, FabricSpec]] = []
    for trial in trials:
        kind = trial.host.is_roce, trial.fabric
        if kind not in planned and trial.clock != REAL:
            planned.append(kind)
            plan_fabric(testbed, trial.host, trial.seed, trial.fabric)


@dataclass(frozen=True)
class _TrialKernel:
    """The kernel on which a trial runs: a guest's, or the machine's own.

    `start` runs the job to its end. `facts` are for the trial's record, `findings` for its stamp.
    `lacks` are parts that the kernel does not have.
    """

    start: Callable[[Listener], None]
    facts: dict[str, Any]
    lacks: tuple[str, ...] = ()
    findings: Sequence[dict[str, str]] = ()
    shapers_late_ns: int = 0


class _StageClock:
    """Measures the wall time of each stage of a guest, from its messages.

    `seconds` has them by stage: start (the kernel boots), boot (Python imports modules), build (the
    fabric), connect (the flows), run, write.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._stage = "start"
        self.seconds: dict[str, float] = {}

    def note(self, message: dict[str, Any]) -> None:
        """End the current stage if a message says that the next one begins."""
        if "stage" in message:
            now = time.monotonic()
            self.seconds[self._stage] = round(now - self._begin, 3)
            self._begin, self._stage = now, message["stage"]
