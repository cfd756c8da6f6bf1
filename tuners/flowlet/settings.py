"""What all tuners of flowlet timeouts share: RED's thresholds, the range of timeouts, uplinks.

Diao et al., "Deep Reinforcement Learning Based Dynamic Flowlet Switching for DCN", sections V and
VI-A: "the optimal flowlet timeout value for each load intensity is selected as the basic action
a_base". The paper does not print this table. `BEST_NS` is the result of a search here, over a grid
of seven timeouts for WebSearch on drlet-k4 with three seeds: at each load, the timeout with the
lowest mean FCT. docs/load-balancing.md says by how much it is lower than the next one's.
`closloop search examples/papers/search-drlet-1g.yml --over
timeouts --metric fct_mean` and `search-drlet-10g.yml` repeat the search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestration.core.knobs import ECN, FLOWLET_TIMEOUT
from orchestration.core.records import Action, Change, Floats, Ints, Observation, Setup
from tuners.base import BaseTuner
from tuners.learning.networks import exp, log

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

# The paper: "the packet size of 1400 bytes, the RED queue with the minimal threshold of 65 packets
# and the maximal threshold of 250 packets". In a queue, a packet has headers of 66 bytes too.
PACKET_BYTES = 1_466
KMIN_BYTES, KMAX_BYTES = 65 * PACKET_BYTES, 250 * PACKET_BYTES
# Not in the paper; the default of ns-3's RED, which the paper simulates with (LInterm = 50).
PMAX = 0.02
# The range of timeouts: that of figure 3.
SHORTEST_NS, LONGEST_NS = 100_000, 8_000_000


class FlowletTuner(BaseTuner):
    """Sets flowlet timeouts. RED gets the paper's thresholds at the start, and keeps them."""

    observes: Collection[str] = ()
    knobs = (ECN.name, FLOWLET_TIMEOUT.name)

    def setup(self, testbed: Testbed, timeouts_ns: ArrayLike) -> Setup:
        """Return RED's thresholds, and the timeouts: one for all switches, or one for each."""
        buffers = np.array([queue.buffer_bytes for queue in testbed.queues], dtype=np.int64)
        kmin, kmax = np.minimum(KMIN_BYTES, buffers), np.minimum(KMAX_BYTES, buffers)
        red = ECN.change(np.arange(len(buffers)), kmin, kmax, PMAX)
        return Setup((red, timeout_change(np.arange(len(testbed.switches)), timeouts_ns)))


def timeout_change(switches: Ints, values_ns: ArrayLike) -> Change:
    """Return the change that gives `switches` these timeouts, in whole ns."""
    return FLOWLET_TIMEOUT.change(switches, np.rint(values_ns).astype(np.int64))


def changed_timeouts(switches: Ints, before_ns: Ints, after_ns: Ints) -> Action:
    """Return the change at those of `switches` whose timeout differs; () if none does."""
    differs = before_ns != after_ns
    return (timeout_change(switches[differs], after_ns[differs]),) if differs.any() else ()


def timeout_of(action: NDArray[np.floating]) -> Ints:
    """Return the timeouts in ns of actions from -1 (the shortest) to 1 (the longest), any shape.

    Equal steps of an action multiply the timeout by the same factor.
    """
    share = (np.asarray(action, dtype=np.float64) + 1.0) / 2.0
    log_range = log(LONGEST_NS / SHORTEST_NS)
    result: Ints = np.rint(SHORTEST_NS * exp(share * log_range)).astype(np.int64)
    return result


def action_of(timeout_ns: ArrayLike) -> NDArray[np.float64]:
    """Return the actions of timeouts: the inverse of `timeout_of`. Others count as the nearest."""
    within = np.clip(np.asarray(timeout_ns, dtype=np.float64), SHORTEST_NS, LONGEST_NS)
    action: NDArray[np.float64] = (
        2.0 * log(within / SHORTEST_NS) / log(LONGEST_NS / SHORTEST_NS) - 1.0
    )
    return action


def timeout_faults(**values_ns: int) -> Iterator[str]:
    """Yield a fault for each timeout that is outside the bounds of the knob."""
    (column,) = FLOWLET_TIMEOUT.columns
    for name, value in values_ns.items():
        if not column.minimum <= value <= (column.maximum or value):
            yield f"{name} {value} ns is not in {column.range} ns: use 1us to 1s"


