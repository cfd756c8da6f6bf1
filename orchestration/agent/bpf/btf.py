"""The layout of the running kernel's structures, from its type information (BTF).

A BPF program needs the offsets of kernel fields, which differ between kernels. The format is that
of the kernel's Documentation/bpf/btf.rst.
"""

from __future__ import annotations

import struct
from pathlib import Path

VMLINUX = Path("/sys/kernel/btf/vmlinux")
_MAGIC = 0xEB9F
_HEADER = struct.Struct("=HBBIIIII")
_TYPE = struct.Struct("=III")
_MEMBER = struct.Struct("=III")
_ENUMERATOR = struct.Struct("=Ii")
_STRUCT, _UNION, _ENUM, _FUNCTION = 4, 5, 6, 12
# Bytes that follow a type, by its kind: a fixed number, and a number for each of its members.
_FIXED = {1: 4, 3: 12, 14: 4, 17: 4}
_EACH = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}


def minimal_type_information() -> bytes:
    """Return type information that has only `int`, for maps that must have some and use none."""
    names = b"\0int\0"
    types = struct.pack("=IIII", 1, 1 << 24, 4, 32)
    return _HEADER.pack(_MAGIC, 1, 0, _HEADER.size, 0, len(types), len(types), len(names)) + (
        types + names
    )


class LayoutError(ValueError):
    """The kernel's type information lacks a structure or field, or cannot be read."""


class Layouts:
    """The layouts of the kernel's structures, functions and enumerations, by their names."""

    def __init__(self, data: bytes) -> None:
        """Read the contents of `VMLINUX`. Raises LayoutError."""
        try:
            self._read(data)
        except struct.error as error:
            raise LayoutError(f"the kernel's type information is cut short: {error}") from error

    def _read(self, data: bytes) -> None:
        magic, _, _, head, types_at, types_bytes, names_at, _ = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise LayoutError("this is not the kernel's type information")
        self._data, self._names_at = data, head + names_at
        at, end = head + types_at, head + types_at + types_bytes
        # the offset of each type by its number; 0 is void
        self._types = [0]
        # the number of a type by its kind and the offset of its name
        self._numbers: dict[tuple[int, int], int] = {}
        while at < end:
            self._types.append(at)
            name, info, _ = _TYPE.unpack_from(data, at)
            kind, members = info >> 24 & 0x1F, info & 0xFFFF
            if kind in (_STRUCT, _ENUM, _FUNCTION):
                self._numbers.setdefault((kind, name), len(self._types) - 1)
            at += _TYPE.size + _FIXED.get(kind, 0) + _EACH.get(kind, 0) * members

    def offset(self, structure: str, path: str) -> int:
        """Return the offset in bytes of a field, or of a field's field: `qstats.backlog`.

        Raises LayoutError if there is none, or if it is a bit field.
        """
        type_position, bits = self._types[self.number(structure)], 0
        for field in path.split("."):
            found = self._field(type_position, field)
            if found is None:
                raise LayoutError(f"this kernel's struct {structure} has no field {path}")
            field_bits, type_position = found
            bits += field_bits
        if bits % 8:
            raise LayoutError(f"{path} of struct {structure} is a bit field")
        return bits // 8

    def number(self, structure: str) -> int:
        """Return the number of a structure's type. Raises LayoutError if there is none."""
        return self._number(_STRUCT, "struct", structure)

    def function(self, name: str) -> int:
        """Return the number of a function's type. Raises LayoutError if there is none."""
        return self._number(_FUNCTION, "function", name)

    def size(self, structure: str) -> int:
        """Return the size of a structure in bytes. Raises LayoutError if there is none."""
        return int(_TYPE.unpack_from(self._data, self._types[self.number(structure)])[2])

    def member_index(self, structure: str, field: str) -> int:
        """Return a field's index in its structure, from 0. Raises LayoutError if there is none."""
        return self._member_index(self.number(structure), _MEMBER, f"struct {structure}", field)

    def enumerator(self, enumeration: str, name: str) -> int:
        """Return the value of a constant. Raises LayoutError if there is none."""
        number = self._number(_ENUM, "enum", enumeration)
        index = self._member_index(number, _ENUMERATOR, f"enum {enumeration}", name)
        at = self._types[number] + _TYPE.size + index * _ENUMERATOR.size
        return int(_ENUMERATOR.unpack_from(self._data, at)[1])

    def _number(self, kind: int, word: str, name: str) -> int:
        at = self._data.find(b"\0" + name.encode() + b"\0", self._names_at) + 1
        found = self._numbers.get((kind, at - self._names_at)) if at else None
        if found is None:
            raise LayoutError(f"this kernel has no {word} {name}")
        return found

    def _member_index(self, number: int, layout: struct.Struct, within: str, name: str) -> int:
        at = self._types[number]
        (_, info, _), start = _TYPE.unpack_from(self._data, at), at + _TYPE.size
        for index in range(info & 0xFFFF):
            if self._has_name(layout.unpack_from(self._data, start + index * layout.size)[0], name):
                return index
        raise LayoutError(f"this kernel's {within} has no {name}")

    def _field(self, at: int, field: str) -> tuple[int, int] | None:
        """Return a field's offset in bits and the offset of its type's entry, None if it is absent.

        Fields of nameless inner structures and unions count, too.
        """
        _, info, _ = _TYPE.unpack_from(self._data, at)
        if info >> 24 & 0x1F not in (_STRUCT, _UNION):
            return None
        # with this flag the upper byte of an offset is the size of a bit field
        mask = 0xFFFFFF if info >> 31 else 0xFFFFFFFF
        for number in range(info & 0xFFFF):
            offset = at + _TYPE.size + number * _MEMBER.size
            name, kind, bits = _MEMBER.unpack_from(self._data, offset)
            type_at = self._types[kind]
            if self._has_name(name, field):
                return bits & mask, type_at
            if not name and (inner := self._field(type_at, field)):
                return (bits & mask) + inner[0], inner[1]
        return None

    def _has_name(self, name: int, expected: str) -> bool:
        start, text = self._names_at + name, expected.encode() + b"\0"
        return self._data[start : start + len(text)] == text
