"""Where trials run side by side: this machine's processes, or something else that takes jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from orchestration.core.ports import Backend
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.run.pool import Pool, Work
from orchestration.run.room import check_memory
from orchestration.run.worker import Job, Message, work


class Workers(Protocol):
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


class Place(Protocol):
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

    def workers(self, backend: Backend, do: Work) -> Workers:
        """Return workers that do something with a backend."""


class ThisMachine:
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

    def workers(self, backend: Backend, do: Work = work) -> Workers:
        """Return a pool."""
        return Pool(backend, do)


THIS_MACHINE: Place = ThisMachine()
