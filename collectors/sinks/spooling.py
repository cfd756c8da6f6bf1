"""The loop's side of a sink: an observer that only appends readings and changes to a spool.

The worker leaves a note in the trial's work folder that says where its records go; the backend's
observers read it there. Times are made absolute here, once.
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

from collectors.newness import Newness
from collectors.sinks.names import run_tag
from collectors.sinks.spool import SpoolWriter
from inventory.topology import Testbed
from orchestration.model.knobs import KNOBS
from orchestration.model.ports import Observer
from orchestration.model.records import MISSING, Applied, Change, Ints, Observation
from orchestration.model.signals import Scope, recorded, target_names

READING, CHANGE = 1, 2
_SIGNALS = recorded("queue")
_KNOBS = tuple(KNOBS.values())
_SCOPES: set[Scope] = {"queue", *(knob.scope for knob in _KNOBS)}

NOTE_FILE, STARTED_FILE = "spool.json", "started.json"
# Limits of a frame: readings, records, age. Appending several readings at once costs a third.
_MOST_READINGS, _MOST_RECORDS, _OLDEST_S = 64, 4_000, 0.2
_LONG_AGO_NS = -(1 << 62)
# number of readings, number of queues
_READINGS = struct.Struct("<II")
# the knob's number, observed_ns, decided_ns, applied_ns, first row, number of targets
_CHANGE = struct.Struct("<IqqqqI")


@dataclass(frozen=True)
class SpoolNote:
    """Where a trial's records go: the spool's folder, its size limit, and the trial's names."""

    spool: str
    limit_bytes: int
    campaign: str
    trial: str


@dataclass(frozen=True)
class Readings:
    """Readings as spooled: `columns` have shape (readings, queues), -1 where a value is missing.

    `times_ns` (readings,) are the points' times, `t_ns` the trial's own.
    """

    times_ns: Ints
    t_ns: Ints
    columns: dict[str, Ints]


@dataclass(frozen=True)
class SpooledChange:
    """A change of a knob as spooled; arrays of shape (changes,).

    `first_row` is the number of earlier rows of this knob, one per changed target.
    """

    times_ns: Ints
    observed_ns: int
    decided_ns: int
    applied_ns: int
    change: Change
    first_row: int


def leave_note(work: Path, note: SpoolNote | None) -> None:
    """Tell the observers of the trial in the folder `work` to spool; None leaves no note."""
    if note is not None:
        with suppress(OSError):  # a full disk: the archive, if there is one, is sent later
            (work / NOTE_FILE).write_text(json.dumps(asdict(note)), encoding="utf-8")


