"""Plays episodes in processes side by side, and returns their tuners' traces, or other arrays.

An episode is a trial that a tuner plays for a learner. Its trace is what the tuner recorded.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.errors import TrialError
from orchestration.core.ports import Backend, TrialRun
from orchestration.core.records import Schedule, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.run.executors import THIS_MACHINE, Executor
from orchestration.run.worker import Failed, Finished, Job, enter_worker
from traffic.schedule import make_schedule

Trace = dict[str, NDArray[Any]]
_TICK_S = 0.2
_TRACE = "trace.npz"
_RESULT_FOLDER = "kept"

# What is taken from an episode that has been played.
Extract = Callable[[Job, Schedule, TrialRecord], Trace]


def trace_of(job: Job, schedule: Schedule, record: TrialRecord) -> Trace:
    """Return the trace of an episode's tuner."""
    return dict(record.trace)


def play(
    job: Job, backend: Backend, pipe: Connection, parent: int, extract: Extract = trace_of
) -> None:
    """Play one episode in this process, which process `parent` forked for it.

    The arrays that `extract` returns are written for the parent into the job's `folder`.
    """
    enter_worker(job, parent)
    begin = time.monotonic()
    try:
        schedule = make_schedule(job.trial, job.testbed)
        record = backend.run(TrialRun(job.trial, job.testbed, schedule, job.work))
        arrays: dict[str, Any] = extract(job, schedule, record)
        job.folder.mkdir(parents=True, exist_ok=True)
        np.savez(job.folder / _TRACE, **arrays)
        pipe.send(Finished(True, (), 0, time.monotonic() - begin))
    except Exception as error:
        pipe.send(Failed.of(error, time.monotonic() - begin))


def episode_job(trial: TrialSpec, testbed: Testbed, work: Path) -> Job:
    """Return the job of an episode, all of whose files are in the folder `work`."""
    return Job(trial, testbed, work / _RESULT_FOLDER, work)


class EpisodePool:
    """A pool of workers that play episodes, at most `jobs` at once, on an executor."""

    def __init__(
        self,
        backend: Backend,
        jobs: int,
        extract: Extract = trace_of,
        executor: Executor = THIS_MACHINE,
    ) -> None:
        self._pool = executor.workers(backend, partial(play, extract=extract))
        self._jobs = jobs

    def play(self, jobs: list[Job], tick: Callable[[], bool]) -> list[Trace]:
        """Play episodes and return their traces, in the order of `jobs`.

        `tick` is called several times a second, and returns whether to continue. If it returns
        False, the traces so far are returned. Raises TrialError for an episode that fails.
        """
        waiting = list(jobs)
        traces: dict[Path, Trace] = {}
        while (waiting or len(self._pool)) and tick():
            while waiting and len(self._pool) < self._jobs:
                self._pool.start(waiting.pop(0))
            for job, message in self._pool.messages(_TICK_S):
                if isinstance(message, Failed):
                    episode = f"episode {job.trial.repeat}"
                    problems = [problem.at(episode) for problem in message.problems]
                    raise TrialError(problems, console=message.console)
                if isinstance(message, Finished):
                    with np.load(job.folder / _TRACE) as arrays:
                        traces[job.work] = dict(arrays)
                    shutil.rmtree(job.folder)
        return [traces[job.work] for job in jobs if job.work in traces]

    def close(self) -> None:
        """Stop the episodes that still run."""
        self._pool.close()

    def kill(self) -> None:
        """Kill the episodes that still run."""
        self._pool.kill()
