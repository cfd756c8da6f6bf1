"""The loop's side of a sink: an observer that only appends readings and changes to a spool.

The worker leaves a note in the trial's work folder that says where its records go; the backend's
observers read it there. Times are made absolute here, once. A frame has points of a measurement:
arrays of `FRAME_ARRAYS` and of its fields that NumPy broadcasts to one shape.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectors.newness import Newness
from collectors.sinks.names import ACTIONS, ROW, SAMPLES, run_tag
from collectors.sinks.spool import SpoolWriter
from inventory.topology import Testbed
from orchestration.model.codec import pack
from orchestration.model.knobs import KNOBS
from orchestration.model.ports import Observer
from orchestration.model.records import (
    MISSING,
    Applied,
    HostReading,
    Ints,
    Observation,
)
from orchestration.model.signals import (
    OPTIONAL_SCOPES,
    Scope,
    Signal,
    recorded,
    sampled_scopes,
    target_names,
)

# Frames of kinds 1 to 3 were of earlier versions: their trials are sent from the archive.
POINTS = 4
# The numbers of the points' targets, and their times in ns since 1970.
FRAME_ARRAYS = ("targets", "times")
_KNOBS = tuple(KNOBS.values())
_SAMPLED = sampled_scopes()
_MEASURED: dict[str, Scope] = {
    **{SAMPLES[scope].name: scope for scope in _SAMPLED},
    **{ACTIONS[knob.name].name: knob.scope for knob in _KNOBS},
}

NOTE_FILE, STARTED_FILE = "spool.json", "started.json"
# Limits of a frame: readings, records, age. Appending several readings at once costs a third.
_MOST_READINGS, _MOST_RECORDS, _OLDEST_S = 64, 4_000, 0.2
_LONG_AGO_NS = -(1 << 62)


@dataclass(frozen=True)
class SpoolNote:
    """Where a trial's records go: the spool's folder, its size limit, and the trial's names."""

    spool: str
    limit_bytes: int
    campaign: str
    trial: str


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


