"""Sends a schedule with TCP sockets: one process, one epoll loop for all hosts.

Each flow is a connection of its own, made before the trial's time 0 so that the handshake is not
part of its time. At its start the sender hands over its bytes and closes its direction; the
receiver closes when it has read everything; the sender's end time is when it learns of that.

What makes it fast is few system calls: a mouse goes down in one `send`, the receiver is woken once
(SO_RCVLOWAT) and discards in the kernel (MSG_TRUNC). What keeps it exact in virtual time is that
no call fails: the virtual-time kernel charges a microsecond for every error, EAGAIN included.
Source ports are fixed by the schedule, so that the five-tuple, and with it the ECMP path, is the
same for every tuner.

With traffic classes, both ends of a flow are set to its class (see `Service`). The receiver's end
inherits from the socket that listened: so acknowledgements travel in the flow's class, and each
class has a port to listen at.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.model.records import DONE, FAILED, UNFINISHED, FlowRecords, Schedule

READ_LOW_WATER_BYTES = 4_000_000
_DISCARD_BYTES = 1 << 24
# Handing bytes to TCP reads the clock for each packet, which costs a nanosecond of virtual time:
# small enough pieces let no other flow's start wait for long.
_SEND_BYTES = 1 << 19
_UNTIL_SENT = select.EPOLLRDHUP | select.EPOLLOUT
_TCP_INFO_BYTES = 104  # up to and with tcpi_total_retrans
_SOURCE_PORT_LIMIT = 65_000
_BACKLOG = 65_535


@dataclass(frozen=True)
class Service:
    """How flows of one traffic class are sent: the class's number, its type of service, its TCP.

    `tos` is the byte of the IPv4 header, whose two ECN bits stay TCP's own. With
    `congestion_control` "" the host's default holds.
    """

    number: int = 0
    tos: int = 0
    congestion_control: str = ""

    def apply(self, made: socket.socket) -> None:
        """Set a socket that is not connected yet, or one that listens for its like."""
        if self.tos:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self.tos)
        if self.congestion_control:
            name = self.congestion_control.encode()
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)


@dataclass(frozen=True)
class Endpoints:
    """Where the hosts are: per host (in the schedule's order) its namespace and NIC addresses.

    Class number n listens at `listen_port` + n.
    """

    namespaces: Sequence[int]
    addresses: Sequence[Sequence[str]]
    listen_port: int
    first_source_port: int


class Board:
    """Flow results in memory shared between the driver's process and its parent.

    `done` counts the flows that have ended; reading it costs no system call.
    """

    def __init__(self, flows: int, buffer: memoryview | bytearray) -> None:
        words = np.frombuffer(buffer, dtype=np.int64, count=self.words(flows))
        self._head = words[:2]
        self.sent_ns, self.end_ns, self.retransmits, self.status = (
            words[2 + i * flows : 2 + (i + 1) * flows] for i in range(4)
        )
        self.sent_ns[:] = -1
        self.end_ns[:] = -1
        self.status[:] = UNFINISHED

    @staticmethod
    def words(flows: int) -> int:
        """Size of the shared memory in 8-byte words."""
        return 2 + 4 * flows

    @property
    def done(self) -> int:
        """Flows that ended, well or badly."""
        return int(self._head[0])

    @done.setter
    def done(self, value: int) -> None:
        self._head[0] = value

    @property
    def t0_ns(self) -> int:
        """CLOCK_MONOTONIC at the trial's time 0."""
        return int(self._head[1])

    @t0_ns.setter
    def t0_ns(self, value: int) -> None:
        self._head[1] = value

    def records(self) -> FlowRecords:
        """Return a copy of the results."""
        return FlowRecords(
            sent_ns=self.sent_ns.copy(),
            end_ns=self.end_ns.copy(),
            retransmits=self.retransmits.copy(),
            status=self.status.copy(),
        )


class SocketDriver:
    """Sends one schedule. `prepare` opens sockets, `run` is the loop.

    `services` has one entry for each of the schedule's patterns (`Schedule.klass`); without any,
    sockets are as the hosts have them.
    """

    def __init__(
        self,
        schedule: Schedule,
        endpoints: Endpoints,
        enter_namespace: Callable[[int], None],
        board: Board,
        services: Sequence[Service] = (),
    ) -> None:
        self._ends = endpoints
        self._enter = enter_namespace
        self._board = board
        self._start = schedule.start_ns.tolist()
        self._src = schedule.src.tolist()
        self._dst = schedule.dst.tolist()
        self._size = schedule.size_bytes.tolist()
        if services:
            self._service = [services[pattern] for pattern in schedule.klass.tolist()]
        else:
            self._service = [Service()] * len(schedule)
        self._left = list(self._size)
        self._received = [0] * len(self._start)
        self._senders: list[socket.socket | None] = [None] * len(self._start)
        self._sending: dict[int, int] = {}
        self._receiving: dict[int, tuple[socket.socket, int]] = {}
        self._zeros = memoryview(bytes(_SEND_BYTES))
        self._sink = bytearray(_DISCARD_BYTES)
        self._epoll = select.epoll()
        self._timer = _Timer()
        self._done = 0

    def prepare(self) -> None:
        """Connect every flow. Takes virtual time: a round trip a flow."""
        flows_from: dict[int, list[int]] = {}
        arrivals: dict[tuple[int, Service], int] = {}
        for flow, (src, dst) in enumerate(zip(self._src, self._dst, strict=True)):
            flows_from.setdefault(src, []).append(flow)
            end = (dst, self._service[flow])
            arrivals[end] = arrivals.get(end, 0) + 1
        listeners = {end: self._listener(*end) for end in arrivals}
        flow_of_peer: dict[tuple[str, int], int] = {}
        for host, flows in flows_from.items():
            self._enter(self._ends.namespaces[host])
            for order, flow in enumerate(flows):
                flow_of_peer[self._connect(host, flow, order)] = flow
        for end, listener in listeners.items():
            for _ in range(arrivals[end]):
                connection, peer = listener.accept()
                self._receiving[connection.fileno()] = (connection, flow_of_peer[peer])
                self._epoll.register(connection.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
            listener.close()

    def _listener(self, host: int, service: Service) -> socket.socket:
        self._enter(self._ends.namespaces[host])
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, READ_LOW_WATER_BYTES)
        service.apply(listener)
        listener.bind(("0.0.0.0", self._ends.listen_port + service.number))
        listener.listen(_BACKLOG)
        return listener

    def _connect(self, host: int, flow: int, order: int) -> tuple[str, int]:
        """Connect a flow from its NIC to the other host's; return its source address."""
        port = self._ends.first_source_port + order
        if port > _SOURCE_PORT_LIMIT:
            raise OSError(f"host {host} starts more than {order} flows: shorten the trial")
        near, far = (self._ends.addresses[end] for end in (host, self._dst[flow]))
        address = (near[flow % len(near)], port)
        sender = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sender.bind(address)
        service = self._service[flow]
        service.apply(sender)
        sender.connect((far[flow % len(far)], self._ends.listen_port + service.number))
        self._senders[flow] = sender
        return address

    def run(self, t0_ns: int, end_ns: int) -> None:
        """Send everything; return when all flows ended or at `end_ns` after `t0_ns`.

        `t0_ns` is the CLOCK_MONOTONIC time of the trial's time 0.
        """
        flows, starts, timer = len(self._start), self._start, self._timer
        self._epoll.register(timer.fd, select.EPOLLIN)
        next_start, due_ns = 0, (starts[0] if flows else end_ns)
        timer.arm(t0_ns + due_ns)
        while self._done < flows:
            events = self._epoll.poll()
            now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - t0_ns
            if now_ns >= due_ns:
                if now_ns >= end_ns:
                    break
                while next_start < flows and starts[next_start] <= now_ns:
                    self._begin(next_start, now_ns)
                    next_start += 1
                due_ns = min(end_ns, starts[next_start]) if next_start < flows else end_ns
                timer.arm(t0_ns + due_ns)
            for fd, mask in events:
                if fd in self._receiving:
                    self._on_receiver(fd)
                elif fd in self._sending:
                    self._on_sender(self._sending[fd], mask, now_ns)
        self._abandon()

    def _begin(self, flow: int, now_ns: int) -> None:
        sender = self._senders[flow]
        assert sender is not None
        fd = sender.fileno()
        self._sending[fd] = flow
        self._push(flow, sender, now_ns)
        if self._senders[flow] is not None:
            self._epoll.register(fd, _UNTIL_SENT if self._left[flow] else select.EPOLLRDHUP)

    def _push(self, flow: int, sender: socket.socket, now_ns: int) -> None:
        """Hand over the next piece, and the end of the stream after the last one."""
        left = self._left[flow]
        try:
            left -= sender.send(self._zeros[:left], socket.MSG_DONTWAIT)
            if self._board.sent_ns[flow] < 0:
                self._board.sent_ns[flow] = now_ns
            self._left[flow] = left
            if not left:
                sender.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._end(flow, FAILED, -1)

    def _on_sender(self, flow: int, mask: int, now_ns: int) -> None:
        sender = self._senders[flow]
        if sender is None:
            return
        if mask & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            good = not self._left[flow] and self._received[flow] == self._size[flow]
            self._end(flow, DONE if good else FAILED, now_ns if good else -1)
        elif self._left[flow]:
            self._push(flow, sender, now_ns)
            if not self._left[flow] and self._senders[flow] is not None:
                self._epoll.modify(sender.fileno(), select.EPOLLRDHUP)

    def _end(self, flow: int, status: int, end_ns: int) -> None:
        sender = self._senders[flow]
        assert sender is not None
        board = self._board
        board.end_ns[flow] = end_ns
        board.status[flow] = status
        board.retransmits[flow] = _retransmits(sender)
        self._sending.pop(sender.fileno(), None)
        sender.close()
        self._senders[flow] = None
        self._done += 1
        board.done = self._done

    def _on_receiver(self, fd: int) -> None:
        connection, flow = self._receiving[fd]
        flags = socket.MSG_TRUNC | socket.MSG_DONTWAIT
        ended = False
        try:
            got = connection.recv_into(self._sink, _DISCARD_BYTES, flags)
            ended = got == 0
            self._received[flow] += got
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended or self._received[flow] >= self._size[flow]:
            del self._receiving[fd]
            connection.close()

    def _abandon(self) -> None:
        for flow, sender in enumerate(self._senders):
            if sender is not None:
                self._board.retransmits[flow] = _retransmits(sender)
                sender.close()


def _retransmits(sender: socket.socket) -> int:
    try:
        info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return 0
    return int(struct.unpack_from("=I", info, 100)[0])


class _Timer:
    """A timerfd: epoll's own timeout counts milliseconds, and Python 3.11 has no timerfd."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def arm(self, at_ns: int) -> None:
        """Make `fd` readable at the absolute time `at_ns`; the last call counts."""
        value = struct.pack("=qqqq", 0, 0, *divmod(at_ns, 10**9))
        if self._libc.timerfd_settime(self.fd, 1, value, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
