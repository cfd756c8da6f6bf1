"""Finds the finished trials below some paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestration.artifacts.reader import TrialResult, read_trial
from orchestration.artifacts.writer import TRIAL_FILE
from orchestration.model.errors import InputError


@dataclass(frozen=True)
class Found:
    """A finished trial: `run` is its campaign's folder as the path that was given leads to it."""

    run: str
    result: TrialResult

    @property
    def trial(self) -> str:
        """The trial's id, the name of its folder."""
        return self.result.folder.name


def find_trials(paths: Iterable[Path]) -> tuple[Found, ...]:
    """Return the trials of the run folders at and below `paths`, each once, by their folders.

    A path is a trial's folder, a campaign's, or one with campaigns somewhere in it. Hidden folders
    are passed over. Raises InputError for a path that is not there, a damaged `trial.json`, or if
    no trial is found.
    """
    folders: dict[Path, Path] = {}
    paths = list(paths)
    for path in paths:
        if not path.is_dir():
            raise InputError.single(
                str(path), "is no folder", "name run folders, or a folder that has some: runs"
            )
        for folder in _trial_folders(path):
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise InputError.single(
            ", ".join(str(path) for path in paths),
            "no finished trial is there",
            "name run folders, or a folder that has some; `closloop run` makes them",
        )
    return tuple(
        Found(str(folder.parent), read_trial(folder)) for folder in sorted(folders.values())
    )


def _trial_folders(path: Path) -> Iterator[Path]:
    for place, inside, files in os.walk(path):
        if TRIAL_FILE in files:
            inside.clear()
            yield Path(place)
        inside[:] = [name for name in inside if not name.startswith(".")]
