"""The rewards of the papers' agents: they favour full links and short queues, per port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from orchestration.model.records import Floats, Observation
from tuners.ecn.templates import KB, PET_ALPHA_KB
from tuners.exact import ceil_log2

if TYPE_CHECKING:
    from inventory.topology import Testbed

REWARD_LEVELS = 10


def queue_score(qlen_bytes: Floats, alpha_kb: float = 1.0) -> Floats:
    """ACC's D(L): 1 - n/10 for E(n-1) < L <= E(n), with E(n) = alpha * 2^n KB, n = 0 .. 10.

    The score is 1 up to E(0) and 0 beyond E(9), any shape. GraphCC's f is based on it (section
    3.3). Alpha is that of `acc_templates`, so that every threshold is an edge of a step.
    """
    length = np.maximum(qlen_bytes, 1.0) / (alpha_kb * KB)
    steps = np.clip(ceil_log2(length), 0, REWARD_LEVELS)
    score: Floats = 1.0 - steps / REWARD_LEVELS
    return score


def queue_utilisation_reward(
    qlen_bytes: Floats,
    utilisation: Floats,
    w_queue: float = 0.7,
    w_utilisation: float = 0.3,
) -> Floats:
    """Return ACC's reward, and GraphCC's with w1 = 0.7, w2 = 0.3 (section 3.3), any one shape."""
    reward: Floats = w_queue * queue_score(qlen_bytes) + w_utilisation * utilisation
    return reward


def pet_reward(
    qlen_mean_bytes: Floats, utilisation: Floats, beta_1: float, beta_2: float
) -> Floats:
    """Return PET's reward (equations 6 to 8): beta_1 * T + beta_2 / (mean queue), any one shape.

    The paper gives no unit and no value for an empty queue. Here the unit is E(0), the lowest
    threshold that PET can set, and a shorter queue counts as one unit.
    """
    delay = 1.0 / np.maximum(qlen_mean_bytes / (PET_ALPHA_KB * KB), 1.0)
    reward: Floats = beta_1 * utilisation + beta_2 * delay
    return reward


def utilisation_between(testbed: Testbed, before: Observation, after: Observation) -> Floats:
    """Return the share of its port's rate that each queue sent between two readings (queues,)."""
    rate_bps = np.array([queue.rate_bps for queue in testbed.queues], dtype=np.float64)
    sent = after["tx_bytes"].astype(np.float64) - before["tx_bytes"]
    share: Floats = 8.0 * sent / (rate_bps * (max(after.t_ns - before.t_ns, 1) / 1e9))
    return share
