"""The rewards of the papers' agents: they favour full links and short queues, per port.

All three see a port's utilisation and its queue, which every transport has. With PFC, a port that
is paused sends little and has a long queue: its reward is low whatever its thresholds are.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestration.core.records import Floats, Observation
from tuners.ecn.features import sent_share
from tuners.ecn.templates import ALPHA_KB, KB
from tuners.learning.exact import ceil_log2

REWARD_LEVELS = 10


def utilisation(before: Observation, after: Observation, rate_bps: Floats) -> Floats:
    """Return the utilisation of every queue's port between two observations, shape (queues,)."""
    sent = (after["tx_bytes"] - before["tx_bytes"]).astype(float)
    return sent_share(sent, max(after.t_ns - before.t_ns, 1) / 1e9, rate_bps)


def queue_score(qlen_bytes: Floats, alpha_kb: float = 1.0) -> Floats:
    """ACC's D(L): 1 - n/10 for E(n-1) < L <= E(n), with E(n) = alpha * 2^n KB, n = 0 .. 10.

    The score is 1 up to E(0) and 0 beyond E(9), any shape. GraphCC's f is based on it (section
    3.3). Alpha is 1 and not that of the templates, 20: ACC's own queues of 5.6 KB (section 5.2) and
    all others up to 20 KB would have the same score.
    """
    length = qlen_bytes.clip(1.0) / (alpha_kb * KB)
    steps = ceil_log2(length).clip(0, REWARD_LEVELS)
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

    The paper gives no unit and no value for an empty queue, whose reciprocal has none. Here the
    unit is E(0) = 20 KB, the lowest threshold that PET can set, and one unit is added to the mean.
    So an empty queue has 1, and any two lengths differ: 5.3 KB has 0.79, 6.1 KB has 0.77 (table I).
    """
    delay = 1.0 / (1.0 + qlen_mean_bytes / (ALPHA_KB * KB))
    reward: Floats = beta_1 * utilisation + beta_2 * delay
    return reward


def wrong_weights(**weights: float) -> Iterator[str]:
    """Yield what is wrong with the two weights of a reward, as `what: remedy`."""
    said = " and ".join(f"{name} {value:g}" for name, value in weights.items())
    if min(weights.values()) < 0 or abs(sum(weights.values()) - 1.0) > 1e-9:
        yield f"{said} are no weights: use two that are not below 0 and add up to 1"
