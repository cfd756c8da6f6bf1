"""Executors run jobs side by side: on this machine, or elsewhere by another package's executor.

On this machine each job has a worker process. Workers are forked, not spawned, so that modules are
loaded only once. The main process must therefore have no other threads, and must fork from its main
thread: the kernel ends the workers when that thread ends. Each worker leads a process group, so
that its child processes end with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn, Protocol

# NumPy imports this at the first np.unique. It is imported here once, not in each forked worker.
import numpy.ma  # noqa: F401

from orchestration.campaign.limits import FLOW_BYTES, READING_BYTES
from orchestration.core import machine
from orchestration.core.errors import NotReadyError, TrialError
from orchestration.core.machine import available_memory_bytes
from orchestration.core.ports import Backend
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_size
from orchestration.run.worker import CONSOLE_FILE, Failed, Finished, Job, Message, work
from traffic.schedule import fit_to_trial

# Bytes on disk for each sample of a queue: about 9 at most; the rest of a trial takes little.
_BYTES_PER_SAMPLE = 16
_SPARE_BYTES = 64 * 2**20


def check_disk(out: Path, trials: Iterable[TrialSpec], testbeds: Mapping[str, Testbed]) -> None:
    """Raise NotReadyError if the disk has less space than the trials could need at most."""
    needed = _SPARE_BYTES
    for trial in trials:
        samples = (trial.duration_ns + trial.drain_ns) // trial.sample_period_ns
        needed += samples * len(testbeds[trial.testbed].queues) * _BYTES_PER_SAMPLE
    folder = out.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NotReadyError(
            f"{folder} has {format_size(free)} free; the results may take {format_size(needed)}",
            "free some space there, or choose another folder with --out",
        )


def check_memory(testbed: Testbed, jobs: int, trials: Iterable[TrialSpec]) -> None:
    """Raise NotReadyError if `jobs` of the trials, side by side, need more memory than there is."""
    available = available_memory_bytes()
    known: dict[object, int] = {}
    for trial in trials:
        key = (trial.traffic, trial.duration_ns, trial.drain_ns, trial.sample_period_ns)
        if key not in known:
            known[key] = needed_bytes(trial, testbed)
            _refuse(known[key], jobs, trial, available)


def needed_bytes(trial: TrialSpec, testbed: Testbed) -> int:
    """Return how much memory a trial's flows and readings take at least, until its duration."""
    try:
        flows = sum(
            fit_to_trial(spec, trial, testbed).expected(testbed).flows for spec in trial.traffic
        )
    except (ValueError, KeyError, OSError):
        return 0  # the trial itself reports what is wrong
    readings = trial.duration_ns // trial.sample_period_ns * len(testbed.queues)
    return int(flows * FLOW_BYTES) + readings * READING_BYTES


def _refuse(each: int, jobs: int, trial: TrialSpec, available: int) -> None:
    """Raise NotReadyError if `jobs` trials of `each` bytes need more than is `available`."""
    if each * jobs <= available:
        return
    fit = available // each
    who = f"trial {trial.id} needs" if jobs == 1 else f"{jobs} trials side by side, such as "
    who += "" if jobs == 1 else f"{trial.id}, need"
    raise NotReadyError(
        f"{who} {format_size(each * jobs, 1)} of memory or more, and {format_size(available, 1)} "
        "are available",
        f"use --jobs {fit}, or free some memory"
        if fit
        else "make trials shorter, send fewer flows, or use a longer sample_period",
    )


# How long a worker may take to clean up before it is killed.
STOP_GRACE_S = 10.0
_CONSOLE_BYTES = 4000
# Signals of a fault in C code: what it printed last says what it was.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


# (job, backend, the pipe for messages, the parent's process id) -> None, in the forked process.
Work = Callable[[Job, Backend, Connection, int], None]


@dataclass(frozen=True)
class _Worker:
    job: Job
    pid: int
    pidfd: int
    pipe: Connection
    begin_s: float


