"""A queue's length over time in one trial, with the thresholds that held, small enough to draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestration.analysis.summary import Condition
from orchestration.artifacts.reader import TrialResult, read_trial
from orchestration.model.records import Floats, Ints


@dataclass(frozen=True)
class Timeline:
    """`qlen_bytes` at `t_ns` (points,); thresholds in force from `set_ns` on, shapes (changes,)."""

    tuner: str
    t_ns: Ints
    qlen_bytes: Ints
    set_ns: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints


@dataclass(frozen=True)
class QueueTimelines:
    """One queue under every tuner, in one repeat that all of them ran."""

    label: str
    kind: str
    towards: str
    repeat: int
    timelines: tuple[Timeline, ...]


def busiest_queues(condition: Condition, points: int) -> list[QueueTimelines]:
    """Return the busiest queue towards a host and the busiest between switches.

    Shown in the first repeat that every measured tuner has, and busiest there by mean length, the
    tuners together; with at most `points` points each, none if a trial has no samples. Raises
    InputError for an unreadable table.
    """
    arms = [arm for arm in condition.arms if arm.valid]
    if not arms:
        return []
    common = set.intersection(*({trial.spec.seed for trial in arm.valid} for arm in arms))
    if not common:
        arms, common = arms[:1], {arms[0].valid[0].spec.seed}
    seed = next(trial.spec.seed for trial in arms[0].valid if trial.spec.seed in common)
    trials = [next(trial for trial in arm.valid if trial.spec.seed == seed) for arm in arms]
    results = [read_trial(trial.folder) for trial in trials]
    if not all(len(result.ports.t_ns) for result in results):
        return []  # others' results may know lengths, but not when
    testbed, repeat = results[0].testbed, trials[0].spec.repeat
    means = np.mean([trial.metrics.queue_mean_bytes for trial in trials], axis=0)
    found = []
    for peer, kind in (("host", "towards a host"), ("switch", "between switches")):
        of_kind = np.array([testbed.peer_device(port).kind == peer for port in testbed.queues])
        length = np.where(of_kind & ~np.isnan(means), means, 0.0)
        queue = int(np.argmax(length))
        if length[queue] > 0:
            port = testbed.queues[queue]
            lines = tuple(
                _timeline(trial.tuner, result, queue, points)
                for trial, result in zip(trials, results, strict=True)
            )
            towards = testbed.peer_device(port).name
            found.append(QueueTimelines(port.label, kind, towards, repeat, lines))
    return found


def _timeline(tuner: str, result: TrialResult, queue: int, points: int) -> Timeline:
    ports = result.ports
    upto = int(np.searchsorted(ports.t_ns, result.spec.duration_ns, side="right"))
    t_ns, qlen = downsample(
        ports.t_ns[: max(upto, 2)], ports.qlen_bytes[: max(upto, 2), queue], points
    )
    port = result.testbed.queues[queue]
    actions = result.table("actions")
    mine = (actions["device"] == port.device) & (actions["port"] == port.name)
    mine &= actions["queue"] == port.klass
    return Timeline(
        tuner=tuner,
        t_ns=t_ns,
        qlen_bytes=qlen,
        set_ns=np.maximum(actions["applied_ns"][mine], 0),
        kmin_bytes=actions["kmin_bytes"][mine],
        kmax_bytes=actions["kmax_bytes"][mine],
    )


def downsample(t_ns: Ints, values: Ints, points: int) -> tuple[Ints, Ints]:
    """Return at most `points` of the points, each stretch's lowest and highest among them."""
    if len(t_ns) <= points:
        return t_ns, values
    kept: list[int] = []
    for stretch in np.array_split(np.arange(len(values)), max(1, points // 2)):
        part = values[stretch]
        kept += sorted({int(stretch[np.argmin(part)]), int(stretch[np.argmax(part)])})
    return t_ns[kept], values[kept]


def mean_bytes(timelines: QueueTimelines) -> dict[str, float]:
    """Return each tuner's mean queue length over the points drawn."""
    values: dict[str, Floats | Ints] = {line.tuner: line.qlen_bytes for line in timelines.timelines}
    return {tuner: float(np.mean(value)) for tuner, value in values.items()}
