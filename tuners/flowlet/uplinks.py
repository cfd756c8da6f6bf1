"""Links between switches, and which of them lead upwards: where a switch has several paths.

In a fat tree these are the links from edge to aggregation and from aggregation to core switches:
"flowlet detection is only required at the edge and aggregate layers" (DRLet, section IV-A).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from orchestration.core.records import Floats, Ints, Observation

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


class Uplinks:
    """Utilisation of links, from two readings in a row.

    `switches` are the numbers of those that have two or more links upwards: edge switches first,
    as in `Testbed.switches`. A link counts once for each direction. With traffic classes, a link
    has several queues, which are added up.
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
        ways = np.bincount(self.switch[self.up], minlength=len(number))
        self.switches: Ints = np.flatnonzero(ways > 1)
        self._last: tuple[int, Floats] = (0, np.zeros(len(ports)))
        self.sent_bytes: Floats = np.zeros(len(ports))

    def by_port(self, values: np.ndarray) -> Floats:
        """Return the sums of values (queues,) over the queues of each switch port."""
        result: Floats = np.bincount(self._port, values, len(self._rate_bps)).astype(np.float64)
        return result

    def utilisation(self, observation: Observation) -> Floats:
        """Return the share of its rate that each switch port sent at since the last reading.

        `sent_bytes` (ports,) has what it sent.
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
        most = int(self.switch.max(initial=-1)) + 1
        result: Floats = np.bincount(self.switch[self.up], values[self.up], most).astype(np.float64)
        return result
