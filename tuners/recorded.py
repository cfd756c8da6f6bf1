"""The tuner `recorded`: it replays recorded actions, of an earlier trial or from elsewhere.

Each knob has its own CSV file, named by the parameter that is called as the knob's table. Rows are
sorted by `t_ns`. Their other columns are the knob's target and its values: for ECN thresholds,
`t_ns,device,port,queue,kmin_bytes,kmax_bytes,pmax`. If the campaign presets a knob, value columns
may be left out; those values then stay as preset. Rows at or before time 0 are the initial
settings. Each later row is applied at the first observation at or after its time.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestration.core.csv_columns import CsvColumns, Kind, read_csv
from orchestration.core.errors import InputError
from orchestration.core.files import local_path
from orchestration.core.knobs import ECN, KNOBS, Knob
from orchestration.core.records import Action, Change, Ints, Observation, Setup
from orchestration.core.signals import TARGET_COLUMNS, Scope, targets
from tuners.base import BaseTuner

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


@dataclass(frozen=True)
class Recording:
    """Changes of one knob, ordered by time. `t_ns` and the arrays of `change` are (changes,)."""

    knob: Knob
    t_ns: Ints
    change: Change


def columns_of(knob: Knob, present: Collection[str] = ()) -> dict[str, Kind]:
    """Return the columns of a recording of `knob`, with their kinds.

    `present` are the columns that a file has. Of a knob that the campaign presets, value columns
    that are not among them are left out, unless that leaves none.
    """
    some = [name for name in knob.column_names if name in present] if knob.preset else []
    kinds: dict[str, Kind] = {"int64": "integer", "float64": "number"}
    of_target: dict[str, Kind] = {
        name: "integer" if name == "queue" else "name" for name in TARGET_COLUMNS[knob.scope]
    }
    return {
        "t_ns": "integer",
        **of_target,
        **{
            column.name: kinds[column.dtype]
            for column in knob.columns
            if not some or column.name in some
        },
    }


def knob_of(path: str) -> Knob:
    """Return the knob whose columns a file's header has; ECN if there is none, or no header."""
    header = _header(path)
    for knob in KNOBS.values():
        needed = any if knob.preset else all
        if needed(name in header for name in knob.column_names):
            return knob
    return ECN


def _header(path: str) -> set[str]:
    try:
        with open(local_path(path), newline="", encoding="utf-8") as file:
            return {name.strip() for name in next(csv.reader(file), [])}
    except (OSError, UnicodeDecodeError):
        return set()


def read_actions(path: str, testbed: Testbed | None) -> Recording:
    """Return the actions of a file. Without a testbed, its devices are not checked.

    Raises InputError, with file and line, for a file that cannot be read or is cut off, for cells
    that are not numbers, impossible settings, times that go backwards, and targets that the testbed
    does not have.
    """
    knob = knob_of(path)
    columns = read_csv(local_path(path), columns_of(knob, _header(path)))
    t_ns = columns.integers["t_ns"]
    values = {
        column.name: numbers[column.name]
        for column in knob.columns
        for numbers in (columns.integers if column.dtype == "int64" else columns.numbers,)
        if column.name in numbers
    }
    columns.refuse(np.diff(t_ns) < 0, "t_ns goes back in time", "sort the file by t_ns")
    for rows, what, remedy in faults(knob, values):
        columns.refuse(rows, what, remedy)
    if testbed is None:
        index = np.zeros(len(t_ns), np.int64)
    elif knob.scope == "queue":
        index = _queue_indices(columns, testbed)
    else:
        index = _device_indices(columns, testbed, knob.scope)
    return Recording(knob, t_ns, Change(knob.name, index, values))


def faults(
    knob: Knob, values: Mapping[str, np.ndarray[Any, Any]]
) -> list[tuple[np.ndarray[Any, Any], str, str]]:
    """Return what can be wrong with settings of `knob`, each as (mask of rows, what, remedy).

    `values` has the settings by column. If the campaign presets the knob, columns may be missing.
    """
    checks = []
    ascending = [values[name] for name in knob.ascending]
    if ascending:
        rises = [
            low <= high for low, high in zip([np.int64(0), *ascending], ascending, strict=False)
        ]
        order = " <= ".join(["0", *knob.ascending])
        checks.append((~np.logical_and.reduce(rises), f"not {order}", "swap or correct them"))
    for column in knob.columns:
        if column.name in knob.ascending or column.name not in values:
            continue
        array = values[column.name]
        maximum = np.inf if column.maximum is None else column.maximum
        share = (column.minimum, column.maximum) == (0, 1)
        what = "is not a probability" if share else f"is not {column.range}"
        remedy = "use 0 to 1" if share else "correct it"
        checks.append(
            (~((array >= column.minimum) & (array <= maximum)), f"{column.name} {what}", remedy)
        )
    return checks


