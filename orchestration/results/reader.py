"""Reads run folders back: spec, stamp and facts at once, tables on demand.

Trials are found at and below a path: a trial, a campaign, or a folder of campaigns. Every verb that
takes runs accepts these paths. Hidden folders are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from inventory.testbed_json import testbed_from_json
from orchestration.core.errors import InputError, Problem, reason_of
from orchestration.core.plugins import PluginError
from orchestration.core.problems import of_value
from orchestration.core.records import Samples
from orchestration.core.signals import TABLE_OF, TARGET_COLUMNS, Scope, names, target_names
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.interim_analyses import INTERIM_FILE
from orchestration.results.stamp import Stamp
from orchestration.results.tables import TABLES, Columns, damaged, read_table
from orchestration.results.writer import TESTBED_FILE, TRIAL_FILE, TRIAL_FORMAT

_PLURAL: dict[Scope, str] = {
    "queue": "queues",
    "priority": "lossless queues",
    "switch": "switches",
    "host": "hosts",
}


@dataclass(frozen=True)
class TrialResult:
    """One finished trial. Tables are read from `folder` on first use and then kept in memory.

    Every property and method that reads raises InputError, naming the file, when the file is
    missing, damaged or foreign.
    """

    folder: Path
    spec: TrialSpec
    stamp: Stamp
    versions: Mapping[str, str]
    facts: Mapping[str, Any]

    @cached_property
    def testbed(self) -> Testbed:
        """The fabric that the trial ran on."""
        path = self.folder / TESTBED_FILE
        try:
            return testbed_from_json(read_json(path))
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(path, f"is not a testbed: {error!r}") from error

    @cached_property
    def _tables(self) -> dict[str, Columns]:
        return {}

    def table(self, name: str) -> Columns:
        """Return a table as column -> array (rows,); names are str, missing integers -1."""
        if name not in self._tables:
            self._tables[name] = read_table(self.folder / TABLES[name].file, name)
        return self._tables[name]

    @cached_property
    def ports(self) -> Samples:
        """The table `ports` as matrices (samples, queues), in the order of `Testbed.queues`."""
        return self.samples("queue")

    def samples(self, scope: Scope) -> Samples:
        """Return a scope's table as matrices (samples, targets), targets in the testbed's order.

        Without the table there are no samples.
        """
        name, known = TABLE_OF[scope], target_names(self.testbed, scope)
        table = self.table(name)
        rows = len(table["t_ns"])
        samples = rows // max(1, len(known))
        columns = zip(*known, strict=True)
        if samples * len(known) != rows or not all(
            np.array_equal(table[column], np.repeat(np.array(values, dtype=object), samples))
            for column, values in zip(TARGET_COLUMNS[scope], columns, strict=False)
        ):
            what = (
                f"its rows are not the {len(known)} {_PLURAL[scope]} of {TESTBED_FILE}, "
                "each sampled alike"
            )
            raise damaged(self.folder / TABLES[name].file, what)
        matrices = {one: table[one].reshape(len(known), samples).T for one in names(scope)}
        return Samples(table["t_ns"][:samples], matrices)


def read_trial(folder: Path) -> TrialResult:
    """Return the trial in a run folder. Raises InputError, naming the file, if it is not one."""
    path = folder / TRIAL_FILE
    data = read_json(path)
    found = data.get("format")
    if isinstance(found, int) and found > TRIAL_FORMAT:
        raise InputError.single(
            str(path),
            f"has format {found}; this closloop reads formats up to {TRIAL_FORMAT}",
            "use the closloop that wrote it, or a newer one",
        )
    try:
        return TrialResult(
            folder=folder,
            spec=TrialSpec.from_json(data["spec"]),
            stamp=Stamp.from_json(data["stamp"]),
            versions=dict(data["versions"]),
            facts=dict(data["facts"]),
        )
    except PluginError as error:
        raise InputError([of_value(error, str(path))]) from error
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"is not the trial.json of a closloop trial: {error!r}") from error


def finished_trials(campaign_folder: Path) -> list[Path]:
    """Return the run folders of the finished trials, by name; [] without a campaign folder."""
    if not campaign_folder.is_dir():
        return []
    return sorted(
        folder
        for folder in campaign_folder.iterdir()
        if not folder.name.startswith(".") and (folder / TRIAL_FILE).is_file()
    )


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """Return the JSON object in a file. Raises InputError if there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise damaged(path, "the file is missing", remedy) from error
    except OSError as error:
        raise damaged(path, f"cannot be read: {reason_of(error)}", remedy) from error
    except ValueError as error:
        raise damaged(path, f"is damaged: {error}", remedy) from error
    if not isinstance(data, dict):
        raise damaged(path, "does not hold a JSON object", remedy)
    return data


LOAD_FACT = "load"
AMOUNTS = ("offered", "delivered", "discarded")


def is_current_load_fact(fact: Mapping[str, Any]) -> bool:
    """Return whether a fact `load` means by `delivered` what receivers accepted.

    Earlier versions counted what arrived, discarded bytes too, and had no `discarded_bytes`. Flows
    that last as long as the trial offered 0 bytes then.
    """
    return "discarded_bytes" in fact


def recorded_load_shares(result: TrialResult) -> dict[str, float | None]:
    """Return the shares of the hosts' line rates that a trial wrote down, by key; else None.

    What an earlier version wrote is left out where it meant something else.
    """
    fact = result.facts.get(LOAD_FACT) or {}
    keys = [f"{name}_load" for name in AMOUNTS]
    known = set(keys)
    if not is_current_load_fact(fact):
        lasting = (p for p in result.spec.traffic if p.lasts)
        known = set() if any(lasting) else {"offered_load"}
    return {key: fact.get(key) if key in known else None for key in keys}


# What reports leave in a trial's folder, and what a run leaves in its campaign's.
_PAGES = (".html", ".pdf")
_OF_CAMPAIGN = ("campaign.yml", "journal.jsonl", INTERIM_FILE)


@dataclass(frozen=True)
class TrialInRun:
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


def find_trials(paths: Iterable[Path]) -> tuple[TrialInRun, ...]:
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
        TrialInRun(str(folder.parent), read_trial(folder)) for folder in sorted(folders.values())
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
