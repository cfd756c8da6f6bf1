"""Read blank-separated text tables of simulators in blocks; errors name the file and the line.

A million lines take a few seconds. Besides the columns, one block is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

from orchestration.core.csv_columns import COPY, is_integer, open_bytes, quoted_cell, refuse
from orchestration.core.errors import InputError
from orchestration.core.records import Ints

_BLOCK_ROWS = 100_000
_SAMPLE_BYTES = 4096
CHECK_FORMAT = "give the file as the simulator wrote it; see `closloop import --help` for formats"


@dataclass(frozen=True)
class Rows:
    """A block of rows of equal width, as columns of bytes; `lines` has each row's line number."""

    path: Path
    lines: Sequence[int]
    columns: Sequence[Sequence[bytes]]

    def refuse(self, row: int, what: str, remedy: str) -> NoReturn:
        """Raise InputError for a row of the block."""
        refuse(self.path, self.lines[row], what, remedy)

    def integers(self, column: int, name: str, *, minimum: int = 0) -> Ints:
        """Return a column as int64. Raises InputError, with the line, for other values."""
        cells = self.columns[column]
        try:
            values = np.array([int(cell) for cell in cells], dtype=np.int64)
        except (ValueError, OverflowError):
            row = next(n for n, cell in enumerate(cells) if not is_integer(cell))
            self.refuse(
                row, f"{name} is {quoted_cell(cells[row])}, not a whole number", CHECK_FORMAT
            )
        if len(values) and int(values.min()) < minimum:
            row = int(np.argmax(values < minimum))
            self.refuse(row, f"{name} is {values[row]}, less than {minimum}", CHECK_FORMAT)
        return values


def concatenated(parts: Sequence[Sequence[Ints]]) -> list[Ints]:
    """Return the columns of all blocks, each concatenated."""
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def rows(
    path: Path, widths: Sequence[int], *, what: str, first: int = 1, count: int | None = None
) -> Iterator[Rows]:
    """Yield the rows of a file in blocks, beginning with line `first`.

    All rows have the same number of columns, which is one of `widths`. With `count`, exactly that
    many rows are read, and later lines are ignored (the simulator's sample files have notes there).
    Without it, every line is a row, and the last one must end with a newline. Blank lines are
    skipped. `what` names a row in errors. Raises InputError for a file that is truncated or binary,
    or has another number of columns.
    """
    with _opened_text(path) as file:
        lines = enumerate(islice(file, first - 1, None), start=first)
        left = count
        while left is None or left > 0:
            block: list[list[bytes]] = []
            numbers: list[int] = []
            last = b""
            for number, line in islice(lines, min(left or _BLOCK_ROWS, _BLOCK_ROWS)):
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
                refuse(
                    path,
                    numbers[-1],
                    f"the last line has no line break: {what} may be cut off",
                    COPY,
                )
            if len(block[0]) in widths:
                widths = (len(block[0]),)
            bad = next((n for n, cells in enumerate(block) if len(cells) not in widths), None)
            if bad is not None:
                _refuse_width(path, numbers[bad], block[bad], widths, what)
            if left is not None:
                left -= len(block)
            yield Rows(path, numbers, list(zip(*block, strict=True)))
    if left:
        raise InputError.single(
            str(path),
            f"has {(count or 0) - left} of the {count} lines of {what} that it announces",
            "the file is cut off, or its count is wrong: copy it again, or correct the count",
        )


def head(path: Path, count: int) -> list[list[bytes]]:
    """Return the words of the first `count` lines. Raises InputError for a shorter file."""
    with _opened_text(path) as file:
        lines = list(islice(file, count))
    if len(lines) < count or not lines[0].strip():
        what = f"ends after {len(lines)} lines" if lines else "is empty"
        refuse(path, len(lines) or 1, what, COPY)
    return [line.split() for line in lines]


@contextmanager
def _opened_text(path: Path) -> Iterator[IO[bytes]]:
    with open_bytes(path) as file:
        if b"\0" in file.read(_SAMPLE_BYTES):
            raise InputError.single(str(path), "is binary, not text", CHECK_FORMAT)
        file.seek(0)
        yield file


def _refuse_width(
    path: Path, line: int, cells: list[bytes], widths: Sequence[int], what: str
) -> NoReturn:
    text = b" ".join(cells)
    if not text.isascii() or b"\0" in text:
        refuse(path, line, f"has bytes that are not text in place of {what}", CHECK_FORMAT)
    expected = " or ".join(str(width) for width in widths)
    problem = f"{quoted_cell(text)} has {len(cells)} columns, {what} has {expected}"
    refuse(path, line, problem, CHECK_FORMAT)
