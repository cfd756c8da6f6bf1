"""Observe, act, apply: the one loop that every tuner runs in, on every backend.

It knows protocols only. Time is the rig's: waiting advances a simulation, or virtual time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from orchestration.model.ports import Progress, Rig, Tuner
from orchestration.model.records import Applied, NoAction, Observation

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
) -> None:
    """Run one trial on `rig` until every flow has ended or the trial's drain time is over.

    The tuner's starting point is applied before the clock starts. Every `sample_period_ns` all
    queues are read; at every multiple of `action_period_ns` the tuner sees that reading.
    """
    start = tuner.reset(testbed, trial.seed)
    if not isinstance(start, NoAction):
        observer.applied(0, 0, rig.apply(start))
    rig.start()
    end_ns = trial.duration_ns + trial.drain_ns
    every = max(1, trial.action_period_ns // trial.sample_period_ns)
    tick = 0
    while (tick + 1) * trial.sample_period_ns <= end_ns:
        tick += 1
        more = rig.wait_until(tick * trial.sample_period_ns)
        observation = rig.observe()
        observer.observed(observation)
        if not more:
            break
        if tick % every == 0:
            action = tuner.act(observation)
            if not isinstance(action, NoAction):
                decided_ns = rig.now_ns()
                observer.applied(observation.t_ns, decided_ns, rig.apply(action))
        progress(observation.t_ns, trial.duration_ns)
