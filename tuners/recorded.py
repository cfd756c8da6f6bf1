"""A tuner that replays recorded actions, of an earlier trial or from elsewhere.

The file is CSV, sorted by `t_ns`, with the columns that name a knob's target and those of the knob:
`t_ns,device,port,queue,kmin_bytes,kmax_bytes,pmax` for ECN thresholds. Rows at or before time 0 are
the initial settings. Each later row is the answer to the first reading at or after its time.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestration.model.csv_columns import CsvColumns, Kind, read_csv
from orchestration.model.errors import InputError
from orchestration.model.knobs import ECN, KNOBS, Knob
from orchestration.model.records import Action, Change, Ints, Observation, Setup
from orchestration.model.signals import TARGET_COLUMNS, Scope, targets
from tuners.base import BaseTuner

if TYPE_CHECKING:
    from inventory.topology import Testbed


@dataclass(frozen=True)
class Recording:
    """Changes of one knob in order of time; `t_ns` and the arrays of `change` are (changes,)."""

    knob: Knob
    t_ns: Ints
    change: Change


def columns_of(knob: Knob) -> dict[str, Kind]:
    """Return the columns of a recording of `knob`, with their kinds."""
    kinds: dict[str, Kind] = {"int64": "integer", "float64": "number"}
    named: dict[str, Kind] = {
        name: "integer" if name == "queue" else "name" for name in TARGET_COLUMNS[knob.scope]
    }
    return {
        "t_ns": "integer",
        **named,
        **{column.name: kinds[column.dtype] for column in knob.columns},
    }


def knob_of(path: str) -> Knob:
    """Return the knob that a file's header belongs to; ECN if none, or if it cannot be read."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header = {name.strip() for name in next(csv.reader(file), [])}
    except (OSError, UnicodeDecodeError):
        return ECN
    return next((knob for knob in KNOBS.values() if header.issuperset(knob.column_names)), ECN)


def read_actions(path: str, testbed: Testbed | None) -> Recording:
    """Return the actions of a file; without a testbed its devices are not checked.

    Raises InputError, with file and line, for a file that cannot be read or is cut off, for cells
    that are not numbers, impossible settings, times that go backwards, and targets that the testbed
    does not have.
    """
    knob = knob_of(path)
    columns = read_csv(path, columns_of(knob))
    t_ns = columns.integers["t_ns"]
    values = {
        one.name: (columns.integers if one.dtype == "int64" else columns.numbers)[one.name]
        for one in knob.columns
    }
    columns.refuse(np.diff(t_ns) < 0, "t_ns goes back in time", "sort the file by t_ns")
    for wrong, what, remedy in faults(knob, values):
        columns.refuse(wrong, what, remedy)
    if testbed is None:
        index = np.zeros(len(t_ns), np.int64)
    elif knob.scope == "queue":
        index = _queues(columns, testbed)
    else:
        index = _named(columns, testbed, knob.scope)
    return Recording(knob, t_ns, Change(knob.name, index, values))


def faults(
    knob: Knob, values: Mapping[str, np.ndarray[Any, Any]]
) -> list[tuple[np.ndarray[Any, Any], str, str]]:
    """Return the possible faults of settings, each as (mask of rows, what, remedy)."""
    found = []
    ascending = [values[name] for name in knob.ascending]
    if ascending:
        rises = [
            low <= high for low, high in zip([np.int64(0), *ascending], ascending, strict=False)
        ]
        order = " <= ".join(["0", *knob.ascending])
        found.append((~np.logical_and.reduce(rises), f"not {order}", "swap or correct them"))
    for column in knob.columns:
        if column.name in knob.ascending:
            continue
        array = values[column.name]
        most = np.inf if column.most is None else column.most
        share = (column.least, column.most) == (0, 1)
        what = "is not a probability" if share else f"is not {column.range}"
        remedy = "use 0 to 1" if share else "correct it"
        found.append(
            (~((array >= column.least) & (array <= most)), f"{column.name} {what}", remedy)
        )
    return found


