"""Shows a running trial to whoever watches: a loop observer that writes snapshots, now and then."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from collectors.snapshot import SNAPSHOT_FILE, Change, Snapshot, encode_snapshot, replace_file
from orchestration.model.records import Applied, Observation
from orchestration.model.trial import TrialSpec

# At most so often on a clock of the wall.
EVERY_S = 0.25
# Where only samples can be counted: some 50 snapshots while flows arrive, and not of every sample:
# in a guest a snapshot costs a twentieth of what a sample of 40 queues costs with its traffic.
_SNAPSHOTS, _LEAST_SAMPLES = 50, 10
_RECENT = 6


class LiveObserver:
    """Writes how a trial stands into `folder`, which its viewers know, and never stops the trial.

    `flows_done` says how many flows have ended, -1 if that is not known yet. Snapshots are at least
    `EVERY_S` of wall time apart. With `by_samples`, where the only clock is the trial's own, every
    so many samples make one instead, so that a trial has some 50 to 200 of them.
    """

    def __init__(
        self,
        folder: Path,
        trial: TrialSpec,
        flows_done: Callable[[], int],
        *,
        by_samples: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = folder / SNAPSHOT_FILE
        self._period_ns = trial.sample_period_ns
        self._flows_done = flows_done
        self._clock = clock
        self._due_s = float("-inf")
        self._by_samples = by_samples
        samples = trial.duration_ns // trial.sample_period_ns
        self._every = max(_LEAST_SAMPLES, samples // _SNAPSHOTS)
        self._written = self._samples = self._late = self._changes = 0
        self._recent: deque[tuple[int, Applied]] = deque(maxlen=_RECENT)
        self._before: Observation | None = None
        self._peak = self._sum = np.zeros(0, dtype=np.int64)
        self._summed = 0
        self._broken = False

    def observed(self, observation: Observation) -> None:
        """Take one reading of all queues; write a snapshot if one is due."""
        self._samples += 1
        if abs(observation.t_ns - self._samples * self._period_ns) > self._period_ns // 2:
            self._late += 1
        if self._summed:
            np.maximum(self._peak, observation.qlen_bytes, out=self._peak)
            self._sum += observation.qlen_bytes
        else:
            self._peak, self._sum = observation.qlen_bytes.copy(), observation.qlen_bytes.copy()
        self._summed += 1
        if self._is_due() and not self._broken:
            self._write(observation)

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Take one change of thresholds."""
        self._changes += 1
        self._recent.append((observed_ns, applied))

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
        snapshot = Snapshot(
            t_ns=now.t_ns,
            before_ns=before.t_ns,
            samples=self._samples,
            late_samples=self._late,
            flows_done=self._flows_done(),
            changes=self._changes,
            recent=tuple(_summed_up(t_ns, change) for t_ns, change in self._recent),
            qlen_bytes=now.qlen_bytes,
            mean_bytes=self._sum / self._summed,
            peak_bytes=self._peak,
            tx_bytes=now.tx_bytes,
            tx_packets=now.tx_packets,
            marked_packets=now.marked_packets,
            dropped_packets=now.dropped_packets,
            before_tx_bytes=before.tx_bytes,
            before_tx_packets=before.tx_packets,
            before_marked_packets=before.marked_packets,
            kmin_bytes=now.kmin_bytes,
            kmax_bytes=now.kmax_bytes,
            pmax=now.pmax,
        )
        try:
            replace_file(self._path, encode_snapshot(snapshot))
        except OSError:  # a full disk: the view ends, the trial goes on
            self._broken = True
        self._before, self._summed = now, 0
        self._written += 1
        if self._by_samples and self._written % (2 * _SNAPSHOTS) == 0:
            self._every *= 2


def _summed_up(t_ns: int, applied: Applied) -> Change:
    return Change(
        t_ns,
        int(applied.t_ns),
        len(applied.queues),
        _whole_span(applied.kmin_bytes),
        _whole_span(applied.kmax_bytes),
        _span(applied.pmax),
    )


def _span(values: np.ndarray) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def _whole_span(values: np.ndarray) -> tuple[int, int]:
    low, high = _span(values)
    return int(low), int(high)
