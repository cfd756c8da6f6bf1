"""Reads the same qdiscs of a namespace again and again: their counters, by places in the answer.

A dump has the same layout each time, so the places of numbers are learned once, and one operation
takes all of them out. With each dump goes a check that every message is the one it was: if not, or
if a change interrupted the dump, everything is learned anew.
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
_TRIES = 3
# Words of a queue, in the order of `CounterReader.words`; RED has more.
PLAIN = ("backlog", "bytes_low", "bytes_high", "packets", "drops")
RED = (*PLAIN, "marked", "kmin", "kmax", "max_p")

# A queue's counters: backlog in bytes, bytes, packets and drops.
Row = tuple[int, int, int, int]


class CounterReader:
    """Reads the counters of some qdiscs, given as (ifindex, handle), in their order.

    They are of one `kind`: red, or another without counters of its own. `link` is the socket of
    their namespace, by default that of this process.
    """

    def __init__(
        self,
        places: Sequence[tuple[int, int]],
        kind: str = "bfifo",
        link: socket.socket | None = None,
    ) -> None:
        self._places, self._kind = list(places), kind
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
        """Return the counters of all qdiscs. Raises KeyError with the first that is not there."""
        backlog, low, high, packets, drops, *_ = self.words()
        sent = [a + (b << 32) for a, b in zip(low, high)] if any(high) else low
        return list(zip(backlog, sent, packets, drops))

    def words(self) -> list[tuple[int, ...]]:
        """Return the words of `PLAIN` or `RED`, each for all qdiscs. Raises as `read`."""
        if not self._places:
            return [()] * self._count
        for _ in range(_TRIES):
            end = self._dump()
            words = memoryview(self._buffer)[: end & ~3].cast("I")
            if self._take is not None and self._reaches < len(words):
                found = self._take(words)
                if found[: len(self._expected)] == self._expected:
                    count = len(self._places)
                    return [found[at : at + count] for at in range(5 * count, len(found), count)]
            self._learn(end)
        raise OSError("the kernel's queues keep changing while they are read")

    def _dump(self) -> int:
        """Ask for all qdiscs; return the end of the answer in the buffer."""
        self._number += 1
        request = bytearray(tc_message(RTM_GETQDISC, 0, flags=NLM_F_REQUEST | NLM_F_DUMP))
        struct.pack_into("=I", request, 8, self._number)
        self._socket.send(request)
        at = 0
        while True:
            if len(self._buffer) - at < _RECEIVE_BYTES:
                # not extended in place: views of it may still be there
                self._buffer = self._buffer + bytes(len(self._buffer))
            got, _, flags, _ = self._socket.recvmsg_into([memoryview(self._buffer)[at:]])
            if flags & socket.MSG_TRUNC:
                raise OSError("the kernel's answer is longer than it may be")
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
        """Remember where each qdisc's numbers are. Raises KeyError with one that is not there."""
        where: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        at = 0
        while at + _HEADER_BYTES <= end:
            length, kind, _, _, _ = HEADER.unpack_from(self._buffer, at)
            if length < _HEADER_BYTES or kind == NLMSG_DONE:
                break
            first = at + _HEADER_BYTES + _TCMSG_BYTES
            place = struct.unpack_from("=iI", self._buffer, at + _HEADER_BYTES + 4)
            found = attributes_within(self._buffer, first, at + length)
            name_at, name_end = found[TCA_KIND]
            if bytes(self._buffer[name_at:name_end]) == self._kind.encode() + b"\0":
                where[place] = {0: (at, at + length), **found}
            at += (length + 3) & ~3
        # by number: length; type and flags, so that an interrupted dump is no match; who; which
        # counters; then the words
        rows = [self._offsets(where[place]) for place in self._places]
        indices = [offset // 4 for column in zip(*rows) for offset in column]
        self._reaches = max(indices)
        self._take = itemgetter(*indices)
        words = memoryview(self._buffer)[: end & ~3].cast("I")
        self._expected = self._take(words)[: 5 * len(self._places)]

    def _offsets(self, found: dict[int, tuple[int, int]]) -> tuple[int, ...]:
        """Return where a qdisc's checks and words are, from its attributes; 0 is the message."""
        at = found[0][0]
        inner = attributes_within(self._buffer, *found[TCA_STATS2])
        basic, queue = inner[STATS_BASIC][0], inner[STATS_QUEUE][0]
        checks = (at, at + 4, at + 20, at + 24, queue - 4)
        plain = (*checks, queue + 4, basic, basic + 4, basic + 8, queue + 8)
        if self._kind != "red":
            return plain
        options = attributes_within(self._buffer, *found[TCA_OPTIONS])
        parameters = options[RED_PARMS][0]
        marked = found[TCA_XSTATS][0] + 12
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
