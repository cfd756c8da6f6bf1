"""Opens what is to be compared: a campaign's run folder, or the folder of one trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestration.artifacts.reader import TrialResult, finished_trials, read_trial
from orchestration.artifacts.writer import TRIAL_FILE
from orchestration.model.errors import InputError, Problem

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Run:
    """One run of a comparison. `trials` are the valid ones, in the order of their folders' names.

    `invalid` were left out by their stamps, `problems` could not be read at all.
    """

    letter: str
    folder: Path
    trials: tuple[TrialResult, ...]
    invalid: tuple[TrialResult, ...]
    problems: tuple[Problem, ...]

    @property
    def backend(self) -> str:
        """The backends of the trials, most often one."""
        every = (*self.trials, *self.invalid)
        return ", ".join(sorted({trial.spec.backend for trial in every}))

    @property
    def name(self) -> str:
        """What the run is called: `A, quickstart on emulated`."""
        return f"{self.letter}, {self.folder.resolve().name} on {self.backend}"


def open_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs of `folders`, lettered in order.

    Raises InputError with every folder that holds no trial, or none that can be read.
    """
    if len(folders) < 2:
        raise InputError.single(
            "compare", "one run alone cannot be compared", "give two or more: closloop compare A B"
        )
    if len(folders) > len(_LETTERS):
        raise InputError.single("compare", f"{len(folders)} runs are too many", "give at most 26")
    runs: list[Run] = []
    problems: list[Problem] = []
    for letter, folder in zip(_LETTERS, folders, strict=False):
        try:
            runs.append(_open(letter, folder))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return runs


def fresh(trial: TrialResult) -> TrialResult:
    """Return the trial without the tables that it has read, so that they can be let go."""
    return dataclasses.replace(trial)


def _open(letter: str, folder: Path) -> Run:
    where = str(folder)
    if not folder.is_dir():
        raise InputError.single(
            where, "there is no such folder", "give a run folder: runs/<campaign>, or one trial's"
        )
    alone = (folder / TRIAL_FILE).is_file()
    places = [folder] if alone else finished_trials(folder)
    if not places:
        raise InputError.single(
            where, "holds no finished trial", "run the campaign first: closloop run"
        )
    trials: list[TrialResult] = []
    problems: list[Problem] = []
    for place in places:
        try:
            trials.append(read_trial(place))
        except InputError as error:
            problems += error.problems
    if not trials:
        raise InputError(problems)
    return Run(
        letter=letter,
        folder=folder,
        trials=tuple(trial for trial in trials if trial.stamp.valid),
        invalid=tuple(trial for trial in trials if not trial.stamp.valid),
        problems=tuple(problems),
    )