LOADS = (0.2, 0.4, 0.6, 0.8)
# The best static timeout at each of LOADS, by the hosts' rate in bit/s.
BEST_NS = {
    1_000_000_000: (400_000, 1_000_000, 1_000_000, 1_000_000),
    10_000_000_000: (100_000, 100_000, 100_000, 200_000),
}


def best_static_ns(load: ArrayLike, rate_bps: int) -> Ints:
    """Return the best static timeout in ns, for the load of the table nearest to each `load`.

    `load` has any shape. `rate_bps` is the hosts' rate; the table's nearest one, by ratio, counts.
    """
    rates = np.array(sorted(BEST_NS))
    rate = int(rates[np.argmin(np.abs(np.log2(rates / rate_bps)))])
    nearest = np.argmin(np.abs(np.asarray(load)[..., None] - np.array(LOADS)), axis=-1)
    best: Ints = np.array(BEST_NS[rate], dtype=np.int64)[nearest]
    return best


def host_rate(testbed: Testbed) -> int:
    """Return the rate of the slowest host port, in bit/s."""
    return min(port.rate_bps for host in testbed.hosts for port in testbed.ports_of[host])


class Uplinks:
    """The links of switches, which of them lead upwards, and their utilisation.

    `switches` are the indices, in `Testbed.switches`, of those with two or more upward links: edge
    switches come first. `switch`, `up` and `between` have an entry per switch port: the port's
    switch, whether it leads to a higher tier, and whether it leads to a switch. A link counts once
    for each direction. With traffic classes, a port has several queues, which are added up.
    """

    def __init__(self, testbed: Testbed) -> None:
        number = {name: index for index, name in enumerate(testbed.switches)}
        tier = {device.name: device.tier for device in testbed.devices}
        ports = testbed.switch_ports
        peers = [testbed.peer_device(port) for port in ports]
        self._port = np.repeat(np.arange(len(ports)), testbed.queues_per_port)
        self._rate_bps = np.array([port.rate_bps for port in ports], dtype=np.float64)
        self.between = np.array([peer.kind == "switch" for peer in peers], dtype=bool)
        self.up = self.between & np.array(
            [peer.tier > tier[port.device] for port, peer in zip(ports, peers, strict=True)],
            dtype=bool,
        )
        self.switch = np.array([number[port.device] for port in ports], dtype=np.int64)
        uplinks = np.bincount(self.switch[self.up], minlength=len(number))
        self.switches: Ints = np.flatnonzero(uplinks > 1)
        self._last: tuple[int, Floats] = (0, np.zeros(len(ports)))
        self.sent_bytes: Floats = np.zeros(len(ports))

    def by_port(self, values: np.ndarray) -> Floats:
        """Return the sums of values (queues,) over the queues of each switch port."""
        result: Floats = np.bincount(self._port, values, len(self._rate_bps)).astype(np.float64)
        return result

    def utilisation(self, observation: Observation) -> Floats:
        """Return the utilisation of each switch port since the last reading, shape (ports,).

        Afterwards `sent_bytes`, shape (ports,), has what each port sent in that time.
        """
        before_ns, before = self._last
        sent = self.by_port(observation["tx_bytes"])
        span_s = max(observation.t_ns - before_ns, 1) / 1e9
        self._last = (observation.t_ns, sent)
        self.sent_bytes = sent - before
        result: Floats = 8.0 * self.sent_bytes / (self._rate_bps * span_s)
        return result

    def mean(self, values: Floats) -> Floats:
        """Return the mean of values (ports,) over the upward ports of each of `switches`."""
        return self.sums(values)[self.switches] / self.sums(np.ones_like(values))[self.switches]

    def variance(self, values: Floats) -> Floats:
        """Return the variance of values (ports,) over the upward ports of each of `switches`."""
        mean = self.mean(values)
        return np.maximum(self.mean(values * values) - mean * mean, 0.0)

    def sums(self, values: Floats) -> Floats:
        """Return the sums of values (ports,) over the upward ports of every switch."""
        count = int(self.switch.max(initial=-1)) + 1
        result: Floats = np.bincount(self.switch[self.up], values[self.up], count).astype(
            np.float64
        )
        return result
