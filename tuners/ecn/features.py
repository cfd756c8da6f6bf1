"""The inputs of networks, normalised and with history, and the rewards of ACC, GraphCC and PET.

Inputs have one row per queue. Sizes become log2(1 + KB) / 10, so that 1 MB is about 1 and short
queues remain distinct. Rates become shares of the port's rate. The port's rate itself becomes
log2(1 + Gbit/s) / 10: 25 Gbit/s is 0.47, 100 is 0.67. A utilisation can slightly exceed 1, because
a packet may be counted later than it was sent, by its time on the wire.

The papers' rewards favour full links and short queues at each port. All three are computed from a
port's utilisation and its queue, which exist under every transport. With PFC, a paused port sends
little and has a long queue, so its reward is low whatever its thresholds are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestration.core.knobs import ECN
from orchestration.core.records import Floats, Observation
from orchestration.core.signals import FLOW_TABLE
from tuners.ecn.templates import ALPHA_KB, KB
from tuners.learning.networks import ceil_log2, log2

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

# u, q and ECN of GraphCC (section 3.3).
PORT_FEATURES = ("utilisation", "queue", "marked")
# ACC's four: qlen, txRate, txRate(m) and ECN(c); the last one is three numbers.
ACC_FEATURES = (*PORT_FEATURES, "kmin", "kmax", "pmax")
# PET's six factors (equation 2).
PET_FEATURES = (*ACC_FEATURES, "incast", "mice")
_SIZES = ("queue", "kmin", "kmax")
# With the port's rate, a network can tell how long a queue of a given size takes to drain. The
# papers leave the rate out, although ACC and GraphCC run on ports of 25 and 100 Gbit/s. It does not
# change, so it comes once, after the readings.
RATE = "rate"

_MAX_INCAST_DEGREE = 64.0  # beyond it, the feature stays 1


def observed_by(names: Collection[str]) -> tuple[str, ...]:
    """Return the signals that features are computed from, given the features' names."""
    flows = FLOW_TABLE if {"incast", "mice"} & set(names) else ()
    return ("qlen_bytes", "tx_bytes", "marked_packets", *flows)


def sent_share(sent_bytes: Floats, span_s: float, rate_bps: Floats) -> Floats:
    """Return the utilisation of ports: bytes sent within `span_s` seconds over those possible."""
    share: Floats = 8.0 * sent_bytes / (rate_bps * span_s)
    return share


def size_feature(size_bytes: Floats) -> Floats:
    """Return sizes as inputs, log2(1 + KB) / 10; any shape."""
    value: Floats = log2(1.0 + size_bytes / KB) / 10.0
    return value


def width(names: Sequence[str], history: int) -> int:
    """Return the number of inputs: each feature `history` times, the rate once."""
    fixed = RATE in names
    return history * (len(names) - fixed) + fixed


