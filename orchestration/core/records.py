"""What a trial observes and leaves behind, as NumPy arrays.

Which signals and knobs there are is declared in `signals` and `knobs`. Per-queue arrays are in the
order of `Testbed.queues`. Times are ns of the rig's clock since the trial's start.
A count or size that a device does not offer is `MISSING`. So is a sample for which the device had
no new value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.signals import Scope, recorded
from orchestration.core.status import DONE, FAILED, LONG_LIVED, STATUS_NAMES, UNFINISHED

__all__ = [
    "DONE",
    "FAILED",
    "LONG_LIVED",
    "STATUS_NAMES",
    "UNFINISHED",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MISSING = -1
# The fact that says up to how many ns late shapers make up for waking up.
SHAPERS_LATE = "shapers_late_ns"
# The fact that names the signals that a tuner observed and nobody measured.
UNMEASURED = "unmeasured"


@dataclass(frozen=True)
class Schedule:
    """Every flow of a trial before it starts, sorted by start; all arrays of shape (flows,).

    `src` and `dst` index `Testbed.hosts`; `klass` indexes `classes` (the pattern that made it).
    """

    start_ns: Ints
    src: Ints
    dst: Ints
    size_bytes: Ints
    klass: Ints
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


class Columns:
    """Base of records with named arrays in `values`, which are read as items or as attributes."""

    values: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.values[name]

    def __getattr__(self, name: str) -> NDArray[Any]:
        # called for names that are not fields; `values` itself is missing during unpickling
        if name.startswith("__") or name == "values" or name not in self.values:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return self.values[name]


@dataclass(frozen=True)
class Observation(Columns):
    """One reading of a fabric: an array per signal, with an entry per target of its scope.

    `values` has the signals that the backend offers and the tuner observes, by `Signal.key`.
    `settings` has the knobs' settings, by knob and column. `t_ns` is when the reading began;
    `age_ns` (queues,) is the age of each queue's numbers, -1 where it is unknown. `taken_ns` is
    when they were taken, if that is not `t_ns`: switches that poll on their own show the same
    numbers until the next poll. `taken_by` has the times of signals that are polled on their own.
    With `took_ns`, numbers are of a moment within so long after `taken_ns`, MISSING where that is
    not known.
    """

    t_ns: int
    age_ns: Ints
    values: Mapping[str, NDArray[Any]]
    settings: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    taken_ns: Ints | None = None
    taken_by: Mapping[str, Ints] = field(default_factory=dict)
    took_ns: Ints | None = None

    def get(self, key: str) -> NDArray[Any] | None:
        """Return a signal's array, None if it is not there."""
        return self.values.get(key)

    def with_values(self, **values: NDArray[Any]) -> Observation:
        """Return this observation with some signals added or replaced."""
        return replace(self, values={**self.values, **values})


@dataclass(frozen=True)
class Change(Columns):
    """Sets a knob at some targets: `targets` and all arrays have shape (changes,).

    `targets` index the knob's scope in the testbed. Create one with
    `orchestration.core.knobs.Knob.change`.
    """

    knob: str
    targets: Ints
    values: Mapping[str, NDArray[Any]]

    def at(self, rows: NDArray[Any]) -> Change:
        """Return the change with some rows only, chosen by index or by mask."""
        values = {name: array[rows] for name, array in self.values.items()}
        return Change(self.knob, self.targets[rows], values)


# Changes of knobs, at most one per knob. `()` leaves everything as it is.
Action = tuple[Change, ...]


@dataclass(frozen=True)
class Program:
    """A program that runs on devices, such as a NIC's policy. It is tuned later through knobs.

    `targets` index the program's scope; `kind` defines the meaning of `code`.
    """

    kind: str
    targets: Ints
    code: bytes
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """The start of a trial: programs to install on devices, then the first changes of knobs."""

    action: Action = ()
    programs: tuple[Program, ...] = ()


@dataclass(frozen=True)
class Applied:
    """What the devices reported after an action, change by change, at `t_ns`."""

    t_ns: int
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class FlowRecords:
    """Outcome of each flow of the schedule, shapes (flows,). `end_ns` is -1 if not done.

    `sent_ns` is when the driver handed the flow's first byte to TCP. Its difference from the
    scheduled start is the generator's lateness.
    """

    sent_ns: Ints
    end_ns: Ints
    retransmits: Ints
    status: Ints


@dataclass(frozen=True)
class Samples(Columns):
    """Samples of a scope's recorded signals: `t_ns` (samples,), arrays (samples, targets).

    Arrays are named by `Signal.name`; cumulative ones count from the start of the fabric.
    """

    t_ns: Ints
    values: Mapping[str, NDArray[Any]]

    def upto(self, rows: int) -> Samples:
        """Return the first `rows` samples."""
        return Samples(self.t_ns[:rows], {name: one[:rows] for name, one in self.values.items()})

    @classmethod
    def of(cls, scope: Scope, t_ns: Ints, *columns: NDArray[Any], targets: int = 0) -> Samples:
        """Return samples from columns, given in the order of their declarations.

        Columns that are not given are `MISSING`. They have the shape of the first column, or
        (samples, targets) if there is none.
        """
        shape = columns[0].shape if columns else (len(t_ns), targets)
        signals = recorded(scope)
        absent = (np.full(shape, MISSING, dtype=one.dtype) for one in signals[len(columns) :])
        names = [signal.name for signal in signals]
        return cls(t_ns, dict(zip(names, [*columns, *absent], strict=True)))


@dataclass(frozen=True)
class HostReading(Columns):
    """One reading of all hosts at `t_ns`: recorded signals by name, arrays of shape (hosts,)."""

    t_ns: int
    values: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ChangeRecords(Columns):
    """All changes of one knob, one row per changed target; arrays of shape (changes,).

    `observed_ns` is the time of the observation that a change responds to. `applied_ns` is when the
    device reported `values` back.
    """

    observed_ns: Ints
    decided_ns: Ints
    applied_ns: Ints
    targets: Ints
    values: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Event:
    """Something that happened at a time: a fault, a warning, a change of routes."""

    t_ns: int
    kind: str
    detail: str


@dataclass(frozen=True)
class TrialRecord:
    """All that a backend returns of one trial. `facts` is JSON-ready: kernel, settings, checks.

    `samples` has the recorded signals by scope, `changes` the changes by knob. `trace` is the
    tuner's training data (see `Tuner.trace`). `taken` has the moments before and after which no
    queue's numbers were taken, two arrays (samples, queues), if they are known. `acked` has the
    payload of all flows that was acknowledged around the ends of the measured time: `acked_bytes`
    (readings, flows), MISSING for a flow without such a count; None if no flow has one. None of the
    three is part of a run folder.
    """

    flows: FlowRecords
    samples: Mapping[Scope, Samples]
    changes: Mapping[str, ChangeRecords]
    events: tuple[Event, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    taken: tuple[Ints, Ints] | None = None
    acked: Samples | None = None

    @property
    def ports(self) -> Samples:
        """The samples of the switch ports' queues."""
        return self.samples["queue"]

    @property
    def hosts(self) -> Samples:
        """The samples of the hosts."""
        return self.samples["host"]
