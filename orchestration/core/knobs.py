"""Knobs: everything that a tuner can set, declared once.

A knob has a name, a scope (at which kind of target it is set) and columns with units and bounds.
Bounds, checks, the tables of actions, the spool, InfluxDB fields, the live view, replays,
environments and docs are derived from these declarations. To add a knob, declare it here and set it
in the rig of each backend that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestration.core.load_balancing import (
    MAX_TIMEOUT_NS,
    MIN_TIMEOUT_NS,
    LoadBalancingSpec,
)
from orchestration.core.records import Action, Change, Ints
from orchestration.core.roce import DCQCN_PARAMETERS
from orchestration.core.signals import Scope, targets

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

Array = NDArray[Any]


class ImpossibleSetting(ValueError):  # noqa: N818 (it is what the tuner asked for)
    """A setting that no device can have.

    `target` is the index of the first target with such a setting, None if the fault is not that of
    one target. `what` describes the fault without that index, since the caller knows the target's
    name.
    """

    def __init__(self, what: str, scope: Scope = "queue", target: int | None = None) -> None:
        super().__init__(what if target is None else f"{scope} {target}: {what}")
        self.what = what
        self.target = target


@dataclass(frozen=True)
class Column:
    """One number of a setting: its unit, its bounds (both included) and what it means.

    If `maximum` is None, the upper bound depends on the target: see `Knob.capacity`. `preset` is
    the value that a trial begins with if its campaign names none, None if a tuner has to set it.
    """

    name: str
    unit: str
    help: str
    dtype: Literal["int64", "float64"] = "int64"
    minimum: float = 0
    maximum: float | None = None
    preset: float | None = None

    @property
    def short(self) -> str:
        """The name without its unit."""
        return self.name.removesuffix("_bytes").removesuffix("_ns")

    @property
    def range(self) -> str:
        """The bounds in words."""
        minimum = _short(self.minimum)
        return (
            f"{minimum} or more {self.unit}"
            if self.maximum is None
            else f"{minimum}..{_short(self.maximum)}"
        )


def _short(bound: float) -> str:
    return f"{bound:.0f}" if bound == round(bound) else f"{bound:g}"


@dataclass(frozen=True)
class Knob:
    """Something that can be set at each target of a scope.

    `capacity` returns the upper bounds of columns that have none of their own, shape (targets,).
    Columns of `ascending` must not decrease from one to the next. `table` is the table of its
    actions in a run folder; `plural` is the word for its settings in messages.

    A knob whose columns have a `preset` has values from the start of a trial: a tuner need not set
    it at the start, and a change may leave columns out, which then keep their values. `control` is
    the congestion control that hosts must have for this knob, `load_balancing` the kind that
    switches must have; "" means that any will do.
    """

    name: str
    scope: Scope
    columns: tuple[Column, ...]
    help: str
    capacity: Callable[[Testbed], Ints] | None = None
    ascending: tuple[str, ...] = ()
    table: str = ""
    plural: str = "settings"
    control: str = ""
    load_balancing: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", self.table or f"actions_{self.name}")

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def preset(self) -> dict[str, float]:
        """The values that a trial begins with by default, by column; empty for most knobs."""
        return {c.name: c.preset for c in self.columns if c.preset is not None}

    def change(self, targets: ArrayLike, *values: ArrayLike, **columns: ArrayLike) -> Change:
        """Return the change that sets `targets` to `values`, one array per column, in order.

        Columns may be named instead. A single number applies to all targets.
        """
        index = np.asarray(targets, dtype=np.int64)
        given = {**self.named(*values), **columns} if values else columns
        arrays = {
            name: np.asarray(value) if np.ndim(value) else np.full(index.shape, value)
            for name, value in given.items()
        }
        return Change(self.name, index, arrays)

    def named(self, *values: Any) -> dict[str, Any]:
        """Return arrays, given in the order of the columns, by name."""
        return dict(zip(self.column_names, values, strict=True))

    def of(self, action: Action) -> Change | None:
        """Return the change of this knob in an action; None if there is none."""
        return next((change for change in action if change.knob == self.name), None)

    def bounds(self, testbed: Testbed) -> Bounds:
        """Return the bounds of the settings on a testbed's devices."""
        count = len(targets(testbed, self.scope))
        maximum = None if self.capacity is None else self.capacity(testbed)
        return Bounds(self, count, maximum)