class FeatureWindow:
    """The last `history` readings of every queue, newest first. `rate` comes last, and once.

    After `push`, `utilisation` and `queue_bytes`, shape (queues,), hold what rewards are computed
    from.
    """

    def __init__(
        self, testbed: Testbed, history: int, names: tuple[str, ...] = ACC_FEATURES
    ) -> None:
        queues = testbed.queues
        self._rate_bps = np.array([queue.rate_bps for queue in queues], dtype=np.float64)
        self._frame_bits = 8.0 * testbed.mtu_bytes
        self._names = tuple(name for name in names if name != RATE)
        self._history_width = history * len(self._names)
        self._rows = np.zeros((len(queues), width(names, history)), dtype=np.float32)
        if RATE in names:
            self._rows[:, -1] = log2(1.0 + self._rate_bps / 1e9) / 10.0
        zeros = np.zeros(len(queues))
        self._last: tuple[int, Floats, Floats] = (0, zeros, zeros)  # time, bytes, marked packets
        self.utilisation: Floats = np.zeros(len(queues))
        self.queue_bytes: Floats = np.zeros(len(queues))

    @property
    def width(self) -> int:
        """Number of features per queue."""
        return int(self._rows.shape[1])

    def push(self, observation: Observation) -> NDArray[np.float32]:
        """Add an observation, and return the inputs as a new array of shape (queues, width).

        Raises ValueError for a value that is not a number, and for a signal that a feature needs
        but the observation lacks.
        """
        before_ns, before_bytes, before_marked = self._last
        sent = observation["tx_bytes"].astype(np.float64)
        marked = observation["marked_packets"].astype(np.float64)
        span_s = max(observation.t_ns - before_ns, 1) / 1e9
        self._last = (observation.t_ns, sent, marked)
        capacity = self._rate_bps * span_s
        self.utilisation = sent_share(sent - before_bytes, span_s, self._rate_bps)
        self.queue_bytes = observation["qlen_bytes"].astype(np.float64)
        columns = [
            self._column(name, observation, marked - before_marked, capacity)
            for name in self._names
        ]
        newest = np.stack(columns, axis=1)
        sizes = [column for column, name in enumerate(self._names) if name in _SIZES]
        newest[:, sizes] = size_feature(newest[:, sizes])
        if not np.isfinite(newest).all():
            queue, column = np.argwhere(~np.isfinite(newest))[0]
            raise ValueError(
                f"the reading at {observation.t_ns} ns has no number for {self._names[column]!r} "
                f"of queue {queue}"
            )
        rows = self._rows.copy()
        count = len(self._names)
        rows[:, count : self._history_width] = self._rows[:, : self._history_width - count]
        rows[:, :count] = newest
        self._rows = rows
        return rows

    def _column(
        self, name: str, observation: Observation, marked_packets: Floats, capacity: Floats
    ) -> Floats:
        """Return one feature of every queue; `capacity` is in bits since the last reading."""
        thresholds = observation.settings.get(ECN.name, {})
        match name:
            case "utilisation":
                return self.utilisation
            case "queue":
                return self.queue_bytes
            case "marked":
                share: Floats = marked_packets * self._frame_bits / capacity
                return share
            case "kmin":
                return thresholds["kmin_bytes"].astype(np.float64)
            case "kmax":
                return thresholds["kmax_bytes"].astype(np.float64)
            case "pmax":
                return thresholds["pmax"]
            case "incast":
                degree = _flow_counts(observation.get("incast_degree"), name)
                return np.minimum(degree / _MAX_INCAST_DEGREE, 1.0)
            case "mice":
                mice = _flow_counts(observation.get("mice_flows"), name)
                flows = mice + _flow_counts(observation.get("elephant_flows"), name)
                return mice / np.maximum(flows, 1.0)
        raise ValueError(f"no feature is called {name!r}")


def _flow_counts(values: NDArray[np.int64] | None, name: str) -> Floats:
    if values is None:
        raise ValueError(f"feature {name!r} needs the flow table, which is not kept in this trial")
    return values.astype(np.float64)


REWARD_LEVELS = 10


def utilisation(before: Observation, after: Observation, rate_bps: Floats) -> Floats:
    """Return the utilisation of every queue's port between two observations, (queues,)."""
    sent = (after["tx_bytes"] - before["tx_bytes"]).astype(float)
    return sent_share(sent, max(after.t_ns - before.t_ns, 1) / 1e9, rate_bps)


def queue_score(qlen_bytes: Floats, alpha_kb: float = 1.0) -> Floats:
    """Return ACC's D(L): 1 - n/10 for E(n-1) < L <= E(n), E(n) = alpha * 2^n KB, n = 0 .. 10.

    The score is 1 up to E(0) and 0 beyond E(9); any shape. GraphCC's f is based on it (section
    3.3). Alpha is 1 here, not 20 as for the templates. With 20, ACC's own queues of 5.6 KB (section
    5.2) and all others up to 20 KB would have the same score.
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
    """Return ACC's reward; with the default weights GraphCC's (section 3.3). Any one shape."""
    reward: Floats = w_queue * queue_score(qlen_bytes) + w_utilisation * utilisation
    return reward


def pet_reward(
    qlen_mean_bytes: Floats, utilisation: Floats, beta_1: float, beta_2: float
) -> Floats:
    """Return PET's reward (equations 6 to 8): beta_1 * T + beta_2 / (mean queue). Any one shape.

    The paper gives no unit of the queue, and no value for an empty queue, of which there is no
    reciprocal. Here the unit is E(0) = 20 KB, the lowest threshold that PET can set, and one unit
    is added to the mean. So an empty queue scores 1, and any two lengths differ: 5.3 KB scores
    0.79, 6.1 KB scores 0.77 (table I).
    """
    delay = 1.0 / (1.0 + qlen_mean_bytes / (ALPHA_KB * KB))
    reward: Floats = beta_1 * utilisation + beta_2 * delay
    return reward


def weight_faults(**weights: float) -> Iterator[str]:
    """Yield what is wrong with the two weights of a reward, as `what: remedy`."""
    if min(weights.values()) < 0 or abs(sum(weights.values()) - 1.0) > 1e-9:
        text = " and ".join(f"{name} {value:g}" for name, value in weights.items())
        yield f"{text} are no weights: use two that are not below 0 and add up to 1"
