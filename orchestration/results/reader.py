"""Reads run folders back: a trial's spec, stamp and facts at once, its tables on demand.

A path may be that of a trial, of a campaign, or of a folder with campaigns; trials are searched at
and below it. Every verb that takes runs accepts such paths. Hidden folders are skipped.
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
from orchestration.core.files import CAMPAIGN_FILE
from orchestration.core.plugins import PluginError
from orchestration.core.problems import of_value
from orchestration.core.records import Samples
from orchestration.core.signals import TABLE_OF, TARGET_COLUMNS, Scope, names, target_names
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.interim_analyses import INTERIM_FILE
from orchestration.results.stamp import Stamp
from orchestration.results.tables import TABLES, FileColumns, damaged, read_table
from orchestration.results.writer import TESTBED_FILE, TRIAL_FILE, TRIAL_FORMAT

_PLURAL: dict[Scope, str] = {
    "queue": "queues",
    "priority": "lossless queues",
    "switch": "switches",
    "host": "hosts",
}


@dataclass(frozen=True)
class TrialResult:
    """One finished trial. Its tables are read from `folder` on first use, and kept in memory.

    Properties and methods that read a file raise InputError, naming it, if it is missing, damaged,
    or not the expected file.
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
    def _tables(self) -> dict[str, FileColumns]:
        return {}

    def table(self, name: str) -> FileColumns:
        """Return a table as column -> array (rows,). Names are str; missing integers are -1."""
        if name not in self._tables:
            self._tables[name] = read_table(self.folder / TABLES[name].file, name)
        return self._tables[name]

    @cached_property
    def ports(self) -> Samples:
        """The table `ports` as matrices (samples, queues); queues as in `Testbed.queues`."""
        return self.samples("queue")

    def samples(self, scope: Scope) -> Samples:
        """Return a scope's table as matrices (samples, targets), targets in the testbed's order.

        If the run folder lacks an optional table, the matrices have no rows.
        """
        table_name, known = TABLE_OF[scope], target_names(self.testbed, scope)
        table = self.table(table_name)
        rows = len(table["t_ns"])
        samples = rows // max(1, len(known))
        columns = zip(*known, strict=True)
        if samples * len(known) != rows or not all(
            _has_in_turn(table, column, values, samples)
            for column, values in zip(TARGET_COLUMNS[scope], columns, strict=False)
        ):
            what = (
                f"its rows are not the {len(known)} {_PLURAL[scope]} of {TESTBED_FILE}, "
                "all sampled at the same times"
            )
            raise damaged(self.folder / TABLES[table_name].file, what)
        matrices = {name: table[name].reshape(len(known), samples).T for name in names(scope)}
        return Samples(table["t_ns"][:samples], matrices)


def _has_in_turn(table: FileColumns, column: str, values: Sequence[str | int], rows: int) -> bool:
    """Return whether a column has each of `values` for `rows` rows, one value after the other."""
    if isinstance(values[0], str):
        found = table.names(column)
        number = {name: index for index, name in enumerate(dict.fromkeys((*found.names, *values)))}
        codes = np.array([number[name] for name in found.names], dtype=int)[found.codes]
        wanted = np.array([number[value] for value in values])
    else:
        codes, wanted = table[column], np.array(values)
    return bool((codes.reshape(len(values), rows) == wanted[:, None]).all())


