"""Rounds of a campaign with adaptive repeats: which trials are due, and the interim analyses.

All trials of a round end before their results are analysed, and interim analyses come at planned
numbers of repeats. What runs therefore depends on results only, never on which worker was first,
and a run that is continued makes the same decisions. Results are read in another process: the
runner forks its workers, so it must have no threads, and the library that reads tables has some.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from orchestration.analysis.sequential import AnalysisPlan
from orchestration.analysis.statistics import Values, likely_repeats, status_at
from orchestration.analysis.trial_metrics import figures
from orchestration.core.condition import TUNER
from orchestration.core.errors import InputError, TrialError
from orchestration.core.repeats import ConditionStatus, StoppingRule
from orchestration.core.trial import Scalar, TrialSpec
from orchestration.results.interim_analyses import read_interim_analyses
from orchestration.results.reader import read_trial

_TICK_S = 0.2
# trial id -> metric -> value; None for an invalid trial, which is never counted
TrialMetrics = dict[str, dict[str, float] | None]


def refuse_other_analysis_plan(folder: Path, rule: StoppingRule) -> None:
    """Raise InputError if the results in a run folder were analysed by another plan.

    The intervals would not be valid: part of the error probability was spent on other interim
    analyses (`orchestration.analysis.sequential`).
    """
    former = read_interim_analyses(folder)
    if former is not None and former.sizes != rule.sizes:
        sizes = ", ".join(map(str, former.sizes))
        raise InputError.single(
            str(folder),
            f"its interim analyses are planned after {sizes} repeats, and this campaign plans "
            "others",
            f"keep min: {former.rule.minimum} and max: {former.rule.maximum}; or put the results "
            "aside with --fresh, or keep both with --out",
        )


class Rounds:
    """The trials of a campaign, round by round. Without adaptive repeats there is one round."""

    def __init__(
        self,
        cells: Sequence[Mapping[str, Scalar]],
        trials: Sequence[TrialSpec],
        rule: StoppingRule | None,
        compare: str = TUNER,
    ) -> None:
        """`cells` are those of the trials in the order of the campaign's file.

        `compare` is the label of a cell that names its arm; cells that differ in nothing else are
        of one condition. An arm may have a tuner of its own, which then is part of the arm.
        """
        self.rule = rule
        self._compare = compare
        tuners: dict[Scalar, set[Scalar]] = {}
        for cell in cells:
            tuners.setdefault(cell[compare], set()).add(cell[TUNER])
        of_arms = all(len(names) == 1 for names in tuners.values())
        self._labels_of_arms = {compare, *([TUNER] if of_arms else [])}
        # the trials by condition key
        self._groups: dict[str, list[TrialSpec]] = {self._key(cell): [] for cell in cells}
        for trial in trials:
            self._groups[self._key(trial.cell)].append(trial)
        self._arms = list(dict.fromkeys(str(cell[compare]) for cell in cells))
        self._trials = trials
        self._plan = AnalysisPlan(rule.sizes) if rule else AnalysisPlan()
        self._metrics: TrialMetrics = {}
        self.condition_statuses: dict[str, ConditionStatus] = {}

    def due(self) -> list[TrialSpec]:
        """Return all trials that are due so far, in the campaign's order."""
        if self.rule is None:
            return list(self._trials)
        due = {key: self._due_repeats(key) for key in self._groups}
        return [trial for trial in self._trials if trial.repeat <= due[self._key(trial.cell)]]

    @property
    def needs_analysis(self) -> bool:
        """Whether another interim analysis is to follow, which may ask for more repeats."""
        return self.rule is not None and (
            len(self.condition_statuses) < len(self._groups)
            or any(not status.done for status in self.condition_statuses.values())
        )

    def analyse(
        self,
        folder: Path,
        tick: Callable[[], None],
        stop: Callable[[], bool],
        *,
        forks: bool = True,
    ) -> list[ConditionStatus]:
        """Make the interim analysis of the conditions that are not done.

        Call it when all trials that are due have ended. Returns the conditions' new statuses, or []
        if `stop` returned True meanwhile; `tick` and `forks` are as for `measure_in_process`.
        Raises InputError for a finished trial that cannot be read.
        """
        rule = self.rule
        assert rule is not None
        done = {key for key, status in self.condition_statuses.items() if status.done}
        analysed = [key for key in self._groups if key not in done]
        new = [
            folder / trial.id
            for key in analysed
            for trial in self._groups[key]
            if trial.repeat <= self._due_repeats(key)
            and trial.id not in self._metrics
            and (folder / trial.id).exists()
        ]
        measured = measure_in_process(new, rule.of, tick, stop, forks=forks)
        if measured is None:
            return []
        self._metrics |= measured
        statuses = []
        for key in analysed:
            factors = self._factors(self._groups[key][0].cell)
            analysis = self._plan.at(self._due_repeats(key))
            status = status_at(analysis, rule, factors, self._values(key))
            self.condition_statuses[key] = status
            statuses.append(status)
        return statuses

    def _due_repeats(self, key: str) -> int:
        """Return how many repeats of a condition are due before its next interim analysis."""
        assert self.rule is not None
        status = self.condition_statuses.get(key)
        if status is None:
            return self.rule.minimum
        return status.repeats if status.done else self.rule.after(status.repeats)

    def likely(
        self, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> dict[str, int] | None:
        """Return how many repeats each condition is likely to take, by the spread of its results.

        The keys are those of `condition_of`. None if some condition has too few finished trials.
        `progress` is called with the number of trials read, and of all. Raises InputError for a
        trial that cannot be read.
        """
        rule = self.rule
        assert rule is not None
        finished = [folder / trial.id for trial in self._trials if (folder / trial.id).exists()]
        for read, trial_folder in enumerate(finished):
            progress(read, len(finished))
            self._metrics |= measure_trials([trial_folder], rule.of)
        known = {
            key: repeats
            for key in self._groups
            if (repeats := likely_repeats(rule, self._plan, self._values(key))) is not None
        }
        return known if len(known) == len(self._groups) else None

    def _values(self, key: str) -> Values:
        """Return a condition's metrics as arm -> repeat -> metric -> value, of valid trials."""
        values: dict[str, dict[int, Mapping[str, float]]] = {name: {} for name in self._arms}
        for trial in self._groups[key]:
            metrics = self._metrics.get(trial.id)
            if metrics is not None:
                values[str(trial.cell[self._compare])][trial.repeat] = metrics
        return values

    def condition_of(self, trial: TrialSpec) -> str:
        """Return a text that is equal for all trials of one condition, and for no others."""
        return self._key(trial.cell)

    def _key(self, cell: Mapping[str, Scalar]) -> str:
        return json.dumps(self._factors(cell))

    def _factors(self, cell: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the labels of a cell that belong to its condition."""
        return {name: level for name, level in cell.items() if name not in self._labels_of_arms}


def measure_in_process(
    folders: Sequence[Path],
    metrics: Sequence[str],
    tick: Callable[[], None],
    stop: Callable[[], bool],
    *,
    forks: bool = True,
) -> TrialMetrics | None:
    """Return what `measure_trials` returns, from another process; None if `stop` returned True.

    `tick` is called while this process waits. The other one is forked, which is quick, unless this
    process has threads (`forks` is False). Raises InputError for a file that cannot be read, and
    TrialError if the other process ends early.
    """
    if not folders:
        return {}
    context: Any = get_context("fork" if forks else "spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(folders, tuple(metrics), sender), daemon=True)
    process.start()
    sender.close()
    try:
        while not receiver.poll(_TICK_S):
            tick()
            if stop():
                return None
        answer: Any = receiver.recv()
    except EOFError as error:
        raise TrialError(
            "the process that reads the finished trials ended early",
            "if memory was short, give the same command again with fewer --jobs",
        ) from error
    finally:
        process.kill()
        process.join()
        receiver.close()
    if isinstance(answer, tuple):  # the problems of what could not be read
        raise InputError(answer)
    metrics_by_trial: TrialMetrics = answer
    return metrics_by_trial


def measure_trials(folders: Iterable[Path], metrics: Sequence[str]) -> TrialMetrics:
    """Return the metrics of finished trials by trial id, None where a trial is invalid.

    Raises InputError for a file that cannot be read.
    """
    measured: TrialMetrics = {}
    for folder in folders:
        result = read_trial(folder)
        measured[folder.name] = figures(result, metrics) if result.stamp.valid else None
    return measured


def _measure(folders: Iterable[Path], metrics: Sequence[str], sender: Connection) -> None:
    """Send the metrics of trials, or the problems of what could not be read."""
    try:
        measured = measure_trials(folders, metrics)
    except InputError as error:
        sender.send(error.problems)
        return
    sender.send(measured)
