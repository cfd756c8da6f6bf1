"""The circuit breaker's view of a trial: the queues' counters, summed to ports."""

from __future__ import annotations

import numpy as np

from inventory.rack import Corridor
from inventory.topology import Testbed
from orchestration.backends.hardware.safety.breaker import Breaker, PortCounters
from orchestration.model.records import Ints, Observation


class CorridorWatch:
    """Feeds the breaker. Numbers that a switch does not offer count as 0: they trip nothing."""

    def __init__(self, testbed: Testbed, corridor: Corridor) -> None:
        ports = [queue.index for queue in testbed.queues]
        self._places, self._port_of = np.unique(np.array(ports), return_inverse=True)
        labels = [testbed.ports[int(index)].label for index in self._places]
        self._breaker = Breaker(corridor, labels)

    def feed(self, t_ns: int, observation: Observation, paused_ns: Ints, offered: bool) -> None:
        """Take a reading. Raises CorridorLeft."""
        counters = PortCounters(
            sent_packets=self._summed(observation.tx_packets),
            dropped_packets=self._summed(observation.dropped_packets),
            sent_bytes=self._summed(observation.tx_bytes),
            # the queues of a port are paused together here: one of them stands for all
            paused_ns=self._largest(paused_ns),
        )
        self._breaker.feed(t_ns, counters, offered=offered)

    def _summed(self, values: Ints) -> Ints:
        result = np.zeros(len(self._places), dtype=np.int64)
        np.add.at(result, self._port_of, np.maximum(values, 0))
        return result

    def _largest(self, values: Ints) -> Ints:
        result = np.zeros(len(self._places), dtype=np.int64)
        np.maximum.at(result, self._port_of, np.maximum(values, 0))
        return result
