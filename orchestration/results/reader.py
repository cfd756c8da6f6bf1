"""Reads run folders back: spec, stamp and facts at once, tables on demand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from inventory.testbed_json import testbed_from_json
from orchestration.core.errors import InputError, reason_of
from orchestration.core.records import Samples
from orchestration.core.signals import TABLE_OF, TARGET_COLUMNS, Scope, names, target_names
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
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
