"""Routing netlink for agents: requests, dumps, qdiscs, and RED's parameters.

Struct layouts: linux/netlink.h, linux/rtnetlink.h, linux/pkt_sched.h. Requests for qdiscs are built
by `orchestration.device.qdiscs`.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

RTM_NEWADDR, RTM_GETADDR = 20, 22
RTM_NEWROUTE, RTM_GETROUTE = 24, 26
RTM_NEWRULE, RTM_GETRULE = 32, 34
RTM_NEWQDISC, RTM_GETQDISC = 36, 38

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP, _NLM_F_DUMP_INTR = 0x1, 0x4, 0x300, 0x10
_NLM_F_CAPPED, _NLM_F_ACK_TLVS = 0x100, 0x200
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_NLMSGERR_ATTR_MSG = 1

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TCMSG = struct.Struct("=BxxxiIII")
_TCA_KIND, _TCA_OPTIONS, _TCA_XSTATS, _TCA_STATS2 = 1, 2, 4, 7
_STATS_BASIC, _STATS_QUEUE = 1, 3
_RED_PARMS, _RED_STAB, _RED_MAX_P, _RED_FLAGS = 1, 2, 3, 4

_RECEIVE_BYTES = 1 << 18
_TIMEOUT_S = 10.0
# Acknowledgements of one batch must fit the socket's receive buffer.
_BATCH = 64
_DUMP_TRIES = 8


class RouteSocket:
    """A routing netlink socket. One request or dump at a time; answers are awaited."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        self._socket.settimeout(_TIMEOUT_S)
        self._socket.bind((0, 0))
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._number = 0

    def __enter__(self) -> RouteSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def request(self, requests: Sequence[bytes]) -> None:
        """Have all requests done, in order. Raises OSError for the first one that failed.

        The others are tried all the same. The error's text is the kernel's own where it gives one.
        """
        for error in self.answers(requests):
            if error is not None:
                raise error

    def answers(self, requests: Sequence[bytes]) -> list[OSError | None]:
        """Have all requests done, in order; return each one's error, or None."""
        result: list[OSError | None] = []
        for start in range(0, len(requests), _BATCH):
            batch = requests[start : start + _BATCH]
            first = self._number + 1
            self._number += len(batch)
            self._socket.send(
                b"".join(
                    _stamped(message, _NLM_F_REQUEST | _NLM_F_ACK, first + place)
                    for place, message in enumerate(batch)
                )
            )
            found: dict[int, OSError | None] = {}
            while len(found) < len(batch):
                for kind, flags, number, payload in self._receive():
                    # answers to a request given up earlier have lower numbers
                    if kind == _NLMSG_ERROR and first <= number < first + len(batch):
                        found[number] = _error(flags, payload)
            result.extend(found[first + place] for place in range(len(batch)))
        return result

    def dump(self, request: bytes) -> list[tuple[int, bytes]]:
        """Return all messages that answer a dump request, as (type, payload).

        A dump that was disturbed by a change is asked for again.
        """
        for _ in range(_DUMP_TRIES):
            messages, disturbed = self._dump(request)
            if not disturbed:
                return messages
        raise OSError("the kernel's tables keep changing while they are read")

    def _dump(self, request: bytes) -> tuple[list[tuple[int, bytes]], bool]:
        self._number += 1
        self._socket.send(_stamped(request, _NLM_F_REQUEST | _NLM_F_DUMP, self._number))
        messages: list[tuple[int, bytes]] = []
        disturbed = False
        while True:
            for kind, flags, number, payload in self._receive():
                if number != self._number:
                    continue
                disturbed = disturbed or bool(flags & _NLM_F_DUMP_INTR)
                if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                    code = struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return messages, disturbed
                messages.append((kind, payload))

    def _receive(self) -> list[tuple[int, int, int, bytes]]:
        size, _, flags, _ = self._socket.recvmsg_into([self._buffer])
        if flags & socket.MSG_TRUNC:
            raise OSError("the kernel's answer is longer than it may be")
        view, at = memoryview(self._buffer), 0
        messages = []
        while at + 16 <= size:
            length, kind, flags, number, _ = _HEADER.unpack_from(view, at)
            if length < 16 or at + length > size:
                raise OSError("the kernel's answer is cut short")
            messages.append((kind, flags, number, bytes(view[at + 16 : at + length])))
            at += (length + 3) & ~3
        return messages


def _stamped(message: bytes, flags: int, number: int) -> bytes:
    length, kind, own, _, _ = _HEADER.unpack_from(message)
    return _HEADER.pack(length, kind, own | flags, number, 0) + message[16:]


def _error(flags: int, payload: bytes) -> OSError | None:
    code = struct.unpack_from("=i", payload)[0]
    if not code:
        return None
    text = ""
    if flags & _NLM_F_ACK_TLVS:
        # with NETLINK_CAP_ACK the answer repeats the request's header only
        inner = struct.unpack_from("=I", payload, 4)[0]
        at = 4 + (16 if flags & _NLM_F_CAPPED else (inner + 3) & ~3)
        said = attributes(payload, at).get(_NLMSGERR_ATTR_MSG, b"")
        text = said.rstrip(b"\0").decode(errors="replace")
    name = os.strerror(-code)
    return OSError(-code, f"{name} ({text})" if text else name)


