"""A recording in place of a tuner: what was set in an earlier trial, or by somebody else, again.

The file is CSV: `t_ns,device,port,queue,kmin_bytes,kmax_bytes,pmax`, sorted by `t_ns`. Rows at or
before 0 are the starting point; each later one answers the first reading at or after its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestration.model.csv_columns import CsvColumns, Kind, read_csv
from orchestration.model.errors import InputError
from orchestration.model.records import Action, Floats, Ints, NoAction, Observation, SetThresholds
from tuners.base import EcnTuner

if TYPE_CHECKING:
    from inventory.topology import Testbed

COLUMNS: dict[str, Kind] = {
    "t_ns": "integer",
    "device": "name",
    "port": "name",
    "queue": "integer",
    "kmin_bytes": "integer",
    "kmax_bytes": "integer",
    "pmax": "number",
}


@dataclass(frozen=True)
class RecordedActions:
    """Changes in the order of time, arrays of shape (changes,); `queue` indexes Testbed.queues."""

    t_ns: Ints
    queue: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats


def read_actions(path: str, testbed: Testbed | None) -> RecordedActions:
    """Return the actions of a file; without a testbed its devices are taken as they come.

    Raises InputError, naming file and line, for a file that cannot be read or is torn, what is no
    number, impossible thresholds, times that go backwards, and queues that the testbed has not.
    """
    columns = read_csv(path, COLUMNS)
    t_ns, kmin, kmax = (columns.integers[name] for name in ("t_ns", "kmin_bytes", "kmax_bytes"))
    pmax = columns.numbers["pmax"]
    columns.refuse(np.diff(t_ns) < 0, "t_ns goes back in time", "sort the file by t_ns")
    wrong = (kmin < 0) | (kmin > kmax)
    columns.refuse(wrong, "not 0 <= kmin_bytes <= kmax_bytes", "swap or correct them")
    columns.refuse((pmax < 0) | (pmax > 1), "pmax is not a probability", "use 0 to 1")
    queue = np.zeros(len(t_ns), np.int64) if testbed is None else _queues(columns, testbed)
    return RecordedActions(t_ns, queue, kmin, kmax, pmax)


def _queues(columns: CsvColumns, testbed: Testbed) -> Ints:
    """Return the place of each row's queue in `Testbed.queues`."""
    device, port, klass = columns.names["device"], columns.names["port"], columns.integers["queue"]
    number = {(q.device, q.name, q.klass): place for place, q in enumerate(testbed.queues)}
    # one entry more than there are classes, for numbers that are no queue's
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
    """Return what is wrong with a queue's name, and what to do."""
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


class RecordedTuner(EcnTuner):
    """Repeats the actions of a file. It decides by the clock alone."""

    observes = ()

    def __init__(self, actions: str) -> None:
        self._path = actions
        self._actions: RecordedActions | None = None
        self._next = 0

    def reset(self, testbed: Testbed, seed: int) -> Action:
        """Return the recorded starting point: what was set at or before time 0.

        Raises InputError for a file that is wrong, or not of this testbed.
        """
        self._actions = read_actions(self._path, testbed)
        self._next = 0
        return self._until(0)

    def act(self, observation: Observation) -> Action:
        """Return what was set since the last reading; a queue that was set twice has its last."""
        return self._until(observation.t_ns)

    def facts(self) -> Mapping[str, Any]:
        """Return how many changes the recording has, and how many of them had their time."""
        recorded = 0 if self._actions is None else len(self._actions.t_ns)
        return {"recorded_changes": recorded, "repeated_changes": self._next}

    def _until(self, t_ns: int) -> Action:
        actions = self._actions
        assert actions is not None  # the loop resets a tuner first
        begin = self._next
        self._next = max(begin, int(np.searchsorted(actions.t_ns, t_ns, side="right")))
        if self._next == begin:
            return NoAction()
        # the last of each queue, in the order in which the recording has them
        _, from_end = np.unique(actions.queue[begin : self._next][::-1], return_index=True)
        rows = np.sort(self._next - 1 - from_end)
        return SetThresholds(
            queues=actions.queue[rows],
            kmin_bytes=actions.kmin_bytes[rows],
            kmax_bytes=actions.kmax_bytes[rows],
            pmax=actions.pmax[rows],
        )
