"""What a tuner's reward says of settings in each phase, beside what they do to flows.

A learner can find no more than the reward tells. So each setting is held in one kind of phase while
the oracle's is held in the other, and what has the greatest mean reward there is compared with what
has the least slowdown.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from inventory.topology import Testbed
from orchestration.model.records import Floats, Ints, Observation, TrialRecord
from orchestration.model.trial import TrialSpec
from orchestration.studies.bench.fan_in_arms import Stretch
from orchestration.whatif.effects import sampling_times
from tuners.rewarded import Rewarded


def mean_rewards(
    tuner: Rewarded,
    testbed: Testbed,
    record: TrialRecord,
    trial: TrialSpec,
    found: Iterable[Stretch],
) -> tuple[float, float]:
    """Return what a queue earned a decision, on average, while few hosts sent to it, and many.

    A decision counts if all of its time and of the decision before is in one phase. Raises
    ValueError if that leaves nothing of either kind.
    """
    period_ns = trial.action_period_ns
    at = sampling_times(record.ports.t_ns, trial.sample_period_ns)
    times = range(period_ns, int(at[-1]) + 1, period_ns)
    before = [_reading(record, at, then - period_ns, then) for then in times]
    earned: dict[int, Floats] = {
        then: tuner.rewards(testbed, one, other)
        for then, one, other in zip(times, before, before[1:], strict=False)
    }
    rewards: tuple[list[float], list[float]] = ([], [])
    for one in found:
        first = -(-one.begin_ns // period_ns) * period_ns + period_ns
        for then in range(first, one.end_ns - period_ns + 1, period_ns):
            if then in earned:
                rewards[one.crowded].append(float(earned[then][one.queue]))
    if not all(rewards):
        raise ValueError("no phase of few senders, or of many, is longer than two decisions")
    return float(np.mean(rewards[0])), float(np.mean(rewards[1]))


def _reading(record: TrialRecord, at: Ints, since_ns: int, now_ns: int) -> Observation:
    row = int(np.searchsorted(at, now_ns))
    values = {name: column[row] for name, column in record.ports.values.items()}
    samples = record.ports.values["qlen_bytes"][(at > since_ns) & (at <= now_ns)]
    age_ns = np.zeros(len(values["qlen_bytes"]), dtype=np.int64)
    return Observation(now_ns, age_ns, {**values, "qlen_mean_bytes": samples.mean(axis=0)})
