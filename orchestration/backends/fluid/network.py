"""The queues of the fluid fabric, with RED marking, finite buffers and counters.

Bytes are those that Linux counts on a link: payload, TCP/IP and Ethernet headers, no framing. Each
active flow has a column of the arrays, each stage of the fabric (see `Paths`) a row. A queue serves
each flow in proportion to the flow's bytes in it, which is FIFO for a well-mixed fluid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from inventory.routing import next_hops
from orchestration.core.knobs import ECN
from orchestration.core.records import Change, Floats, Ints
from orchestration.core.topology import ETHERNET_HEADER_BYTES, Port, Testbed

# Keeps 0 / 0 at 0 without a mask; far below any byte count.
_TINY = 1e-300


class FluidNetwork:
    """Ports with their queues, and the bytes of each flow in them.

    Arrays of ports have `len(testbed.ports) + 2` entries (see `Paths`); arrays of flows have shape
    (columns,) or (stages, columns).
    """

    def __init__(self, testbed: Testbed, stages: int) -> None:
        frame = testbed.mtu_bytes + ETHERNET_HEADER_BYTES
        self._framing_bytes = testbed.framing_bytes
        # Wire bytes, framing included, per counted byte of full packets.
        self._wire_share = (frame + testbed.framing_bytes) / frame
        # In wire bytes per ns.
        rates = [port.rate_bps / 8e9 for port in testbed.ports]
        buffers = [port.buffer_bytes or np.inf for port in testbed.ports]
        self.rate = np.array([*rates, np.inf, 0.0])
        self.buffer = np.array([*buffers, np.inf, 0.0])
        self._full_rate, self._full_buffer = self.rate.copy(), self.buffer.copy()
        self._set_waits()
        self.queues = np.array([port.index for port in testbed.queues], dtype=np.int64)
        count = len(self.rate)
        # Until thresholds are set, a queue marks only when its buffer is full; hosts never mark.
        self.kmin, self.kmax, self.pmax = self.buffer.copy(), self.buffer.copy(), np.ones(count)
        self._slope = np.zeros(count)
        self.tx_bytes, self.tx_packets = np.zeros((2, count))
        self.marked_packets, self.dropped_packets = np.zeros((2, count))
        self._nowhere = count - 2
        self.path = np.zeros((stages, 0), dtype=np.int64)
        # `passed` are the bytes that each flow had sent through each port of its path at the last
        # call of `count`.
        self.backlog, self._sent, self._marked, self.passed = np.zeros((4, stages, 0))
        # Packets and wire bytes per counted byte, by column: a small flow has small packets.
        self.packets_per_byte = np.zeros(0)
        self._wire_per_byte = np.ones(0)

    def set_thresholds(self, change: Change) -> None:
        """Set RED's thresholds on some queues (indices into `Testbed.queues`) at once."""
        ports = self.queues[change.targets]
        kmin, kmax, pmax = (change[name] for name in ECN.column_names)
        self.kmin[ports], self.kmax[ports], self.pmax[ports] = kmin, kmax, pmax
        self._slope[ports] = pmax / np.maximum(kmax - kmin, 1)

    def set_links(self, ports: Iterable[int], *, up: bool) -> None:
        """Take ports out of service, so that they drop everything, or put them back."""
        index = list(ports)
        self.rate[index] = self._full_rate[index] if up else 0.0
        self.buffer[index] = self._full_buffer[index] if up else 0.0
        self._set_waits()

    def _set_waits(self) -> None:
        """Set the delay in ns that a counted byte in a queue adds for the bytes behind it."""
        self._wait_per_byte = np.zeros(len(self.rate))
        np.divide(self._wire_share, self.rate, out=self._wait_per_byte, where=self.rate > 0)

    def grow(self, stages: int, columns: int) -> None:
        """Add empty rows and columns until there are `stages` rows and so many columns."""
        more_rows, more_columns = stages - self.path.shape[0], columns - self.path.shape[1]
        edges = ((0, more_rows), (0, more_columns))
        self.path = np.pad(self.path, edges, constant_values=self._nowhere)
        self.backlog = np.pad(self.backlog, edges)
        self._sent = np.pad(self._sent, edges)
        self._marked = np.pad(self._marked, edges)
        self.passed = np.pad(self.passed, edges)
        self.packets_per_byte = np.pad(self.packets_per_byte, (0, more_columns))
        self._wire_per_byte = np.pad(self._wire_per_byte, (0, more_columns), constant_values=1.0)

    def assign(self, column: int, path: Ints, packets_per_byte: float) -> None:
        """Give a column to a flow with this path, shape (at most stages,)."""
        before = self.path[:, column].copy()
        self.path[: len(path), column] = path
        self.path[len(path) :, column] = self._nowhere
        self.passed[self.path[:, column] != before, column] = 0.0
        self.packets_per_byte[column] = packets_per_byte
        self._wire_per_byte[column] = 1.0 + self._framing_bytes * packets_per_byte

    def release(self, columns: Ints) -> None:
        """Deliver what is left of flows that have finished, and free their columns."""
        self._sent[:, columns] += np.cumsum(self.backlog[:, columns], axis=0)
        self.backlog[:, columns] = 0.0
        self.count()
        self.path[:, columns] = self._nowhere

    def lengths(self) -> Floats:
        """Return the length in bytes of the queue at every port."""
        return self._by_port(self.backlog)

    def marking(self, lengths: Floats) -> Floats:
        """Return RED's marking probability at every port, from the current queue lengths.

        It rises linearly from 0 at kmin to pmax at kmax, and is 1 above kmax (Zhu et al., DCQCN,
        SIGCOMM 2015).
        """
        ramp = np.maximum(lengths - self.kmin, 0.0) * self._slope
        return np.where(lengths > self.kmax, 1.0, ramp)

    def wait_ns(self, lengths: Floats) -> Floats:
        """Return how long a byte sent now would wait in the queues of each flow's path, in ns.

        A port that is down adds no waiting time: it drops.
        """
        total: Floats = (lengths * self._wait_per_byte).take(self.path).sum(axis=0)
        return total

    def drop_excess(self, lengths: Floats) -> Floats:
        """Drop what exceeds the buffers, in proportion to each flow's share of the queue.

        Returns the bytes that each flow loses, shape (columns,).
        """
        excess = np.maximum(lengths - self.buffer, 0.0)
        share = excess / np.maximum(lengths, _TINY)
        lost = self.backlog * share.take(self.path)
        self.backlog -= lost
        self.dropped_packets += self._by_port(lost * self.packets_per_byte)
        total: Floats = lost.sum(axis=0)
        return total

    def advance(self, send: Floats, marked: Floats | None, step_ns: float) -> Floats:
        """Let `step_ns` pass: flows send `send` bytes, and every queue serves at its rate.

        `marked` is the share of each flow that is marked at each stage; None if no queue marks.
        Returns the bytes that reach the receivers, shape (columns,).
        """
        ports = len(self.rate)
        capacity = self.rate * step_ns
        moved = np.empty_like(self.backlog)
        moving = send
        for path, backlog, through in zip(self.path, self.backlog, moved, strict=True):
            backlog += moving
            demand = np.bincount(path, backlog * self._wire_per_byte, ports)
            served = np.minimum(demand, capacity)
            capacity -= served
            moving = np.multiply(backlog, (served / (demand + _TINY)).take(path), out=through)
            backlog -= moving
        self._sent += moved
        if marked is not None:
            self._marked += moved * marked
        return moving

    def count(self) -> None:
        """Add what flows have sent since the last call to the ports' counters."""
        self.tx_bytes += self._by_port(self._sent)
        self.tx_packets += self._by_port(self._sent * self.packets_per_byte)
        self.marked_packets += self._by_port(self._marked * self.packets_per_byte)
        self.passed += self._sent
        self._sent[:] = 0.0
        self._marked[:] = 0.0

    def _by_port(self, amounts: Floats) -> Floats:
        total: Floats = np.bincount(self.path.ravel(), amounts.ravel(), len(self.rate)).astype(
            np.float64, copy=False
        )
        return total


