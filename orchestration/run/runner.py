"""The runner: runs a campaign's unfinished trials side by side, until done or interrupted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.sinks.spool_observer import SpoolNote
from orchestration.core.errors import Interrupted
from orchestration.core.machine import Stopwatch, deferred_signals
from orchestration.core.problems import message_and_remedy
from orchestration.core.provenance import versions
from orchestration.core.repeats import ConditionStatus, StoppingRule
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.interim_analyses import write_interim_analyses
from orchestration.results.reader import read_trial
from orchestration.run import folder as log
from orchestration.run.adaptive import Rounds
from orchestration.run.executors import WorkerPool
from orchestration.run.folder import RunFolder
from orchestration.run.worker import Failed, Finished, Job, Lost, Progressed

# How often the listener's `tick` is called and signals are checked.
_TICK_S = 0.2


class Listener:
    """Receives the events of a run, so that subclasses can show them; this one shows nothing."""

    def planned(self, trials: int, finished: int, jobs: int) -> None:
        """The run has `trials` trials, of which earlier runs finished `finished`.

        With adaptive repeats these are the trials before the first interim analysis.
        """

    def started(self, trial: TrialSpec) -> None:
        """A trial has started."""

    def progressed(self, trial: TrialSpec, progress: Progressed) -> None:
        """A trial has progressed."""

    def finished(self, trial: TrialSpec, result: Finished) -> None:
        """A trial has finished; it may be valid or invalid."""

    def failed(self, trial: TrialSpec, failure: Failed) -> None:
        """A trial has failed."""

    def on_interim_analysis(
        self, statuses: Sequence[ConditionStatus], rule: StoppingRule, trials: int, finished: int
    ) -> None:
        """With adaptive repeats, an interim analysis was made: the run has `trials` trials now.

        Earlier runs have finished `finished` of them.
        """

    def tick(self) -> None:
        """Called several times a second, also when nothing happens."""


@dataclass
class Summary:
    """The result of a run. Trials are named by their ids.

    `skipped` counts trials that earlier runs finished. `invalid` and `warned` have the stamps'
    findings of invalid and of valid trials; `wall_s` is wall time. With adaptive repeats, `trials`
    counts those that were needed, and `condition_statuses` say why no more are.
    """

    folder: Path
    trials: int
    skipped: int = 0
    finished: int = 0
    invalid: dict[str, tuple[str, ...]] = field(default_factory=dict)
    warned: dict[str, tuple[str, ...]] = field(default_factory=dict)
    failed: dict[str, Failed] = field(default_factory=dict)
    wall_s: float = 0.0
    condition_statuses: tuple[ConditionStatus, ...] = ()
    rule: StoppingRule | None = None

    def add_verdict(self, trial: str, valid: bool, findings: tuple[str, ...]) -> None:
        """Record a trial's verdict and the findings of its stamp."""
        if not valid:
            self.invalid[trial] = findings
        elif findings:
            self.warned[trial] = findings

    @property
    def repeat_messages(self) -> tuple[str, ...]:
        """With adaptive repeats, a line for each condition: how many repeats it has, and why."""
        if self.rule is None:
            return ()
        return tuple(status.in_words(self.rule) for status in self.condition_statuses)

    @property
    def exit_code(self) -> int:
        """1 if a trial failed or is invalid, else 0."""
        return 1 if self.failed or self.invalid else 0


