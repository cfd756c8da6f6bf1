"""The bpf system call: loads programs, maps their global data into memory, reads and writes maps.

Constants and layouts are those of include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from .elf import INSTRUCTION_BYTES, Program

# The system call's number: on arm64, x86-64, i386.
_BPF = 280 if os.uname().machine == "aarch64" else 321 if sys.maxsize > 1 << 32 else 357
_MAP_CREATE, _PROG_LOAD, PROG_ATTACH, _PROG_TEST_RUN, LINK_CREATE = 0, 5, 8, 10, 28
_TCX_EGRESS = 47
_MAP_TYPE_ARRAY, _PROG_TYPE_SCHED_CLS = 2, 3
SYSCALL = 31  # a type of program that takes any struct; it must be declared sleepable
SOCK_OPS = 13  # a cgroup's TCP connections
STRUCT_OPS = 27  # functions of a structure that the kernel calls
_F_SLEEPABLE = 1 << 4
_F_MMAPABLE = 1 << 10
_ATTRIBUTE_BYTES = 128
_LOG_BYTES = 1 << 20
# The licence that a program declares. Some of the kernel's helpers are for the first one only.
GPL, APACHE = "GPL", "Apache-2.0"
_LOG_LINES = 6
_libc = ctypes.CDLL(None, use_errno=True)


class LoadError(OSError):
    """The kernel refused a map or a program; the text ends with the verifier's message.

    `log_lines` are all lines of the verifier's log.
    """

    log_lines: tuple[str, ...] = ()


class LoadedProgram:
    """A traffic-control program in the kernel, with the descriptor `fd`.

    `memory` is its global data, shared with this process.
    """

    def __init__(self, program: Program, name: str, license_name: str = APACHE) -> None:
        """Load the program. Raises LoadError."""
        label = name.encode()[:15]
        self._map, self.memory = data_map(program.data_bytes, label)
        self.fd = load(program.linked(self._map), label, license_name=license_name)

    def watch_departures(self, ifindex: int) -> None:
        """Pass every packet that this interface sends to the program, before it is queued.

        The interface is in the current namespace of this process. Raises LoadError.
        """
        attributes = struct.pack("=4I", ifindex, self.fd, _TCX_EGRESS, 0)
        bpf(PROG_ATTACH, attributes, f"attach to interface {ifindex}")

    def close(self) -> None:
        """Close the program and its data; the kernel keeps them while a link exists."""
        os.close(self.fd)
        os.close(self._map)


def kernel_release() -> tuple[int, ...]:
    """Return the running kernel's version and patch level, like (6, 6)."""
    words = platform.release().split("-")[0].split(".")[:2]
    return tuple(int(word) if word.isdigit() else 0 for word in words)


def create_map(
    kind: int,
    key: int,
    value: int,
    entries: int,
    flags: int,
    label: bytes,
    types: tuple[int, int] = (0, 0),
) -> int:
    """Create a map with keys of `key` bytes and values of `value` bytes; return its descriptor.

    `types`, for the kinds of maps that need it, has the descriptor of type information and the
    number of the kernel's type.
    """
    head = (kind, key, value, entries, flags, 0, 0, label)
    attributes = struct.pack("=7I16s4xI8xI", *head, *types)
    return bpf(_MAP_CREATE, attributes, f"map of {entries} times {value} bytes")


def data_map(size: int, label: bytes) -> tuple[int, mmap.mmap]:
    """Create a map for a program's global data; return its descriptor and its shared memory."""
    made = create_map(_MAP_TYPE_ARRAY, 4, size, 1, _F_MMAPABLE, label)
    return made, mmap.mmap(made, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.MAP_SHARED)


def load(
    code: bytes,
    label: bytes,
    kind: int = _PROG_TYPE_SCHED_CLS,
    license_name: str = APACHE,
    member: tuple[int, int] = (0, 0),
) -> int:
    """Load a program; return its file descriptor. Raises LoadError.

    A program of type STRUCT_OPS implements a `member` of a structure, given as the number of the
    structure's type and the member's index.
    """
    instructions = ctypes.create_string_buffer(code, len(code))
    license_text = ctypes.create_string_buffer(license_name.encode())
    log = ctypes.create_string_buffer(_LOG_BYTES)
    flags = _F_SLEEPABLE if kind == SYSCALL else 0

    def attributes(level: int, log_bytes: int, log_at: int) -> bytes:
        addresses = ctypes.addressof(instructions), ctypes.addressof(license_text)
        count = len(code) // INSTRUCTION_BYTES
        head = struct.pack("=IIQQ", kind, count, *addresses)
        head += struct.pack("=IIQII16s", level, log_bytes, log_at, 0, flags, label)
        return head + struct.pack("=II36xI", 0, member[1], member[0])

    try:
        return bpf(_PROG_LOAD, attributes(0, 0, 0), "program")
    except LoadError as error:
        # load again with a log, to get the verifier's reason
        try:
            bpf(_PROG_LOAD, attributes(1, _LOG_BYTES, ctypes.addressof(log)), "program")
        except LoadError:
            log_lines = tuple(log.value.decode(errors="replace").splitlines())
            text = f"{error.strerror}: {'; '.join(log_lines[-_LOG_LINES:])}"
            refused = LoadError(error.errno, text)
            refused.log_lines = log_lines
            raise refused from error
        raise


