"""Snapshots of a running trial: a small file that is replaced atomically.

`LiveObserver` writes it while the trial runs, and viewers such as `closloop watch` read it. The
file begins with the bytes `CLOSLIVE`; packed arrays follow (`orchestration.core.codec`). It is not
part of the results: it is deleted with the trial's hidden work folder.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.codec import pack, unpack
from orchestration.core.files import write_whole
from orchestration.core.records import (
    Applied,
    Change,
    Columns,
    Floats,
    HostReading,
    Ints,
    Observation,
)
from orchestration.core.signals import recorded
from orchestration.core.trial import TrialSpec

# Files in a trial's work folder: its snapshot, and the description of the trial.
SNAPSHOT_FILE, ABOUT_FILE = "live.bin", "live.json"
SNAPSHOT_FORMAT = 3
_MAGIC = b"CLOSLIVE"

# Shortest interval between snapshots in wall time.
EVERY_S = 0.25
# Without wall time, samples are counted: there are about 50 snapshots while flows arrive, and at
# least so many samples between two. In a guest, a snapshot takes a twentieth of the time of a
# sample of 40 queues with its traffic.
_SNAPSHOTS, _MIN_SAMPLES = 50, 10
_RECENT = 6
# The recorded signals of switches. A snapshot has all of them, and cumulative ones also at an
# earlier time, so that viewers can show rates.
_RECORDED = (*recorded("queue"), *recorded("priority"), *recorded("switch"))
_SIGNALS = tuple(signal.key for signal in _RECORDED)
_CUMULATIVE = tuple(signal.key for signal in _RECORDED if signal.cumulative)
_BUFFER = "switch.buffer_bytes"
_NO_HOSTS = HostReading(0, {})


def samples_per_snapshot(trial: TrialSpec) -> int:
    """Return the number of samples between two snapshots of a trial without wall time."""
    return max(_MIN_SAMPLES, trial.duration_ns // trial.sample_period_ns // _SNAPSHOTS)


class SnapshotError(ValueError):
    """The bytes are not a snapshot, or a snapshot of another format."""


@dataclass(frozen=True)
class KnobChange:
    """One change of a knob: its times, the number of targets, and the range of each column.

    `t_ns` is the time of the observation that it responds to, `applied_ns` that of its effect.
    """

    t_ns: int
    applied_ns: int
    knob: str
    targets: int
    ranges: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Snapshot(Columns):
    """A reading of all queues, arrays of shape (queues,), and the state of the trial.

    `values` has the recorded signals of queues, and of lossless queues and switches with a shared
    buffer, by `Signal.key`. `before` has the cumulative ones at `before_ns`, the time of the last
    snapshot. `mean_bytes` and `peak_bytes` are mean and maximum of each queue's length since then,
    `peak_buffer_bytes` (switches,) the maximum in each shared buffer. `settings` has the settings
    of knobs by name and column.

    `flows_done` is -1 if the backend knows it only at the end. `late_samples` counts readings more
    than half a period off their time, `changes` the decisions of the tuner. `recent` has the last
    changes of knobs, newest last. `hosts` has the signals of hosts (hosts,) at their last reading,
    at `hosts_ns`, and `hosts_before` those of the reading before, at `hosts_before_ns`; both are
    empty before the first reading.
    """

    t_ns: int
    before_ns: int
    samples: int
    late_samples: int
    flows_done: int
    changes: int
    recent: tuple[KnobChange, ...]
    values: Mapping[str, Ints]
    before: Mapping[str, Ints]
    settings: Mapping[str, Mapping[str, NDArray[Any]]]
    mean_bytes: Floats
    peak_bytes: Ints
    peak_buffer_bytes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    hosts_ns: int = 0
    hosts_before_ns: int = 0
    hosts: Mapping[str, Ints] = field(default_factory=dict)
    hosts_before: Mapping[str, Ints] = field(default_factory=dict)


_NUMBERS = (
    *("t_ns", "before_ns", "samples", "late_samples", "flows_done", "changes"),
    *("hosts_ns", "hosts_before_ns"),
)
_ARRAYS = (
    *("values", "before", "settings", "mean_bytes", "peak_bytes", "peak_buffer_bytes"),
    *("hosts", "hosts_before"),
)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot's file."""
    about = {
        "format": SNAPSHOT_FORMAT,
        "recent": [vars(change) for change in snapshot.recent],
        **{name: int(getattr(snapshot, name)) for name in _NUMBERS},
    }
    return _MAGIC + pack({name: getattr(snapshot, name) for name in _ARRAYS}, about)