class Runner:
    """Runs trials, round by round, into the open folder of a run.

    `spool` returns where a live sink gets a trial's records; it is None without a sink. With
    `forks`, the workers are forked from this process, which must then have no threads. `engine` has
    the facts about the trials' engine, for the journal.
    """

    def __init__(
        self,
        rounds: Rounds,
        testbeds: Mapping[str, Testbed],
        folder: RunFolder,
        workers: WorkerPool,
        listener: Listener,
        spool: Callable[[TrialSpec], SpoolNote] | None,
        *,
        forks: bool,
        engine: Mapping[str, Any] = {},
    ) -> None:
        self._rounds = rounds
        self._engine = engine
        self._testbeds = testbeds
        self._folder = folder
        self._workers = workers
        self._listener = listener
        self._spool = spool
        self._forks = forks
        self.summary = Summary(folder.path, 0, rule=rounds.rule)
        self._running: set[str] = set()
        self._queued: set[str] = set()
        self._todo: deque[TrialSpec] = deque()
        self._queue_due()

    def _queue_due(self) -> None:
        """Queue the trials that have become due, but for those that an earlier run finished."""
        summary = self.summary
        for trial in self._rounds.due():
            if trial.id in self._queued:
                continue
            self._queued.add(trial.id)
            summary.trials += 1
            if self._folder.of(trial).exists():
                summary.skipped += 1
                verdict = read_trial(self._folder.of(trial)).stamp
                reasons = tuple(reason.text for reason in verdict.reasons)
                summary.add_verdict(trial.id, verdict.valid, reasons)
            else:
                self._todo.append(trial)

    def run(self, jobs: int) -> Summary:
        """Run `jobs` trials side by side until all are done; a failed one does not stop the others.

        Call it from the main thread. Raises Interrupted after SIGINT or SIGTERM, once all workers
        have ended; finished trials are kept.
        """
        stopwatch = Stopwatch()
        summary, journal = self.summary, self._folder.journal
        about = {"trials": summary.trials, "finished": summary.skipped, "jobs": jobs}
        journal.add(log.RUN_STARTED, **about, versions=versions(), **self._engine)
        self._listener.planned(summary.trials, summary.skipped, jobs)
        with deferred_signals(self._workers.kill) as signals:
            try:
                while not signals:
                    if self._todo or len(self._workers):
                        self._step(jobs)
                    elif self._rounds.needs_analysis:
                        self._analyse(lambda: bool(signals))
                    else:
                        break
            finally:
                self._workers.close()
                for trial in self._running:
                    self._folder.discard(trial)
        summary.wall_s = stopwatch.took().wall_s
        counts = {"finished": summary.finished, "failed": len(summary.failed)}
        if signals:
            journal.add(log.RUN_INTERRUPTED, signal=signals[0].name, **counts)
            left = summary.trials - summary.skipped - summary.finished
            raise Interrupted(
                f"interrupted: {left} of {summary.trials} trials are not done",
                "the same command goes on from here",
            )
        journal.add(log.RUN_FINISHED, **counts, invalid=len(summary.invalid))
        return summary

    def _analyse(self, stop: Callable[[], bool]) -> None:
        """Make the interim analysis of a round that has ended, and queue what is due after it."""
        rule, summary = self.summary.rule, self.summary
        assert rule is not None
        tick, forks = self._listener.tick, self._forks
        statuses = self._rounds.analyse(self._folder.path, tick, stop, forks=forks)
        if not statuses:
            return
        summary.condition_statuses = tuple(self._rounds.condition_statuses.values())
        write_interim_analyses(self._folder.path, rule, summary.condition_statuses)
        self._queue_due()
        self._folder.journal.add(
            log.INTERIM_ANALYSIS,
            trials=summary.trials,
            finished=summary.skipped,
            conditions=[status.to_json() for status in statuses],
        )
        self._listener.on_interim_analysis(statuses, rule, summary.trials, summary.skipped)

    def _step(self, jobs: int) -> None:
        """Start trials up to `jobs` side by side, and handle what the workers report meanwhile."""
        while self._todo and len(self._workers) < jobs:
            self._start(self._todo.popleft())
        for job, message in self._workers.messages(_TICK_S):
            if isinstance(message, Progressed):
                self._listener.progressed(job.trial, message)
            elif isinstance(message, Finished):
                self._finished(job.trial, message)
            elif isinstance(message, Lost):
                journal = self._folder.journal
                journal.add(log.TRIAL_LOST, trial=job.trial.id, reason=message.reason)
            else:
                self._failed(job.trial, message)
        self._listener.tick()

    def _start(self, trial: TrialSpec) -> None:
        folder = self._folder
        self._running.add(trial.id)
        folder.journal.add(log.TRIAL_STARTED, trial=trial.id)
        testbed = self._testbeds[trial.testbed]
        spool = self._spool(trial) if self._spool else None
        self._workers.start(Job(trial, testbed, folder.of(trial), folder.work_of(trial), spool))
        self._listener.started(trial)

    def _finished(self, trial: TrialSpec, result: Finished) -> None:
        self._clear(trial)
        self.summary.finished += 1
        self.summary.add_verdict(trial.id, result.valid, result.reasons)
        verdict = {"valid": result.valid, "reasons": result.reasons}
        wall_s = round(result.wall_s, 3)
        self._folder.journal.add(log.TRIAL_FINISHED, trial=trial.id, wall_s=wall_s, **verdict)
        self._listener.finished(trial, result)

    def _failed(self, trial: TrialSpec, failure: Failed) -> None:
        self._clear(trial)
        self.summary.failed[trial.id] = failure
        why = {**message_and_remedy(failure.problems), "console": failure.console}
        wall_s = round(failure.wall_s, 3)
        self._folder.journal.add(log.TRIAL_FAILED, trial=trial.id, wall_s=wall_s, **why)
        self._listener.failed(trial, failure)

    def _clear(self, trial: TrialSpec) -> None:
        self._running.discard(trial.id)
        self._folder.discard(trial.id)
