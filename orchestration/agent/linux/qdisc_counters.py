"""Reads the counters of the same qdiscs of a namespace again and again, fast.

A dump of all qdiscs has the same layout each time. So the offsets of the needed numbers are learned
once, and one operation extracts all of them. Every dump is checked: if a message is not the same
one as before, or if a change interrupted the dump, the offsets are learned again.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from .netlink import HEADER, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, route_socket
from .qdiscs import (
    RED_MAX_P,
    RED_PARMS,
    RTM_GETQDISC,
    STATS_BASIC,
    STATS_QUEUE,
    TCA_KIND,
    TCA_OPTIONS,
    TCA_STATS2,
    TCA_XSTATS,
    tc_message,
)

_RECEIVE_BYTES = 1 << 16
_TIMEOUT_S = 10.0
_HEADER_BYTES, _TCMSG_BYTES, _DONE_BYTES = 16, 20, 20
_MAX_TRIES = 3
# The 32-bit words that are read of a qdisc, in the order of `CounterReader.words`; RED has more.
PLAIN = ("backlog", "bytes_low", "bytes_high", "packets", "drops")
RED = (*PLAIN, "marked", "kmin", "kmax", "max_p")

# A queue's counters: backlog in bytes, bytes, packets and drops.
Row = tuple[int, int, int, int]


class CounterReader:
    """Reads the counters of `queues`, qdiscs given as (ifindex, handle), in their order.

    All are of one `kind`: red, or another kind without counters of its own. `link` is an rtnetlink
    socket in their namespace, by default a new one in that of this process.
    """

    def __init__(
        self,
        queues: Sequence[tuple[int, int]],
        kind: str = "bfifo",
        link: socket.socket | None = None,
    ) -> None:
        self._queues, self._kind = list(queues), kind
        self._count = len(RED if kind == "red" else PLAIN)
        self._socket = link or route_socket()
        if link is None:
            self._socket.settimeout(_TIMEOUT_S)
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._number = 0
        self._take: Callable[[Any], tuple[int, ...]] | None = None
        self._expected: tuple[int, ...] = ()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def read(self) -> list[Row]:
        """Return the counters of all queues. Raises KeyError with the first one that is missing."""
        backlog, low, high, packets, drops, *_ = self.words()
        sent = [a + (b << 32) for a, b in zip(low, high)] if any(high) else low
        return list(zip(backlog, sent, packets, drops))

    def words(self) -> list[tuple[int, ...]]:
        """Return the words of `PLAIN` or `RED`, each for all queues. Raises as `read` does."""
        if not self._queues:
            return [()] * self._count
        for _ in range(_MAX_TRIES):
            end = self._dump()
            words = memoryview(self._buffer)[: end & ~3].cast("I")
            if self._take is not None and self._max_index < len(words):
                numbers = self._take(words)
                if numbers[: len(self._expected)] == self._expected:
                    count = len(self._queues)
                    return [
                        numbers[at : at + count] for at in range(5 * count, len(numbers), count)
                    ]
            self._learn(end)
        raise OSError("the kernel's queues keep changing while they are read")

    def _dump(self) -> int:
        """Request all qdiscs of the namespace; return the end of the answer in the buffer."""
        self._number += 1
        request = bytearray(tc_message(RTM_GETQDISC, 0, flags=NLM_F_REQUEST | NLM_F_DUMP))
        struct.pack_into("=I", request, 8, self._number)
        self._socket.send(request)
        at = 0
        while True:
            if len(self._buffer) - at < _RECEIVE_BYTES:
                # not extended in place: views of the buffer may still exist
                self._buffer = self._buffer + bytes(len(self._buffer))
            got, _, flags, _ = self._socket.recvmsg_into([memoryview(self._buffer)[at:]])
            if flags & socket.MSG_TRUNC:
                raise OSError("the kernel's answer is longer than the buffer")
            length, kind, _, number, _ = HEADER.unpack_from(self._buffer, at)
            if number != self._number:  # of a dump that was abandoned
                continue
            if kind == NLMSG_ERROR:
                raise OSError("the kernel refused to list the queues")
            if length == got and kind == NLMSG_DONE:
                return at
            at += got
            if got >= _DONE_BYTES:
                length, kind, _, number, _ = HEADER.unpack_from(self._buffer, at - _DONE_BYTES)
                if (length, kind, number) == (_DONE_BYTES, NLMSG_DONE, self._number):
                    return at

    def _learn(self, end: int) -> None:
        """Learn the offsets of each queue's words. Raises KeyError with a missing queue."""
        attributes_by_queue: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        at = 0
        while at + _HEADER_BYTES <= end:
            length, kind, _, _, _ = HEADER.unpack_from(self._buffer, at)
            if length < _HEADER_BYTES or kind == NLMSG_DONE:
                break
            first = at + _HEADER_BYTES + _TCMSG_BYTES
            queue = struct.unpack_from("=iI", self._buffer, at + _HEADER_BYTES + 4)
            spans = attributes_within(self._buffer, first, at + length)
            name_at, name_end = spans[TCA_KIND]
            if bytes(self._buffer[name_at:name_end]) == self._kind.encode() + b"\0":
                attributes_by_queue[queue] = {0: (at, at + length), **spans}
            at += (length + 3) & ~3
        # Five words are checked: the message's length; its type and flags, so that an interrupted
        # dump does not match; interface and handle; the header of the counters. Then come the
        # words.
        rows = [self._offsets(attributes_by_queue[queue]) for queue in self._queues]
        indices = [offset // 4 for column in zip(*rows) for offset in column]
        self._max_index = max(indices)
        self._take = itemgetter(*indices)
        words = memoryview(self._buffer)[: end & ~3].cast("I")
        self._expected = self._take(words)[: 5 * len(self._queues)]

    def _offsets(self, spans: dict[int, tuple[int, int]]) -> tuple[int, ...]:
        """Return the offsets of a queue's checked words, then of the words that are read.

        `spans` has the (start, end) of its attributes by kind, and of the message as 0.
        """
        at = spans[0][0]
        inner = attributes_within(self._buffer, *spans[TCA_STATS2])
        basic, queue = inner[STATS_BASIC][0], inner[STATS_QUEUE][0]
        checks = (at, at + 4, at + 20, at + 24, queue - 4)
        plain = (*checks, queue + 4, basic, basic + 4, basic + 8, queue + 8)
        if self._kind != "red":
            return plain
        options = attributes_within(self._buffer, *spans[TCA_OPTIONS])
        parameters = options[RED_PARMS][0]
        marked = spans[TCA_XSTATS][0] + 12
        return (*plain, marked, parameters + 4, parameters + 8, options[RED_MAX_P][0])


def attributes_within(buffer: bytearray, at: int, end: int) -> dict[int, tuple[int, int]]:
    """Return the netlink attributes between two offsets: kind -> (start, end) of the payload."""
    result = {}
    while at + 4 <= end:
        length, kind = struct.unpack_from("=HH", buffer, at)
        if length < 4:
            break
        result[kind & 0x3FFF] = (at + 4, at + length)
        at += (length + 3) & ~3
    return result
