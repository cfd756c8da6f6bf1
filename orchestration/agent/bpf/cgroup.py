"""Attaches BPF programs to a cgroup, where they see the TCP connections of all its processes.

A program stays attached when the process that attached it ends, until it is detached or the kernel
restarts. A later process finds it by its name, and its maps by theirs. Constants and layouts are
those of include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .load import PROG_ATTACH, LoadError, bpf

_DETACH = 9
_PROGRAM_BY_ID, _MAP_BY_ID, _INFO, _QUERY = 13, 14, 15, 16
_SOCK_OPS = 3  # of enum bpf_attach_type
_MULTI, _REPLACE = 2, 4
_MAX_PROGRAMS = 64
# struct bpf_prog_info: up to `map_ids`, and `name` behind it; struct bpf_map_info likewise.
_PROGRAM_INFO = struct.Struct("=II8sIIQQQIIQ16s")
_MAP_INFO = struct.Struct("=6I16s")


@contextmanager
def cgroup(path: str) -> Iterator[int]:
    """Open a cgroup's folder, and yield its descriptor."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def attach(path: str, program: int, replaced: int | None = None) -> None:
    """Attach a program beside the others there, or in one step instead of the program `replaced`.

    Raises LoadError.
    """
    flags = _MULTI | (_REPLACE if replaced is not None else 0)
    with cgroup(path) as folder:
        attributes = struct.pack("=5I", folder, program, _SOCK_OPS, flags, replaced or 0)
        bpf(PROG_ATTACH, attributes, f"attach to {path}")


def detach(path: str, program: int) -> None:
    """Detach a program. Raises LoadError."""
    with cgroup(path) as folder:
        bpf(_DETACH, struct.pack("=4I", folder, program, _SOCK_OPS, 0), f"detach from {path}")


def attached(path: str) -> list[tuple[int, str]]:
    """Return (descriptor, name) of the programs at a cgroup; the caller closes the descriptors."""
    ids = (ctypes.c_uint32 * _MAX_PROGRAMS)()
    with cgroup(path) as folder:
        request = bytearray(
            struct.pack("=4IQI", folder, _SOCK_OPS, 0, 0, ctypes.addressof(ids), _MAX_PROGRAMS)
        )
        bpf(_QUERY, request, f"query {path}")
    (count,) = struct.unpack_from("=I", request, 24)
    programs = []
    for number in ids[:count]:
        with suppress(LoadError):  # it may be gone already
            fd = bpf(_PROGRAM_BY_ID, struct.pack("=3I", number, 0, 0), f"program {number}")
            programs.append((fd, _text(_info(fd, _PROGRAM_INFO)[11])))
    return programs


def maps_of(program: int) -> dict[str, int]:
    """Return the descriptors of a program's maps, by name; the caller closes them."""
    count = int(_info(program, _PROGRAM_INFO)[9])
    ids = (ctypes.c_uint32 * max(1, count))()
    head = bytearray(_PROGRAM_INFO.size)
    struct.pack_into("=I", head, 52, count)
    struct.pack_into("=Q", head, 56, ctypes.addressof(ids))
    _request_info(program, head)
    maps = {}
    for number in ids[:count]:
        fd = bpf(_MAP_BY_ID, struct.pack("=3I", number, 0, 0), f"map {number}")
        maps[_text(_info(fd, _MAP_INFO)[6])] = fd
    return maps


def _info(fd: int, layout: struct.Struct) -> tuple[int | bytes, ...]:
    return layout.unpack(_request_info(fd, bytearray(layout.size)))


def _request_info(fd: int, info: bytearray) -> bytes:
    buffer = ctypes.create_string_buffer(bytes(info), len(info))
    bpf(_INFO, struct.pack("=IIQ", fd, len(info), ctypes.addressof(buffer)), "info")
    return buffer.raw


def _text(name: int | bytes) -> str:
    return bytes(name).partition(b"\0")[0].decode(errors="replace") if name else ""
