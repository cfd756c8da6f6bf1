"""Asks several namespaces for a netlink dump: with plain sockets, or all with one system call."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from collectors.readers.ring import RECEIVE, SEND, Ring

NLMSG_ERROR, NLMSG_DONE = 2, 3
_RECEIVE_BYTES = 1 << 15


class DumpError(OSError):
    """The kernel refused a dump, or it cannot be asked for."""


class Exchange(Protocol):
    """Sends one request to every namespace and collects the answers.

    `calls` is how many system calls the last time took.
    """

    buffer: bytearray
    calls: int

    def ask(self) -> list[tuple[int, int]]:
        """Return where each namespace's complete answer stands in `buffer`: (start, end)."""


def ends(buffer: bytearray, at: int, end: int) -> bool:
    """Say whether the messages between two offsets finish a dump; raise DumpError if refused."""
    while at + 16 <= end:
        length, kind = struct.unpack_from("=IH", buffer, at)
        if kind == NLMSG_DONE:
            return True
        if kind == NLMSG_ERROR or length < 16:
            raise DumpError("the kernel refused to list the queues")
        at += (length + 3) & ~3
    return False


class SocketExchange:
    """Two system calls a namespace, one more for every further 32 KB of its answer."""

    def __init__(self, sockets: Sequence[socket.socket], request: bytes) -> None:
        self._sockets = sockets
        self._request = request
        self.buffer = bytearray(_RECEIVE_BYTES)
        self.receives: list[int] = []
        self.calls = 0

    def ask(self) -> list[tuple[int, int]]:
        """Ask one namespace after the other; `receives` says how many calls each answer took."""
        at = 0
        places = []
        self.receives = []
        for netlink in self._sockets:
            netlink.send(self._request)
            start, done, calls = at, False, 0
            while not done:
                if at + _RECEIVE_BYTES > len(self.buffer):
                    self.buffer.extend(bytes(len(self.buffer)))
                got = netlink.recv_into(memoryview(self.buffer)[at : at + _RECEIVE_BYTES])
                done = ends(self.buffer, at, at + got)
                at += got
                calls += 1
            places.append((start, at))
            self.receives.append(calls)
        self.calls = len(self.receives) + sum(self.receives)
        return places


class RingExchange:
    """One system call for all namespaces: a ring whose entries are written once.

    How many receives an answer takes is learned from plain sockets; an answer that has become
    longer is asked for again with them, and learned anew. Raises RingError if the kernel has no
    io_uring.
    """

    def __init__(self, sockets: Sequence[socket.socket], request: bytes) -> None:
        self._plain = SocketExchange(sockets, request)
        self._sockets = sockets
        self._request = ctypes.create_string_buffer(request, len(request))
        self._ring: Ring | None = None
        self.buffer = self._plain.buffer
        self.calls = 0

    def ask(self) -> list[tuple[int, int]]:
        """Ask all namespaces at once; the first time one after the other."""
        if self._ring is not None:
            places = self._collect(self._ring.run(self._entries))
            if places is not None:
                self.buffer, self.calls = self._room, 1
                return places
            self._ring.close()
            self._drain()
        places = self._plain.ask()
        self._prepare(self._plain.receives)
        self.buffer, self.calls = self._plain.buffer, self._plain.calls
        return places

    def _drain(self) -> None:
        """Take what is left of answers that were not received to their end."""
        for netlink in self._sockets:
            with suppress(BlockingIOError):
                while True:
                    netlink.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)

    def _prepare(self, receives: list[int]) -> None:
        """Write the entries: for each namespace a send, then its receives."""
        self._entries = sum(1 + count for count in receives)
        self._ring = Ring(self._entries)
        self._room = bytearray(_RECEIVE_BYTES * sum(receives))
        self._held = (ctypes.c_char * len(self._room)).from_buffer(self._room)
        source, target = ctypes.addressof(self._request), ctypes.addressof(self._held)
        self._chains: list[list[int]] = []
        entry = slot = 0
        for netlink, count in zip(self._sockets, receives, strict=True):
            fd = netlink.fileno()
            self._ring.write(entry, SEND, fd, source, len(self._request), 0)
            entry += 1
            chain = []
            for _ in range(count):
                place = target + slot * _RECEIVE_BYTES
                self._ring.write(entry, RECEIVE, fd, place, _RECEIVE_BYTES, slot + 1)
                chain.append(slot)
                entry, slot = entry + 1, slot + 1
            self._chains.append(chain)

    def _collect(self, lengths: dict[int, int]) -> list[tuple[int, int]] | None:
        """Return where the answers stand; None if one is not complete."""
        places = []
        for chain in self._chains:
            start = end = chain[0] * _RECEIVE_BYTES
            for slot in chain:
                length = lengths.get(slot + 1, -1)
                if length < 0:
                    return None
                at = slot * _RECEIVE_BYTES
                if at != end:  # close the gap that a receive with less than its room leaves
                    self._room[end : end + length] = self._room[at : at + length]
                end += length
            if not ends(self._room, start, end):
                return None
            places.append((start, end))
        return places
