"""The inputs of networks: readings, normalised, with history, one row per queue.

Sizes become log2(1 + KB) / 10, so that 1 MB is about 1 and short queues remain distinct. Rates
become shares of the port's rate. A utilisation can slightly exceed 1: a packet may be counted later
than it was sent, by its time on the wire.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestration.model.knobs import ECN
from orchestration.model.records import Floats, Observation
from orchestration.model.signals import FLOW_TABLE
from tuners.ecn.templates import KB
from tuners.exact import log2

if TYPE_CHECKING:
    from inventory.topology import Testbed

# u, q and ECN of GraphCC (section 3.3).
PORT_FEATURES = ("utilisation", "queue", "marked")
# ACC's four: qlen, txRate, txRate(m) and ECN(c); the last one is three numbers.
ACC_FEATURES = (*PORT_FEATURES, "kmin", "kmax", "pmax")
# PET's six factors (equation 2).
PET_FEATURES = (*ACC_FEATURES, "incast", "mice")
_SIZES = ("queue", "kmin", "kmax")

_INCAST_FULL = 64.0


def observed_by(names: Collection[str]) -> tuple[str, ...]:
    """Return the signals that these features are computed from."""
    flows = FLOW_TABLE if {"incast", "mice"} & set(names) else ()
    return ("qlen_bytes", "tx_bytes", "marked_packets", *flows)


def size_feature(size_bytes: Floats) -> Floats:
    """Return log2(1 + KB) / 10, any shape."""
    value: Floats = log2(1.0 + size_bytes / KB) / 10.0
    return value


class FeatureWindow:
    """The last `history` readings of every queue as features, newest first.

    After `push`, `utilisation` and `queue_bytes` (queues,) hold the inputs of rewards.
    """

    def __init__(
        self, testbed: Testbed, history: int, names: tuple[str, ...] = ACC_FEATURES
    ) -> None:
        queues = testbed.queues
        self._rate_bps = np.array([queue.rate_bps for queue in queues], dtype=np.float64)
        self._frame_bits = 8.0 * testbed.mtu_bytes
        self._names = names
        self._rows = np.zeros((len(queues), history * len(names)), dtype=np.float32)
        self._last: tuple[int, Floats, Floats] = (
            0,
            np.zeros(len(queues)),
            np.zeros(len(queues)),
        )
        self.utilisation: Floats = np.zeros(len(queues))
        self.queue_bytes: Floats = np.zeros(len(queues))

    @property
    def width(self) -> int:
        """Number of features per queue: history x names."""
        return int(self._rows.shape[1])

    def push(self, observation: Observation) -> NDArray[np.float32]:
        """Add one reading and return a new array of shape (queues, history x names).

        Raises ValueError for a reading that is not a number, and for one that a feature needs but
        the observation lacks.
        """
        before_ns, before_bytes, before_marked = self._last
        sent = observation["tx_bytes"].astype(np.float64)
        marked = observation["marked_packets"].astype(np.float64)
        span_s = max(observation.t_ns - before_ns, 1) / 1e9
        self._last = (observation.t_ns, sent, marked)
        capacity = self._rate_bps * span_s
        self.utilisation = 8.0 * (sent - before_bytes) / capacity
        self.queue_bytes = observation["qlen_bytes"].astype(np.float64)
        columns = [
            self._column(name, observation, marked - before_marked, capacity)
            for name in self._names
        ]
        newest = np.stack(columns, axis=1)
        sizes = [place for place, name in enumerate(self._names) if name in _SIZES]
        newest[:, sizes] = size_feature(newest[:, sizes])
        if not np.isfinite(newest).all():
            queue, column = np.argwhere(~np.isfinite(newest))[0]
            raise ValueError(
                f"the reading at {observation.t_ns} ns has no number for {self._names[column]!r} "
                f"of queue {queue}"
            )
        rows = np.empty_like(self._rows)
        width = len(self._names)
        rows[:, width:] = self._rows[:, :-width] if rows.shape[1] > width else 0
        rows[:, :width] = newest
        self._rows = rows
        return rows

    def _column(
        self, name: str, observation: Observation, marked_packets: Floats, capacity: Floats
    ) -> Floats:
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
                degree = _measured(observation.get("incast_degree"), name)
                return np.minimum(degree / _INCAST_FULL, 1.0)
            case "mice":
                mice = _measured(observation.get("mice_flows"), name)
                flows = mice + _measured(observation.get("elephant_flows"), name)
                return mice / np.maximum(flows, 1.0)
        raise ValueError(f"no feature is called {name!r}")


def _measured(values: NDArray[np.int64] | None, name: str) -> Floats:
    if values is None:
        raise ValueError(f"feature {name!r} needs the flow table, which is not kept in this trial")
    return values.astype(np.float64)
