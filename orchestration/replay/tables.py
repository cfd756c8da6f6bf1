"""Turn a trial's schedule into the flows that a replay reads."""

from __future__ import annotations

import graphlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inventory.topology import Testbed
from orchestration.artifacts.reader import TrialResult
from orchestration.artifacts.tables import TABLES, Columns, read_table
from orchestration.model.errors import InputError
from orchestration.model.records import Ints
from traffic.schedule import class_names

_AGAIN = "run the trial again, or restore the file from a copy"


def schedule_of(trial: TrialResult) -> Columns:
    """Return the flows of a trial's schedule. Raises InputError if they are not in its order."""
    path = trial.folder / TABLES["schedule"].file
    where, table = str(path), read_table(path, "schedule")
    refuse(where, np.diff(table["start_ns"]) < 0, "starts before the one above it", 1)
    refuse(where, np.diff(table["flow_id"]) != 1, "has not the flow_id after the one above it", 1)
    if not len(table["start_ns"]):
        raise InputError.single(where, "the trial has no flows", "there is nothing to replay")
    return table


def class_order(trial: TrialResult, schedule: Columns) -> tuple[str, ...]:
    """Return the classes with flows, in the order of their patterns.

    Imported flows have no patterns; the order of flows that start together tells it then.
    """
    found = tuple(dict.fromkeys(schedule["class"].tolist()))
    declared = class_names(trial.spec.traffic)
    if set(found) <= set(declared):
        return tuple(name for name in declared if name in found)
    after: dict[str, dict[str, None]] = {name: {} for name in found}
    together = np.flatnonzero(np.diff(schedule["start_ns"]) == 0)
    klass = schedule["class"]
    for before, then in dict.fromkeys(
        zip(klass[together].tolist(), klass[together + 1].tolist(), strict=True)
    ):
        if before != then:
            after[then][before] = None
    try:
        return tuple(graphlib.TopologicalSorter(after).static_order())
    except graphlib.CycleError:
        return found


def keeps_numbers(schedule: Columns, order: Sequence[str], testbed: Testbed) -> bool:
    """Return whether a replay with this order of classes numbers the flows as the schedule does."""
    host = {name: place for place, name in enumerate(testbed.hosts)}
    klass = {name: place for place, name in enumerate(order)}

    def numbers(column: str, of_name: Mapping[str, int]) -> Ints:
        names = schedule[column].tolist()
        return np.fromiter((of_name.get(name, -1) for name in names), np.int64, len(names))

    keys = (numbers("dst", host), numbers("src", host), numbers("class", klass))
    sorted_rows = np.lexsort((*keys, schedule["start_ns"]))
    return bool(np.array_equal(sorted_rows, np.arange(len(sorted_rows))))


def refuse(where: str, wrong: np.ndarray[Any, Any], what: str, offset: int = 0) -> None:
    """Raise InputError for the first row that is wrong; `wrong` begins with row `offset`."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        raise InputError.single(where, f"row {int(rows[0]) + offset + 1} {what}", _AGAIN)
