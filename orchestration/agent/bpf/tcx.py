"""BPF programs at the egress of interfaces, held by links: they go when their descriptor does.

A link (`struct bpf_link`) is closed by the kernel when the process that holds it ends, however it
ends, and the program is off the interface then. Linux 6.6 brought it for traffic control (tcx).
Constants and layouts are those of include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import struct

from .load import bpf

OLDEST = (6, 6)
_LINK_CREATE, _QUERY = 28, 16
_TCX_EGRESS = 47  # of enum bpf_attach_type
_BEFORE = 1 << 3  # what it comes before is not named: all
_MAX_PROGRAMS = 64


def link(ifindex: int, program: int, *, first: bool = False) -> int:
    """Pass what an interface sends to a program, before it is queued; return the link.

    It comes behind the programs that are there, or `first`. It is off again once that descriptor is
    closed. Raises LoadError.
    """
    flags = _BEFORE if first else 0
    attributes = struct.pack("=4I", program, ifindex, _TCX_EGRESS, flags)
    return bpf(_LINK_CREATE, attributes, f"link at interface {ifindex}")


def linked(ifindex: int) -> list[int]:
    """Return the ids of the programs at an interface's egress. Raises LoadError."""
    ids = (ctypes.c_uint32 * _MAX_PROGRAMS)()
    head = (ifindex, _TCX_EGRESS, 0, 0, ctypes.addressof(ids), _MAX_PROGRAMS)
    request = bytearray(struct.pack("=4IQI", *head))
    bpf(_QUERY, request, f"query interface {ifindex}")
    (count,) = struct.unpack_from("=I", request, 24)
    return list(ids[:count])