def _named(columns: CsvColumns, testbed: Testbed, scope: Scope) -> Ints:
    """Return the index of each row's switch or host in the testbed."""
    (column,) = TARGET_COLUMNS[scope]
    known = {name: place for place, name in enumerate(targets(testbed, scope))}
    names = columns.names[column]
    places = np.array([known.get(name, -1) for name in names.names], np.int64)[names.codes]
    for row in np.flatnonzero(places < 0)[:1].tolist():
        raise InputError.single(
            columns.where(row),
            f"testbed {testbed.name} has no {scope} {names.names[names.codes[row]]!r}",
            f"its {scope}s are {', '.join(list(known)[:3])} …: rename the file's",
        )
    return np.asarray(places)


def _queues(columns: CsvColumns, testbed: Testbed) -> Ints:
    """Return the index of each row's queue in `Testbed.queues`."""
    device, port, klass = columns.names["device"], columns.names["port"], columns.integers["queue"]
    number = {(q.device, q.name, q.klass): place for place, q in enumerate(testbed.queues)}
    # one entry more than there are classes, for numbers of no queue
    most = testbed.queues_per_port
    table = np.array(
        [
            number.get((switch, name, each), -1)
            for switch in device.names
            for name in port.names
            for each in range(most + 1)
        ],
        dtype=np.int64,
    ).reshape(len(device.names), len(port.names), most + 1)
    places = table[device.codes, port.codes, np.where((klass < 0) | (klass > most), most, klass)]
    absent = np.flatnonzero(places < 0)
    if len(absent):
        row = int(absent[0])
        names = device.names[device.codes[row]], port.names[port.codes[row]], int(klass[row])
        raise InputError.single(columns.where(row), *_no_such_queue(testbed, *names))
    return np.asarray(places)


def _no_such_queue(testbed: Testbed, device: str, port: str, klass: int) -> tuple[str, str]:
    """Return what is wrong with a queue's name, and the remedy."""
    if device not in testbed.switches:
        known = f"its switches are {testbed.switches[0]} to {testbed.switches[-1]}"
        return (
            f"testbed {testbed.name} has no switch {device!r}",
            f"{known}: rename the file's devices, or name their testbed",
        )
    ports = [p.name for p in testbed.ports_of[device]]
    if port not in ports:
        return (
            f"{device} of testbed {testbed.name} has no port {port!r}",
            f"its ports are {ports[0]} to {ports[-1]}: rename the file's ports",
        )
    return (
        f"{device}:{port} of testbed {testbed.name} has no queue {klass}",
        f"its queues are 0 to {testbed.queues_per_port - 1}",
    )


@dataclass(eq=False)
class RecordedTuner(BaseTuner):
    """Replays the actions of a file, by the clock alone."""

    observes = ()

    actions: str

    def __post_init__(self) -> None:
        self._recording: Recording | None = None
        self._next = 0
        self.knobs = (knob_of(self.actions).name,)

    def check_testbed(self, testbed: Testbed | None) -> None:
        """Read the file. Raises InputError if it is faulty or does not fit the testbed."""
        read_actions(self.actions, testbed)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the recorded initial settings: those at or before time 0.

        Raises InputError if the file is faulty or does not fit the testbed.
        """
        self._recording = read_actions(self.actions, testbed)
        self._next = 0
        return Setup(self._until(0))

    def act(self, observation: Observation) -> Action:
        """Return what was set since the last reading; if a target was set twice, the last value."""
        return self._until(observation.t_ns)

    def facts(self) -> Mapping[str, Any]:
        """Return how many changes the recording has, and how many were replayed."""
        recorded = 0 if self._recording is None else len(self._recording.t_ns)
        return {"recorded_changes": recorded, "repeated_changes": self._next}

    def _until(self, t_ns: int) -> Action:
        recording = self._recording
        assert recording is not None  # the loop resets a tuner first
        begin = self._next
        self._next = max(begin, int(np.searchsorted(recording.t_ns, t_ns, side="right")))
        if self._next == begin:
            return ()
        # the last change of each target, in the order of the recording
        index = recording.change.targets[begin : self._next]
        _, from_end = np.unique(index[::-1], return_index=True)
        return (recording.change.at(np.sort(self._next - 1 - from_end)),)
