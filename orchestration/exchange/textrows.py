"""Reads text tables of others' tools: whitespace-separated, in blocks, errors with their line.

A million lines take a few seconds and the memory of one block besides the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from orchestration.model.errors import InputError
from orchestration.model.records import Ints

_BLOCK_LINES = 100_000
_SAMPLE_BYTES = 4096
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class Rows:
    """A block of rows of one width, as columns of bytes; `lines` has each row's line number."""

    path: Path
    lines: Sequence[int]
    columns: Sequence[Sequence[bytes]]

    def refuse(self, row: int, what: str, remedy: str) -> NoReturn:
        """Raise InputError about a row of the block."""
        refuse(self.path, self.lines[row], what, remedy)

    def integers(self, column: int, name: str, *, least: int = 0, base: int = 10) -> Ints:
        """Return a column as int64. Raises InputError, with the line, for what is not one."""
        cells = self.columns[column]
        try:
            values = np.array([int(cell, base) for cell in cells], dtype=np.int64)
        except (ValueError, OverflowError):
            row = next(n for n, cell in enumerate(cells) if not _is_integer(cell, base))
            kind = "a whole number" if base == 10 else "a hexadecimal number"
            self.refuse(row, f"{name} is {shown(cells[row])}, not {kind}", CHECK_FORMAT)
        if len(values) and int(values.min()) < least:
            row = int(np.argmax(values < least))
            self.refuse(row, f"{name} is {values[row]}, less than {least}", CHECK_FORMAT)
        return values


CHECK_FORMAT = "give the file as the simulator wrote it; see `closloop import --help` for formats"


def refuse(path: Path, line: int, what: str, remedy: str) -> NoReturn:
    """Raise InputError about a line of a file."""
    raise fault(path, line, what, remedy)


def fault(path: Path, line: int, what: str, remedy: str) -> InputError:
    """Return an error about a line of a file."""
    return InputError.single(f"{path}:{line}", what, remedy)


def shown(cell: bytes | str) -> str:
    """Return a cell as text for a message, short."""
    text = cell.decode("ascii", "backslashreplace") if isinstance(cell, bytes) else cell
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def opened(path: Path) -> IO[bytes]:
    """Open a file to read its bytes. Raises InputError if that is impossible."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError.single(str(path), "no such file", "check the path") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError.single(str(path), f"cannot be read: {reason}", "check the path") from error


def rows(
    path: Path, widths: Sequence[int], *, what: str, first: int = 1, count: int | None = None
) -> Iterator[Rows]:
    """Yield the rows of a file from line `first` on in blocks; all have one of `widths` columns.

    With `count`, exactly so many rows are read and what follows them is left alone (the shipped
    samples have notes there); without, every line is a row and the last must have its newline, as
    a program that writes lines leaves it. Blank lines are skipped. `what` names a row in errors.
    Raises InputError for a file that is cut off, binary, or of other columns.
    """
    with opened(path) as file:
        _refuse_binary(path, file.read(_SAMPLE_BYTES))
        file.seek(0)
        lines = enumerate(islice(file, first - 1, None), start=first)
        left = count
        width = 0
        while left is None or left > 0:
            block: list[list[bytes]] = []
            numbers: list[int] = []
            limit = _BLOCK_LINES if left is None else min(left, _BLOCK_LINES)
            last = b""
            for number, line in islice(lines, limit):
                cells = line.split()
                last = line
                if cells:
                    block.append(cells)
                    numbers.append(number)
            if not last:
                break
            if not block:
                continue
            if left is None and not last.endswith(b"\n"):
                refuse(path, numbers[-1], f"the last line has no end: {what} may be cut off", _CUT)
            width = width or _width(path, numbers[0], block[0], widths, what)
            bad = next((n for n, cells in enumerate(block) if len(cells) != width), None)
            if bad is not None:
                _refuse_width(path, numbers[bad], block[bad], [width], what)
            if left is not None:
                left -= len(block)
            yield Rows(path, numbers, list(zip(*block, strict=True)))
    if left:
        raise InputError.single(
            str(path),
            f"has {(count or 0) - left} of the {count} lines of {what} that it announces",
            "the file is cut off, or its count is wrong: copy it again, or correct the count",
        )


_CUT = "copy the file again; if the line is whole, end it with a newline"


def head(path: Path, count: int) -> list[list[bytes]]:
    """Return the first `count` lines, split. Raises InputError for a shorter or a binary file."""
    with opened(path) as file:
        _refuse_binary(path, file.read(_SAMPLE_BYTES))
        file.seek(0)
        found = list(islice(file, count))
        if len(found) < count or not found[0].strip():
            line = len(found) or 1
            refuse(path, line, f"ends after {len(found)} lines" if found else "is empty", _CUT)
    return [line.split() for line in found]


def _refuse_binary(path: Path, start: bytes) -> None:
    if b"\0" in start:
        raise InputError.single(str(path), "is binary, not text", CHECK_FORMAT)


def nanoseconds(cells: Sequence[bytes], block: Rows, name: str) -> Ints:
    """Return seconds written as decimals as exact ns. Raises InputError past nine decimals."""
    return np.array([_decimal_ns(cell, row, block, name) for row, cell in enumerate(cells)], int)


def _decimal_ns(cell: bytes, row: int, block: Rows, name: str) -> int:
    whole, _, decimals = cell.partition(b".")
    kept = decimals[:9]
    if (
        not whole.isdigit()
        or (decimals and not decimals.isdigit())
        or len(whole) > 9
        or decimals[9:].strip(b"0")
    ):
        block.refuse(
            row,
            f"{name} is {shown(cell)}, not seconds with up to nine decimals",
            "write it like 2.000013457",
        )
    return int(whole) * 10**9 + (int(kept.ljust(9, b"0")) if kept else 0)


def _is_integer(cell: Any, base: int) -> bool:
    try:
        return bool(_INT64.min <= int(cell, base) <= _INT64.max)
    except ValueError:
        return False


def _width(path: Path, line: int, cells: list[bytes], widths: Sequence[int], what: str) -> int:
    if len(cells) not in widths:
        _refuse_width(path, line, cells, widths, what)
    return len(cells)


def _refuse_width(
    path: Path, line: int, cells: list[bytes], widths: Sequence[int], what: str
) -> NoReturn:
    wanted = " or ".join(str(width) for width in widths)
    text = b" ".join(cells)
    if not text.isascii() or b"\0" in text:
        refuse(path, line, f"holds bytes that are no text where {what} should be", CHECK_FORMAT)
    refuse(path, line, f"{shown(text)} has {len(cells)} columns, {what} has {wanted}", CHECK_FORMAT)
