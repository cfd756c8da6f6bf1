"""The hosts of the fluid model: which flows are active, what they send, when each has ended.

An active flow has a column of the network's arrays. Once it has ended, another flow takes the
column over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inventory.routing import PathTable
from orchestration.backends.fluid.flows import FlowWindow, Windows
from orchestration.backends.fluid.network import FluidNetwork, Paths
from orchestration.core.records import DONE, UNFINISHED, Floats, FlowRecords, Ints, Schedule
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES, Testbed

_NEVER_NS = np.iinfo(np.int64).max
_FREE = -1
_COLUMNS_AT_A_TIME = 64
# How many bytes one flow may have in its host's queue before its window stops growing: Linux' TCP
# small queues.
_SMALL_QUEUE_BYTES = 65_536
# When no more than this is left of a flow in the fabric, it is delivered at once, because a shared
# queue would never serve the very last of a fluid. So few bytes do not show in any result.
_REST_BYTES = 16


@dataclass(frozen=True)
class _LastBytes:
    """Flows that sent their last byte in a step: when, and how long queues were at that time."""

    columns: Ints
    sent_ns: Floats
    wait_ns: Floats


class Senders:
    """The flows of one schedule on a `FluidNetwork`."""

    def __init__(
        self,
        testbed: Testbed,
        schedule: Schedule,
        network: FluidNetwork,
        paths: Paths,
        min_rto_ns: int,
        window: FlowWindow | None = None,
    ) -> None:
        self._testbed = testbed
        self._schedule = schedule
        self._network = network
        self._paths = paths
        self._idle_paths = PathTable(testbed)
        self._min_rto_ns = min_rto_ns
        self._window = window
        self._header_bytes = TCP_IP_HEADER_BYTES + ETHERNET_HEADER_BYTES
        self._windows = Windows(testbed.mtu_bytes + ETHERNET_HEADER_BYTES)
        self._next = 0
        # Arrays of shape (columns,): the flow's number or _FREE, the bytes to send, the rate in
        # bytes per ns at which they arrive, the base RTT, when a sender goes on after a timeout.
        self._flow = np.zeros(0, dtype=np.int64)
        self._todo, self._rate, self._base_rtt_ns, self._wake_ns = np.zeros((4, 0))
        # Arrays of shape (flows of the schedule,):
        self._end_ns = np.full(len(schedule), -1, dtype=np.int64)
        self._retransmits = np.zeros(len(schedule))
        # Retransmission timeouts, shape (hosts,):
        self.timeouts = np.zeros(len(testbed.hosts), dtype=np.int64)
        self._last_bytes: _LastBytes | None = None

    def all_ended(self, now_ns: float) -> bool:
        """Return whether every flow of the schedule has ended."""
        all_started = self._next == len(self._schedule)
        none_active = bool((self._flow == _FREE).all())
        return all_started and none_active and bool((self._end_ns <= now_ns).all())

    def idle_until_ns(self) -> int | None:
        """Return when the next flow starts if none is active, else None."""
        if not (self._flow == _FREE).all():
            return None
        all_started = self._next == len(self._schedule)
        return int(_NEVER_NS if all_started else self._schedule.start_ns[self._next])

    def step(self, now_ns: float, step_ns: float) -> None:
        """Let every flow send for `step_ns` from `now_ns` on.

        A sender sends as many bytes as are acknowledged, and closes the gap between its window and
        the bytes in flight exponentially, with the round-trip time as the time constant. That
        solves dq/dt of the fluid model (rate = window / RTT) stably for any step; Euler's method
        would oscillate once the step exceeds the RTT.
        """
        network, windows = self._network, self._windows
        lengths = network.lengths()
        if self._last_bytes is not None:
            self._set_ends(self._last_bytes, lengths)
        if (lengths > network.buffer).any():
            self._retransmit(network.drop_excess(lengths), now_ns)
            lengths = network.lengths()
        self._admit(now_ns + step_ns)

        wait_ns = network.wait_ns(lengths)
        rtt_ns = self._base_rtt_ns + wait_ns
        in_flight = network.backlog.sum(axis=0) + self._rate * self._base_rtt_ns
        gap = windows.window - in_flight
        ack_clocked = self._rate * step_ns
        allowed = ack_clocked - gap * np.expm1(-step_ns / rtt_ns)
        allowed[self._wake_ns > now_ns] = 0.0
        send = np.minimum(np.maximum(allowed, 0.0), self._todo)
        self._todo -= send
        ended = np.flatnonzero((self._todo <= 0.0) & (send > 0.0))
        if len(ended):
            self._record_last_bytes(ended, send, gap, wait_ns, now_ns, step_ns)

        limited = network.backlog[0] < _SMALL_QUEUE_BYTES
        marking = network.marking(lengths)
        marked = marking.take(network.path) if marking.any() else None
        arrived = network.advance(send, marked, step_ns)
        self._rate = arrived / step_ns
        echoed = None if marked is None else 1.0 - np.prod(1.0 - marked, axis=0)
        windows.acknowledge(arrived, limited, echoed)

    def settle(self) -> None:
        """Free the columns of flows whose bytes have all arrived, and update the counters."""
        network = self._network
        if self._last_bytes is not None:
            self._set_ends(self._last_bytes, network.lengths())
        backlog = network.backlog.sum(axis=0)
        delivered = (self._todo <= 0.0) & (backlog < _REST_BYTES)
        done = np.flatnonzero(delivered & (self._flow != _FREE))
        path = network.path.copy()
        network.release(done)
        self._record_flows(path)
        self._flow[done] = _FREE
        self._rate[done] = 0.0

    def reroute(self, paths: Paths) -> None:
        """Move the active flows to new paths, with their bytes in the queues."""
        self._network.count()
        self._record_flows(self._network.path)
        self._paths = paths
        columns = np.flatnonzero(self._flow != _FREE)
        table = paths.table([self._ends(int(self._flow[column])) for column in columns])
        self._network.grow(max(len(table), len(self._network.path)), len(self._flow))
        for column, path in zip(columns.tolist(), table.T, strict=True):
            self._network.assign(column, path, self._network.packets_per_byte[column])

    def _record_flows(self, path: Ints) -> None:
        if self._window is not None:
            payload_share = 1.0 - self._header_bytes * self._network.packets_per_byte
            self._window.record(self._flow, path, self._network.passed * payload_share)

    def records(self, end_ns: int) -> FlowRecords:
        """Return the records of all flows as of `end_ns`. In this model no flow starts late."""
        done = (self._end_ns >= 0) & (self._end_ns <= end_ns)
        return FlowRecords(
            sent_ns=np.where(self._schedule.start_ns <= end_ns, self._schedule.start_ns, -1),
            end_ns=np.where(done, self._end_ns, -1),
            retransmits=np.rint(self._retransmits).astype(np.int64),
            status=np.where(done, DONE, UNFINISHED),
        )

    def retransmits_by_host(self) -> Ints:
        """Return the segments that each host has retransmitted, shape (hosts,)."""
        hosts = len(self._testbed.hosts)
        total = np.bincount(self._schedule.src, self._retransmits, hosts)
        return np.rint(total).astype(np.int64)

    def _admit(self, before_ns: float) -> None:
        """Give columns to the flows that start before this time."""
        schedule = self._schedule
        stop = int(np.searchsorted(schedule.start_ns, before_ns))
        if stop == self._next:
            return
        flows = range(self._next, stop)
        self._next = stop
        free = np.flatnonzero(self._flow == _FREE)
        if len(free) < len(flows):
            self._grow(len(self._flow) + max(_COLUMNS_AT_A_TIME, len(flows)))
            free = np.flatnonzero(self._flow == _FREE)
        table = self._paths.table([self._ends(flow) for flow in flows])
        network = self._network
        if len(table) > len(network.path):
            network.grow(len(table), len(self._flow))
        for number, (flow, column) in enumerate(zip(flows, free.tolist(), strict=False)):
            _, src, dst = self._ends(flow)
            size = int(schedule.size_bytes[flow])
            packets = max(1, -(-size // self._testbed.mss_bytes))
            total = size + packets * self._header_bytes
            network.assign(column, table[:, number], packets / total)
            self._flow[column] = flow
            self._todo[column] = total
            self._base_rtt_ns[column] = self._idle_paths.base_rtt_ns(src, dst)
            self._wake_ns[column] = 0.0
            self._windows.open(column)

    def _ends(self, flow: int) -> tuple[int, str, str]:
        """Return a flow's number again, and the names of its source and its destination."""
        hosts = self._testbed.hosts
        return flow, hosts[self._schedule.src[flow]], hosts[self._schedule.dst[flow]]

    def _grow(self, columns: int) -> None:
        more = (0, columns - len(self._flow))
        self._flow = np.pad(self._flow, more, constant_values=_FREE)
        self._todo = np.pad(self._todo, more)
        self._rate = np.pad(self._rate, more)
        self._base_rtt_ns = np.pad(self._base_rtt_ns, more, constant_values=1.0)
        self._wake_ns = np.pad(self._wake_ns, more)
        self._windows.grow(columns)
        self._network.grow(len(self._network.path), columns)

    def _record_last_bytes(
        self,
        columns: Ints,
        send: Floats,
        gap: Floats,
        wait_ns: Floats,
        now_ns: float,
        step_ns: float,
    ) -> None:
        """Record when the flows of these columns sent their last byte, and the queues at that time.

        The bytes that the window allows are sent at once, the others at the rate of the
        acknowledgements.
        """
        begin = np.maximum(self._schedule.start_ns[self._flow[columns]], now_ns)
        ack_clocked = np.maximum(send[columns] - np.maximum(gap[columns], 0.0), 0.0)
        rate = np.maximum(self._rate[columns], 1e-12)
        spent = np.where(ack_clocked > 0, ack_clocked / rate, 0.0)
        self._last_bytes = _LastBytes(columns, begin + np.minimum(spent, step_ns), wait_ns[columns])

    def _set_ends(self, last: _LastBytes, lengths: Floats) -> None:
        """Set the ends of the flows whose last byte was sent in the previous step.

        That byte is taken to meet the longer of the queues before and after the step. The flow ends
        when the sender gets the acknowledgement. A fluid has no packets, so its FCT could be below
        the ideal FCT, which is therefore a lower bound.
        """
        self._last_bytes = None
        wait_ns = np.maximum(last.wait_ns, self._network.wait_ns(lengths)[last.columns])
        end_ns = last.sent_ns + wait_ns + self._base_rtt_ns[last.columns]
        for column, end in zip(last.columns.tolist(), end_ns.tolist(), strict=True):
            flow, src, dst = self._ends(int(self._flow[column]))
            size = int(self._schedule.size_bytes[flow])
            ideal_ns = self._idle_paths.ideal_fct_ns(src, dst, size)
            self._end_ns[flow] = max(round(end), int(self._schedule.start_ns[flow]) + ideal_ns)

    def _retransmit(self, lost: Floats, now_ns: float) -> None:
        """Retransmit dropped bytes: at once, or after a timeout if nothing else is in flight."""
        network = self._network
        columns = np.flatnonzero(lost > 0)
        flows = self._flow[columns]
        self._todo[columns] += lost[columns]
        self._retransmits[flows] += lost[columns] * network.packets_per_byte[columns]
        self._end_ns[flows] = -1
        silent = (network.backlog.sum(axis=0)[columns] <= 0) & (self._rate[columns] <= 0)
        self._windows.halve(columns[~silent])
        waiting = columns[silent]
        self._windows.time_out(waiting)
        self._wake_ns[waiting] = now_ns + self._min_rto_ns
        np.add.at(self.timeouts, self._schedule.src[self._flow[waiting]], 1)