def read_trial(folder: Path) -> TrialResult:
    """Return the finished trial in a folder.

    Raises InputError, naming the file, if `trial.json` is missing, damaged or of a newer closloop.
    """
    path = folder / TRIAL_FILE
    data = read_json(path)
    version = data.get("format")
    if isinstance(version, int) and version > TRIAL_FORMAT:
        raise InputError.single(
            str(path),
            f"has format {version}; this closloop reads formats up to {TRIAL_FORMAT}",
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
    """Return the folders of a campaign's finished trials, sorted; [] if there is no such folder."""
    if not campaign_folder.is_dir():
        return []
    return sorted(
        folder
        for folder in campaign_folder.iterdir()
        if not folder.name.startswith(".") and (folder / TRIAL_FILE).is_file()
    )


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """Return the JSON object in a file. Raises InputError if it cannot be read or is none."""
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
    """Return whether `delivered` in a fact `load` means what receivers accepted.

    Earlier versions counted everything that arrived, also discarded bytes, and had no
    `discarded_bytes`. In these, long-lived flows offered 0 bytes.
    """
    return "discarded_bytes" in fact


def recorded_load_shares(result: TrialResult) -> dict[str, float | None]:
    """Return the loads that a trial recorded, as shares of the hosts' line rates; None if missing.

    Keys are `offered_load`, `delivered_load` and `discarded_load`. A value of an earlier version is
    None if it meant something else then.
    """
    fact = result.facts.get(LOAD_FACT) or {}
    keys = [f"{name}_load" for name in AMOUNTS]
    usable = set(keys)
    if not is_current_load_fact(fact):
        long_lived = any(pattern.lasts for pattern in result.spec.traffic)
        usable = set() if long_lived else {"offered_load"}
    return {key: fact.get(key) if key in usable else None for key in keys}


# Files that reports write into a trial's folder, and those that a run writes into its campaign's.
_PAGES = (".html", ".pdf")
_CAMPAIGN_FILES = (CAMPAIGN_FILE, "journal.jsonl", INTERIM_FILE)


@dataclass(frozen=True)
class TrialInRun:
    """A finished trial and the path of its campaign's folder (`run`), as it was given."""

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
    """Yield the files of the runs at and below `paths` that must not be overwritten.

    These are the files of trials and campaigns, without the pages that reports have made.
    """
    for path in paths:
        campaigns: dict[Path, None] = {path: None} if path.is_dir() else {}
        for folder in trial_folders(path):
            campaigns[folder.parent] = None
            yield from (file for file in folder.iterdir() if file.suffix not in _PAGES)
        yield from (folder / name for folder in campaigns for name in _CAMPAIGN_FILES)


def find_trials(paths: Iterable[Path]) -> tuple[TrialInRun, ...]:
    """Return the trials at and below `paths`, sorted by folder, each once.

    Raises InputError for a path that does not exist, for a damaged `trial.json`, and if there is no
    trial.
    """
    folders: dict[Path, Path] = {}
    paths = list(paths)
    for path in paths:
        if not path.is_dir():
            raise InputError.single(
                str(path), "is not a folder", "name run folders, or a folder with some: runs"
            )
        for folder in trial_folders(path):
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise InputError.single(
            ", ".join(str(path) for path in paths),
            "there is no finished trial",
            "name run folders, or a folder with some; `closloop run CAMPAIGN` makes them",
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


def without_trial_file(path: Path, folders: Sequence[Path]) -> list[Path]:
    """Return the folders that hold tables of a trial, but not the file that identifies it."""
    return [
        folder
        for campaign in sorted({trial.parent for trial in folders if trial != path})
        for folder in campaign.iterdir()
        if not folder.name.startswith(".")
        and not (folder / TRIAL_FILE).exists()
        and any((folder / table.file).is_file() for table in TABLES.values())
    ]


def campaign_below(path: Path, trial: Path) -> str:
    """Return the folder of a trial's campaign relative to `path`.

    Returns "" if `path` is that folder or the trial's own.
    """
    return "" if path in (trial, trial.parent) else str(trial.parent.relative_to(path))


def _walk(path: Path) -> Iterator[Path]:
    """Yield the folders of trials at and below `path`."""
    for parent, subfolders, files in os.walk(path):
        folder = Path(parent)
        if TRIAL_FILE in files:
            subfolders.clear()
            yield folder
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        # links are not followed, but a link to a trial counts as a trial
        linked = (folder / name for name in subfolders if (folder / name).is_symlink())
        yield from (link for link in linked if (link / TRIAL_FILE).is_file())
