"""Asks several namespaces for a netlink dump: with plain sockets, or all with one system call."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Protocol

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


# io_uring: system calls, mmap offsets, operations (linux/io_uring.h)
_SETUP, _ENTER = 425, 426
_OFFSET_SQ, _OFFSET_CQ, _OFFSET_SQES = 0, 0x8000000, 0x10000000
_OP_SEND, _OP_RECV = 26, 27
_SQE_BYTES, _CQE_BYTES = 64, 16


class RingExchange:
    """One system call for all namespaces: an io_uring whose entries are written once.

    Entries are carried out in their order while they are handed in: a netlink dump is ready to be
    received when its request was sent, so nothing is left to wait for.
    How many receives an answer takes is learned from plain sockets; an answer that has become
    longer is asked for again with them, and learned anew. Raises DumpError if the kernel has no
    io_uring.
    """

    def __init__(self, sockets: Sequence[socket.socket], request: bytes) -> None:
        self._plain = SocketExchange(sockets, request)
        self._sockets = sockets
        self._request = ctypes.create_string_buffer(request, len(request))
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._ring: int | None = None
        self.buffer = self._plain.buffer
        self.calls = 0

    def ask(self) -> list[tuple[int, int]]:
        """Ask all namespaces at once; the first time one after the other."""
        if self._ring is not None:
            places = self._submit()
            if places is not None:
                self.buffer, self.calls = self._room, 1
                return places
        places = self._plain.ask()
        self._prepare(self._plain.receives)
        self.buffer, self.calls = self._plain.buffer, self._plain.calls
        return places

    def _prepare(self, receives: list[int]) -> None:
        """Write the entries: for each namespace a send, then its receives."""
        if self._ring is not None:
            os.close(self._ring)
        entries = sum(1 + count for count in receives)
        parameters = bytearray(120)
        raw = (ctypes.c_char * 120).from_buffer(parameters)
        fd = self._libc.syscall(_SETUP, entries, raw)
        if fd < 0:
            raise DumpError(ctypes.get_errno(), "io_uring_setup")
        self._ring = fd
        sq_entries, cq_entries = struct.unpack_from("=II", parameters, 0)
        sq = struct.unpack_from("=7I", parameters, 40)
        cq = struct.unpack_from("=7I", parameters, 80)
        shared = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._sq = mmap.mmap(fd, sq[6] + 4 * sq_entries, flags=shared, offset=_OFFSET_SQ)
        self._cq = mmap.mmap(fd, cq[5] + _CQE_BYTES * cq_entries, flags=shared, offset=_OFFSET_CQ)
        self._sqes = mmap.mmap(fd, _SQE_BYTES * sq_entries, flags=shared, offset=_OFFSET_SQES)
        self._sq_at, self._cq_at = sq, cq
        self._mask = struct.unpack_from("=I", self._cq, cq[2])[0]
        self._entries, self._sq_entries = entries, sq_entries
        self._room = bytearray(_RECEIVE_BYTES * sum(receives))
        self._held = (ctypes.c_char * len(self._room)).from_buffer(self._room)
        self._write_entries(receives)

    def _write_entries(self, receives: list[int]) -> None:
        target = ctypes.addressof(self._held)
        self._chains: list[list[int]] = []
        entry = slot = 0
        for netlink, count in zip(self._sockets, receives, strict=True):
            fd = netlink.fileno()
            source = ctypes.addressof(self._request)
            self._entry(entry, _OP_SEND, fd, source, len(self._request), 0)
            entry += 1
            chain = []
            for _ in range(count):
                place = target + slot * _RECEIVE_BYTES
                self._entry(entry, _OP_RECV, fd, place, _RECEIVE_BYTES, slot + 1)
                chain.append(slot)
                entry, slot = entry + 1, slot + 1
            self._chains.append(chain)

    def _entry(
        self, number: int, operation: int, fd: int, address: int, size: int, tag: int
    ) -> None:
        values = (operation, 0, 0, fd, 0, address, size, socket.MSG_DONTWAIT, tag)
        struct.pack_into("=BBHiQQIIQ", self._sqes, number * _SQE_BYTES, *values)

    def _submit(self) -> list[tuple[int, int]] | None:
        """Hand in all entries, which carries them out; None if an answer is not complete."""
        (tail,) = struct.unpack_from("=I", self._sq, self._sq_at[1])
        for number in range(self._entries):
            place = self._sq_at[6] + 4 * ((tail + number) % self._sq_entries)
            struct.pack_into("=I", self._sq, place, number)
        struct.pack_into("=I", self._sq, self._sq_at[1], (tail + self._entries) & 0xFFFFFFFF)
        nothing = ctypes.c_size_t(0)
        done = self._libc.syscall(_ENTER, self._ring, self._entries, 0, 0, None, nothing)
        if done != self._entries:
            raise DumpError(ctypes.get_errno(), f"io_uring_enter took {done} of {self._entries}")
        lengths = self._results()
        places = []
        for chain in self._chains:
            start = end = chain[0] * _RECEIVE_BYTES
            for slot in chain:
                length = lengths.get(slot, -1)
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

    def _results(self) -> dict[int, int]:
        """Take the completions: bytes received by slot, negative for an error."""
        head, tail = (struct.unpack_from("=I", self._cq, self._cq_at[i])[0] for i in (0, 1))
        lengths = {}
        while head != tail:
            place = self._cq_at[5] + (head & self._mask) * _CQE_BYTES
            tag, result = struct.unpack_from("=Qi", self._cq, place)
            if tag:
                lengths[tag - 1] = result
            head = (head + 1) & 0xFFFFFFFF
        struct.pack_into("=I", self._cq, self._cq_at[0], head)
        return lengths
