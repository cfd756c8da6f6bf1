"""Congestion controls of TCP as BPF programs, which the kernel has while a descriptor is open.

A control is a `struct tcp_congestion_ops` whose functions are programs (a map of the kind
STRUCT_OPS), by a name that all of the kernel's namespaces see. A link registers it; the kernel
closes that when the process that holds it ends, however it ends. Connections that have the control,
and namespaces whose default it is, keep it until they end or take another, but nobody finds it by
its name any more.

It takes Linux 6.4 or newer (links of this kind), and its JIT. Constants and layouts are those of
include/uapi/linux/bpf.h and include/net/tcp.h.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .btf import VMLINUX, Layouts, minimal_type_information
from .elf import Program, read_program, sections
from .load import GPL, LINK_CREATE, STRUCT_OPS, bpf, create_map, data_map, load, put_entry

OLDEST = (6, 4)
NAME_BYTES = 16  # TCP_CA_NAME_MAX, with the last one's 0
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_SECTION = "struct_ops/"
_MAP_TYPE_STRUCT_OPS, _F_LINK, _ATTACH_STRUCT_OPS = 26, 1 << 13, 44
_OPS, _VALUE = "tcp_congestion_ops", "bpf_struct_ops_tcp_congestion_ops"
# Every namespace may use it, and it asks for ECN.
_NON_RESTRICTED, _NEEDS_ECN = 1, 2
_BTF_LOAD = 18
_ENUM = "enum"


class Totals(NamedTuple):
    """What the connections of DCTCP did: `struct totals` of dctcp.bpf.c.

    `astray` should be 0: cuts of a kernel that skipped the program (see `keep_sane` there).
    """

    connections: int
    windows: int
    marked_windows: int
    alphas: int
    cuts: int
    losses: int
    astray: int

    @property
    def mean_alpha(self) -> float:
        """Return the mean of alpha over all windows, 0 without one."""
        return self.alphas / self.windows / (1 << 20) if self.windows else 0.0


_TOTALS = struct.Struct(f"={len(Totals._fields)}Q")


def read_control(data: bytes) -> dict[str, Program]:
    """Return the programs of an object file by the member of the structure. Raises ObjectError."""
    return {
        name[len(_SECTION) :]: read_program(data, name, kernel=True)
        for name in sections(data, _SECTION)
    }


def registered() -> list[str]:
    """Return the names of the congestion controls that the kernel has. Raises OSError."""
    return AVAILABLE.read_text().split()


class Control:
    """A congestion control that is registered until this is closed."""

    def __init__(self, programs: Mapping[str, Program], name: str) -> None:
        """Register it. Raises LoadError, with EEXIST if the name is taken, or LayoutError."""
        self._fds: list[int] = []
        self._memory: mmap.mmap | None = None
        try:
            self._register(programs, name)
        except BaseException:
            self.close()
            raise

    def _register(self, programs: Mapping[str, Program], name: str) -> None:
        label = name.encode()[: NAME_BYTES - 1]
        layouts = Layouts(VMLINUX.read_bytes())
        data, self._memory = data_map(_TOTALS.size, label)
        self._fds.append(data)
        start, size = layouts.offset(_VALUE, "data"), layouts.size(_VALUE)
        value = bytearray(size)

        def fill(layout: str, field: str, what: int | bytes) -> None:
            struct.pack_into(layout, value, start + layouts.offset(_OPS, field), what)

        for member, program in programs.items():
            code = program.linked(data, kernel=_found(layouts, program))
            place = layouts.number(_OPS), layouts.place(_OPS, member)
            loaded = load(code, label, STRUCT_OPS, GPL, place)
            self._fds.append(loaded)
            fill("=Q", member, loaded)
        fill("=I", "flags", _NON_RESTRICTED | _NEEDS_ECN)
        fill(f"={NAME_BYTES}s", "name", label)
        self._fds.append(_type_information())
        types = self._fds[-1], layouts.number(_VALUE)
        made = create_map(_MAP_TYPE_STRUCT_OPS, 4, size, 1, _F_LINK, label, types)
        self._fds.append(made)
        put_entry(made, bytes(4), bytes(value))
        attributes = struct.pack("=4I", made, 0, _ATTACH_STRUCT_OPS, 0)
        self._fds.append(bpf(LINK_CREATE, attributes, f"register {name}"))

    def totals(self) -> Totals:
        """Return what its connections did so far."""
        assert self._memory is not None
        return Totals(*_TOTALS.unpack_from(self._memory))

    def close(self) -> None:
        """Take it out of the kernel; connections keep it until they end."""
        # the link came last, and goes first
        for fd in reversed(self._fds):
            os.close(fd)
        self._fds.clear()
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def _type_information() -> int:
    """Return type information of our own: a map of this kind must have some, and uses none."""
    text = minimal_type_information()
    held = ctypes.create_string_buffer(text, len(text))
    attributes = struct.pack("=QQI", ctypes.addressof(held), 0, len(text))
    return bpf(_BTF_LOAD, attributes, "type information")


def _found(layouts: Layouts, program: Program) -> dict[str, int]:
    """Return the kernel's numbers that a program names, as dctcp.bpf.c says."""
    found = {name: layouts.function(name) for _, name in program.calls}
    for _, name in program.numbers:
        first, second, *rest = name.split("__")
        found[name] = (
            layouts.enumerator(second, *rest)
            if first == _ENUM
            else layouts.offset(first, ".".join([second, *rest]))
        )
    return found