def message(kind: int, body: bytes) -> bytes:
    """Return a netlink message of a type; `RouteSocket` fills in flags and number."""
    return _HEADER.pack(16 + len(body), kind, 0, 0, 0) + body


def attribute(kind: int, payload: bytes) -> bytes:
    """Return one netlink attribute, padded."""
    length = 4 + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)


def attributes(payload: bytes, at: int = 0) -> dict[int, bytes]:
    """Return the attributes from an offset on, by type; flags are taken off the type."""
    result = {}
    while at + 4 <= len(payload):
        length, kind = _ATTRIBUTE.unpack_from(payload, at)
        if length < 4 or at + length > len(payload):
            break
        result[kind & 0x3FFF] = payload[at + 4 : at + length]
        at += (length + 3) & ~3
    return result


class Qdisc(NamedTuple):
    """One queueing discipline with its counters. `backlog` is in bytes, `qlen` in packets."""

    ifindex: int
    handle: int
    parent: int
    kind: str
    options: bytes
    bytes_: int
    packets: int
    drops: int
    overlimits: int
    backlog: int
    qlen: int
    xstats: bytes


# A dump of all qdiscs of the namespace.
DUMP_QDISCS = message(RTM_GETQDISC, bytes(20))


def qdiscs(route: RouteSocket) -> list[Qdisc]:
    """Return all qdiscs of the namespace, interface by interface."""
    return [_qdisc(payload) for kind, payload in route.dump(DUMP_QDISCS) if kind == RTM_NEWQDISC]


def _qdisc(payload: bytes) -> Qdisc:
    _, ifindex, handle, parent, _ = _TCMSG.unpack_from(payload)
    found = attributes(payload, _TCMSG.size)
    stats = attributes(found.get(_TCA_STATS2, b""))
    basic = struct.unpack_from("=QI", stats.get(_STATS_BASIC, bytes(12)))
    qlen, backlog, drops, _, overlimits = struct.unpack_from(
        "=5I", stats.get(_STATS_QUEUE, bytes(20))
    )
    return Qdisc(
        ifindex,
        handle,
        parent,
        found[_TCA_KIND].rstrip(b"\0").decode(errors="replace"),
        found.get(_TCA_OPTIONS, b""),
        basic[0],
        basic[1],
        drops,
        overlimits,
        backlog,
        qlen,
        found.get(_TCA_XSTATS, b""),
    )


class Red(NamedTuple):
    """RED's parameters as the kernel has them (struct tc_red_qopt).

    `max_p` is the 32-bit probability. `flags` are ECN 1, harddrop 2, adaptive 4, nodrop 8; `known`
    are those that this kernel knows. `limit_bytes` reads 0 after a change that left the inner queue
    alone; the inner queue's own bound is then the earlier one.
    """

    limit_bytes: int
    kmin_bytes: int
    kmax_bytes: int
    wlog: int
    plog: int
    scell_log: int
    max_p: int
    flags: int
    known: int


def red_parameters(options: bytes) -> Red:
    """Decode a RED qdisc's options."""
    found = attributes(options)
    limit, kmin, kmax, wlog, plog, scell_log, old_flags = struct.unpack_from(
        "=IIIBBBB", found[_RED_PARMS]
    )
    (max_p,) = struct.unpack_from("=I", found.get(_RED_MAX_P, bytes(4)))
    flags, known = old_flags, 0
    if _RED_FLAGS in found:
        flags, known = struct.unpack_from("=II", found[_RED_FLAGS])
    return Red(limit, kmin, kmax, wlog, plog, scell_log, max_p, flags, known)


def red_request(ifindex: int, handle: int, parent: int, red: Red) -> bytes:
    """Change a RED to all the given parameters.

    With `limit_bytes` 0 everything queued and the inner queue stay; any other value purges it and
    makes a new inner queue of that bound (__red_change, net/sched/sch_red.c).
    """
    old_flags = 0 if red.known else red.flags
    parms = struct.pack(
        "=IIIBBBB",
        red.limit_bytes,
        red.kmin_bytes,
        red.kmax_bytes,
        red.wlog,
        red.plog,
        red.scell_log,
        old_flags,
    )
    options = (
        attribute(_RED_PARMS, parms)
        + attribute(_RED_STAB, _idle_table(red.wlog, red.scell_log))
        + attribute(_RED_MAX_P, struct.pack("=I", red.max_p))
    )
    if red.known:
        options += attribute(_RED_FLAGS, struct.pack("=II", red.flags, red.known))
    body = _TCMSG.pack(0, ifindex, handle, parent, 0)
    body += attribute(_TCA_KIND, b"red\0") + attribute(_TCA_OPTIONS, options)
    return message(RTM_NEWQDISC, body)


def _idle_table(wlog: int, scell_log: int) -> bytes:
    """Return how far the average decays in idle time, as shifts for 256 cells of time.

    The kernel does not tell the table it has. With weight 1 an idle queue counts as empty at once.
    Otherwise tc (tc_red_eval_idle_damping) makes the shift grow linearly with time, to reach 31
    between the 256th and the 512th cell: the middle is taken.
    """
    if wlog == 0 and scell_log == 0:
        return bytes([31]) * 256
    return bytes(min(31, cell * 31 // 384) for cell in range(255)) + bytes([31])


def interface_index(name: str) -> int:
    """Return an interface's index. Raises OSError that names it."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        raise OSError(errno.ENODEV, f"there is no interface {name!r}") from None
