"""Rounds of a campaign with adaptive repeats: which trials are due, what the last look showed.

All trials of a round end before the results are looked at, and looks come at planned numbers of
repeats. So what is run depends on results only, never on which worker was first, and a run that is
continued takes the same way. Tables are read in a process of its own: the runner forks, so that it
has no threads, and the library that reads them does.
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
from orchestration.core.condition import TUNER, factors_of
from orchestration.core.errors import InputError, TrialError
from orchestration.core.repeats import ConditionStatus, StoppingRule
from orchestration.core.trial import Scalar, TrialSpec
from orchestration.results.interim_analyses import read_interim_analyses
from orchestration.results.reader import read_trial

_TICK_S = 0.2
# trial id -> metric -> value; None for a trial that counts nowhere
Figures = dict[str, dict[str, float] | None]


def refuse_other_analysis_plan(folder: Path, rule: StoppingRule) -> None:
    """Raise InputError if the results in a run folder were looked at by another plan.

    Its intervals would not be valid: part of the error was spent on other looks.
    """
    found = read_interim_analyses(folder)
    if found is not None and found.sizes != rule.sizes:
        before = ", ".join(map(str, found.sizes))
        raise InputError.single(
            str(folder),
            f"its results are looked at after {before} repeats, and no longer would be",
            f"keep min: {found.rule.minimum} and max: {found.rule.maximum}; or put the results "
            "aside with --fresh, or keep both with --out",
        )


class Rounds:
    """The trials of a campaign, round by round. A plain campaign has a single round."""

    def __init__(
        self,
        cells: Sequence[Mapping[str, Scalar]],
        trials: Sequence[TrialSpec],
        rule: StoppingRule | None,
    ) -> None:
        """`cells` are those of the trials in the order of the campaign's file."""
        self.rule = rule
        self._groups: dict[str, list[TrialSpec]] = {_key(cell): [] for cell in cells}
        for trial in trials:
            self._groups[_key(trial.cell)].append(trial)
        self._tuners = list(dict.fromkeys(str(cell[TUNER]) for cell in cells))
        self._trials = trials
        self._looks = AnalysisPlan(rule.sizes) if rule else AnalysisPlan()
        self._known: Figures = {}
        self.condition_statuses: dict[str, ConditionStatus] = {}

    def due(self) -> list[TrialSpec]:
        """Return all trials that are due so far, in the campaign's order."""
        if self.rule is None:
            return list(self._trials)
        upto = {key: self._upto(key) for key in self._groups}
        return [trial for trial in self._trials if trial.repeat <= upto[_key(trial.cell)]]

    @property
    def open(self) -> bool:
        """Whether the next look may ask for more repeats."""
        return self.rule is not None and (
            len(self.condition_statuses) < len(self._groups)
            or any(not standing.done for standing in self.condition_statuses.values())
        )

    def look(
        self,
        folder: Path,
        tick: Callable[[], None],
        stop: Callable[[], bool],
        *,
        forks: bool = True,
    ) -> list[ConditionStatus]:
        """Look at the conditions that are not done, when all trials that are due have ended.

        Returns what was found, nothing if `stop` said so meanwhile; `forks` as for
        `measure_in_process`. Raises InputError for a finished trial that cannot be read.
        """
        rule = self.rule
        assert rule is not None
        ended = {key for key, standing in self.condition_statuses.items() if standing.done}
        asked = [key for key in self._groups if key not in ended]
        new = [
            trial.id
            for key in asked
            for trial in self._groups[key]
            if trial.repeat <= self._upto(key)
            and trial.id not in self._known
            and (folder / trial.id).exists()
        ]
        places = [folder / name for name in new]
        measured = measure_in_process(places, rule.of, tick, stop, forks=forks)
        if measured is None:
            return []
        self._known |= measured
        found = []
        for key in asked:
            factors = factors_of(self._groups[key][0].cell)
            look = self._looks.at(self._upto(key))
            self.condition_statuses[key] = status_at(look, rule, factors, self._values(key))
            found.append(self.condition_statuses[key])
        return found

    def _upto(self, key: str) -> int:
        """Return the repeats that are due of a condition."""
        assert self.rule is not None
        standing = self.condition_statuses.get(key)
        if standing is None:
            return self.rule.minimum
        return standing.repeats if standing.done else self.rule.after(standing.repeats)

    def likely(
        self, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> dict[str, int] | None:
        """Return how many repeats each condition is likely to take, by the spread of its results.

        The keys are `condition`'s. None if some condition has too few finished trials to tell.
        `progress` is called with trials read and trials in all.
        Raises InputError for one that cannot be read.
        """
        rule = self.rule
        assert rule is not None
        there = [folder / trial.id for trial in self._trials if (folder / trial.id).exists()]
        for done, place in enumerate(there):
            progress(done, len(there))
            self._known |= measure_trials([place], rule.of)
        found = {key: likely_repeats(rule, self._looks, self._values(key)) for key in self._groups}
        known = {key: repeats for key, repeats in found.items() if repeats is not None}
        return known if len(known) == len(found) else None

    def _values(self, key: str) -> Values:
        values: dict[str, dict[int, Mapping[str, float]]] = {name: {} for name in self._tuners}
        for trial in self._groups[key]:
            row = self._known.get(trial.id)
            if row is not None:
                values[str(trial.cell[TUNER])][trial.repeat] = row
        return values


def condition(trial: TrialSpec) -> str:
    """Return a text that is equal for the trials of one condition of a campaign."""
    return _key(trial.cell)


def _key(cell: Mapping[str, Scalar]) -> str:
    return json.dumps(factors_of(cell))


def measure_in_process(
    folders: Sequence[Path],
    metrics: Sequence[str],
    tick: Callable[[], None],
    stop: Callable[[], bool],
    *,
    forks: bool = True,
) -> Figures | None:
    """Return the metrics of finished trials by the folders' names, None where a trial is invalid.

    Reads them in another process, and calls `tick` while it waits. That is forked, which is quick,
    unless this process has threads (`forks` is False). None alone if `stop` said so. Raises
    InputError for a file that cannot be read.
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
        told: Any = receiver.recv()
    except EOFError as error:
        raise TrialError(
            "the process that reads the finished trials ended early",
            "if memory was short, give the same command again with fewer --jobs",
        ) from error
    finally:
        process.kill()
        process.join()
        receiver.close()
    if isinstance(told, tuple):
        raise InputError(told)
    found: Figures = told
    return found


def measure_trials(folders: Iterable[Path], metrics: Sequence[str]) -> Figures:
    """Return the metrics of finished trials by the folders' names, None where a trial is invalid.

    Raises InputError for a file that cannot be read.
    """
    found: Figures = {}
    for folder in folders:
        result = read_trial(folder)
        found[folder.name] = figures(result, metrics) if result.stamp.valid else None
    return found


def _measure(folders: Iterable[Path], metrics: Sequence[str], sender: Connection) -> None:
    try:
        found = measure_trials(folders, metrics)
    except InputError as error:
        sender.send(error.problems)
        return
    sender.send(found)