def spooled(
    work: Path, testbed: Testbed, last_hosts: Callable[[], HostReading | None] = lambda: None
) -> tuple[Observer, ...]:
    """Return the observers that the note in `work` asks for; empty without a note.

    `last_hosts` returns the last reading of the hosts, None before the first.
    """
    try:
        note = SpoolNote(**json.loads((work / NOTE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # no note, or one that a full disk cut off
        return ()
    return (SpoolObserver(note, testbed, work / STARTED_FILE, last_hosts),)


class _Rows:
    """Readings of one scope that wait to be spooled.

    They are copied here, so that their own memory is reused while it is in the CPU's cache.
    """

    def __init__(self, scope: Scope, targets: int, most: int) -> None:
        self._signals = recorded(scope)
        self._measurement, self._targets = SAMPLES[scope].name, np.arange(targets)
        self._values = np.empty((most, len(self._signals), targets), dtype=np.int64)
        self._t_ns: list[int] = []
        self._last_ns = _LONG_AGO_NS

    @property
    def keys(self) -> list[str]:
        """The signals' keys in observations."""
        return [signal.key for signal in self._signals]

    @property
    def full(self) -> bool:
        """Whether no more fit."""
        return len(self._t_ns) >= len(self._values)

    def take(
        self, t_ns: int, get: Callable[[Signal], Ints | None], repeats: NDArray[Any] | None
    ) -> None:
        """Keep one reading; `get` returns a signal's values, None for those that are not there."""
        values = self._values[len(self._t_ns)]
        for place, signal in enumerate(self._signals):
            reading = get(signal)
            values[place] = MISSING if reading is None else reading
        if repeats is not None:
            values[repeats] = MISSING
        self._t_ns.append(t_ns)

    def frame(self, start_ns: int) -> bytes | None:
        """Return what waits as a frame's payload, None if nothing does; then nothing waits."""
        if not self._t_ns:
            return None
        t_ns, self._t_ns = np.array(self._t_ns, dtype=np.int64), []
        times = t_ns.copy()
        times[0] = max(t_ns[0], self._last_ns + 1)
        number = np.arange(len(t_ns))
        times = np.maximum.accumulate(times - number) + number
        self._last_ns = int(times[-1])
        values = self._values[: len(t_ns)]
        arrays = {
            "targets": self._targets,
            "times": (times + start_ns)[:, None],
            "t_ns": t_ns[:, None],
            **{signal.name: values[:, place] for place, signal in enumerate(self._signals)},
        }
        return pack(arrays, self._measurement)


class SpoolObserver:
    """Spools a trial's readings and changes. Use a new one for each run.

    Of pauses and shared buffers it spools what the first observation has; of hosts, each reading
    that `last_hosts` returns while queues are read.
    """

    def __init__(
        self,
        note: SpoolNote,
        testbed: Testbed,
        started_file: Path | None = None,
        last_hosts: Callable[[], HostReading | None] = lambda: None,
        clock_ns: Callable[[], int] = time.time_ns,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer: SpoolWriter | None = None
        self._note, self._started_file = note, started_file
        self._clock_ns, self._clock_s = clock_ns, clock_s
        self._last_hosts = last_hosts
        self._targets = {
            measurement: target_names(testbed, scope) for measurement, scope in _MEASURED.items()
        }
        queues = len(target_names(testbed, "queue"))
        at_once = max(1, min(_MOST_READINGS, _MOST_RECORDS // max(1, queues)))
        self._rows_of = {
            scope: _Rows(scope, len(target_names(testbed, scope)), at_once) for scope in _SAMPLED
        }
        self._queues, self._hosts = self._rows_of["queue"], self._rows_of.pop("host")
        self._hosts_ns = _LONG_AGO_NS
        self._due_s = 0.0
        self._waiting: list[tuple[int, int, Applied]] = []
        self._start_ns = 0
        counts = {knob.name: len(target_names(testbed, knob.scope)) for knob in _KNOBS}
        self._last_change_ns = {
            name: np.full(count, _LONG_AGO_NS, dtype=np.int64) for name, count in counts.items()
        }
        self._rows = dict.fromkeys(counts, 0)
        self._newness = Newness(self._queues.keys)

    def __del__(self) -> None:
        self.close()

    def observed(self, observation: Observation) -> None:
        """Take one reading; append the waiting readings if it is time."""
        if self._writer is None:
            self._begin(observation)
        t_ns = observation.t_ns
        for rows in self._rows_of.values():
            repeats = self._newness.repeats(observation) if rows is self._queues else None
            rows.take(t_ns, lambda signal: observation.get(signal.key), repeats)
        hosts = self._last_hosts()
        if hosts is not None and hosts.t_ns > self._hosts_ns:
            self._hosts_ns = hosts.t_ns
            self._hosts.take(hosts.t_ns, lambda signal: hosts.values.get(signal.name), None)
        if self._queues.full or self._clock_s() >= self._due_s:
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

    def _begin(self, observation: Observation) -> None:
        """Fix the trial's start on the wall clock, and open the spool under its name."""
        self._start_ns = self._clock_ns() - observation.t_ns
        self._rows_of = {
            scope: rows
            for scope, rows in self._rows_of.items()
            if scope not in OPTIONAL_SCOPES or any(key in observation.values for key in rows.keys)
        }
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
        """Append the waiting readings, a frame for each scope."""
        self._due_s = self._clock_s() + _OLDEST_S
        for rows in (*self._rows_of.values(), self._hosts):
            payload = rows.frame(self._start_ns)
            if payload is not None and self._writer is not None:
                self._writer.add(POINTS, payload)

    def _change(
        self, writer: SpoolWriter, observed_ns: int, decided_ns: int, applied: Applied
    ) -> None:
        for change in applied.changes:
            last_ns = self._last_change_ns[change.knob]
            times = np.maximum(observed_ns, last_ns[change.targets] + 1)
            last_ns[change.targets] = times
            row, count = self._rows[change.knob], len(change.targets)
            self._rows[change.knob] += count
            arrays = {
                "targets": change.targets,
                "times": self._start_ns + times,
                "t_ns": observed_ns,
                "decided_ns": decided_ns,
                "applied_ns": applied.t_ns,
                **{one.name: change[one.name] for one in KNOBS[change.knob].columns},
                ROW: row + np.arange(count),
            }
            writer.add(POINTS, pack(arrays, ACTIONS[change.knob].name))