class ProcessPool:
    """A pool of forked worker processes, one per job, that run `do`. Always close it."""

    def __init__(self, backend: Backend, do: Work = work) -> None:
        self._backend = backend
        self._do = do
        self._workers: list[_Worker] = []

    def __len__(self) -> int:
        return len(self._workers)

    def start(self, job: Job) -> None:
        """Start a worker on `job`."""
        receiver, sender = Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _be_worker(self._do, job, self._backend, sender, parent)
        sender.close()
        self._workers.append(
            _Worker(job, pid, os.pidfd_open(pid), receiver, machine.monotonic_wall_s())
        )

    def messages(self, timeout_s: float) -> Iterator[tuple[Job, Message]]:
        """Yield messages of workers that arrive within `timeout_s` seconds.

        After `Finished` or `Failed` the worker has ended.
        """
        ends = [end for worker in self._workers for end in (worker.pipe, worker.pidfd)]
        ready = set(wait(ends, timeout_s))
        for worker in [w for w in self._workers if w.pipe in ready or w.pidfd in ready]:
            message = self._message(worker)
            if isinstance(message, Finished | Failed):
                self._end(worker)
            yield worker.job, message

    def close(self) -> None:
        """Stop all workers: SIGTERM, then SIGKILL after a time. Then none of them is left."""
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_GRACE_S
        for worker in list(self._workers):
            self._end(worker, max(0.0, deadline_s - time.monotonic()))

    def kill(self) -> None:
        """Kill all workers without waiting; `close` reaps them."""
        for worker in self._workers:
            _kill_group(worker.pid)

    def _message(self, worker: _Worker) -> Message:
        """Return a worker's next message, or the failure that it ended without one."""
        try:
            if worker.pipe.poll():
                message: Message = worker.pipe.recv()
                return message
        except (EOFError, OSError):
            pass
        wait([worker.pidfd])
        info = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert info is not None  # only WNOHANG returns None
        console = _end_of_console(worker.job)
        how = f"ended with {info.si_status}"
        seed = worker.job.trial.seed
        remedy = (
            f"if memory was short, run fewer trials side by side with --jobs; its seed is {seed}"
        )
        if info.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
            how = f"was killed by {signal.Signals(info.si_status).name}"
            if info.si_status in _CRASHES:
                how += "".join(f": {line}" for line in console.splitlines()[-1:])
                remedy = (
                    "correct the campaign's own policy, if it has one: see docs/policies.md; "
                    f"otherwise report this, with the campaign's file and the seed {seed}"
                )
        error = TrialError(f"the trial's process {how}", remedy, console)
        return Failed.of(error, machine.monotonic_wall_s() - worker.begin_s)

    def _end(self, worker: _Worker, grace_s: float = STOP_GRACE_S) -> None:
        """Wait for a worker's end, then kill its process group.

        The worker is reaped last: until then, its process id and group id cannot be reused.
        """
        wait([worker.pidfd], grace_s)
        _kill_group(worker.pid)
        os.waitpid(worker.pid, 0)
        os.close(worker.pidfd)
        worker.pipe.close()
        self._workers.remove(worker)


def _be_worker(do: Work, job: Job, backend: Backend, pipe: Connection, parent: int) -> NoReturn:
    """Do the work in the forked process and exit; it must not return into the caller's copy."""
    code = 1
    try:
        do(job, backend, pipe, parent)
        code = 0
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _kill_group(pid: int) -> None:
    # Kill the process itself too: it may have been stopped before it led a group.
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _end_of_console(job: Job) -> str:
    try:
        return (job.work / CONSOLE_FILE).read_bytes()[-_CONSOLE_BYTES:].decode(errors="replace")
    except OSError:
        return ""


class WorkerPool(Protocol):
    """Workers that run jobs. Always close it.

    A job ends with the message `Finished` or `Failed`; its results are in its `folder` by then.
    """

    def __len__(self) -> int:
        """Return how many jobs are running."""

    def start(self, job: Job) -> None:
        """Start a job."""

    def messages(self, timeout_s: float) -> Iterator[tuple[Job, Message]]:
        """Yield messages of jobs that arrive within `timeout_s` seconds."""

    def close(self) -> None:
        """Stop all jobs. When this returns, no process of theirs is left."""

    def kill(self) -> None:
        """Make `close` return without waiting for clean-up. May be called by a signal handler."""


class Executor(Protocol):
    """Where jobs run: it checks that they can, and makes worker pools."""

    @property
    def forks(self) -> bool:
        """Whether its workers are forked, so that the calling process must have no threads."""

    def slots(self) -> int:
        """Return how many jobs it can run side by side, 0 where that depends on the backend."""

    def check(
        self, backend: Backend, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec]
    ) -> None:
        """Raise NotReadyError if `jobs` of these trials cannot run there side by side now.

        Raises InputError for trials that can never run there.
        """

    def workers(self, backend: Backend, do: Work) -> WorkerPool:
        """Return a worker pool whose jobs call `do` with a backend."""


class LocalExecutor:
    """Runs each job in a forked process on this machine."""

    forks = True

    def slots(self) -> int:
        """Return 0: the number follows from cores, memory and the backend."""
        return 0

    def check(
        self, backend: Backend, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec]
    ) -> None:
        """Raise what the backend's check raises, and NotReadyError if memory is too small."""
        backend.check(testbed, jobs, trials)
        check_memory(testbed, min(jobs, len(trials)), trials)

    def workers(self, backend: Backend, do: Work = work) -> WorkerPool:
        """Return a pool of forked processes."""
        return ProcessPool(backend, do)


THIS_MACHINE: Executor = LocalExecutor()
