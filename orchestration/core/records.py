"""What a trial observes and leaves behind, as NumPy arrays.

Signals and knobs are declared in the modules `signals` and `knobs`. Per-queue arrays are in the
order of `Testbed.queues`. Times are ns of the rig's clock since the trial's start. A count or size
that a device does not offer is `MISSING`. So is a sample for which the device had no new value.
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
# The fact with the time, in ns, up to which shapers compensate for being woken late.
SHAPERS_LATE = "shapers_late_ns"
# The fact that names the signals that a tuner observes but that were not measured.
UNMEASURED = "unmeasured"


@dataclass(frozen=True)
class Schedule:
    """Every flow of a trial, known before it starts, sorted by start; arrays of shape (flows,).

    `src` and `dst` index `Testbed.hosts`. `klass` indexes `classes`, which has a name for each
    traffic pattern of the trial.
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
    """Base of records with named arrays in `values`, readable as items and as attributes."""

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
    `settings` has the knobs' settings, by knob and column. `t_ns` is when the reading began, and
    `age_ns` (queues,) the age of each queue's values, -1 where it is unknown.

    `taken_ns` (queues,) is when the values were measured, if that is not `t_ns`: a switch that
    polls its counters by itself shows the same values until its next poll. `taken_by` has such
    times, by signal, for signals with a poll of their own. If `took_ns` (queues,) is given, values
    were measured between `taken_ns` and `taken_ns + took_ns`; it is MISSING where that is unknown.
    """

    t_ns: int
    age_ns: Ints
    values: Mapping[str, NDArray[Any]]
    settings: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    taken_ns: Ints | None = None
    taken_by: Mapping[str, Ints] = field(default_factory=dict)
    took_ns: Ints | None = None

    def get(self, key: str) -> NDArray[Any] | None:
        """Return the array of the signal with this key, None if there is none."""
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
        """Return the change for some of its targets only, chosen by index or by mask."""
        values = {name: array[rows] for name, array in self.values.items()}
        return Change(self.knob, self.targets[rows], values)


# Changes of knobs, at most one per knob. `()` leaves everything as it is.
Action = tuple[Change, ...]


@dataclass(frozen=True)
class Program:
    """A program that runs on devices, such as the congestion control of a NIC.

    `targets` index the devices, and `kind` defines the meaning of `code`. While the program runs,
    it is tuned through knobs.
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
    """The settings that devices reported at `t_ns`, after an action: one change for each knob."""

    t_ns: int
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class FlowRecords:
    """Outcome of each flow of the schedule, shapes (flows,). `end_ns` is -1 for unfinished flows.

    `sent_ns` is when the driver gave the flow's first byte to TCP. Its difference from the
    scheduled start is the generator's lateness. `status` is one of `orchestration.core.status`.
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
        return Samples(self.t_ns[:rows], {name: rs[:rows] for name, rs in self.values.items()})

    @classmethod
    def of(cls, scope: Scope, t_ns: Ints, *columns: NDArray[Any], targets: int = 0) -> Samples:
        """Return samples from columns, given in the order in which the signals are declared.

        Columns that are not given are `MISSING`. They have the shape of the first column, or
        (samples, targets) if none is given.
        """
        shape = columns[0].shape if columns else (len(t_ns), targets)
        signals = recorded(scope)
        absent = (np.full(shape, MISSING, dtype=signal.dtype) for signal in signals[len(columns) :])
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

    `samples` has the recorded signals by scope, `changes` the changes by knob. Three fields are not
    written to run folders: `trace` is the tuner's training data (see `Tuner.trace`). `taken` has
    the earliest and the latest time at which each queue's values may have been measured, two arrays
    (samples, queues), None if they are unknown. `acked` has the acknowledged payload of each flow
    around the two ends of the measured time: `acked_bytes` (readings, flows), MISSING for a flow
    without such a count; it is None if no flow has one.
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
