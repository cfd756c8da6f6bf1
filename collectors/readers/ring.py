"""An io_uring: many sends and receives on sockets with one system call."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct

# system calls, mmap offsets, operations (linux/io_uring.h)
_SETUP, _ENTER = 425, 426
_OFFSET_SQ, _OFFSET_CQ, _OFFSET_SQES = 0, 0x8000000, 0x10000000
_SQE_BYTES, _CQE_BYTES = 64, 16
SEND, RECEIVE = 26, 27


class RingError(OSError):
    """The kernel has no io_uring, or did not take its entries."""


class Ring:
    """A ring of up to `entries` operations, which are written once and carried out again and again.

    The kernel carries them out in their order while they are handed in, as long as none has to
    wait: a netlink answer is ready when its request was sent. None waits; one that would have to
    fails with EAGAIN. Raises RingError if the kernel has no io_uring.
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
        """Give the ring back to the kernel."""
        os.close(self._fd)

    def write(
        self, number: int, operation: int, fd: int, address: int, size: int, tag: int
    ) -> None:
        """Write entry `number`: SEND or RECEIVE `size` bytes at memory `address` on socket `fd`."""
        values = (operation, 0, 0, fd, 0, address, size, socket.MSG_DONTWAIT, tag)
        struct.pack_into("=BBHiQQIIQ", self._sqes, number * _SQE_BYTES, *values)

    def run(self, count: int) -> dict[int, int]:
        """Carry out the first `count` entries: for each tag the bytes, or a negative error."""
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
