"""Finds the finished trials at and below a path (a trial, a campaign, or a folder of campaigns).

Every verb that takes runs accepts these paths. Hidden folders are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestration.core.errors import InputError, Problem
from orchestration.results.looks import LOOKS_FILE
from orchestration.results.reader import TrialResult, read_trial
from orchestration.results.writer import TRIAL_FILE

# What reports leave in a trial's folder, and what a run leaves in its campaign's.
_PAGES = (".html", ".pdf")
_OF_CAMPAIGN = ("campaign.yml", "journal.jsonl", LOOKS_FILE)


@dataclass(frozen=True)
class Found:
    """A finished trial. `run` is its campaign's folder, seen from the path that was given."""

    run: str
    result: TrialResult

    @property
    def trial(self) -> str:
        """The trial's id, the name of its folder."""
        return self.result.folder.name


def trial_folders(path: Path) -> list[Path]:
    """Return the folders of the finished trials at and below `path`, sorted."""
    return sorted(_walk(path))


def recorded_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of the runs at and below `paths` that are results: those of their trials.

    With them come the campaign's own; pages that reports made of them are left out.
    """
    for path in paths:
        campaigns: dict[Path, None] = {path: None} if path.is_dir() else {}
        for folder in trial_folders(path):
            campaigns[folder.parent] = None
            yield from (file for file in folder.iterdir() if file.suffix not in _PAGES)
        yield from (folder / name for folder in campaigns for name in _OF_CAMPAIGN)


def find_trials(paths: Iterable[Path]) -> tuple[Found, ...]:
    """Return the trials at and below `paths`, sorted by folder, each once.

    Raises InputError for a path that does not exist, a damaged `trial.json`, or if no trial is
    found.
    """
    folders: dict[Path, Path] = {}
    paths = list(paths)
    for path in paths:
        if not path.is_dir():
            raise InputError.single(
                str(path), "is no folder", "name run folders, or a folder that has some: runs"
            )
        for folder in trial_folders(path):
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise InputError.single(
            ", ".join(str(path) for path in paths),
            "no finished trial is there",
            "name run folders, or a folder that has some; `closloop run CAMPAIGN` makes them",
        )
    return tuple(
        Found(str(folder.parent), read_trial(folder)) for folder in sorted(folders.values())
    )


def read_each(folders: Sequence[Path]) -> tuple[list[TrialResult], list[Problem]]:
    """Return the trials of `folders`, and the problems of those that cannot be read."""
    trials: list[TrialResult] = []
    problems: list[Problem] = []
    for folder in folders:
        try:
            trials.append(read_trial(folder))
        except InputError as error:
            problems += error.problems
    return trials, problems


def campaign_below(path: Path, trial: Path) -> str:
    """Return a campaign's folder relative to `path`; "" if that is `path`, or `path` is a trial."""
    return "" if path in (trial, trial.parent) else str(trial.parent.relative_to(path))


def _walk(path: Path) -> Iterator[Path]:
    for place, inside, files in os.walk(path):
        here = Path(place)
        if TRIAL_FILE in files:
            inside.clear()
            yield here
        inside[:] = [name for name in inside if not name.startswith(".")]
        # links are not followed, but a link to a trial counts as a trial
        linked = (here / name for name in inside if (here / name).is_symlink())
        yield from (folder for folder in linked if (folder / TRIAL_FILE).is_file())
