"""Where trials run side by side: this machine's processes, if it has room, or an executor's own.

This machine's workers are forked, not spawned, so the modules are loaded only once. The main
process must therefore have no other threads, and must fork from its main thread: the kernel ends
the workers when that thread ends. Each worker leads a process group, so that its child processes
end with it.
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

# NumPy imports it at the first np.unique: here once for all, not again in each forked worker.
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
from traffic.schedule import within

# A queue's sample in the tables takes at most about 9 bytes, and the rest of a trial little.
_BYTES_PER_SAMPLE = 16
_SPARE_BYTES = 64 * 2**20


def check_disk(out: Path, trials: Iterable[TrialSpec], testbeds: Mapping[str, Testbed]) -> None:
    """Raise NotReadyError if the disk lacks the space that the trials could need at most."""
    needed = _SPARE_BYTES
    for trial in trials:
        samples = (trial.duration_ns + trial.drain_ns) // trial.sample_period_ns
        needed += samples * len(testbeds[trial.testbed].queues) * _BYTES_PER_SAMPLE
    place = out.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise NotReadyError(
            f"{place} has {format_size(free)} free; the results may take {format_size(needed)}",
            "make room there, or choose another place with --out",
        )


def check_memory(testbed: Testbed, jobs: int, trials: Iterable[TrialSpec]) -> None:
    """Raise NotReadyError if memory lacks what `jobs` of the trials need at least, side by side."""
    available = available_memory_bytes()
    known: dict[object, int] = {}
    for trial in trials:
        key = (trial.traffic, trial.duration_ns, trial.drain_ns, trial.sample_period_ns)
        if key not in known:
            known[key] = needed_bytes(trial, testbed)
            _refuse(known[key], jobs, trial, available)


def needed_bytes(trial: TrialSpec, testbed: Testbed) -> int:
    """Return what a trial's flows and readings take in memory at least, until its duration ends."""
    try:
        flows = sum(within(spec, trial, testbed).expected(testbed).flows for spec in trial.traffic)
    except (ValueError, KeyError, OSError):
        return 0  # the trial itself says what is wrong
    readings = trial.duration_ns // trial.sample_period_ns * len(testbed.queues)
    return int(flows * FLOW_BYTES) + readings * READING_BYTES


def _refuse(each: int, jobs: int, trial: TrialSpec, available: int) -> None:
    if each * jobs <= available:
        return
    fit = available // each
    who = f"trial {trial.id} needs" if jobs == 1 else f"{jobs} trials side by side, such as "
    who += "" if jobs == 1 else f"{trial.id}, need"
    raise NotReadyError(
        f"{who} {format_size(each * jobs, 1)} of memory or more, and {format_size(available, 1)} "
        "are available",
        f"use --jobs {fit}, or make room"
        if fit
        else "make trials shorter, send fewer flows, or use a longer sample_period",
    )


# The time that a worker may take to clean up before it is killed.
STOP_GRACE_S = 10.0
_CONSOLE_BYTES = 4000


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
    """Worker processes, one per job, that run `do`. Always close it."""

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
        self._workers.append(_Worker(job, pid, os.pidfd_open(pid), receiver, machine.steady_s()))

    def messages(self, timeout_s: float) -> Iterator[tuple[Job, Message]]:
        """Yield the workers' messages within `timeout_s`; a result or a failure ends a worker."""
        ends = [end for worker in self._workers for end in (worker.pipe, worker.pidfd)]
        ready = set(wait(ends, timeout_s))
        for worker in [w for w in self._workers if w.pipe in ready or w.pidfd in ready]:
            message = self._said(worker)
            if isinstance(message, Finished | Failed):
                self._end(worker)
            yield worker.job, message

    def close(self) -> None:
        """Stop all workers: ask, wait, kill. When this returns, nothing of them is left."""
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGTERM)
        until_s = time.monotonic() + STOP_GRACE_S
        for worker in list(self._workers):
            self._end(worker, max(0.0, until_s - time.monotonic()))

    def kill(self) -> None:
        """Kill all workers at once; `close` reaps them."""
        for worker in self._workers:
            _kill_group(worker.pid)

    def _said(self, worker: _Worker) -> Message:
        try:
            if worker.pipe.poll():
                message: Message = worker.pipe.recv()
                return message
        except (EOFError, OSError):
            pass
        wait([worker.pidfd])
        info = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert info is not None  # only WNOHANG returns None
        how = f"ended with {info.si_status}"
        if info.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
            how = f"was killed by {signal.Signals(info.si_status).name}"
        error = TrialError(
            f"the trial's process {how}",
            "if memory was short, run fewer trials side by side with --jobs",
            _end_of_console(worker.job),
        )
        return Failed.of(error, machine.steady_s() - worker.begin_s)

    def _end(self, worker: _Worker, patience_s: float = STOP_GRACE_S) -> None:
        """Wait for a worker's end, then end what it may have left running.

        It is reaped last: until then, its process id and group id cannot be reused.
        """
        wait([worker.pidfd], patience_s)
        _kill_group(worker.pid)
        os.waitpid(worker.pid, 0)
        os.close(worker.pidfd)
        worker.pipe.close()
        self._workers.remove(worker)


def _be_worker(do: Work, job: Job, backend: Backend, pipe: Connection, parent: int) -> NoReturn:
    """Do the work in the forked process, and never return into the copy of the caller."""
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
    """Jobs under way. Always close it. What a job leaves in its `folder` is there when it is done.

    A result or a failure ends a job.
    """

    def __len__(self) -> int:
        """Return how many jobs are under way."""

    def start(self, job: Job) -> None:
        """Start a job."""

    def messages(self, timeout_s: float) -> Iterator[tuple[Job, Message]]:
        """Yield what jobs say within `timeout_s`."""

    def close(self) -> None:
        """Stop all jobs. When this returns, nothing of them is left."""

    def kill(self) -> None:
        """Have `close` not wait for jobs to clean up. May be called by a signal's handler."""


class Executor(Protocol):
    """Takes jobs of one kind after the other."""

    @property
    def forks(self) -> bool:
        """Whether its workers are forked, so that the calling process must have no threads."""

    def slots(self) -> int:
        """Return how many jobs it takes at once, 0 where that follows from the backend."""

    def check(
        self, backend: Backend, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec]
    ) -> None:
        """Raise NotReadyError if `jobs` of these trials cannot run there side by side.

        Raises InputError for trials that can never run there.
        """

    def workers(self, backend: Backend, do: Work) -> WorkerPool:
        """Return workers that do something with a backend."""


class LocalExecutor:
    """Processes of this machine, one a job."""

    forks = True

    def slots(self) -> int:
        """Return 0."""
        return 0

    def check(
        self, backend: Backend, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec]
    ) -> None:
        """Raise what the backend raises, and NotReadyError if memory is too small."""
        backend.check(testbed, jobs, trials)
        check_memory(testbed, min(jobs, len(trials)), trials)

    def workers(self, backend: Backend, do: Work = work) -> WorkerPool:
        """Return a pool."""
        return ProcessPool(backend, do)


THIS_MACHINE: Executor = LocalExecutor()