def run_on_each(program: int, contexts: ctypes.Array[ctypes.c_char], size: int) -> None:
    """Run a program of type SYSCALL once on each context of `size` bytes, which it may change.

    Raises LoadError.
    """
    at = ctypes.addressof(contexts)
    # union bpf_attr, `test`: the program, fields for other program types, the context's size and
    # address
    attributes = ctypes.create_string_buffer(
        struct.pack("=4IQQ4IQQ", program, 0, 0, 0, 0, 0, 0, 0, size, 0, at, 0), _ATTRIBUTE_BYTES
    )
    context = ctypes.c_uint64.from_buffer(attributes, 48)
    call, command, length = _libc.syscall, _PROG_TEST_RUN, _ATTRIBUTE_BYTES
    for address in range(at, at + len(contexts), size):
        context.value = address
        if call(_BPF, command, attributes, length):
            number = ctypes.get_errno()
            raise LoadError(number, f"bpf run: {os.strerror(number)}")


def bpf(command: int, attributes: bytes | bytearray, what: str) -> int:
    """Make the bpf system call with a union bpf_attr; return its result, a descriptor or 0.

    If `attributes` is a bytearray, it has afterwards what the kernel wrote into the union. `what`
    names the operation in the error. Raises LoadError.
    """
    padded = ctypes.create_string_buffer(bytes(attributes), _ATTRIBUTE_BYTES)
    fd = int(_libc.syscall(_BPF, command, padded, _ATTRIBUTE_BYTES))
    if fd < 0:
        number = ctypes.get_errno()
        raise LoadError(number, f"bpf {what}: {os.strerror(number)}")
    if isinstance(attributes, bytearray):
        attributes[:] = padded.raw[: len(attributes)]
    return fd


_LOOKUP, _UPDATE, _DELETE, _NEXT_KEY = 1, 2, 3, 4
LRU_HASH, LPM_TRIE = 9, 11  # of enum bpf_map_type
NO_PREALLOC = 1  # a flag of maps, which a trie must have
_ANY, _NOEXIST = 0, 1
_TRIES, _TICK_S = 20, 0.01


def map_entries(fd: int, key_bytes: int, value_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) of a map's entries; entries that are removed meanwhile are left out."""
    key, after = (ctypes.create_string_buffer(key_bytes) for _ in range(2))
    at = 0
    while True:
        try:
            bpf(_NEXT_KEY, struct.pack("=IxxxxQQ", fd, at, ctypes.addressof(after)), "next key")
        except LoadError as error:
            if error.errno != errno.ENOENT:
                raise
            return
        key.raw = after.raw
        at = ctypes.addressof(key)
        with suppress(LoadError):
            yield key.raw, lookup(fd, key.raw, value_bytes)


def lookup(fd: int, key: bytes, value_bytes: int) -> bytes:
    """Return the value of a map's entry. Raises LoadError, with ENOENT if there is none."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value = ctypes.create_string_buffer(value_bytes)
    addresses = ctypes.addressof(key_buffer), ctypes.addressof(value)
    bpf(_LOOKUP, struct.pack("=IxxxxQQQ", fd, *addresses, 0), "lookup")
    return value.raw


def insert_entry(fd: int, key: bytes, value: bytes) -> None:
    """Add an entry to a map, unless it has one with this key. Raises LoadError."""
    try:
        _update(fd, key, value, _NOEXIST)
    except LoadError as error:
        if error.errno != errno.EEXIST:
            raise


def put_entry(fd: int, key: bytes, value: bytes) -> None:
    """Add an entry to a map, or replace the one with this key. Raises LoadError.

    This tries again while the kernel has no memory ready: it keeps a small reserve for entries, and
    refills it later (irq_work in kernel/bpf/memalloc.c; without interrupts, at the next tick).
    """
    for left in reversed(range(_TRIES)):
        try:
            _update(fd, key, value, _ANY)
            return
        except LoadError as error:
            if error.errno != errno.ENOMEM or not left:
                raise
        time.sleep(_TICK_S)


def remove_entry(fd: int, key: bytes) -> None:
    """Remove an entry, if the map has it. Raises LoadError."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    try:
        bpf(_DELETE, struct.pack("=IxxxxQQQ", fd, ctypes.addressof(key_buffer), 0, 0), "delete")
    except LoadError as error:
        if error.errno != errno.ENOENT:
            raise


def _update(fd: int, key: bytes, value: bytes, flags: int) -> None:
    key_buffer = ctypes.create_string_buffer(key, len(key))
    stored = ctypes.create_string_buffer(value, len(value))
    addresses = ctypes.addressof(key_buffer), ctypes.addressof(stored)
    bpf(_UPDATE, struct.pack("=IxxxxQQQ", fd, *addresses, flags), "update")
