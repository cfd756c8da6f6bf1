"""Runs one trial in a process of its own, from the schedule to the finished folder."""

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

from collectors.sinks.spooling import SpoolNote, leave_note, started_ns
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
    """A worker's input. `folder` is for what is kept, `work` for temporary files.

    `spool` says where records go while the trial runs, None for nowhere.
    """

    trial: TrialSpec
    testbed: Testbed
    folder: Path
    work: Path
    spool: SpoolNote | None = None


@dataclass(frozen=True)
class Progressed:
    """A trial's virtual time, the end of its traffic, and the wall time spent."""

    virtual_ns: int
    end_ns: int
    wall_s: float


@dataclass(frozen=True)
class Finished:
    """A trial is done and its folder has its final name. `reasons` are the stamp's.

    `virtual_ns` is the trial's own time, `wall_s` what it took of wall time.
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
        """Return what an error means, whose traceback is shown if nobody raised it on purpose."""
        if isinstance(error, ClosloopError):
            return cls(error.problems, getattr(error, "console", ""), wall_s)
        return cls((unexpected(error),), traceback.format_exc(), wall_s)


@dataclass(frozen=True)
class Lost:
    """A trial's machine or process was lost, and it is run again from its start."""

    reason: str


Message = Progressed | Finished | Failed | Lost


def work(job: Job, backend: Backend, pipe: Connection, parent: int) -> None:
    """Run one trial in this process, which process `parent` forked for it."""
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
        _introduce(job, len(schedule))
        leave_note(job.work, job.spool)
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


def _introduce(job: Job, flows: int) -> None:
    """Write what a viewer needs to know of the trial beside the trial's snapshots."""
    about = {
        "spec": job.trial.to_json(),
        "testbed": testbed_to_json(job.testbed),
        "flows": flows,
    }
    with suppress(OSError):  # with a full disk there is nothing to watch, but the trial goes on
        write_whole(job.work / ABOUT_FILE, json.dumps(about))


def enter_worker(job: Job, parent: int) -> None:
    """Make this forked process a worker: it ends with its parent, and does not use the terminal."""
    die_with(parent)
    _leave_terminal(job)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, for whatever reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _leave_terminal(job: Job) -> None:
    """Detach from the terminal: no Ctrl-C from it, no output to it.

    The runner stops a worker by SIGTERM, which unwinds it so that the backend can clean up.
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
