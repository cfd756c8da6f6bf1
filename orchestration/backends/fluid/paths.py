"""Routes flows: shortest paths, one of equal cost chosen by a seeded hash of the flow.

A path is a column of port indices with one row for each stage of the fabric: the sender's NIC, the
ports on the way up, then those on the way down. A stage that a path does not use holds
`Paths.nowhere`, a port without limits.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from inventory.routing import next_hops
from inventory.topology import Port, Testbed
from orchestration.model.records import Ints

_MASK = (1 << 64) - 1


class Paths:
    """Paths over the links that are up. Ports are numbered as in `Testbed.ports`, plus two more."""

    def __init__(self, testbed: Testbed, seed: int, down_links: Collection[int] = ()) -> None:
        self._testbed = testbed
        self._seed = seed
        self._down = frozenset(down_links)
        self._hops = next_hops(testbed, down_links)
        self._salt = {device.name: n + 1 for n, device in enumerate(testbed.devices)}
        self._tiers = max((device.tier for device in testbed.devices), default=0)
        # After the testbed's own ports: one without limits, and one that drops everything.
        self.nowhere = len(testbed.ports)
        self.black_hole = len(testbed.ports) + 1

    @property
    def stages(self) -> int:
        """The number of rows of a path that goes up and down once."""
        return max(2, 2 * self._tiers)

    def column(self, flow: int, src: str, dst: str) -> Ints:
        """Return the ports that a flow crosses, shape (at least stages,).

        Without a path it raises no error: the flow then ends in the black hole.
        """
        ports = self._walk(flow, src, dst)
        if ports is None:
            column = np.full(self.stages, self.nowhere)
            column[-1] = self.black_hole
            return column
        rows = [ports[0].index]
        for port in ports[1:]:
            stage = self._stage(port)
            while (len(rows) - 1) % (self.stages - 1) != stage:
                rows.append(self.nowhere)
            rows.append(port.index)
        rows += [self.nowhere] * (self.stages - len(rows))
        return np.array(rows, dtype=np.int64)

    def columns(self, flows: Collection[tuple[int, str, str]]) -> NDArray[np.int64]:
        """Return the paths of several flows (number, source, destination), shape (rows, flows).

        After failures some paths go up and down twice; then all columns have more rows.
        """
        columns = [self.column(*flow) for flow in flows]
        rows = max((len(column) for column in columns), default=self.stages)
        table = np.full((rows, len(columns)), self.nowhere, dtype=np.int64)
        for number, column in enumerate(columns):
            table[: len(column), number] = column
        return table

    def _stage(self, port: Port) -> int:
        """Return the index of a switch port among the stages after the NIC, from 0."""
        here = self._testbed.device[port.device].tier
        upwards = self._testbed.peer_device(port).tier >= here
        return here - 1 if upwards and here < self._tiers else 2 * self._tiers - 1 - here

    def _walk(self, flow: int, src: str, dst: str) -> list[Port] | None:
        testbed = self._testbed
        nics = [port for port in testbed.ports_of[src] if port.link not in self._down]
        arrivals = [port for port in testbed.ports_of[dst] if port.link not in self._down]
        if not nics or not arrivals:
            return None
        ports = [nics[self._hash(flow, src) % len(nics)]]
        into = arrivals[self._hash(flow, dst) % len(arrivals)]
        last_hop = testbed.ports[into.peer]
        while (here := testbed.ports[ports[-1].peer].device) != dst:
            if here == last_hop.device:
                ports.append(last_hop)
                continue
            choices = self._hops[here].get(last_hop.device)
            if not choices:
                return None
            ports.append(choices[self._hash(flow, here) % len(choices)])
        return ports

    def _hash(self, flow: int, device: str) -> int:
        """Mix flow, device and seed (splitmix64, Steele et al. 2014), as a salted ECMP hash."""
        value = (self._seed * 0x9E3779B97F4A7C15 + (flow << 20) + self._salt[device]) & _MASK
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = ((value ^ (value >> shift)) * factor) & _MASK
        return value ^ (value >> 31)
