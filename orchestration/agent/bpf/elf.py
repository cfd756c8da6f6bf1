"""Reads a BPF program from its object file: its code, its zeroed global data, and its named maps.

A program may name offsets, constants and functions of the running kernel; `Program.linked` inserts
their values before the program is loaded.

Formats: System V ABI, "Object files" (ELF64), and the kernel's Documentation/bpf/llvm_reloc.rst.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

INSTRUCTION_BYTES = 8
_MACHINE_BPF = 247
_SYMTAB, _RELA, _NOBITS, _REL = 2, 4, 8, 9
_R_BPF_64_64, _R_BPF_64_32 = 1, 10
_LOAD_64 = 0x18
_PSEUDO_MAP_FD, _PSEUDO_MAP_VALUE = 1, 2
_PSEUDO_KFUNC_CALL = 2


class ObjectError(ValueError):
    """The file is not a BPF object that this reader supports."""


@dataclass(frozen=True)
class Program:
    """A program's instructions, and where they refer to something outside.

    `references` has (byte offset in `code`, offset in the global data), and the data is
    `data_bytes` zeros. `maps`, `numbers` and `calls` have (byte offset in `code`, name): of maps
    that the source only declares, of numbers of the kernel, and of functions of the kernel.
    """

    code: bytes
    references: tuple[tuple[int, int], ...]
    data_bytes: int
    maps: tuple[tuple[int, str], ...] = ()
    numbers: tuple[tuple[int, str], ...] = ()
    calls: tuple[tuple[int, str], ...] = ()

    def linked(
        self,
        map_fd: int,
        maps: Mapping[str, int] | None = None,
        kernel: Mapping[str, int] | None = None,
    ) -> bytes:
        """Return the instructions with all references resolved.

        `map_fd` is the descriptor of the map with the global data, and `maps` has those of the
        other maps by name. `kernel` has the kernel's numbers by name; a function's number is that
        of its type.
        """
        code = bytearray(self.code)
        for at, name in self.numbers:
            struct.pack_into("<i", code, at + 4, (kernel or {})[name])
        for at, name in self.calls:
            code[at + 1] = (code[at + 1] & 0x0F) | _PSEUDO_KFUNC_CALL << 4
            struct.pack_into("<i", code, at + 4, (kernel or {})[name])
        for at, name in self.maps:
            code[at + 1] = (code[at + 1] & 0x0F) | _PSEUDO_MAP_FD << 4
            struct.pack_into("<i", code, at + 4, (maps or {})[name])
        for at, offset in self.references:
            code[at + 1] = (code[at + 1] & 0x0F) | _PSEUDO_MAP_VALUE << 4
            struct.pack_into("<i", code, at + 4, map_fd)
            struct.pack_into("<i", code, at + INSTRUCTION_BYTES + 4, offset)
        return bytes(code)

    def to_json(self) -> dict[str, Any]:
        """Return the program as JSON-ready data, to be sent to a device's agent."""
        return {
            "code": base64.b64encode(self.code).decode(),
            "references": self.references,
            "maps": self.maps,
            "numbers": self.numbers,
            "calls": self.calls,
            "data_bytes": self.data_bytes,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Program:
        """Rebuild a program from `to_json`'s data; other keys of `data` are ignored."""
        return cls(
            base64.b64decode(data["code"]),
            tuple((int(at), int(offset)) for at, offset in data["references"]),
            int(data["data_bytes"]),
            *(
                tuple((int(at), str(name)) for at, name in data[kind])
                for kind in ("maps", "numbers", "calls")
            ),
        )


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int
    entry_size: int


def read_program(
    data: bytes, section: str = "tc", maps: Collection[str] = (), *, kernel: bool = False
) -> Program:
    """Return the program in an object's section, which may refer to `maps` by their names.

    With `kernel`, every other name that the source only declares is one of the kernel. Raises
    ObjectError if the object is not supported.
    """
    try:
        return _read(data, section, maps, kernel)
    except (struct.error, IndexError, ValueError) as error:
        if isinstance(error, ObjectError):
            raise
        raise ObjectError(f"the object file is cut short or damaged: {error}") from error


def sections(data: bytes, prefix: str) -> list[str]:
    """Return the names of sections that begin with `prefix`. Raises ObjectError."""
    try:
        return [item.name for item in _sections(data) if item.name.startswith(prefix)]
    except (struct.error, IndexError, ValueError) as error:
        raise ObjectError(f"the object file is cut short or damaged: {error}") from error


def read_section(data: bytes, name: str) -> bytes:
    """Return a section's bytes. Raises ObjectError if there is none."""
    try:
        sections = _sections(data)
        return _payload(data, sections[_index_of(sections, name)])
    except (struct.error, IndexError) as error:
        raise ObjectError(f"the object file is cut short or damaged: {error}") from error


def _read(data: bytes, section: str, maps: Collection[str], kernel: bool) -> Program:
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18) != (_MACHINE_BPF,):
        raise ObjectError("not a little-endian BPF object file")
    found = _sections(data)
    number = _index_of(found, section)
    code = _payload(data, found[number])
    if not code or len(code) % INSTRUCTION_BYTES:
        raise ObjectError(f"section {section!r} does not hold a whole number of instructions")
    references, named = [], []
    numbers: list[tuple[int, str]] = []
    calls: list[tuple[int, str]] = []
    data_bytes = max((item.size for item in found if item.name == ".bss"), default=0)
    for relocations in found:
        if relocations.kind not in (_REL, _RELA) or relocations.info != number:
            continue
        symbols = found[relocations.link]
        for at, kind, symbol, addend in _relocations(data, relocations):
            section_index, value = _symbol(data, symbols, symbol)
            name = "" if section_index else _symbol_name(data, found, symbols, symbol)
            if kind == _R_BPF_64_64 and name in maps:
                named.append((at, name))
                continue
            if name and kernel and kind in (_R_BPF_64_64, _R_BPF_64_32):
                (numbers if kind == _R_BPF_64_64 else calls).append((at, name))
                continue
            if kind != _R_BPF_64_64 or code[at] != _LOAD_64:
                raise ObjectError(f"relocation of kind {kind} at byte {at}: only data is linked")
            if found[section_index].name != ".bss" or found[section_index].kind != _NOBITS:
                raise ObjectError(f"byte {at} refers to {found[section_index].name or 'nothing'!r}")
            (inline,) = struct.unpack_from("<i", code, at + 4)
            offset = value + (inline if addend is None else addend)
            if not 0 <= offset < data_bytes:
                raise ObjectError(f"byte {at} refers to offset {offset} of {data_bytes} of data")
            references.append((at, offset))
    return Program(code, tuple(references), data_bytes, tuple(named), tuple(numbers), tuple(calls))


