"""The worker: runs one trial in a process of its own, from its schedule to its finished folder."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from collectors.sinks.spool_observer import SpoolNote, started_ns, write_spool_note
from collectors.snapshot import ABOUT_FILE
from inventory.routing import ideal_times_ns
from inventory.testbed_json import testbed_to_json
from orchestration.analysis.load import load_facts
from orchestration.analysis.port_metrics import hop_facts
from orchestration.analysis.stamp import stamp
from orchestration.core.errors import ClosloopError, Problem
from orchestration.core.files import write_whole
from orchestration.core.machine import Stopwatch
from orchestration.core.ports import Backend, TrialRun
from orchestration.core.problems import unexpected
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.writer import write_trial
from traffic.schedule import make_schedule

CONSOLE_FILE = "worker.log"
_PR_SET_PDEATHSIG = 1
_PROGRESS_EVERY_S = 0.05


@dataclass(frozen=True)
class Job:
    """A worker's input. Results go to `folder`, temporary files to `work`.

    `spool` is where a live sink gets records while the trial runs, None without a sink.
    """

    trial: TrialSpec
    testbed: Testbed
    folder: Path
    work: Path
    spool: SpoolNote | None = None


@dataclass(frozen=True)
class Progressed:
    """A trial is running: its virtual time, the time until which flows start, and its wall time."""

    virtual_ns: int
    end_ns: int
    wall_s: float


@dataclass(frozen=True)
class Finished:
    """A trial is done, and its folder is complete. `reasons` are those of its stamp.

    `virtual_ns` is how long it took by its own clock, `wall_s` by the wall clock.
    """

    valid: bool
    reasons: tuple[str, ...]
    virtual_ns: int
    wall_s: float


@dataclass(frozen=True)
class Failed:
    """A trial failed. `console` is the end of the output of its guest or process."""

    problems: tuple[Problem, ...]
    console: str = ""
    wall_s: float = 0.0

    @classmethod
    def of(cls, error: Exception, wall_s: float = 0.0) -> Failed:
        """Return the failure that an error means; an unexpected error comes with its traceback."""
        if isinstance(error, ClosloopError):
            return cls(error.problems, getattr(error, "console", ""), wall_s)
        return cls((unexpected(error),), traceback.format_exc(), wall_s)


@dataclass(frozen=True)
class Lost:
    """A trial's machine or process was lost; the trial starts again from its beginning."""

    reason: str


Message = Progressed | Finished | Failed | Lost


def work(job: Job, backend: Backend, pipe: Connection, parent: int) -> None:
    """Run one trial in this process, which the process `parent` forked for it.

    Its progress and its result are sent through `pipe`.
    """
    enter_worker(job, parent)
    stopwatch, begin, begin_ns = Stopwatch(), time.monotonic(), time.time_ns()
    sent_at = -_PROGRESS_EVERY_S

    def progress(virtual_ns: int, end_ns: int) -> None:
        nonlocal sent_at
        wall_s = time.monotonic() - begin
        if wall_s - sent_at >= _PROGRESS_EVERY_S:
            sent_at = wall_s
            pipe.send(Progressed(virtual_ns, end_ns, wall_s))

    try:
        schedule = make_schedule(job.trial, job.testbed)
        _write_description(job, len(schedule))
        write_spool_note(job.work, job.spool)
        record = backend.run(TrialRun(job.trial, job.testbed, schedule, job.work, progress))
        ideal_ns = ideal_times_ns(job.testbed, schedule, job.trial)
        verdict = stamp(job.trial, job.testbed, schedule, record, ideal_ns)
        wall_s = stopwatch.took().wall_s
        facts = {
            "wall_s": round(wall_s, 3),
            "started_ns": started_ns(job.work, begin_ns),
            **hop_facts(job.trial.backend, job.testbed, record),
            **load_facts(job.trial, job.testbed, schedule, record),
        }
        write_trial(job.folder, job.trial, job.testbed, schedule, record, verdict, facts, ideal_ns)
        reasons = tuple(reason.text for reason in verdict.reasons)
        virtual_ns = int(record.ports.t_ns[-1]) if len(record.ports.t_ns) else 0
        pipe.send(Finished(verdict.valid, reasons, virtual_ns, stopwatch.took().wall_s))
    except Exception as error:
        pipe.send(Failed.of(error, stopwatch.took().wall_s))


def _write_description(job: Job, flows: int) -> None:
    """Write a description of the trial beside its snapshots, for whoever shows them."""
    about = {
        "spec": job.trial.to_json(),
        "testbed": testbed_to_json(job.testbed),
        "flows": flows,
    }
    with suppress(OSError):  # with a full disk there is nothing to watch, but the trial goes on
        write_whole(job.work / ABOUT_FILE, json.dumps(about))


def enter_worker(job: Job, parent: int) -> None:
    """Make this forked process a worker: it ends with its parent and leaves the terminal."""
    die_with(parent)
    _leave_terminal(job)


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent ends, for whatever reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def _leave_terminal(job: Job) -> None:
    """Detach from the terminal: Ctrl-C does not reach this process, and output goes to a file.

    The runner stops a worker by SIGTERM, which ends it by an exception, so that the backend can
    clean up.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    job.work.mkdir(parents=True, exist_ok=True)
    console = os.open(job.work / CONSOLE_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(console, 1)
    os.dup2(console, 2)
    os.close(console)
