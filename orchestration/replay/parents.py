"""What is replayed: the trial of a folder, or the valid trials of a campaign's run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from orchestration.artifacts.reader import TrialResult, finished_trials, read_trial
from orchestration.artifacts.writer import TRIAL_FILE
from orchestration.model.digest import sha256_of
from orchestration.model.errors import InputError, Problem

_GLOB = "*?["


@dataclass(frozen=True)
class Parent:
    """A trial that is replayed, and the SHA-256 of its trial.json."""

    trial: TrialResult
    sha256: str

    @property
    def id(self) -> str:
        """The name of its folder."""
        return self.trial.folder.resolve().name


def find_parents(run: Path, pattern: str = "") -> tuple[Parent, ...]:
    """Return the trials to replay: the one of a trial's folder, or a run's valid ones.

    `pattern` chooses among a run's trials by their names, with `*`, `?` and `[...]`. An invalid
    trial is replayed only if it is named: by its folder, or by a pattern without any of these.

    Raises InputError for a folder that is neither, and if nothing is left to replay.
    """
    if (run / TRIAL_FILE).is_file():
        if pattern:
            raise InputError.single(
                "--trials",
                f"{run} is the folder of one trial",
                f"leave --trials out, or give the run's folder: {run.parent}",
            )
        return (_parent(run),)
    folders = finished_trials(run)
    if not folders:
        raise InputError([_nothing(run)])
    chosen = [folder for folder in folders if fnmatchcase(folder.name, pattern or "*")]
    if not chosen:
        raise InputError.single(
            "--trials",
            f"no trial of {run} is called {pattern!r}",
            f"its first is {folders[0].name}; * stands for anything",
        )
    by_name = bool(pattern) and not any(sign in pattern for sign in _GLOB)
    found = _all(chosen)
    valid = tuple(parent for parent in found if by_name or parent.trial.stamp.valid)
    if not valid:
        raise InputError.single(
            str(run),
            f"none of its {len(found)} trials is valid",
            f"to replay one nevertheless, name it: {found[0].trial.folder}",
        )
    return valid


def _all(folders: Sequence[Path]) -> list[Parent]:
    found: list[Parent] = []
    problems: list[Problem] = []
    for folder in folders:
        try:
            found.append(_parent(folder))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return found


def _parent(folder: Path) -> Parent:
    return Parent(read_trial(folder), sha256_of(folder / TRIAL_FILE))


def _nothing(run: Path) -> Problem:
    where = str(run)
    if not run.exists():
        remedy = "give a run folder, runs/<campaign>, one of its trials, or a CSV file of flows"
        return Problem(where, "there is no such file or folder", remedy)
    runs = sorted(path.name for path in run.iterdir() if finished_trials(path))
    if runs:
        return Problem(where, f"holds {len(runs)} runs", f"give one of them: {run / runs[0]}")
    remedy = "give a run folder with finished trials, runs/<campaign>, or the folder of one trial"
    return Problem(where, f"is not a run folder: no {TRIAL_FILE} is in it", remedy)
