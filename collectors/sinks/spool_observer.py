"""The loop's side of a sink: an observer that only appends readings and changes to a spool.

The worker writes a note into the trial's work folder that says where its records go, and the
trial's process reads it there. Times become absolute here, in ns since 1970. A part of the spool
has points of measurements, as arrays that NumPy broadcasts to one shape.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectors.recorder import Recorder
from collectors.sinks.lines import ACTIONS, ROW, SAMPLES, run_tag, unique_times
from collectors.sinks.spool import SpoolWriter
from orchestration.core.codec import pack
from orchestration.core.knobs import KNOBS
from orchestration.core.ports import Observer
from orchestration.core.records import MISSING, Applied, HostReading, Ints, Observation
from orchestration.core.signals import Scope, recorded, sampled_scopes, target_names
from orchestration.core.topology import Testbed

# Besides fields, points in a part have the numbers of their targets, and times in ns since 1970.
TARGETS, TIMES = "targets", "times"
# The scope of each measurement's targets.
_SCOPE_OF: dict[str, Scope] = {
    **{SAMPLES[scope].name: scope for scope in sampled_scopes()},
    **{ACTIONS[knob.name].name: knob.scope for knob in KNOBS.values()},
}

NOTE_FILE, STARTED_FILE = "spool.json", "started.json"
# Limits of a part: readings, records and age. To append several readings at once takes a third of
# the time.
_MAX_READINGS, _MAX_RECORDS, _MAX_AGE_S = 64, 4_000, 0.2
_LONG_AGO_NS = -(1 << 62)
# A measurement's name, and its points as arrays that NumPy broadcasts to one shape.
_Points = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class SpoolNote:
    """Where a trial's records go: the spool's folder and size limit, campaign and trial id."""

    spool: str
    limit_bytes: int
    campaign: str
    trial: str


def write_spool_note(work: Path, note: SpoolNote | None) -> None:
    """Make the trial in the folder `work` write its records to a spool. None does nothing."""
    if note is not None:
        with suppress(OSError):  # on a full disk nothing is spooled; an archive can be sent later
            (work / NOTE_FILE).write_text(json.dumps(asdict(note)), encoding="utf-8")


def started_ns(work: Path, otherwise_ns: int) -> int:
    """Return the wall clock, in ns since 1970, at time 0 of the trial that ran in `work`.

    The spooled times are based on it. Returns `otherwise_ns` if nothing was spooled.
    """
    try:
        return int(json.loads((work / STARTED_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return otherwise_ns


def spool_observers(
    work: Path,
    testbed: Testbed,
    recorder: Recorder,
    last_hosts: Callable[[], HostReading | None] = lambda: None,
) -> tuple[Observer, ...]:
    """Return the observers that the note in `work` asks for; none without a note.

    The loop has to call them after the `recorder`, whose readings they spool. `last_hosts` returns
    the last reading of the hosts, None before the first.
    """
    try:
        note = SpoolNote(**json.loads((work / NOTE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # no note, or one that a full disk cut off
        return ()
    return (SpoolObserver(note, testbed, recorder, work / STARTED_FILE, last_hosts),)


class SpoolObserver:
    """Appends what a trial's recorder keeps to a spool. Use a new one for each run.

    At each reading of queues it also takes the hosts' reading from `last_hosts`, if it is new.
    """

    def __init__(
        self,
        note: SpoolNote,
        testbed: Testbed,
        recorder: Recorder,
        started_file: Path | None = None,
        last_hosts: Callable[[], HostReading | None] = lambda: None,
    ) -> None:
        self._writer: SpoolWriter | None = None
        self._note, self._started_file = note, started_file
        self._recorder, self._last_hosts = recorder, last_hosts
        self._targets = {
            measurement: target_names(testbed, scope) for measurement, scope in _SCOPE_OF.items()
        }
        self._at_once = min(_MAX_READINGS, _MAX_RECORDS // max(1, len(testbed.queues)))
        self._hosts: list[HostReading] = []
        self._hosts_ns = _LONG_AGO_NS
        self._due_s = 0.0
        self._start_ns = 0
        self._spooled = 0
        self._changes_spooled = dict.fromkeys(KNOBS, 0)
        self._rows = dict.fromkeys(KNOBS, 0)
        self._last_ns = {
            name: np.full(len(targets), _LONG_AGO_NS) for name, targets in self._targets.items()
        }

    def __del__(self) -> None:
        self.close()

    def observed(self, observation: Observation) -> None:
        """Append the recorder's new readings, if there are enough or it is time."""
        if self._writer is None:
            self._begin(observation)
        hosts = self._last_hosts()
        if hosts is not None and hosts.t_ns > self._hosts_ns:
            self._hosts_ns = hosts.t_ns
            self._hosts.append(hosts)
        waiting = self._recorder.readings - self._spooled
        if waiting >= self._at_once or time.monotonic() >= self._due_s:
            self._append()

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Do nothing: the recorder keeps changes, which are appended with the next readings."""

    def close(self) -> None:
        """Append the remaining readings and changes, and end the run."""
        if self._writer is not None:
            self._append()
            self._writer.close()

    def _begin(self, observation: Observation) -> None:
        """Set the trial's start on the wall clock, and open its run in the spool."""
        self._start_ns = time.time_ns() - observation.t_ns
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
        except OSError:  # without the start time, records and archive would not match
            limit = 0
        self._writer = SpoolWriter(Path(note.spool), f"{run}.{note.trial}", about, limit)
        self._due_s = time.monotonic() + _MAX_AGE_S

    def _append(self) -> None:
        self._due_s = time.monotonic() + _MAX_AGE_S
        points = [*self._samples(), *self._changes()]
        if points and self._writer is not None and not self._writer.full:
            arrays = {str(index): columns for index, (_, columns) in enumerate(points)}
            self._writer.add(pack(arrays, [name for name, _ in points]))

    def _samples(self) -> Iterator[_Points]:
        if self._recorder.readings > self._spooled:
            t_ns, values = self._recorder.samples_since(self._spooled)
            self._spooled += len(t_ns)
            for scope, rows in values.items():
                yield self._readings(scope, t_ns, rows)
        hosts, self._hosts = self._hosts, []
        if hosts:
            count = len(self._targets[SAMPLES["host"].name])
            rows = np.full((len(hosts), len(recorded("host")), count), MISSING)
            for row, reading in zip(rows, hosts, strict=True):
                for column, signal in enumerate(recorded("host")):
                    row[column] = reading.values.get(signal.name, MISSING)
            yield self._readings("host", np.array([reading.t_ns for reading in hosts]), rows)

    def _readings(self, scope: Scope, t_ns: Ints, values: Ints) -> _Points:
        """Return readings as points; `values` has the shape (readings, signals, targets)."""
        name = SAMPLES[scope].name
        times = self._times(name, t_ns, np.zeros(len(t_ns), dtype=np.int64))
        return name, {
            TARGETS: np.arange(values.shape[2]),
            TIMES: times[:, None],
            "t_ns": t_ns[:, None],
            **{signal.name: values[:, column] for column, signal in enumerate(recorded(scope))},
        }

    def _changes(self) -> Iterator[_Points]:
        for knob, first in self._changes_spooled.items():
            self._changes_spooled[knob], new = self._recorder.changes_since(knob, first)
            count = len(new.targets)
            if count:
                name = ACTIONS[knob].name
                yield (
                    name,
                    {
                        TARGETS: new.targets,
                        TIMES: self._times(name, new.observed_ns, new.targets),
                        "t_ns": new.observed_ns,
                        "decided_ns": new.decided_ns,
                        "applied_ns": new.applied_ns,
                        **new.values,
                        ROW: self._rows[knob] + np.arange(count),
                    },
                )
                self._rows[knob] += count

    def _times(self, name: str, t_ns: Ints, codes: Ints) -> Ints:
        """Return the points' times, each later than that of the point before in its series."""
        last_ns = self._last_ns[name]
        times = unique_times(np.maximum(t_ns, last_ns[codes] + 1), codes)
        np.maximum.at(last_ns, codes, times)
        return np.asarray(self._start_ns + times)
