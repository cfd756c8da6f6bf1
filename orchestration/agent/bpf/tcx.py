"""BPF programs at the egress of interfaces, attached by links.

The kernel closes a link (`struct bpf_link`) when the process that holds it ends, however it ends,
and so detaches the program. Links for traffic control (tcx) exist since Linux 6.6. Constants and
layouts are those of include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import struct

from .load import bpf

OLDEST = (6, 6)
_LINK_CREATE, _QUERY = 28, 16
_TCX_EGRESS = 47  # of enum bpf_attach_type
_BEFORE = 1 << 3  # without the name of another program: before all of them
_MAX_PROGRAMS = 64


def link(ifindex: int, program: int, *, first: bool = False) -> int:
    """Pass every packet that an interface sends to a program, before it is queued.

    The program runs after those that are attached already, or before them with `first`. Returns the
    link's descriptor: closing it detaches the program. Raises LoadError.
    """
    flags = _BEFORE if first else 0
    attributes = struct.pack("=4I", program, ifindex, _TCX_EGRESS, flags)
    return bpf(_LINK_CREATE, attributes, f"link at interface {ifindex}")


def linked(ifindex: int) -> list[int]:
    """Return the ids of the programs at an interface's egress. Raises LoadError."""
    ids = (ctypes.c_uint32 * _MAX_PROGRAMS)()
    query = (ifindex, _TCX_EGRESS, 0, 0, ctypes.addressof(ids), _MAX_PROGRAMS)
    request = bytearray(struct.pack("=4IQI", *query))
    bpf(_QUERY, request, f"query interface {ifindex}")
    (count,) = struct.unpack_from("=I", request, 24)
    return list(ids[:count])
