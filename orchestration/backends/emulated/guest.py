"""The guest's first process: builds the fabric, runs one trial, writes the result, powers off.

The kernel starts it as init, with the job's folder in CLOSLOOP_JOB. It sends messages to the host
through its console (`system.send_message`). Any other output is for people.

With the argument `real` it is the first process in namespaces of the machine's own kernel, and
exits instead of powering off (see `host_kernel`).
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.backends.emulated.system import (
    RED_STREAM,
    mount_kernel_files,
    power_off,
    send_message,
)
from orchestration.core.errors import ClosloopError, NotReadyError
from orchestration.core.problems import message_and_remedy
from orchestration.core.trial import REAL

if TYPE_CHECKING:
    from orchestration.backends.emulated.job import Job
    from orchestration.core.ports import Tuner

# How often a process in real time looks for the answer of a tuner in another process.
_POLL_S = 50e-6


def prepare_process(clock: str = "") -> None:
    """Mount the file systems that the rest needs, and allow a socket for every flow.

    In real time this process and its children get real-time priority, because a traffic generator
    or a reading that waits for another program is late. The kernel leaves other programs a
    twentieth of each second in any case (sched_rt_runtime_us).
    """
    mount_kernel_files()
    files = 1_000_000
    with suppress(ValueError):  # a container's lower limit has to suffice
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if clock == REAL:
        with suppress(OSError):  # a container may lack CAP_SYS_NICE; the stamp reports lateness
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

    Modules that a job does not need are not imported: in a guest, an import takes half a
    millisecond. Modules that it needs are imported before time 0: looking for a file that does not
    exist takes virtual time.
    """
    import numpy.ma  # noqa: F401 (NumPy imports it at the first np.unique)

    from orchestration.backends.emulated.job import POLICY, read_job, write_result
    from orchestration.backends.emulated.namespaces import Fabric, attach_flow_tables
    from orchestration.backends.emulated.rig import EmulatedRig
    from orchestration.backends.emulated.traffic import make_traffic
    from orchestration.core.ports import TrialRun
    from orchestration.session import run_trial

    if (folder / POLICY).exists():
        from orchestration.backends.emulated.bpf_programs import run_policy

        run_policy(folder)
        return
    original = read_job(folder)
    real = None
    if original.trial.clock == REAL:
        from orchestration.backends.emulated.real_time import RealTimeJob

        real = RealTimeJob(original)
    job = real.job if real else original
    send_message(stage="build")
    fabric = Fabric(job)
    send_message(stage="connect")
    if job.probe is not None:
        from orchestration.backends.emulated.probes import run_probe

        run_probe(job, fabric, folder, lambda: make_traffic(job, fabric))
        return
    tuner = _tuner(job, folder)
    if not real:
        repeat_draws(job.trial.seed)
    flows = attach_flow_tables(job, fabric, tuner.observes)
    driver = make_traffic(job, fabric)
    rig = EmulatedRig(job, fabric, driver, flows, tuner.observes)
    next_message_ns = 0

    def progress(t_ns: int, end_ns: int) -> None:
        nonlocal next_message_ns
        if t_ns >= next_message_ns:
            next_message_ns = t_ns + end_ns // 50
            send_message(t_ns=t_ns, done=driver.flows_done())

    send_message(stage="run")
    run = TrialRun(original.trial, original.testbed, original.schedule, folder, progress)
    record = real.run(rig, tuner, run) if real else run_trial(rig, tuner, run, in_guest=True)
    send_message(stage="write", t_ns=rig.now_ns())
    write_result(folder, record)


def _tuner(job: Job, folder: Path) -> Tuner:
    """Return the job's tuner, or a client of the tuner in the host's process."""
    if job.host_observes is None:
        from tuners.registry import create, set_entry_points

        set_entry_points(job.tuners)
        return create(job.trial.tuner)
    from orchestration.backends.emulated.remote_tuner import TunerClient

    poll_s = _POLL_S if job.trial.clock == REAL else 0.0
    return TunerClient(folder, job.host_observes, send_message, poll_s)


def main(clock: str = "") -> None:
    """Run as process 1: of a guest, or of namespaces of the machine if `clock` is `REAL`."""
    try:
        prepare_process(clock)
        send_message(stage="boot")
        run_job(Path(os.environ["CLOSLOOP_JOB"]))
        if clock != REAL:
            os.sync()  # the host may kill the guest as soon as it gets the next message
        send_message(stage="done")
    except ClosloopError as error:
        send_message(stage="failed", **message_and_remedy(error.problems, "error"))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        send_message(stage="failed")
    if clock == REAL:
        os._exit(0)  # ends all other processes of its PID namespace, too
    power_off()


if __name__ == "__main__":
    main(*sys.argv[1:])
