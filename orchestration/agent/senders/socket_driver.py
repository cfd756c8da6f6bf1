"""Sends a schedule with TCP sockets: one process with one epoll loop for one or several hosts.

Each flow is a separate connection, made before the trial's time 0, so that the handshake is not
part of its completion time. At the flow's start, the sender hands its bytes to TCP and closes its
direction. The receiver closes the connection when it has read everything. The flow ends when the
sender learns of that.

The driver is fast because it makes few system calls and no copies. A short flow takes one
`sendfile` of a file that is one hole, so that every packet refers to the kernel's page of zeros.
The receiver is woken once (SO_RCVLOWAT), and discards the bytes in the kernel (MSG_TRUNC). The
driver is exact in virtual time because no call fails: the virtual-time kernel charges a microsecond
for every error, also for EAGAIN. The schedule fixes source ports, so that a flow's five-tuple and
ECMP path are the same for every tuner.

With traffic classes, both ends of a flow are set to its class (see `Service`). The receiver's end
inherits its settings from the listening socket. So acknowledgements are sent in the flow's class,
and each class has its own listening port.

The emulated backend runs one such process for all hosts; on a rack, each host runs one for its own
flows.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Collection

from ...core.status import DONE, FAILED, UNFINISHED
from .connections import Flows, Service

READ_LOW_WATER_BYTES = 4_000_000
_DISCARD_BYTES = 1 << 24
# TCP reads the clock for each packet that it is handed, which costs a nanosecond of virtual time.
# With pieces of this size, no other flow's start is delayed for long.
_SEND_BYTES = 1 << 19
_UNTIL_SENT = select.EPOLLRDHUP | select.EPOLLOUT
_TCP_INFO_BYTES = 104  # up to and including tcpi_total_retrans
_BACKLOG = 65_535
# struct linger: closing resets the connection and drops its state, or ends it in the usual way.
_RESET_ON_CLOSE, _NORMAL_CLOSE = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)
# Results of each flow: times, -1 for never; retransmissions; how it ended; how much was received.
COLUMNS = ("sent_ns", "end_ns", "retransmits", "status", "received_bytes")


class Board:
    """Flow results in memory shared between the driver's process and its parent.

    Every list has one entry per flow. `received_bytes` is how much the receiver has read, if this
    process has that end. `done` counts the flows sent by this process that have ended; reading it
    costs no system call.
    """

    def __init__(self, flows: int, buffer: memoryview) -> None:
        words = buffer.cast("q")
        self._head = words[:2]
        self.sent_ns, self.end_ns, self.retransmits, self.status, self.received_bytes = (
            words[2 + i * flows : 2 + (i + 1) * flows] for i in range(len(COLUMNS))
        )
        for flow in range(flows):
            self.sent_ns[flow] = self.end_ns[flow] = -1
            self.status[flow] = UNFINISHED

    @staticmethod
    def size_bytes(flows: int) -> int:
        """Return the size of the shared memory for this many flows."""
        return 8 * (2 + len(COLUMNS) * flows)

    @property
    def done(self) -> int:
        """The number of flows that have ended, successfully or not."""
        return self._head[0]

    @done.setter
    def done(self, value: int) -> None:
        self._head[0] = value

    @property
    def t0_ns(self) -> int:
        """The CLOCK_MONOTONIC time of the trial's time 0."""
        return self._head[1]

    @t0_ns.setter
    def t0_ns(self, value: int) -> None:
        self._head[1] = value


