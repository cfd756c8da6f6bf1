"""The loop's side of a sink: an observer that appends what it is told to a spool, and no more.

The worker leaves a note in a trial's work folder where its records are to go; the backend's
observers find it there. Times are made absolute here, once: `Anchor`.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectors.sinks.names import run_tag
from collectors.sinks.spool import SpoolWriter
from collectors.tee import LoopObserver
from inventory.topology import Testbed
from orchestration.model.records import MISSING, Applied, Floats, Ints, Observation

READING, CHANGE = 1, 2

NOTE_FILE, STARTED_FILE = "spool.json", "started.json"
_COUNTERS = ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
# time_ns, t_ns, how many queues
_READING = struct.Struct("<qqI")
# observed_ns, decided_ns, applied_ns, first row, how many queues
_CHANGE = struct.Struct("<qqqqI")


@dataclass(frozen=True)
class SpoolNote:
    """Where a trial's records go: the spool's folder, its size, and the names of the trial."""

    spool: str
    limit_bytes: int
    campaign: str
    trial: str


@dataclass(frozen=True)
class Reading:
    """A reading as it was spooled: `columns` of shape (queues,), -1 where there is none.

    `time_ns` is the point's time, `t_ns` the trial's own.
    """

    time_ns: int
    t_ns: int
    columns: dict[str, Ints]


@dataclass(frozen=True)
class QueueChanges:
    """A change of thresholds as it was spooled; arrays of shape (changes,).

    `first_row` is how many queues' changes there were before it.
    """

    times_ns: Ints
    observed_ns: int
    decided_ns: int
    applied_ns: int
    queues: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats
    first_row: int


def leave_note(work: Path, note: SpoolNote | None) -> None:
    """Have the observers of the trial in the folder `work` spool what they see; None: nothing."""
    if note is not None:
        with suppress(OSError):  # a full disk: the archive, if there will be one, is sent
            (work / NOTE_FILE).write_text(json.dumps(asdict(note)), encoding="utf-8")


def started_ns(work: Path, otherwise_ns: int) -> int:
    """Return the wall clock, ns since 1970, at time 0 of the trial that ran in `work`.

    It is what the spooled times were made with; `otherwise_ns` if nothing was spooled.
    """
    try:
        return int(json.loads((work / STARTED_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return otherwise_ns


def spooled(work: Path, testbed: Testbed) -> tuple[LoopObserver, ...]:
    """Return the observers that the note in `work` asks for, none without one."""
    try:
        note = SpoolNote(**json.loads((work / NOTE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # none, or one that a full disk has cut off
        return ()
    return (SpoolObserver(note, testbed, work / STARTED_FILE),)


class SpoolObserver:
    """Spools a trial's readings and changes of thresholds. Use a new one for each run of it."""

    def __init__(
        self,
        note: SpoolNote,
        testbed: Testbed,
        started_file: Path | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._note, self._started_file, self._clock_ns = note, started_file, clock_ns
        self._queues = [(queue.device, queue.name, queue.klass) for queue in testbed.queues]
        self._writer: SpoolWriter | None = None
        self._waiting: list[tuple[int, int, Applied]] = []
        self._start_ns = self._rows = 0
        self._last_ns = -(1 << 62)
        self._last_change_ns = np.full(len(self._queues), -(1 << 62), dtype=np.int64)
        # Filled anew at each reading: this runs in the loop.
        self._values = np.empty((len(_COUNTERS), len(self._queues)), dtype="<i8")
        self._newest = np.full(len(self._queues), -1, dtype=np.int64)

    def observed(self, observation: Observation) -> None:
        """Spool one reading of all queues."""
        writer = self._writer or self._begin(observation.t_ns)
        if writer.full:
            return
        values = self._values
        values[0] = observation.qlen_bytes
        values[1] = observation.tx_bytes
        values[2] = observation.tx_packets
        values[3] = observation.marked_packets
        values[4] = observation.dropped_packets
        taken = observation.taken_ns
        if taken is not None:  # as the archive does: what an earlier sample showed is no sample
            values[:, (taken <= self._newest) | (taken < 0)] = MISSING
            self._newest = np.maximum(self._newest, taken)
        t_ns = int(observation.t_ns)
        self._last_ns = max(t_ns, self._last_ns + 1)
        head = _READING.pack(self._start_ns + self._last_ns, t_ns, values.shape[1])
        writer.add(READING, head + values.tobytes())

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Spool one change of thresholds; those before the first reading wait for it."""
        if self._writer is None:
            self._waiting.append((observed_ns, decided_ns, applied))
        else:
            self._change(self._writer, observed_ns, decided_ns, applied)

    def close(self) -> None:
        """Say that nothing more comes."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self, t_ns: int) -> SpoolWriter:
        """Anchor the trial's time to the wall clock, and open the spool under that time's name."""
        self._start_ns = self._clock_ns() - t_ns
        note, run = self._note, run_tag(self._start_ns)
        about = {
            "campaign": note.campaign,
            "trial": note.trial,
            "run": run,
            "started_ns": self._start_ns,
            "queues": self._queues,
        }
        limit = note.limit_bytes
        try:
            if self._started_file is not None:
                self._started_file.write_text(str(self._start_ns), encoding="utf-8")
        except OSError:  # the archive could not tell that these records are its own
            limit = 0
        name = f"{run}.{note.trial}"
        writer = self._writer = SpoolWriter(Path(note.spool), name, about, limit)
        for change in self._waiting:
            self._change(writer, *change)
        self._waiting.clear()
        return writer

    def _change(
        self, writer: SpoolWriter, observed_ns: int, decided_ns: int, applied: Applied
    ) -> None:
        queues = np.asarray(applied.queues, dtype="<i8")
        times = np.maximum(observed_ns, self._last_change_ns[queues] + 1)
        self._last_change_ns[queues] = times
        head = _CHANGE.pack(observed_ns, decided_ns, int(applied.t_ns), self._rows, len(queues))
        self._rows += len(queues)
        columns = (self._start_ns + times, queues, applied.kmin_bytes, applied.kmax_bytes)
        numbers = np.stack([np.asarray(column, dtype="<i8") for column in columns])
        pmax = np.asarray(applied.pmax, dtype="<f8")
        writer.add(CHANGE, head + numbers.tobytes() + pmax.tobytes())


def decode(kind: int, payload: bytes) -> Reading | QueueChanges:
    """Return what a frame of the spool holds. Raises ValueError on what no observer wrote."""
    try:
        return _decode_reading(payload) if kind == READING else _decode_change(payload)
    except struct.error as error:
        raise ValueError(str(error)) from error


def _decode_reading(payload: bytes) -> Reading:
    time_ns, t_ns, queues = _READING.unpack_from(payload)
    values: Any = np.frombuffer(payload, "<i8", offset=_READING.size)
    columns = dict(zip(_COUNTERS, values.reshape(len(_COUNTERS), queues), strict=True))
    return Reading(time_ns, t_ns, columns)


def _decode_change(payload: bytes) -> QueueChanges:
    observed_ns, decided_ns, applied_ns, first_row, count = _CHANGE.unpack_from(payload)
    values: Any = np.frombuffer(payload, "<i8", 4 * count, _CHANGE.size)
    times, queues, kmin, kmax = values.reshape(4, count)
    pmax: Any = np.frombuffer(payload, "<f8", count, _CHANGE.size + 32 * count)
    return QueueChanges(
        times, observed_ns, decided_ns, applied_ns, queues, kmin, kmax, pmax, first_row
    )