def _device_indices(columns: CsvColumns, testbed: Testbed, scope: Scope) -> Ints:
    """Return the index of each row's switch or host in the testbed."""
    (column,) = TARGET_COLUMNS[scope]
    known = {name: index for index, name in enumerate(targets(testbed, scope))}
    names = columns.names[column]
    indices = np.array([known.get(name, -1) for name in names.names], np.int64)[names.codes]
    for row in np.flatnonzero(indices < 0)[:1].tolist():
        raise InputError.single(
            columns.where(row),
            f"testbed {testbed.name} has no {scope} {names.names[names.codes[row]]!r}",
            f"its {scope}s are {', '.join(list(known)[:3])} …: rename the file's",
        )
    return np.asarray(indices)


def _queue_indices(columns: CsvColumns, testbed: Testbed) -> Ints:
    """Return the index of each row's queue in `Testbed.queues`."""
    device, port, klass = columns.names["device"], columns.names["port"], columns.integers["queue"]
    known = {(q.device, q.name, q.klass): index for index, q in enumerate(testbed.queues)}
    # the table has one more class than there are, for numbers that are no class
    no_class = testbed.queues_per_port
    table = np.array(
        [
            known.get((switch, name, each), -1)
            for switch in device.names
            for name in port.names
            for each in range(no_class + 1)
        ],
        dtype=np.int64,
    ).reshape(len(device.names), len(port.names), no_class + 1)
    classes = np.where((klass < 0) | (klass > no_class), no_class, klass)
    indices = table[device.codes, port.codes, classes]
    absent = np.flatnonzero(indices < 0)
    if len(absent):
        row = int(absent[0])
        names = device.names[device.codes[row]], port.names[port.codes[row]], int(klass[row])
        raise InputError.single(columns.where(row), *_no_such_queue(testbed, *names))
    return np.asarray(indices)


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


# Every knob has a parameter, called as the knob's table in a run folder.
_Files: Any = make_dataclass(
    "_Files", [(knob.table, str, "") for knob in KNOBS.values()], bases=(BaseTuner,), eq=False
)


@dataclass(eq=False)
class RecordedTuner(_Files):  # type: ignore[misc] # its fields are not known before
    """Replays recorded actions at their times, whatever it observes. One file per knob.

    A parameter is the path of a file, and has the name of its knob's table in a run folder.
    `actions` may be a file of any knob.
    """

    observes = tuple[str, ...]()  # a subclass sets other signals

    def __post_init__(self) -> None:
        self._files = {
            knob.table: file for knob in KNOBS.values() if (file := getattr(self, knob.table))
        }
        self._replays: list[_Replay] = []
        self.knobs = tuple(dict.fromkeys(knob_of(file).name for file in self._files.values()))

    def faults(self) -> Iterator[str]:
        """Yield what is wrong: no file, two for one knob, or one under another knob's name."""
        if not self._files:
            yield f"tuner 'recorded' needs {ECN.table!r}: name a file of recorded actions"
        files: dict[str, str] = {}
        for parameter, path in self._files.items():
            knob = knob_of(path)
            if parameter not in (knob.table, ECN.table):
                yield f"{parameter} {path!r} has actions of {knob.name}: write {knob.table}"
            elif knob.name in files:
                yield (
                    f"{files[knob.name]} and {parameter} both have actions of {knob.name}: "
                    "name one file a knob"
                )
            files[knob.name] = parameter

    def check_testbed(self, testbed: Testbed | None) -> None:
        """Read the files. Raises InputError if one is faulty or does not fit the testbed."""
        for path in self._files.values():
            read_actions(path, testbed)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the recorded initial settings: those at or before time 0.

        Raises InputError if a file is faulty or does not fit the testbed.
        """
        self._replays = [_Replay(read_actions(path, testbed)) for path in self._files.values()]
        return Setup(self._until(0))

    def act(self, observation: Observation) -> Action:
        """Return what was recorded since the last observation; of each target, the last value."""
        return self._until(observation.t_ns)

    def facts(self) -> Mapping[str, Any]:
        """Return how many changes the recordings have, and how many were replayed."""
        return {
            "recorded_changes": sum(len(replay.recording.t_ns) for replay in self._replays),
            "repeated_changes": sum(replay.next_row for replay in self._replays),
        }

    def _until(self, t_ns: int) -> Action:
        changes = (replay.until(t_ns) for replay in self._replays)
        return tuple(change for change in changes if change is not None)


class _Replay:
    """A recording, and how much of it was replayed: `next_row` is the next row to apply."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.next_row = 0

    def until(self, t_ns: int) -> Change | None:
        """Return the rows up to a time that were not applied yet, as one change; None if none."""
        begin, recording = self.next_row, self.recording
        self.next_row = max(begin, int(np.searchsorted(recording.t_ns, t_ns, side="right")))
        if self.next_row == begin:
            return None
        # the last change of each target, in the order of the recording
        index = recording.change.targets[begin : self.next_row]
        _, from_end = np.unique(index[::-1], return_index=True)
        return recording.change.at(np.sort(self.next_row - 1 - from_end))
