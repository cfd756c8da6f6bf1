"""What an agent chooses from and where: settings of a knob, at each target of the knob's scope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inventory.topology import Testbed
from orchestration.model.errors import InputError
from orchestration.model.knobs import KNOBS, Column, Knob
from orchestration.model.records import Change, Ints
from orchestration.model.signals import Scope

LEVELS = 8


class Choices(Protocol):
    """Settings to choose from, by number."""

    def __len__(self) -> int:
        """Return how many there are."""

    def settings(self, targets: Ints, choice: Ints) -> Change:
        """Return the change that gives `targets` the settings `choice`, both of one shape."""


@dataclass(frozen=True)
class Grid:
    """Settings of a knob, arrays of shape (actions,) by column."""

    knob: Knob
    values: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def settings(self, targets: Ints, choice: Ints) -> Change:
        """Return the change that gives `targets` the settings `choice`, both of one shape."""
        return self.knob.change(targets, *(self.values[name][choice] for name in self.values))


def grid(knob: Knob, testbed: Testbed, levels: int = LEVELS) -> Grid:
    """Return `levels` values of each column within its bounds, in all possible combinations.

    Shares are spread evenly, anything else by equal factors.
    """
    capacity = None if knob.capacity is None else int(knob.capacity(testbed).min())
    columns = [_levels(column, capacity, levels) for column in knob.columns]
    ascending = [place for place, one in enumerate(knob.columns) if one.name in knob.ascending]
    rows = [
        row for row in product(*columns) if all(row[a] <= row[b] for a, b in pairwise(ascending))
    ]
    arrays = zip(knob.columns, zip(*rows, strict=True), strict=True)
    return Grid(knob, {one.name: np.array(values, dtype=one.dtype) for one, values in arrays})


def _levels(column: Column, capacity: int | None, levels: int) -> list[float]:
    most = column.most if column.most is not None else capacity
    if most is None:
        raise InputError.single(
            column.name, "has no upper bound to make a grid of", "give settings of your own"
        )
    if column.unit == "1":
        return list(np.linspace(column.least, most, levels))
    values = np.geomspace(max(column.least, 1), most, levels)
    return list(np.rint(values) if column.dtype == "int64" else values)


def knob_named(name: str) -> Knob:
    """Return a knob. Raises InputError for one that is not declared, or that has no agents."""
    if name not in KNOBS:
        raise InputError.single("knob", f"{name!r} is not declared", f"use {', '.join(KNOBS)}")
    if KNOBS[name].scope not in ("queue", "switch"):
        raise InputError.single(
            "knob",
            f"{name!r} is turned at each {KNOBS[name].scope}, and agents are queues or switches",
            "use another knob",
        )
    return KNOBS[name]


class Agents:
    """Who decides: each queue, or each switch for all of its queues."""

    def __init__(self, testbed: Testbed, scope: Scope) -> None:
        self._switch: Ints | None = None
        if scope == "switch":
            place = {name: number for number, name in enumerate(testbed.switches)}
            self._switch = np.array([place[queue.device] for queue in testbed.queues])
            self._queues = np.bincount(self._switch, minlength=len(place))

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of queues, by row, as those of agents: a switch has its queues' mean."""
        if self._switch is None:
            return values
        sums = np.zeros((len(self._queues), *values.shape[1:]))
        np.add.at(sums, self._switch, values)
        counts = np.maximum(self._queues, 1).reshape(-1, *[1] * (values.ndim - 1))
        return (sums / counts).astype(values.dtype if values.dtype.kind == "f" else np.float64)
