"""Observe, act, apply: the one loop in which every tuner runs, on every backend.

The loop uses only the protocols of `core.ports`. The rig keeps the time: waiting advances a
simulation or virtual time, and sleeps on a real rack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestration.core.errors import TrialError
from orchestration.core.knobs import KNOBS, Bounds, ImpossibleSetting
from orchestration.core.ports import BatchReader, Observer, Progress, Rig, Tuner
from orchestration.core.records import Action, Observation
from orchestration.core.signals import targets

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed
    from orchestration.core.trial import TrialSpec


def run_loop(
    rig: Rig,
    tuner: Tuner,
    testbed: Testbed,
    trial: TrialSpec,
    observer: Observer,
    progress: Progress,
) -> dict[str, Any]:
    """Run one trial on `rig` until every flow has ended or the trial's drain time is over.

    The tuner's programs and initial settings are set before the clock starts. The fabric is read
    every `sample_period_ns`. At every multiple of `action_period_ns` the tuner sees the reading of
    that moment, and its changes take effect `decision_latency_ns` later. Settings out of bounds are
    clipped and counted. Returns facts for the trial's record.

    Raises TrialError if the tuner set a target to a value that is not a number, or a target that
    does not exist.
    """
    bounded = _Bounded(trial, testbed)
    decisions = 0
    setup = tuner.reset(testbed, trial.seed)
    if setup.programs:
        rig.install(setup.programs)
    if start := bounded(setup.action, "before the start"):
        observer.applied(0, 0, rig.apply(start))
    rig.start()
    end_ns = trial.duration_ns + trial.drain_ns
    every = trial.samples_per_action
    period_ns, tick, flows_left = trial.sample_period_ns, 0, True
    times_ns = range(period_ns, end_ns + 1, period_ns)
    since_decision = []
    # isinstance() of a protocol looks up each of its methods, so it is asked once
    batching = rig if isinstance(rig, BatchReader) else None
    while flows_left and tick < len(times_ns):
        until = tick + every - tick % every if tuner.decides else None
        due_ns = times_ns[tick:until]
        observations, flows_left = (
            batching.readings(due_ns) if batching is not None else _read_once(rig, due_ns[0])
        )
        for observation in observations:
            observer.observed(observation)
            progress(observation.t_ns, trial.duration_ns)
        tick += len(observations)
        if not tuner.decides:
            decisions = (tick if flows_left else tick - 1) // every
            continue
        since_decision += [observation["qlen_bytes"] for observation in observations]
        if flows_left and tick % every == 0:
            observation = observations[-1]
            mean = np.mean(since_decision, axis=0)
            since_decision.clear()
            seen = observation.with_values(qlen_mean_bytes=mean)
            action = bounded(tuner.act(seen), f"after {observation.t_ns} ns")
            decisions += 1
            if action:
                decided_ns = rig.now_ns()
                if trial.decision_latency_ns:
                    rig.wait_until(observation.t_ns + trial.decision_latency_ns)
                observer.applied(observation.t_ns, decided_ns, rig.apply(action))
    return {
        "decisions": decisions,
        "clamped_changes": bounded.clamped,
        "tuner": dict(tuner.facts()),
    }


def _read_once(rig: Rig, t_ns: int) -> tuple[Sequence[Observation], bool]:
    """Wait until `t_ns` and read; return the reading, and False once all flows have ended."""
    flows_left = rig.wait_until(t_ns)
    return (rig.observe(),), flows_left


class _Bounded:
    """Clips actions to the bounds of a testbed's devices, and counts the clipped targets."""

    def __init__(self, trial: TrialSpec, testbed: Testbed) -> None:
        self._trial = trial
        self._testbed = testbed
        self._bounds: dict[str, Bounds] = {}
        self.clamped = 0

    def __call__(self, action: Action, when: str) -> Action:
        """Return `action` with every value within its bounds.

        Raises TrialError for values that cannot be clipped, such as NaN, and unknown targets.
        """
        changes = []
        for change in action:
            knob = KNOBS[change.knob]
            if change.knob not in self._bounds:
                self._bounds[change.knob] = knob.bounds(self._testbed)
            bounds = self._bounds[change.knob]
            try:
                change, count = bounds.clamp(change)
                bounds.check(change)
            except ImpossibleSetting as error:
                where = ""
                if error.target is not None:
                    label = targets(self._testbed, knob.scope)[error.target]
                    where = f" at {knob.scope} {label}"
                raise TrialError(
                    f"tuner {self._trial.tuner.name!r} set impossible {knob.plural}{where}, "
                    f"{when}: {error.what}",
                    "correct the tuner; if it was trained, its checkpoint may contain values that "
                    "are not numbers: train it again",
                ) from error
            self.clamped += count
            changes.append(change)
        return tuple(changes)