def _sections(data: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    section_headers = [
        struct.unpack_from("<IIQQQQIIQQ", data, table + size * n) for n in range(count)
    ]
    names_at = section_headers[names][4]

    def name(at: int) -> str:
        start = names_at + at
        return data[start : data.index(b"\0", start)].decode()

    return [_Section(name(h[0]), h[1], h[4], h[5], h[6], h[7], h[9]) for h in section_headers]


def _index_of(sections: list[_Section], name: str) -> int:
    found = [number for number, item in enumerate(sections) if item.name == name]
    if len(found) != 1:
        raise ObjectError(f"{len(found)} sections are called {name!r}, not one")
    return found[0]


def _payload(data: bytes, section: _Section) -> bytes:
    payload = data[section.offset : section.offset + section.size]
    if len(payload) < section.size:
        raise ObjectError(f"the object file is cut short in section {section.name!r}")
    return payload


def _relocations(data: bytes, section: _Section) -> list[tuple[int, int, int, int | None]]:
    """Return (offset, kind, symbol, addend) of each; the addend is None if the code contains it."""
    result: list[tuple[int, int, int, int | None]] = []
    for at in range(section.offset, section.offset + section.size, section.entry_size or 16):
        offset, info = struct.unpack_from("<QQ", data, at)
        addend = None
        if section.kind == _RELA:
            (addend,) = struct.unpack_from("<q", data, at + 16)
        result.append((offset, info & 0xFFFFFFFF, info >> 32, addend))
    return result


def _symbol_name(data: bytes, sections: list[_Section], table: _Section, number: int) -> str:
    names = _payload(data, sections[table.link])
    (at,) = struct.unpack_from("<I", data, table.offset + table.entry_size * number)
    return names[at : names.index(b"\0", at)].decode()


def _symbol(data: bytes, table: _Section, number: int) -> tuple[int, int]:
    if table.kind != _SYMTAB:
        raise ObjectError("relocations without a symbol table")
    section_index, value = struct.unpack_from(
        "<HQ", data, table.offset + table.entry_size * number + 6
    )
    return section_index, value
