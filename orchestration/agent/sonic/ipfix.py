"""Reads IPFIX messages (RFC 7011): templates, and the data records that they describe.

A message is a header and sets. A template set (number 2) has the fields of later records; a data
set's number is that of its template. A set may have several records of its template, and may end in
padding that is shorter than a record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

VERSION = 10
TEMPLATE_SET, FIRST_DATA_SET = 2, 256
# observationTimeSeconds and observationTimeNanoseconds (IANA, IPFIX information elements)
SECONDS, NANOSECONDS = 322, 325

_HEADER = struct.Struct(">HHIII")
_PAIR = struct.Struct(">HH")
_ENTERPRISE_BIT = 0x8000
_VARIABLE = 0xFFFF
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


class IpfixError(ValueError):
    """The error for bytes that are not an IPFIX message; everything before them has been read."""


@dataclass(frozen=True)
class Field:
    """One field of a template; `enterprise` is None for elements of IANA's registry."""

    element: int
    enterprise: int | None
    length: int


@dataclass(frozen=True)
class Template:
    """The fields of one kind of record, in order."""

    number: int
    fields: tuple[Field, ...]

    @cached_property
    def _plain(self) -> struct.Struct | None:
        """The record's layout if all its fields are whole numbers of fixed length."""
        codes = [_CODES.get(field.length, "") for field in self.fields]
        return struct.Struct(">" + "".join(codes)) if all(codes) else None

    @cached_property
    def min_bytes(self) -> int:
        """The smallest size of a record. A field of variable length has at least a length byte."""
        return sum(1 if f.length == _VARIABLE else f.length for f in self.fields)

    def values(self, data: bytes, at: int) -> tuple[tuple[int | bytes, ...], int]:
        """Return a record's values and its end. Fields of odd lengths are bytes.

        Raises IpfixError if the data end before the record ends.
        """
        if self._plain is not None:
            if at + self._plain.size > len(data):
                raise IpfixError(f"a record of template {self.number} is cut off")
            return self._plain.unpack_from(data, at), at + self._plain.size
        found: list[int | bytes] = []
        for field in self.fields:
            length, at = _length(data, at) if field.length == _VARIABLE else (field.length, at)
            if at + length > len(data):
                raise IpfixError(f"a record of template {self.number} is cut off")
            piece = data[at : at + length]
            found.append(int.from_bytes(piece, "big") if length in _CODES else piece)
            at += length
        return tuple(found), at


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return the length of a value of variable length, and the offset of the value."""
    head = data[at : at + 3]
    if not head or (head[0] == 255 and len(head) < 3):
        raise IpfixError("the length of a value is cut off")
    return (int.from_bytes(head[1:], "big"), at + 3) if head[0] == 255 else (head[0], at + 1)


def sets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of every set in `data`, consecutive messages.

    Raises IpfixError at the first bytes that are not a message.
    """
    at = 0
    while at < len(data):
        if at + _HEADER.size > len(data):
            raise IpfixError(f"{len(data) - at} bytes are too few for a message's header")
        version, length, *_ = _HEADER.unpack_from(data, at)
        end = at + length
        if version != VERSION or length < _HEADER.size or end > len(data):
            raise IpfixError(f"not an IPFIX message: version {version}, {length} bytes")
        at += _HEADER.size
        while at < end:
            if at + _PAIR.size > end:
                raise IpfixError("a set's header is cut off")
            number, length = _PAIR.unpack_from(data, at)
            if length < _PAIR.size or at + length > end:
                raise IpfixError(f"set {number} has a length of {length} bytes")
            yield number, data[at + _PAIR.size : at + length]
            at += length


def templates(data: bytes) -> dict[int, Template]:
    """Return the templates in consecutive messages by number.

    A later template without fields withdraws the one of its number.
    """
    found: dict[int, Template] = {}
    for number, content in sets(data):
        # four bytes are the shortest template, a withdrawal; less is padding
        at = 0 if number == TEMPLATE_SET else len(content)
        while at + _PAIR.size <= len(content):
            template, at = _template(content, at)
            if template.fields:
                found[template.number] = template
            else:
                found.pop(template.number, None)
    return found


def _template(content: bytes, at: int) -> tuple[Template, int]:
    number, count = _PAIR.unpack_from(content, at)
    if number < FIRST_DATA_SET:
        raise IpfixError(f"a template cannot have number {number}")
    at += _PAIR.size
    fields = []
    for _ in range(count):
        size = 8 if at + 2 <= len(content) and content[at] & 0x80 else 4
        if at + size > len(content):
            raise IpfixError(f"template {number} is cut off")
        element, length = _PAIR.unpack_from(content, at)
        enterprise = int.from_bytes(content[at + 4 : at + 8], "big") if size == 8 else None
        if not length:
            raise IpfixError(f"template {number} has a field without bytes")
        fields.append(Field(element & ~_ENTERPRISE_BIT, enterprise, length))
        at += size
    return Template(number, tuple(fields)), at


def records(
    data: bytes, known: Mapping[int, Template]
) -> Iterator[tuple[Template, tuple[int | bytes, ...]]]:
    """Yield the records in consecutive messages whose templates are known, in order."""
    for number, content in sets(data):
        template = known.get(number)
        if template is None:
            continue
        at = 0
        while len(content) - at >= template.min_bytes:
            values, at = template.values(content, at)
            yield template, values