@dataclass(frozen=True)
class Bounds:
    """Bounds of a knob at the `count` targets of a testbed; `maximum` (count,) is its capacity."""

    knob: Knob
    count: int
    maximum: Ints | None = None

    def clamp(self, change: Change) -> tuple[Change, int]:
        """Return `change` with its values clamped to the bounds, and how many targets that changed.

        Ascending columns are clamped from the last to the first, each to at most the next one. NaN
        stays; `check` finds it. Raises ImpossibleSetting for targets that do not exist or are set
        twice.
        """
        self._check_targets(change)
        values: dict[str, Array] = dict(change.values)
        changed = np.zeros(len(change.targets), dtype=bool)
        above: Array | None = None
        for column in reversed(self._columns(change)):
            ordered = column.name in self.knob.ascending
            maximum = (
                above if ordered and above is not None else self._maximum(column, change.targets)
            )
            requested = values[column.name]
            values[column.name] = clamped = np.clip(requested, column.minimum, maximum)
            # NaN differs even from itself
            changed |= (clamped != requested) & ~np.isnan(clamped)
            if ordered:
                above = clamped
        count = int(np.count_nonzero(changed))
        return (Change(change.knob, change.targets, values) if count else change), count

    def check(self, change: Change) -> None:
        """Raise ImpossibleSetting unless every target is set once, to possible values."""
        self._check_targets(change)
        ascending = [column for column in self.knob.columns if column.name in self.knob.ascending]
        if ascending:
            minimum, unit = ascending[0].minimum, ascending[0].unit
            rows = [change.values[column.name] for column in ascending]
            steps = [np.full(len(change.targets), minimum), *rows]
            rises = [low <= high for low, high in zip(steps, rows, strict=False)]
            order = " <= ".join([f"{minimum:g}", *(column.short for column in ascending)])
            for index in np.flatnonzero(~np.logical_and.reduce(rises))[:1].tolist():
                given = " and ".join(str(row[index]) for row in rows)
                self._refuse(change, index, f"needs {order}, got {given} {unit}")
        for column in self._columns(change):
            values, maximum = change.values[column.name], self._maximum(column, change.targets)
            if column not in ascending:
                wrong = ~((values >= column.minimum) & (values <= maximum))
                for index in np.flatnonzero(wrong)[:1].tolist():
                    what = f"{column.short} {values[index]} is not in {column.range}"
                    self._refuse(change, index, what)

    def _columns(self, change: Change) -> list[Column]:
        """Return the columns that a change sets."""
        return [column for column in self.knob.columns if column.name in change.values]

    def _maximum(self, column: Column, targets: Ints) -> Any:
        if column.maximum is not None:
            return column.maximum
        return np.inf if self.maximum is None else self.maximum[targets]

    def _refuse(self, change: Change, index: int, what: str) -> None:
        raise ImpossibleSetting(what, self.knob.scope, int(change.targets[index]))

    def _check_targets(self, change: Change) -> None:
        index, scope, count = change.targets, self.knob.scope, self.count
        names = self.knob.column_names
        given = set(change.values)
        if self.knob.preset and not (given and given <= set(names)):
            what = f"{change.knob} has {', '.join(names)}: set one or more of them"
            raise ImpossibleSetting(what)
        if not self.knob.preset and given != set(names):
            what = f"{change.knob} has {', '.join(names)}: set all of them, and nothing else"
            raise ImpossibleSetting(what)
        shapes = {np.shape(part) for part in (index, *change.values.values())}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise ImpossibleSetting(
                f"targets and {', '.join(change.values)} must be arrays of one length, not {shapes}"
            )
        # checked at each decision, and targets nearly always ascend: then they need no sorting
        rising = bool((index[1:] > index[:-1]).all())
        ordered = index if rising else np.sort(index)
        if len(index) and (ordered[0] < 0 or ordered[-1] >= count):
            raise ImpossibleSetting(f"{scope} {ordered[0]}..{ordered[-1]} is not in 0..{count - 1}")
        if not rising and (ordered[1:] == ordered[:-1]).any():
            raise ImpossibleSetting(f"a {scope} is set twice in one action")


def _buffers(testbed: Testbed) -> Ints:
    return np.array([queue.buffer_bytes for queue in testbed.queues], dtype=np.int64)


ECN = Knob(
    "ecn",
    "queue",
    (
        Column("kmin_bytes", "B", "queue length from which packets are marked"),
        Column("kmax_bytes", "B", "queue length from which every packet is marked"),
        Column("pmax", "1", "share of packets that is marked at kmax", "float64", maximum=1),
    ),
    "RED's thresholds and marking probability",
    capacity=_buffers,
    ascending=("kmin_bytes", "kmax_bytes"),
    table="actions",
    plural="thresholds",
)

DCQCN = Knob(
    "dcqcn",
    "host",
    tuple(
        Column(name, p.unit, p.help, minimum=p.minimum, maximum=p.maximum, preset=p.default)
        for name, p in DCQCN_PARAMETERS.items()
    ),
    "parameters of DCQCN in a host's RoCE NICs, under mlx5's names",
    plural="parameters",
    control="dcqcn",
)

FLOWLET_TIMEOUT = Knob(
    "flowlet_timeout",
    "switch",
    (
        Column(
            "timeout_ns",
            "ns",
            "a longer gap between two packets of a flow begins a new flowlet",
            minimum=MIN_TIMEOUT_NS,
            maximum=MAX_TIMEOUT_NS,
            preset=LoadBalancingSpec.edge_timeout_ns,
        ),
    ),
    "when a switch may send a flow by another of its equal-cost ports",
    plural="timeouts",
    load_balancing="flowlets",
)

KNOBS: dict[str, Knob] = {knob.name: knob for knob in (ECN, DCQCN, FLOWLET_TIMEOUT)}
