"""Action spaces: the settings of a knob that an agent chooses from by number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from orchestration.core.errors import InputError, check_known
from orchestration.core.knobs import KNOBS, Column, Knob
from orchestration.core.records import Change, Ints
from orchestration.core.topology import Testbed

LEVELS = 8


class ActionSpace(Protocol):
    """Settings that an agent can choose from, by number."""

    def __len__(self) -> int:
        """Return the number of settings."""

    def settings(self, targets: Ints, choice: Ints) -> Change:
        """Return the change that gives `targets` the settings `choice`, both of the same shape."""


@dataclass(frozen=True)
class Grid:
    """Settings of a knob: one array of shape (actions,) for each column."""

    knob: Knob
    values: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def settings(self, targets: Ints, choice: Ints) -> Change:
        """Return the change that gives `targets` the settings `choice`, both of the same shape."""
        return self.knob.change(targets, *(self.values[name][choice] for name in self.values))


def grid(knob: Knob, testbed: Testbed, levels: int = LEVELS) -> Grid:
    """Return all combinations of `levels` values of each of a knob's columns, within its bounds.

    Shares are spaced evenly, other values by equal factors. Columns that must ascend, such as kmin
    and kmax, do. Raises InputError for a column without an upper bound.
    """
    capacity = None if knob.capacity is None else int(knob.capacity(testbed).min())
    columns = [_levels(column, capacity, levels) for column in knob.columns]
    ascending = [
        index for index, column in enumerate(knob.columns) if column.name in knob.ascending
    ]
    rows = [
        row for row in product(*columns) if all(row[a] <= row[b] for a, b in pairwise(ascending))
    ]
    arrays = zip(knob.columns, zip(*rows, strict=True), strict=True)
    return Grid(knob, {column.name: np.array(row, dtype=column.dtype) for column, row in arrays})


def _levels(column: Column, capacity: int | None, levels: int) -> list[float]:
    maximum = column.maximum if column.maximum is not None else capacity
    if maximum is None:
        raise InputError.single(
            column.name, "has no upper bound to make a grid of", "give settings of your own"
        )
    if column.unit == "1":
        return list(np.linspace(column.minimum, maximum, levels))
    values = np.geomspace(max(column.minimum, 1), maximum, levels)
    return list(np.rint(values) if column.dtype == "int64" else values)


def knob_named(name: str) -> Knob:
    """Return a knob. Raises InputError if it is not declared, or not set at queues or switches."""
    check_known("knob", "{!r} is not declared", [name], KNOBS, "use ")
    if KNOBS[name].scope not in ("queue", "switch"):
        raise InputError.single(
            "knob",
            f"{name!r} is set at each {KNOBS[name].scope}, and agents are queues or switches",
            "use another knob",
        )
    return KNOBS[name]
