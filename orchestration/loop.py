"""Observe, act, apply: the one loop that every tuner runs in, on every backend.

It knows protocols only. Time is the rig's: waiting advances a simulation, or virtual time.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from orchestration.model.bounds import ImpossibleThresholds, check_thresholds, clamp_thresholds
from orchestration.model.errors import TrialError
from orchestration.model.ports import Progress, Rig, Tuner
from orchestration.model.records import Action, Applied, NoAction, Observation

if TYPE_CHECKING:
    from inventory.topology import Testbed
    from orchestration.model.trial import TrialSpec


class Observer(Protocol):
    """Is told what happens in the loop, and records it."""

    def observed(self, observation: Observation) -> None:
        """Take one reading of all queues."""

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Take one change: of which reading it is the answer, when decided, what was read back."""


def run_loop(
    rig: Rig,
    tuner: Tuner,
    testbed: Testbed,
    trial: TrialSpec,
    observer: Observer,
    progress: Progress,
) -> dict[str, Any]:
    """Run one trial on `rig` until every flow has ended or the trial's drain time is over.

    The tuner's starting point is applied before the clock starts. Every `sample_period_ns` all
    queues are read; at every multiple of `action_period_ns` the tuner sees that reading, and what
    it changes takes effect `decision_latency_ns` later. Thresholds out of bounds are brought into
    bounds and counted. Returns facts for the trial's record.

    Raises:
        TrialError: the tuner set a queue to what is no number, or one that does not exist.
    """
    buffers = np.array([queue.buffer_bytes for queue in testbed.queues], dtype=np.int64)
    decisions = clamped = 0

    def bounded(action: Action, when: str) -> Action:
        nonlocal clamped
        if isinstance(action, NoAction):
            return action
        try:
            action, count = clamp_thresholds(action, buffers)
            check_thresholds(action, len(buffers))
        except ImpossibleThresholds as error:
            where = "" if error.queue is None else f" at queue {testbed.queues[error.queue].label}"
            raise TrialError(
                f"tuner {trial.tuner.name!r} set impossible thresholds{where}, {when}: "
                f"{error.what}",
                "correct the tuner; if it was trained, its checkpoint may hold values that are no "
                "numbers: train it again",
            ) from error
        clamped += count
        return action

    start = bounded(tuner.reset(testbed, trial.seed), "before the start")
    if not isinstance(start, NoAction):
        observer.applied(0, 0, rig.apply(start))
    rig.start()
    end_ns = trial.duration_ns + trial.drain_ns
    every = max(1, trial.action_period_ns // trial.sample_period_ns)
    tick = 0
    since_decision = []
    while (tick + 1) * trial.sample_period_ns <= end_ns:
        tick += 1
        more = rig.wait_until(tick * trial.sample_period_ns)
        observation = rig.observe()
        observer.observed(observation)
        since_decision.append(observation.qlen_bytes)
        if not more:
            break
        if tick % every == 0:
            mean = np.mean(since_decision, axis=0)
            since_decision.clear()
            seen = dataclasses.replace(observation, qlen_mean_bytes=mean)
            action = bounded(tuner.act(seen), f"after {observation.t_ns} ns")
            decisions += 1
            if not isinstance(action, NoAction):
                decided_ns = rig.now_ns()
                if trial.decision_latency_ns:
                    rig.wait_until(observation.t_ns + trial.decision_latency_ns)
                observer.applied(observation.t_ns, decided_ns, rig.apply(action))
        progress(observation.t_ns, trial.duration_ns)
    return {"decisions": decisions, "clamped_changes": clamped, "tuner": dict(tuner.facts())}