def started_ns(work: Path, otherwise_ns: int) -> int:
    """Return the wall clock, in ns since 1970, at time 0 of the trial that ran in `work`.

    The spooled times are based on it. Returns `otherwise_ns` if nothing was spooled.
    """
    try:
        return int(json.loads((work / STARTED_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return otherwise_ns


def spooled(work: Path, testbed: Testbed) -> tuple[Observer, ...]:
    """Return the observers that the note in `work` asks for; empty without a note."""
    try:
        note = SpoolNote(**json.loads((work / NOTE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # no note, or one that a full disk cut off
        return ()
    return (SpoolObserver(note, testbed, work / STARTED_FILE),)


class SpoolObserver:
    """Spools a trial's readings of queues and its changes. Use a new one for each run."""

    def __init__(
        self,
        note: SpoolNote,
        testbed: Testbed,
        started_file: Path | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer: SpoolWriter | None = None
        self._note, self._started_file = note, started_file
        self._clock_ns, self._clock_s = clock_ns, clock_s
        self._targets = {scope: target_names(testbed, scope) for scope in _SCOPES}
        self._queues = self._targets["queue"]
        self._at_once = max(1, min(_MOST_READINGS, _MOST_RECORDS // max(1, len(self._queues))))
        # Readings are copied here, so their own memory is reused while it is in the CPU's cache.
        self._values = np.empty((self._at_once, len(_SIGNALS), len(self._queues)), dtype="<i8")
        self._t_ns: list[int] = []
        self._due_s = 0.0
        self._waiting: list[tuple[int, int, Applied]] = []
        self._start_ns = 0
        self._last_ns = _LONG_AGO_NS
        counts = {knob.name: len(self._targets[knob.scope]) for knob in _KNOBS}
        self._last_change_ns = {
            name: np.full(count, _LONG_AGO_NS, dtype=np.int64) for name, count in counts.items()
        }
        self._rows = dict.fromkeys(counts, 0)
        self._newness = Newness([signal.key for signal in _SIGNALS])

    def __del__(self) -> None:
        self.close()

    def observed(self, observation: Observation) -> None:
        """Take one reading of all queues; append the waiting readings if it is time."""
        if self._writer is None:
            self._begin(observation.t_ns)
        values = self._values[len(self._t_ns)]
        for place, signal in enumerate(_SIGNALS):
            reading = observation.get(signal.key)
            values[place] = MISSING if reading is None else reading
        repeats = self._newness.repeats(observation)
        if repeats is not None:
            values[repeats] = MISSING
        self._t_ns.append(observation.t_ns)
        if len(self._t_ns) >= self._at_once or self._clock_s() >= self._due_s:
            self._append()

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Spool the changes of one answer; those before the first reading wait for it."""
        if self._writer is None:
            self._waiting.append((observed_ns, decided_ns, applied))
        else:
            self._change(self._writer, observed_ns, decided_ns, applied)

    def close(self) -> None:
        """Append the waiting readings and end the run."""
        if self._writer is not None:
            self._append()
            self._writer.close()

    def _begin(self, t_ns: int) -> None:
        """Fix the trial's start on the wall clock, and open the spool under its name."""
        self._start_ns = self._clock_ns() - t_ns
        note, run = self._note, run_tag(self._start_ns)
        about = {
            "campaign": note.campaign,
            "trial": note.trial,
            "run": run,
            "started_ns": self._start_ns,
            "targets": self._targets,
        }
        limit = note.limit_bytes
        try:
            if self._started_file is not None:
                self._started_file.write_text(str(self._start_ns), encoding="utf-8")
        except OSError:  # without the start time the archive could not match these records
            limit = 0
        name = f"{run}.{note.trial}"
        writer = self._writer = SpoolWriter(Path(note.spool), name, about, limit)
        for change in self._waiting:
            self._change(writer, *change)
        self._waiting.clear()
        self._due_s = self._clock_s() + _OLDEST_S

    def _append(self) -> None:
        """Append the waiting readings as one frame."""
        t_ns, self._t_ns = np.array(self._t_ns, dtype="<i8"), []
        self._due_s = self._clock_s() + _OLDEST_S
        if not len(t_ns) or self._writer is None or self._writer.full:
            return
        values = self._values[: len(t_ns)].transpose(1, 0, 2).copy()
        times = t_ns.copy()
        times[0] = max(t_ns[0], self._last_ns + 1)
        number = np.arange(len(t_ns))
        times = np.maximum.accumulate(times - number) + number
        self._last_ns = int(times[-1])
        head = _READINGS.pack(len(t_ns), len(self._queues))
        times += self._start_ns
        self._writer.add(READING, head + times.tobytes() + t_ns.tobytes() + values.tobytes())

    def _change(
        self, writer: SpoolWriter, observed_ns: int, decided_ns: int, applied: Applied
    ) -> None:
        for change in applied.changes:
            number = next(n for n, knob in enumerate(_KNOBS) if knob.name == change.knob)
            last_ns = self._last_change_ns[change.knob]
            times = np.maximum(observed_ns, last_ns[change.targets] + 1)
            last_ns[change.targets] = times
            row, count = self._rows[change.knob], len(change.targets)
            self._rows[change.knob] += count
            head = _CHANGE.pack(number, observed_ns, decided_ns, int(applied.t_ns), row, count)
            columns = [
                np.asarray(change[one.name], dtype=_little(one.dtype)).tobytes()
                for one in _KNOBS[number].columns
            ]
            places = np.stack([self._start_ns + times, change.targets]).astype("<i8")
            writer.add(CHANGE, b"".join([head, places.tobytes(), *columns]))


def _little(dtype: str) -> str:
    return "<i8" if dtype == "int64" else "<f8"


def decode(kind: int, payload: bytes) -> Readings | SpooledChange:
    """Return the content of a frame. Raises ValueError if no observer wrote it."""
    try:
        return _decode_readings(payload) if kind == READING else _decode_change(payload)
    except struct.error as error:
        raise ValueError(str(error)) from error


def _decode_readings(payload: bytes) -> Readings:
    rows, queues = _READINGS.unpack_from(payload)
    numbers: Any = np.frombuffer(payload, "<i8", offset=_READINGS.size)
    values = numbers[2 * rows :].reshape(len(_SIGNALS), rows, queues)
    columns = dict(zip((signal.name for signal in _SIGNALS), values, strict=True))
    return Readings(numbers[:rows], numbers[rows : 2 * rows], columns)


def _decode_change(payload: bytes) -> SpooledChange:
    number, observed_ns, decided_ns, applied_ns, row, count = _CHANGE.unpack_from(payload)
    if number >= len(_KNOBS):
        raise ValueError(f"a change of knob {number} of {len(_KNOBS)}")
    at, arrays = _CHANGE.size, []
    knob = _KNOBS[number]
    for dtype in ("<i8", "<i8", *(_little(one.dtype) for one in knob.columns)):
        arrays.append(np.frombuffer(payload, dtype, count, at))
        at += 8 * count
    times, places, *values = arrays
    change = Change(knob.name, places, dict(zip(knob.column_names, values, strict=True)))
    return SpooledChange(times, observed_ns, decided_ns, applied_ns, change, row)
