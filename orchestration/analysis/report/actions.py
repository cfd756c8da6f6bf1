"""The changes of one queue's thresholds, each with the reading of the queue that it answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestration.analysis.metrics import arrivals
from orchestration.analysis.report.shown import ShownRepeat
from orchestration.analysis.report.timeline import changes_of, downsample
from orchestration.artifacts.reader import TrialResult
from orchestration.model.records import MISSING, Floats, Ints

# What can be told apart in a picture.
_MOST_CHANGES = 250


@dataclass(frozen=True)
class ActedQueue:
    """The longest of the queues whose thresholds a tuner changed often, in the shown repeat.

    Often: at least half as often as any other, while flows arrived.

    `t_ns`, `qlen_bytes` (points,) are the queue. The rest has shape (changes,), the starting point
    first: the reading's time and length (-1 unknown), when the change was in force, the thresholds.
    `changes` and `everywhere` count the changes of this queue and of all queues while flows
    arrived; the arrays may have the first of them only, and the queue until then.
    """

    tuner: str
    label: str
    towards: str
    repeat: int
    changes: int
    everywhere: int
    t_ns: Ints
    qlen_bytes: Ints
    seen_ns: Ints
    seen_bytes: Ints
    applied_ns: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats


def acted_queues(shown: ShownRepeat, points: int) -> list[ActedQueue]:
    """Return one queue for each tuner that changed thresholds after the start.

    Raises InputError for an unreadable table.
    """
    if not shown.sampled:
        return []
    found = (
        _acted(trial.tuner, result, shown.repeat, points)
        for trial, result in zip(shown.trials, shown.results, strict=True)
    )
    return [queue for queue in found if queue is not None]


def _acted(tuner: str, result: TrialResult, repeat: int, points: int) -> ActedQueue | None:
    actions = result.table("actions")
    end_ns = int(result.spec.duration_ns)
    soon = actions["applied_ns"] <= end_ns
    late = soon & (actions["t_ns"] > 0)
    if not late.any():
        return None
    mine = {number: changes_of(result, number) for number in range(len(result.testbed.queues))}
    counts = {number: int(np.count_nonzero(rows & late)) for number, rows in mine.items()}
    lengths = arrivals(result.ports, end_ns).qlen_bytes.mean(axis=0)
    often = [number for number, count in counts.items() if 2 * count >= max(counts.values())]
    queue = max(often, key=lambda number: float(lengths[number]))
    rows = np.flatnonzero(mine[queue] & soon)
    rows = rows[np.argsort(actions["applied_ns"][rows], kind="stable")][: _MOST_CHANGES + 1]
    if counts[queue] > _MOST_CHANGES:
        end_ns = min(end_ns, int(actions["applied_ns"][rows[-1]]))
    ports = result.ports
    length = ports.qlen_bytes[:, queue]
    known = (length != MISSING) & (ports.t_ns <= end_ns)
    t_ns, qlen = downsample(ports.t_ns[known], length[known], points)
    seen_ns = actions["t_ns"][rows]
    port = result.testbed.queues[queue]
    return ActedQueue(
        tuner=tuner,
        label=port.label,
        towards=result.testbed.peer_device(port).name,
        repeat=repeat,
        changes=counts[queue],
        everywhere=int(np.count_nonzero(late)),
        t_ns=t_ns,
        qlen_bytes=qlen,
        seen_ns=seen_ns,
        seen_bytes=_seen(ports.t_ns, length, seen_ns),
        applied_ns=actions["applied_ns"][rows],
        kmin_bytes=actions["kmin_bytes"][rows],
        kmax_bytes=actions["kmax_bytes"][rows],
        pmax=actions["pmax"][rows],
    )


def _seen(t_ns: Ints, length: Ints, seen_ns: Ints) -> Ints:
    """Return the queue's length at the last sample up to each time, -1 where there is none."""
    at = np.searchsorted(t_ns, seen_ns, side="right") - 1
    return np.where((at >= 0) & (seen_ns > 0), length[np.maximum(at, 0)], MISSING)
