"""One queue's length over time in one trial, with its thresholds, small enough to draw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.analysis.report.shown import ShownRepeat
from orchestration.analysis.sample_parts import arrivals
from orchestration.core.records import MISSING, Ints
from orchestration.results.reader import TrialResult


@dataclass(frozen=True)
class Timeline:
    """`qlen_bytes` at `t_ns` (points,); thresholds in force from `set_ns` on, shapes (changes,).

    `mean_bytes` and `above_kmin`, a share, are over all samples, including those not drawn.
    `above_kmin` is None if no thresholds are known.
    """

    tuner: str
    t_ns: Ints
    qlen_bytes: Ints
    set_ns: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    mean_bytes: float
    above_kmin: float | None


@dataclass(frozen=True)
class QueueTimelines:
    """One queue under every tuner, in one repeat that all of them ran."""

    label: str
    kind: str
    towards: str
    repeat: int
    timelines: tuple[Timeline, ...]


def busiest_queues(shown: ShownRepeat, points: int) -> list[QueueTimelines]:
    """Return the busiest queue towards a host and the busiest between switches.

    Busiest means the longest mean length over all tuners. Timelines have at most `points` points.
    Empty if a trial has no samples. Raises InputError for an unreadable table.
    """
    if not shown.sampled:
        return []
    testbed = shown.results[0].testbed
    means = np.mean([trial.metrics.queue_mean_bytes for trial in shown.trials], axis=0)
    found = []
    for peer, kind in (("host", "towards a host"), ("switch", "between switches")):
        of_kind = np.array([testbed.peer_device(port).kind == peer for port in testbed.queues])
        length = np.where(of_kind & ~np.isnan(means), means, 0.0)
        queue = int(np.argmax(length))
        if length[queue] > 0:
            port = testbed.queues[queue]
            lines = tuple(
                timeline(trial.tuner, result, queue, points)
                for trial, result in zip(shown.trials, shown.results, strict=True)
            )
            towards = testbed.peer_device(port).name
            found.append(QueueTimelines(port.label, kind, towards, shown.repeat, lines))
    return found


def timeline(tuner: str, result: TrialResult, queue: int, points: int) -> Timeline:
    """Return the timeline of a queue, by its number, while flows arrived; skips missing samples."""
    ports = arrivals(result.ports, result.spec.measured_ns)
    length = ports.qlen_bytes[:, queue]
    known = length != MISSING
    every_ns, every = ports.t_ns[known], length[known]
    t_ns, qlen = downsample(every_ns, every, points)
    actions = result.table("actions")
    end_ns = int(every_ns[-1]) if len(every_ns) else 0
    mine = changes_of(result, queue) & (actions["applied_ns"] <= end_ns)
    set_ns, kmin = np.maximum(actions["applied_ns"][mine], 0), actions["kmin_bytes"][mine]
    return Timeline(
        tuner=tuner,
        t_ns=t_ns,
        qlen_bytes=qlen,
        set_ns=set_ns,
        kmin_bytes=kmin,
        kmax_bytes=actions["kmax_bytes"][mine],
        mean_bytes=float(every.mean()) if len(every) else math.nan,
        above_kmin=_above(every_ns, every, set_ns, kmin),
    )


def _above(t_ns: Ints, qlen: Ints, set_ns: Ints, kmin: Ints) -> float | None:
    """Return the share of samples above the kmin in force; None if none is known."""
    if not len(set_ns) or not len(t_ns):
        return None
    held = kmin[np.maximum(np.searchsorted(set_ns, t_ns, side="right") - 1, 0)]
    return float((qlen > held).mean())


def changes_of(result: TrialResult, queue: int) -> np.ndarray:
    """Return which rows of the table `actions` belong to the queue, as booleans (actions,)."""
    actions, port = result.table("actions"), result.testbed.queues[queue]
    mine = (actions["device"] == port.device) & (actions["port"] == port.name)
    return np.asarray(mine & (actions["queue"] == port.klass))


def downsample(t_ns: Ints, values: NDArray[Any], points: int) -> tuple[Ints, NDArray[Any]]:
    """Reduce to at most `points` points that include the minimum and maximum of each stretch."""
    if len(t_ns) <= points:
        return t_ns, values
    kept: list[int] = []
    for stretch in np.array_split(np.arange(len(values)), max(1, points // 2)):
        part = values[stretch]
        kept += sorted({int(stretch[np.argmin(part)]), int(stretch[np.argmax(part)])})
    return t_ns[kept], values[kept]
