"""What a tuner's reward says of static settings, beside what they do to flows.

A learner can find no more than the reward tells. So each static setting is played, and holding in
each part the one of the greatest mean reward is compared with holding the one of least slowdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inventory.topology import Testbed
from orchestration.model.records import Floats, Ints, Observation, TrialRecord
from orchestration.whatif.effects import sampling_times
from tuners.rewarded import Rewarded

_SENDING = 0.1  # of its rate: a port that sends less is none of those that senders share


@dataclass(frozen=True)
class Part:
    """What a setting came to in one part: flows' slowdowns (flows,), and its mean reward."""

    slowdown: Floats
    reward: float


def mean_reward(
    tuner: Rewarded,
    testbed: Testbed,
    record: TrialRecord,
    sample_ns: int,
    decision_ns: int,
    within_ns: tuple[int, int],
) -> float:
    """Return what busy queues earned a decision, on average, in the decisions `within_ns`.

    An interval between two decisions counts if all of it is within; a queue, if its port sent more
    than a tenth of its rate. Raises ValueError if that leaves nothing.
    """
    at = sampling_times(record.ports.t_ns, sample_ns)
    rate_bps = np.array([queue.rate_bps for queue in testbed.queues], dtype=np.float64)
    begin_ns, end_ns = within_ns
    earned: list[Floats] = []
    first = -(-begin_ns // decision_ns) * decision_ns
    for then in range(first, end_ns - decision_ns + 1, decision_ns):
        now = then + decision_ns
        if now > at[-1]:
            break
        before = _reading(record, at, then - decision_ns, then)
        after = _reading(record, at, then, now)
        sent = (after["tx_bytes"] - before["tx_bytes"]) * 8e9 / decision_ns
        earned.append(tuner.rewards(testbed, before, after)[sent > _SENDING * rate_bps])
    if not earned or not len(np.concatenate(earned)):
        raise ValueError(f"no queue is busy between {begin_ns} and {end_ns} ns")
    return float(np.concatenate(earned).mean())


def _reading(record: TrialRecord, at: Ints, since_ns: int, now_ns: int) -> Observation:
    row = int(np.searchsorted(at, now_ns))
    values = {name: column[row] for name, column in record.ports.values.items()}
    samples = record.ports.values["qlen_bytes"][(at > since_ns) & (at <= now_ns)]
    age_ns = np.zeros(len(values["qlen_bytes"]), dtype=np.int64)
    return Observation(now_ns, age_ns, {**values, "qlen_mean_bytes": samples.mean(axis=0)})


def held_by_reward(settings: Sequence[Sequence[Part]]) -> list[Part]:
    """Return, of `settings[setting][part]`, the part of the setting with the greatest reward."""
    return [
        max((parts[place] for parts in settings), key=lambda one: one.reward)
        for place in range(len(settings[0]))
    ]