class SocketDriver:
    """Sends the flows between hosts. `prepare` opens sockets, `run` is the loop.

    `enter` is called with a host's number before a socket of that host is opened. With
    `local_hosts`, only the ends on these hosts are opened; other drivers open the rest. The caller
    then calls `listen`, `connect` and `accept` instead of `prepare`, each after all drivers have
    finished the step before. A connection that is not made within `connect_timeout_s` raises
    OSError. With that timeout, a connection that is still open at the end of the trial or of the
    driver is reset: the other host may be unreachable, and the connection would otherwise occupy
    the next trial's ports for minutes.
    """

    def __init__(
        self,
        flows: Flows,
        enter: Callable[[int], None],
        board: Board,
        local_hosts: Collection[int] | None = None,
        connect_timeout_s: float | None = None,
    ) -> None:
        self._flows = flows
        self._connect_timeout_s = connect_timeout_s
        self._enter = enter
        self._board = board
        all_flows = range(len(flows))
        self._outgoing = [
            f for f in all_flows if local_hosts is None or flows.src[f] in local_hosts
        ]
        self._incoming = [
            f for f in all_flows if local_hosts is None or flows.dst[f] in local_hosts
        ]
        self._received_here = set(self._incoming)
        self._size = flows.size_bytes
        self._left = list(self._size)
        self._senders: list[socket.socket | None] = [None] * len(flows)
        self._listeners: dict[tuple[int, Service], socket.socket] = {}
        self._sending: dict[int, int] = {}
        self._receiving: dict[int, tuple[socket.socket, int]] = {}
        self._zeros = os.memfd_create("zeros", os.MFD_CLOEXEC)
        os.ftruncate(self._zeros, _SEND_BYTES)
        self._sink = bytearray(_DISCARD_BYTES)
        self._epoll = select.epoll()
        self._timer = _Timer()
        self._done = 0

    def prepare(self) -> None:
        """Connect every flow. This takes virtual time, one round trip per flow."""
        self.listen()
        self.connect()
        self.accept()

    def listen(self) -> None:
        """Open the listening sockets."""
        for flow in self._incoming:
            end = (self._flows.dst[flow], self._flows.service[flow])
            if end not in self._listeners:
                self._listeners[end] = self._listener(*end, self._flows.far[flow][1])

    def connect(self) -> None:
        """Connect the flows that are sent from here, host by host."""
        by_host: dict[int, list[int]] = {}
        for flow in self._outgoing:
            by_host.setdefault(self._flows.src[flow], []).append(flow)
        for host, flows in by_host.items():
            self._enter(host)
            for flow in flows:
                sender = self._stream_socket()
                sender.bind(self._flows.near[flow])
                self._flows.service[flow].apply(sender)
                self._connect(sender, flow)
                sender.setblocking(False)
                self._senders[flow] = sender

    def _connect(self, sender: socket.socket, flow: int) -> None:
        near, far = self._flows.near[flow], self._flows.far[flow]
        if self._connect_timeout_s is not None:
            sender.settimeout(self._connect_timeout_s)
        try:
            sender.connect(far)
        except OSError as error:
            raise OSError(f"{near[0]} gets no connection to {far[0]}: {error}") from error
        if self._connect_timeout_s is not None:
            sender.settimeout(None)

    def accept(self) -> None:
        """Accept the flows that are received here; refuse all other connections."""
        flow_of_peer = {self._flows.near[flow]: flow for flow in self._incoming}
        arrivals: dict[tuple[int, Service], int] = {}
        for flow in self._incoming:
            end = (self._flows.dst[flow], self._flows.service[flow])
            arrivals[end] = arrivals.get(end, 0) + 1
        for end, listener in self._listeners.items():
            if self._connect_timeout_s is not None:
                listener.settimeout(self._connect_timeout_s)
            while arrivals[end]:
                connection, peer = listener.accept()
                if peer not in flow_of_peer:  # anybody who reaches the host may connect to the port
                    connection.close()
                    continue
                arrivals[end] -= 1
                self._receiving[connection.fileno()] = (connection, flow_of_peer.pop(peer))
                self._epoll.register(connection.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
            listener.close()

    def _listener(self, host: int, service: Service, port: int) -> socket.socket:
        self._enter(host)
        listener = self._stream_socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, READ_LOW_WATER_BYTES)
        service.apply(listener)
        listener.bind(("0.0.0.0", port))
        listener.listen(_BACKLOG)
        return listener

    def run(self, t0_ns: int, end_ns: int) -> None:
        """Send all flows; return when all flows here have ended, or `end_ns` after `t0_ns`.

        `t0_ns` is the CLOCK_MONOTONIC time of the trial's time 0.
        """
        outgoing, timer = self._outgoing, self._timer
        starts, flows = [self._flows.start_ns[flow] for flow in outgoing], len(outgoing)
        self._epoll.register(timer.fd, select.EPOLLIN)
        next_start, due_ns = 0, (starts[0] if flows else end_ns)
        timer.arm(t0_ns + due_ns)
        while self._done < flows or self._receiving:
            events = self._epoll.poll()
            now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - t0_ns
            if now_ns >= due_ns:
                if now_ns >= end_ns:
                    break
                while next_start < flows and starts[next_start] <= now_ns:
                    self._begin(outgoing[next_start], now_ns)
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
        """Hand the next piece to TCP, and after the last one close the direction."""
        left_bytes = self._left[flow]
        try:
            left_bytes -= os.sendfile(sender.fileno(), self._zeros, 0, min(left_bytes, _SEND_BYTES))
            if self._board.sent_ns[flow] < 0:
                self._board.sent_ns[flow] = now_ns
            self._left[flow] = left_bytes
            if not left_bytes:
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
            succeeded = not self._left[flow]
            if flow in self._received_here:
                succeeded = succeeded and self._board.received_bytes[flow] == self._size[flow]
            self._end(flow, DONE if succeeded else FAILED, now_ns if succeeded else -1)
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
        self._close(sender)
        self._senders[flow] = None
        self._done += 1
        board.done = self._done

    def _on_receiver(self, fd: int) -> None:
        connection, flow = self._receiving[fd]
        flags = socket.MSG_TRUNC | socket.MSG_DONTWAIT
        is_finished = False
        try:
            received_bytes = connection.recv_into(self._sink, _DISCARD_BYTES, flags)
            is_finished = received_bytes == 0
            self._board.received_bytes[flow] += received_bytes
        except BlockingIOError:
            return
        except OSError:
            is_finished = True
        if is_finished or self._board.received_bytes[flow] >= self._size[flow]:
            del self._receiving[fd]
            self._close(connection)

    def _stream_socket(self) -> socket.socket:
        """Return a new socket; connections that it accepts inherit its settings."""
        stream_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # an earlier trial's connections may linger on these ports
        stream_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._connect_timeout_s is not None:
            stream_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        return stream_socket

    def _close(self, is_finished: socket.socket) -> None:
        if self._connect_timeout_s is not None:
            is_finished.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NORMAL_CLOSE)
        is_finished.close()

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
    """A timerfd, since epoll's timeout is in milliseconds and Python 3.11 has no timerfd."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def arm(self, at_ns: int) -> None:
        """Make `fd` readable at the absolute time `at_ns`, instead of that of an earlier call."""
        value = struct.pack("=qqqq", 0, 0, *divmod(at_ns, 10**9))
        if self._libc.timerfd_settime(self.fd, 1, value, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
