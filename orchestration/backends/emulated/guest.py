"""The guest's first process: builds the fabric, runs one trial, writes the result, powers off.

The kernel starts it as init, with the job's folder in CLOSLOOP_JOB. It sends messages to the host
through its console (see `console`). Any other output is for people.

With the argument `real` it is the first process of namespaces of the machine's own kernel, and it
ends where the guest powers off (see `machine`).
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.backends.emulated.console import say
from orchestration.backends.emulated.system import RED_STREAM, mount_kernel_files, power_off
from orchestration.core.errors import ClosloopError, NotReadyError
from orchestration.core.problems import told
from orchestration.core.trial import REAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestration.agent.bpf.congestion import Control
    from orchestration.backends.emulated.job import Job
    from orchestration.core.ports import Rig, Tuner
    from orchestration.core.records import TrialRecord

# How often a process in real time looks for its tuner's answer.
_PAUSE_S = 50e-6


def prepare_process() -> None:
    """Mount the file systems that the rest needs, and allow a socket for every flow."""
    mount_kernel_files()
    files = 1_000_000
    with suppress(ValueError):  # a container's limit: there it has to do
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def go_first() -> None:
    """Run before all ordinary programs of the machine, as children will.

    A generator or a reading that waits for another program is late. The kernel leaves the others a
    twentieth of each second whatever happens (sched_rt_runtime_us).
    """
    with suppress(OSError):  # a container may lack CAP_SYS_NICE; then the stamp tells what was late
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def repeat_draws(seed: int) -> None:
    """Seed RED's draws with the trial's seed, so that a repeated trial is identical to the bit."""
    try:
        RED_STREAM.write_text(str((seed * 0x9E3779B97F4A7C15 + 1) % (1 << 63) or 1))
    except FileNotFoundError as error:
        raise NotReadyError(
            "this kernel cannot repeat RED's draws: it was not built by this version of closloop",
            "closloop kernel build, and unset CLOSLOOP_KERNEL",
        ) from error


def run_job(folder: Path) -> None:
    """Build the fabric, run the trial, write its result.

    What a job does not need is not imported: in a guest, a module takes half a millisecond. What it
    does need is imported before time 0: looking for a file that is not there takes virtual time.
    """
    import numpy.ma  # noqa: F401 (NumPy imports it at the first np.unique)

    from orchestration.backends.emulated.flow_tables import attach_flow_tables
    from orchestration.backends.emulated.job import POLICY, read_job, write_result
    from orchestration.backends.emulated.namespaces import Fabric
    from orchestration.backends.emulated.rig import EmulatedRig
    from orchestration.backends.emulated.traffic import traffic_of
    from orchestration.core.signals import HOST_KEYS, PAIRS
    from orchestration.session import run_trial

    if (folder / POLICY).exists():
        _run_policy(folder)
        return
    written = read_job(folder)
    job = _told(written)
    say(stage="build")
    control = _dctcp(job)
    fabric = Fabric(job)
    say(stage="connect")
    if job.probe is not None:
        from orchestration.backends.emulated.probes import run_probe

        run_probe(job, fabric, folder, lambda: traffic_of(job, fabric))
        return
    real = job.trial.clock == REAL
    tuner = _tuner(job, folder)
    if not real:
        repeat_draws(job.trial.seed)
    flows = attach_flow_tables(job, fabric, tuner.observes)
    driver = traffic_of(job, fabric)
    watches_hosts = not set(HOST_KEYS).isdisjoint(tuner.observes)
    rig = EmulatedRig(
        job,
        fabric,
        driver,
        flows,
        watches_hosts=watches_hosts,
        watches_pairs=PAIRS in tuner.observes,
    )
    shown = 0

    def progress(t_ns: int, end_ns: int) -> None:
        nonlocal shown
        if t_ns >= shown:
            shown = t_ns + end_ns // 50
            say(t_ns=t_ns, done=driver.flows_done())

    def run(rig: Rig) -> TrialRecord:
        trial, testbed = written.trial, written.testbed
        return run_trial(rig, tuner, trial, testbed, folder, progress, in_guest=not real)

    say(stage="run")
    record = _run_real(run, rig, written, control) if real else run(rig)
    say(stage="write", t_ns=rig.now_ns())
    write_result(folder, record)


def _run_policy(folder: Path) -> None:
    """Load the policy that the job names, and run it on the job's contexts."""
    from collectors.bpf.policy import attach
    from orchestration.backends.emulated.job import POLICY
    from orchestration.backends.emulated.policies import run_contexts

    run_contexts(attach(Path((folder / POLICY).read_text())), folder)


def _tuner(job: Job, folder: Path) -> Tuner:
    """Return the job's tuner, or what asks the host's."""
    if job.host_observes is None:
        from tuners.registry import create

        return create(job.trial.tuner)
    from orchestration.backends.emulated.remote import AskingTuner

    pause_s = _PAUSE_S if job.trial.clock == REAL else 0.0
    return AskingTuner(folder, job.host_observes, say, pause_s)


def _run_real(
    run: Callable[[Rig], TrialRecord], rig: Rig, written: Job, control: Control | None
) -> TrialRecord:
    """Run a trial by the machine's clock, and say what of the machine disturbed it."""
    from orchestration.backends import dctcp_program
    from orchestration.backends.dilation import dilated, unscalable
    from orchestration.backends.realtime import MachineWatch

    trial = written.trial
    with MachineWatch(trial) as watch:
        record = run(dilated(rig, trial.scale))
    found = [*record.facts["findings"], *watch.findings(), *unscalable(trial)]
    facts = {**record.facts, **watch.facts(), "findings": found}
    if control is not None and written.dctcp is not None:
        totals = control.totals()
        facts |= dctcp_program.facts(written.dctcp[1], totals._asdict())
        found += dctcp_program.findings(totals.astray)
    if trial.scale > 1:
        facts["scale"] = trial.scale
    return replace(record, facts=facts)


def _told(job: Job) -> Job:
    """Return the job in the clock's time, which passes faster than a scaled trial's."""
    if job.dctcp is not None:
        from orchestration.backends.dctcp_program import by_name

        job = replace(job, trial=by_name(job.trial, job.dctcp[1]))
    factor = job.trial.scale
    if factor == 1:
        return job
    from inventory.rack import scaled
    from orchestration.backends.dilation import stretched, stretched_schedule

    return replace(
        job,
        trial=stretched(job.trial),
        testbed=scaled(job.testbed, factor),
        schedule=stretched_schedule(job.schedule, factor),
    )


def _dctcp(job: Job) -> Control | None:
    """Register the program that is DCTCP on this kernel, until this process ends."""
    if job.dctcp is None:
        return None
    from orchestration.agent.bpf.congestion import Control, read_control

    path, name = job.dctcp
    return Control(read_control(Path(path).read_bytes()), name)


def main(clock: str = "") -> None:
    """Run as process 1 of the guest, or with the clock `REAL` of namespaces of the machine."""
    try:
        prepare_process()
        if clock == REAL:
            go_first()
        say(stage="boot")
        run_job(Path(os.environ["CLOSLOOP_JOB"]))
        if clock != REAL:
            os.sync()  # this message may be the last that a guest does
        say(stage="done")
    except ClosloopError as error:
        say(stage="failed", **told(error.problems, "error"))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        say(stage="failed")
    if clock == REAL:
        os._exit(0)  # with what else runs in its namespaces
    power_off()


if __name__ == "__main__":
    main(*sys.argv[1:])
