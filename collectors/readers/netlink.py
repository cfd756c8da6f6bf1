"""Requests netlink dumps from several namespaces, with plain sockets or with one system call."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from orchestration.device.netlink import NLMSG_DONE, NLMSG_ERROR

_RECEIVE_BYTES = 1 << 15
# system calls, mmap offsets, operations (linux/io_uring.h)
_SETUP, _ENTER = 425, 426
_OFFSET_SQ, _OFFSET_CQ, _OFFSET_SQES = 0, 0x8000000, 0x10000000
_SQE_BYTES, _CQE_BYTES = 64, 16
SEND, RECEIVE = 26, 27


class DumpError(OSError):
    """The kernel refused a dump, or it cannot be requested."""


class RingError(OSError):
    """The kernel has no io_uring, or did not accept its entries."""


class Ring:
    """Up to `entries` io_uring operations that are written once and run many times.

    The kernel runs them in order of submission. None blocks: a netlink answer is ready once its
    request is sent, and an operation that would block fails with EAGAIN.
    Raises RingError if the kernel has no io_uring.
    """

    def __init__(self, entries: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        parameters = bytearray(120)
        raw = (ctypes.c_char * 120).from_buffer(parameters)
        fd = self._libc.syscall(_SETUP, entries, raw)
        if fd < 0:
            raise RingError(ctypes.get_errno(), "io_uring_setup")
        self._fd = fd
        self._slots, cq_entries = struct.unpack_from("=II", parameters, 0)
        sq = struct.unpack_from("=7I", parameters, 40)
        cq = struct.unpack_from("=7I", parameters, 80)
        shared = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._sq = mmap.mmap(fd, sq[6] + 4 * self._slots, flags=shared, offset=_OFFSET_SQ)
        self._cq = mmap.mmap(fd, cq[5] + _CQE_BYTES * cq_entries, flags=shared, offset=_OFFSET_CQ)
        self._sqes = mmap.mmap(fd, _SQE_BYTES * self._slots, flags=shared, offset=_OFFSET_SQES)
        self._sq_at, self._cq_at = sq, cq
        self._mask = struct.unpack_from("=I", self._cq, cq[2])[0]

    def close(self) -> None:
        """Close the ring."""
        os.close(self._fd)

    def write(
        self, number: int, operation: int, fd: int, address: int, size: int, tag: int
    ) -> None:
        """Write entry `number`: SEND or RECEIVE `size` bytes at memory `address` on socket `fd`."""
        values = (operation, 0, 0, fd, 0, address, size, socket.MSG_DONTWAIT, tag)
        struct.pack_into("=BBHiQQIIQ", self._sqes, number * _SQE_BYTES, *values)

    def run(self, count: int) -> dict[int, int]:
        """Run the first `count` entries; return the bytes, or a negative error, of each tag."""
        (tail,) = struct.unpack_from("=I", self._sq, self._sq_at[1])
        for number in range(count):
            place = self._sq_at[6] + 4 * ((tail + number) % self._slots)
            struct.pack_into("=I", self._sq, place, number)
        struct.pack_into("=I", self._sq, self._sq_at[1], (tail + count) & 0xFFFFFFFF)
        done = self._libc.syscall(_ENTER, self._fd, count, 0, 0, None, ctypes.c_size_t(0))
        if done != count:
            raise RingError(ctypes.get_errno(), f"io_uring_enter took {done} of {count}")
        head, tail = (struct.unpack_from("=I", self._cq, self._cq_at[i])[0] for i in (0, 1))
        results = {}
        while head != tail:
            place = self._cq_at[5] + (head & self._mask) * _CQE_BYTES
            tag, result = struct.unpack_from("=Qi", self._cq, place)
            results[tag] = result
            head = (head + 1) & 0xFFFFFFFF
        struct.pack_into("=I", self._cq, self._cq_at[0], head)
        return results


class Exchange(Protocol):
    """Sends one request to every namespace and collects the answers.

    `calls` is how many system calls the last exchange took.
    """

    buffer: bytearray
    calls: int

    def ask(self) -> list[tuple[int, int]]:
        """Return the (start, end) of each namespace's complete answer in `buffer`."""


def ends(buffer: bytearray, at: int, end: int) -> bool:
    """Return whether the messages between two offsets end a dump. Raises DumpError if refused."""
    while at + 16 <= end:
        length, kind = struct.unpack_from("=IH", buffer, at)
        if kind == NLMSG_DONE:
            return True
        if kind == NLMSG_ERROR or length < 16:
            raise DumpError("the kernel refused to list the queues")
        at += (length + 3) & ~3
    return False


class SocketExchange:
    """Takes two system calls per namespace, and one more per further 32 KB of its answer."""

    def __init__(self, sockets: Sequence[socket.socket], request: bytes) -> None:
        self._sockets = sockets
        self._request = request
        self.buffer = bytearray(_RECEIVE_BYTES)
        self.receives: list[int] = []
        self.calls = 0

    def ask(self) -> list[tuple[int, int]]:
        """Ask one namespace after the other; `receives` has the number of calls per answer."""
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
    """Takes one system call for all namespaces: a ring whose entries are written once.

    Plain sockets first show how many receives each answer takes. If an answer has grown, they ask
    again. Raises RingError if the kernel has no io_uring.
    """

    def __init__(self, sockets: Sequence[socket.socket], request: bytes) -> None:
        self._plain = SocketExchange(sockets, request)
        self._sockets = sockets
        self._request = ctypes.create_string_buffer(request, len(request))
        self._ring: Ring | None = None
        self.buffer = self._plain.buffer
        self.calls = 0

    def ask(self) -> list[tuple[int, int]]:
        """Ask all namespaces at once; the first time, one after the other."""
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
        """Discard the rest of answers that were not received completely."""
        for netlink in self._sockets:
            with suppress(BlockingIOError):
                while True:
                    netlink.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)

    def _prepare(self, receives: list[int]) -> None:
        """Write the ring's entries: for each namespace a send, then its receives."""
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
        """Return the (start, end) of each answer; None if one is not complete."""
        places = []
        for chain in self._chains:
            start = end = chain[0] * _RECEIVE_BYTES
            for slot in chain:
                length = lengths.get(slot + 1, -1)
                if length < 0:
                    return None
                at = slot * _RECEIVE_BYTES
                if at != end:  # close the gap that a short receive leaves
                    self._room[end : end + length] = self._room[at : at + length]
                end += length
            if not ends(self._room, start, end):
                return None
            places.append((start, end))
        return places
