"""Find the trials to replay: one trial's folder, or the valid trials of a run folder.

Trials that differ only in tuner, seed and repeat form a group, which one campaign can replay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from inventory.testbed_json import testbed_to_json
from orchestration.core.condition import in_words, settings, tuner_called
from orchestration.core.errors import InputError, Problem, gather
from orchestration.core.files import sha256_of
from orchestration.core.trial import TrialSpec
from orchestration.results.reader import TrialResult, finished_trials, read_trial
from orchestration.results.writer import TRIAL_FILE

_GLOB = "*?["


@dataclass(frozen=True)
class Recording:
    """A trial to replay, the SHA-256 of its trial.json, and its label and repeat in the replay."""

    trial: TrialResult
    sha256: str
    label: str
    repeat: int

    @property
    def id(self) -> str:
        """The name of its folder."""
        return self.trial.folder.resolve().name

    @property
    def spec(self) -> TrialSpec:
        """The specification of the trial."""
        return self.trial.spec


@dataclass(frozen=True)
class Group:
    """The recordings of one campaign, by label and repeat. `factors` distinguishes the group."""

    factors: str
    recordings: tuple[Recording, ...]

    @property
    def repeats(self) -> tuple[int, ...]:
        """The repeats that were recorded."""
        return tuple(sorted({item.repeat for item in self.recordings}))

    @property
    def first(self) -> Recording:
        """The first recording; all have the same settings."""
        return self.recordings[0]

    def of_repeat(self, repeat: int) -> tuple[Recording, ...]:
        """Return the recordings of a repeat, which all have the same flows."""
        return tuple(item for item in self.recordings if item.repeat == repeat)


def find_parents(run: Path, pattern: str = "") -> tuple[Recording, ...]:
    """Return the trials to replay: the one of a trial's folder, or the valid ones of a run.

    `pattern` selects trials of a run by name, with `*`, `?` and `[...]`. An invalid trial is
    replayed only if it is given by its folder or by its full name.

    Raises InputError for a folder that is neither, and if no trial is left to replay.
    """
    chosen = named_trials(run, pattern, "--trials")
    one_meant = chosen == [run] or (bool(pattern) and not any(sign in pattern for sign in _GLOB))
    trials = gather(read_trial, chosen)
    valid = [trial for trial in trials if one_meant or trial.stamp.valid]
    if not valid:
        raise InputError.single(
            str(run),
            f"none of its {len(trials)} trials is valid",
            f"to replay one nevertheless, name it: {trials[0].folder}",
        )
    return tuple(
        Recording(one, sha256_of(one.folder / TRIAL_FILE), tuner_called(one.spec), one.spec.repeat)
        for one in valid
    )


def named_trials(run: Path, pattern: str, option: str) -> list[Path]:
    """Return the folder of one trial, or those of a run's trials whose names match a pattern.

    Without a pattern these are all. Raises InputError, about the pattern's `option`, for a folder
    that is neither, and if no name matches.
    """
    if (run / TRIAL_FILE).is_file():
        if pattern:
            raise InputError.single(
                option,
                f"{run} is the folder of one trial",
                f"leave {option} out, or give the run's folder: {run.parent}",
            )
        return [run]
    folders = finished_trials(run)
    if not folders:
        raise InputError([_nothing(run)])
    chosen = [folder for folder in folders if fnmatchcase(folder.name, pattern or "*")]
    if not chosen:
        raise InputError.single(
            option,
            f"no trial of {run} is called {pattern!r}",
            f"its first is {folders[0].name}; * stands for anything",
        )
    return chosen


def _nothing(run: Path) -> Problem:
    where = str(run)
    if not run.exists():
        remedy = (
            "give a run folder, runs/<campaign>, or one of its trials (or flows to replay: a CSV)"
        )
        return Problem(where, "there is no such file or folder", remedy)
    runs = sorted(path.name for path in run.iterdir() if finished_trials(path))
    if runs:
        return Problem(where, f"holds {len(runs)} runs", f"give one of them: {run / runs[0]}")
    remedy = "give a run folder with finished trials, runs/<campaign>, or the folder of one trial"
    return Problem(where, f"is not a run folder: no {TRIAL_FILE} is in it", remedy)


def group_parents(parents: Sequence[Recording]) -> tuple[Group, ...]:
    """Return the parents in groups, one per campaign. Repeats keep their numbers, so they pair."""
    found: dict[str, list[Recording]] = {}
    for parent in parents:
        found.setdefault(_key(parent), []).append(parent)
    several = len(found) > 1
    return tuple(
        Group(_factors(group[0].spec) if several else "", tuple(_apart(group)))
        for group in found.values()
    )


def _key(parent: Recording) -> str:
    """Return a key that is equal for parents that one campaign file can describe.

    It contains the fabric itself instead of the name of its file.
    """
    spec = parent.spec
    shared = settings(replace(spec, testbed="", files={}))
    times = (spec.duration_ns, spec.drain_ns, spec.action_period_ns)
    # imported flows have no patterns to distinguish them
    imported = "" if spec.traffic else parent.label
    fabric = testbed_to_json(parent.trial.testbed)
    return json.dumps([shared, times, imported, fabric], sort_keys=True)


def _apart(group: Sequence[Recording]) -> list[Recording]:
    """Return the recordings with unique labels and repeats, sorted by both."""
    labels = [item.label for item in group]
    repeats = [item.repeat for item in group]
    if len(set(zip(labels, repeats, strict=True))) < len(group):
        # a factor that varies the tuner's own parameters becomes part of its label
        cells = [item.spec.cell.values() for item in group]
        labels = [
            "-".join(map(str, cell)) or item.spec.id
            for cell, item in zip(cells, group, strict=True)
        ]
    if len(set(labels)) == 1 and (min(repeats) < 1 or len(set(repeats)) < len(repeats)):
        repeats = list(range(1, len(group) + 1))
    seen: dict[tuple[str, int], Recording] = {}
    for item, label, repeat in zip(group, labels, repeats, strict=True):
        other = seen.setdefault((label, repeat), replace(item, label=label, repeat=repeat))
        if other.trial is not item.trial:
            raise InputError.single(
                str(item.trial.folder),
                f"is repeat {repeat} of {label!r}, as {other.trial.folder.name} is",
                "replay them one by one, or choose with --trials",
            )
    return [seen[key] for key in sorted(seen)]


def _factors(spec: TrialSpec) -> str:
    """Return the factors that distinguish conditions, such as `load-0.3-size-1MB`."""
    return "-".join(in_words(spec.cell, "-")) or tuner_called(spec)
