"""Congestion controls of TCP as BPF programs, registered while this process runs.

A control is a `struct tcp_congestion_ops` whose functions are BPF programs (a map of the kind
STRUCT_OPS). All network namespaces of the kernel see its name. A BPF link registers it; the kernel
closes the link when the process that holds it ends, however it ends. Connections and namespaces
that use the control then keep it until they end or switch to another, but it can no longer be
chosen by its name.

This needs Linux 6.4 or newer (links of this kind) and BPF's JIT. Constants and layouts are those of
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
# Flags of the control: every namespace may use it, and its connections negotiate ECN.
_NON_RESTRICTED, _NEEDS_ECN = 1, 2
_BTF_LOAD = 18
_ENUM = "enum"


class Totals(NamedTuple):
    """What the connections of DCTCP did in sum: `struct totals` of dctcp.bpf.c.

    `alphas` is the sum of alpha, DCTCP's estimate of the share marked, over `windows`, in units
    of 2^-20. `cuts` counts reductions of the congestion window. `astray` should be 0: it counts
    reductions by the kernel that skipped the program (see `keep_sane` there).
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
    """Return the programs of an object file by the structure's member that each implements.

    Raises ObjectError.
    """
    return {
        name[len(_SECTION) :]: read_program(data, name, kernel=True)
        for name in sections(data, _SECTION)
    }


def registered() -> list[str]:
    """Return the names of the congestion controls that the kernel has. Raises OSError."""
    return AVAILABLE.read_text().split()


class Control:
    """A congestion control that is registered until this object is closed."""

    def __init__(self, programs: Mapping[str, Program], name: str) -> None:
        """Register the control. Raises LoadError (EEXIST if the name is taken) or LayoutError."""
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

        def fill(layout: str, field: str, content: int | bytes) -> None:
            struct.pack_into(layout, value, start + layouts.offset(_OPS, field), content)

        for member, program in programs.items():
            code = program.linked(data, kernel=_kernel_values(layouts, program))
            position = layouts.number(_OPS), layouts.member_index(_OPS, member)
            loaded = load(code, label, STRUCT_OPS, GPL, position)
            self._fds.append(loaded)
            fill("=Q", member, loaded)
        fill("=I", "flags", _NON_RESTRICTED | _NEEDS_ECN)
        fill(f"={NAME_BYTES}s", "name", label)
        self._fds.append(_type_information())
        types = self._fds[-1], layouts.number(_VALUE)
        ops_map = create_map(_MAP_TYPE_STRUCT_OPS, 4, size, 1, _F_LINK, label, types)
        self._fds.append(ops_map)
        put_entry(ops_map, bytes(4), bytes(value))
        attributes = struct.pack("=4I", ops_map, 0, _ATTACH_STRUCT_OPS, 0)
        self._fds.append(bpf(LINK_CREATE, attributes, f"register {name}"))

    def totals(self) -> Totals:
        """Return what the control's connections did so far."""
        assert self._memory is not None
        return Totals(*_TOTALS.unpack_from(self._memory))

    def close(self) -> None:
        """Unregister the control; connections that use it keep it until they end."""
        # the link was created last, and is closed first
        for fd in reversed(self._fds):
            os.close(fd)
        self._fds.clear()
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def _type_information() -> int:
    """Load minimal type information, which this kind of map must have; return its descriptor."""
    text = minimal_type_information()
    buffer = ctypes.create_string_buffer(text, len(text))
    attributes = struct.pack("=QQI", ctypes.addressof(buffer), 0, len(text))
    return bpf(_BTF_LOAD, attributes, "type information")


def _kernel_values(layouts: Layouts, program: Program) -> dict[str, int]:
    """Return the values of the kernel's names that a program uses (see dctcp.bpf.c)."""
    values = {name: layouts.function(name) for _, name in program.calls}
    for _, name in program.numbers:
        first, second, *rest = name.split("__")
        values[name] = (
            layouts.enumerator(second, *rest)
            if first == _ENUM
            else layouts.offset(first, ".".join([second, *rest]))
        )
    return values
