"""Reads chosen columns of a delimited text file with a header; a fault has its file and line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import NoReturn

import numpy as np

from inventory.strictyaml import suggest
from orchestration.exchange.textrows import refuse, shown
from orchestration.model.errors import InputError
from orchestration.model.records import MISSING, Ints

_BLOCK_ROWS = 100_000
# Up to here a double's rounding of a product is far below 1.
_EXACT = 2.0**50
_MOST = 2**62


@dataclass(frozen=True)
class Block:
    """Rows of the file as columns of text by their names; `lines` has each row's line number."""

    path: Path
    lines: Sequence[int]
    cells: Mapping[str, Sequence[str]]

    def refuse(self, row: int, what: str, remedy: str) -> NoReturn:
        """Raise InputError about a row."""
        refuse(self.path, self.lines[row], what, remedy)

    def scaled(self, column: str, factor: int, *, least: int = 0, empty: bool = False) -> Ints:
        """Return a column of decimals times `factor`, rounded to whole numbers.

        With `empty`, an empty cell is `MISSING`. Raises InputError, with the line, for what is no
        number or less than `least`.
        """
        cells = self.cells[column]
        blank = np.array([not cell.strip() for cell in cells]) if empty else None
        filled = [cell if cell.strip() else "0" for cell in cells] if empty else cells
        try:
            values = scaled_integers(filled, factor)
        except (ValueError, ArithmeticError):
            row = next(n for n, cell in enumerate(filled) if not _is_number(cell, factor))
            remedy = f"write the plain number; its unit belongs into the mapping file ({column})"
            self.refuse(row, f"{column} is {shown(cells[row])}, not a number", remedy)
        low = values < least
        if blank is not None:
            low &= ~blank
            values[blank] = MISSING
        if low.any():
            row = int(np.argmax(low))
            what = f"{column} is {shown(cells[row])}, less than {least} after scaling"
            self.refuse(row, what, "correct or remove the row; check the column's unit")
        return values


def blocks(path: Path, wanted: Mapping[str, str], delimiter: str) -> Iterator[Block]:
    """Yield the rows of a file in blocks; `wanted` is what columns are called -> in the header.

    Raises InputError, with the line, for a file that cannot be read or is cut off, a header without
    a wanted column, and rows of another number of cells.
    """
    try:
        _refuse_torn(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            if delimiter == " ":
                reader: Iterator[list[str]] = (line.split() for line in file)
            else:
                reader = csv.reader(file, delimiter=delimiter)
            header = [name.strip() for name in next(reader, [])]
            places = {name: _place(path, header, column) for name, column in wanted.items()}
            line = 2
            while rows := list(islice(reader, _BLOCK_ROWS)):
                lines = [line + n for n, row in enumerate(rows) if row]
                kept = [row for row in rows if row]
                bad = next((n for n, row in enumerate(kept) if len(row) != len(header)), None)
                if bad is not None:
                    what = f"has {len(kept[bad])} cells, the header {len(header)}"
                    refuse(path, lines[bad], what, "correct the row, or the delimiter's name")
                line += len(rows)
                if kept:
                    columns = list(zip(*kept, strict=True))
                    cells = {name: columns[place] for name, place in places.items()}
                    yield Block(path, lines, cells)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError.single(str(path), f"cannot be read: {reason}", "check the path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        what = f"is not delimited UTF-8 text: {error}"
        raise InputError.single(str(path), what, "give a CSV file") from error


def _place(path: Path, header: list[str], column: str) -> int:
    if header.count(column) != 1:
        many = "two columns" if column in header else "no column"
        remedy = f"{suggest(column, header)}it has {', '.join(header)[:200] or 'nothing'}"
        refuse(path, 1, f"has {many} {column!r}", remedy)
    return header.index(column)


def _refuse_torn(path: Path) -> None:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if not size:
            raise InputError.single(str(path), "is empty", "give the file whole")
        file.seek(-1, 2)
        if file.read() == b"\n":
            return
        file.seek(0)
        lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    what = "the last line has no end: the file may be cut off"
    refuse(path, lines + 1, what, "copy the file again; if it is whole, end it with a line break")


def scaled_integers(cells: Sequence[str], factor: int) -> Ints:
    """Return decimals times `factor`, rounded. Raises ValueError or ArithmeticError for others."""
    try:
        whole = [int(cell) * factor for cell in cells]
        return np.array(whole, dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    values = np.array([float(cell) for cell in cells]) * factor
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) > _MOST:
        raise ValueError
    if np.abs(values).max(initial=0) < _EXACT:
        return np.asarray(np.rint(values), dtype=np.int64)
    return np.array([round(Decimal(cell) * factor) for cell in cells], dtype=np.int64)


def _is_number(cell: str, factor: int) -> bool:
    try:
        value = Decimal(cell.strip())
    except InvalidOperation:
        return False
    return value.is_finite() and abs(value * factor) <= _MOST