_MASK = (1 << 64) - 1


class Paths:
    """Paths of flows over the links that are up, chosen by an ECMP hash.

    A path is an array of ports, one per stage. Stage 0 is the sender's NIC; the other stages are
    the tiers that a packet passes upwards and then downwards. A path that does not reach the top
    skips stages. Ports are numbered as in `Testbed.ports`, and there are two more: `nowhere`, a
    port without limits for the skipped stages, and `black_hole`, which drops everything.
    """

    def __init__(self, testbed: Testbed, seed: int, down_links: Collection[int] = ()) -> None:
        self._testbed = testbed
        self._seed = seed
        self._down = frozenset(down_links)
        self._hops = next_hops(testbed, down_links)
        self._salt = {device.name: n + 1 for n, device in enumerate(testbed.devices)}
        self._tiers = max((device.tier for device in testbed.devices), default=0)
        self.nowhere = len(testbed.ports)
        self.black_hole = len(testbed.ports) + 1

    @property
    def stages(self) -> int:
        """The number of rows of a path that goes up and down once."""
        return max(2, 2 * self._tiers)

    def path(self, flow: int, src: str, dst: str) -> Ints:
        """Return the ports that a flow passes, shape (at least stages,).

        If no path is up, that is not an error: the path then ends in the black hole.
        """
        ports = self._walk(flow, src, dst)
        if ports is None:
            path = np.full(self.stages, self.nowhere)
            path[-1] = self.black_hole
            return path
        rows = [ports[0].index]
        for port in ports[1:]:
            stage = self._stage(port)
            while (len(rows) - 1) % (self.stages - 1) != stage:
                rows.append(self.nowhere)
            rows.append(port.index)
        rows += [self.nowhere] * (self.stages - len(rows))
        return np.array(rows, dtype=np.int64)

    def table(self, flows: Collection[tuple[int, str, str]]) -> NDArray[np.int64]:
        """Return the paths of several flows (number, source, destination), shape (rows, flows).

        After failures some paths go up and down twice; then all paths have more rows.
        """
        paths = [self.path(*flow) for flow in flows]
        rows = max((len(path) for path in paths), default=self.stages)
        table = np.full((rows, len(paths)), self.nowhere, dtype=np.int64)
        for number, path in enumerate(paths):
            table[: len(path), number] = path
        return table

    def _stage(self, port: Port) -> int:
        """Return the index of a switch port among the stages after the NIC, from 0."""
        here = self._testbed.device[port.device].tier
        upwards = self._testbed.peer_device(port).tier >= here
        return here - 1 if upwards and here < self._tiers else 2 * self._tiers - 1 - here

    def _walk(self, flow: int, src: str, dst: str) -> list[Port] | None:
        """Return the sending ports on a flow's way, from the NIC on; None if no path is up."""
        testbed = self._testbed
        nics = [port for port in testbed.ports_of[src] if port.link not in self._down]
        arrivals = [port for port in testbed.ports_of[dst] if port.link not in self._down]
        if not nics or not arrivals:
            return None
        ports = [nics[self._hash(flow, src) % len(nics)]]
        arrival = arrivals[self._hash(flow, dst) % len(arrivals)]
        last_hop = testbed.ports[arrival.peer]
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
        """Return an ECMP hash of flow, device and seed (SplitMix64, Steele et al., 2014)."""
        value = (self._seed * 0x9E3779B97F4A7C15 + (flow << 20) + self._salt[device]) & _MASK
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = ((value ^ (value >> shift)) * factor) & _MASK
        return value ^ (value >> 31)
