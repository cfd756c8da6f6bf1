"""The choices of an agent: settings of a knob, at each target of the knob's scope."""

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
from orchestration.core.signals import Scope
from orchestration.core.topology import Testbed

LEVELS = 8


class Choices(Protocol):
    """Settings that can be chosen by number."""

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
    """Return `levels` values of each column within its bounds, in all combinations.

    Shares are spaced evenly, other values by equal factors.
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
    """Return a knob. Raises InputError if it is not declared, or has no agents."""
    check_known("knob", "{!r} is not declared", [name], KNOBS, "use ")
    if KNOBS[name].scope not in ("queue", "switch"):
        raise InputError.single(
            "knob",
            f"{name!r} is turned at each {KNOBS[name].scope}, and agents are queues or switches",
            "use another knob",
        )
    return KNOBS[name]


class Agents:
    """The agents: each queue is one, or each switch for all of its queues."""

    def __init__(self, testbed: Testbed, scope: Scope) -> None:
        self._switch: Ints | None = None
        if scope == "switch":
            place = {name: number for number, name in enumerate(testbed.switches)}
            self._switch = np.array([place[queue.device] for queue in testbed.queues])
            self._queues = np.bincount(self._switch, minlength=len(place))

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert values of queues to values of agents: a switch gets the mean of its queues."""
        if self._switch is None:
            return values
        sums = np.zeros((len(self._queues), *values.shape[1:]))
        np.add.at(sums, self._switch, values)
        counts = np.maximum(self._queues, 1).reshape(-1, *[1] * (values.ndim - 1))
        return (sums / counts).astype(values.dtype if values.dtype.kind == "f" else np.float64)
