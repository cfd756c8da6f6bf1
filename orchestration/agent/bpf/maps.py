"""Entries of BPF maps: read, put, removed. Constants are those of include/uapi/linux/bpf.h."""

from __future__ import annotations

import ctypes
import errno
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

from .load import LoadError, bpf

_LOOKUP, _UPDATE, _DELETE, _NEXT_KEY = 1, 2, 3, 4
LRU_HASH, LPM_TRIE = 9, 11  # of enum bpf_map_type
NO_PREALLOC = 1  # a flag of maps, which a trie must have
_ANY, _NOEXIST = 0, 1
_TRIES, _TICK_S = 20, 0.01


def items(fd: int, key_bytes: int, value_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a map; those that vanish meanwhile are left out."""
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
    """Return a map's value. Raises LoadError."""
    held = ctypes.create_string_buffer(key, len(key))
    value = ctypes.create_string_buffer(value_bytes)
    where = ctypes.addressof(held), ctypes.addressof(value)
    bpf(_LOOKUP, struct.pack("=IxxxxQQQ", fd, *where, 0), "lookup")
    return value.raw


def insert(fd: int, key: bytes, value: bytes) -> None:
    """Put an entry into a map, unless it has one of this key. Raises LoadError."""
    try:
        _update(fd, key, value, _NOEXIST)
    except LoadError as error:
        if error.errno != errno.EEXIST:
            raise


def put(fd: int, key: bytes, value: bytes) -> None:
    """Put an entry into a map, in the place of one of this key. Raises LoadError.

    The kernel keeps little memory ready for entries, and gets more by and by (irq_work in
    kernel/bpf/memalloc.c; where nothing interrupts, at the next tick).
    """
    for left in reversed(range(_TRIES)):
        try:
            _update(fd, key, value, _ANY)
            return
        except LoadError as error:
            if error.errno != errno.ENOMEM or not left:
                raise
        time.sleep(_TICK_S)


def remove(fd: int, key: bytes) -> None:
    """Remove an entry, if the map has it. Raises LoadError."""
    held = ctypes.create_string_buffer(key, len(key))
    try:
        bpf(_DELETE, struct.pack("=IxxxxQQQ", fd, ctypes.addressof(held), 0, 0), "delete")
    except LoadError as error:
        if error.errno != errno.ENOENT:
            raise


def _update(fd: int, key: bytes, value: bytes, flags: int) -> None:
    held = ctypes.create_string_buffer(key, len(key))
    stored = ctypes.create_string_buffer(value, len(value))
    where = ctypes.addressof(held), ctypes.addressof(stored)
    bpf(_UPDATE, struct.pack("=IxxxxQQQ", fd, *where, flags), "update")