def decode_snapshot(data: bytes) -> Snapshot:
    """Return the snapshot in a file's bytes. Raises SnapshotError for any other bytes."""
    if not data.startswith(_MAGIC):
        raise SnapshotError("not a snapshot of a trial")
    try:
        about, arrays = unpack(data[len(_MAGIC) :])
        if about["format"] != SNAPSHOT_FORMAT:
            raise SnapshotError(f"a snapshot of format {about['format']}, not {SNAPSHOT_FORMAT}")
        recent = tuple(
            KnobChange(**{**item, "ranges": {k: tuple(v) for k, v in item["ranges"].items()}})
            for item in about["recent"]
        )
        numbers: dict[str, Any] = {name: int(about[name]) for name in _NUMBERS}
        return Snapshot(recent=recent, **{"settings": {}, **numbers, **arrays})
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotError(str(error)) from error


class LiveObserver:
    """Writes snapshots of a trial into `folder` for viewers. Its errors never stop the trial.

    `flows_done` returns how many flows have ended, -1 if that is not known yet. `last_hosts`
    returns the last reading of the hosts, None before the first. Snapshots are at least `EVERY_S`
    of wall time apart. With `by_samples`, for trials without a wall clock, a snapshot is written
    after a number of samples that makes 50 to 200 snapshots per trial.
    """

    def __init__(
        self,
        folder: Path,
        trial: TrialSpec,
        flows_done: Callable[[], int],
        last_hosts: Callable[[], HostReading | None] = lambda: None,
        *,
        by_samples: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = folder / SNAPSHOT_FILE
        self._period_ns = trial.sample_period_ns
        self._flows_done = flows_done
        self._last_hosts = last_hosts
        self._hosts: tuple[HostReading, HostReading] | None = None
        self._clock = clock
        self._due_s = float("-inf")
        self._by_samples = by_samples
        self._every = samples_per_snapshot(trial)
        self._written = self._samples = self._late = self._changes = 0
        self._recent: deque[tuple[int, int, Change]] = deque(maxlen=_RECENT)
        self._before: Observation | None = None
        self._peak = self._sum = self._peak_buffer = np.zeros(0, dtype=np.int64)
        self._summed = 0
        self._broken = False

    def observed(self, observation: Observation) -> None:
        """Add one reading, and write a snapshot if it is time."""
        self._samples += 1
        if abs(observation.t_ns - self._samples * self._period_ns) > self._period_ns // 2:
            self._late += 1
        length, held = observation["qlen_bytes"], observation.get(_BUFFER)
        if self._summed:
            np.maximum(self._peak, length, out=self._peak)
            self._sum += length
        else:
            self._peak, self._sum = length.copy(), length.copy()
        if held is not None:
            self._peak_buffer = np.maximum(self._peak_buffer, held) if self._summed else held.copy()
        self._summed += 1
        if self._is_due() and not self._broken:
            self._write(observation)

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Add the changes that were made in response to one observation."""
        self._changes += 1
        self._recent += [(observed_ns, applied.t_ns, change) for change in applied.changes]

    def _is_due(self) -> bool:
        if self._by_samples:
            return self._samples % self._every == 1
        now_s = self._clock()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + EVERY_S
        return True

    def _write(self, now: Observation) -> None:
        before = self._before or now
        hosts_before, hosts = self._last_two_host_readings()
        snapshot = Snapshot(
            t_ns=now.t_ns,
            before_ns=before.t_ns,
            samples=self._samples,
            late_samples=self._late,
            flows_done=self._flows_done(),
            changes=self._changes,
            recent=tuple(_summarized(*change) for change in self._recent),
            values={name: now[name] for name in _SIGNALS if name in now.values},
            before={name: before[name] for name in _CUMULATIVE if name in before.values},
            settings=now.settings,
            mean_bytes=self._sum / self._summed,
            peak_bytes=self._peak,
            peak_buffer_bytes=self._peak_buffer,
            hosts_ns=hosts.t_ns,
            hosts_before_ns=hosts_before.t_ns,
            hosts=hosts.values,
            hosts_before=hosts_before.values,
        )
        try:
            write_whole(self._path, encode_snapshot(snapshot))
        except OSError:  # a full disk: the live view ends, the trial continues
            self._broken = True
        self._before, self._summed = now, 0
        self._written += 1
        if self._by_samples and self._written % (2 * _SNAPSHOTS) == 0:
            self._every *= 2

    def _last_two_host_readings(self) -> tuple[HostReading, HostReading]:
        last = self._last_hosts()
        if last is None:
            return _NO_HOSTS, _NO_HOSTS
        if self._hosts is None:
            self._hosts = (last, last)
        elif last.t_ns != self._hosts[1].t_ns:
            self._hosts = (self._hosts[1], last)
        return self._hosts


def _summarized(t_ns: int, applied_ns: int, change: Change) -> KnobChange:
    ranges = {name: _range(array) for name, array in change.values.items()}
    return KnobChange(t_ns, int(applied_ns), change.knob, len(change.targets), ranges)


def _range(values: NDArray[Any]) -> tuple[float, float]:
    return (values.min().item(), values.max().item()) if len(values) else (0, 0)
