"""CSV files, read strictly into columns; errors name the file and line.

`read_csv` reads a file that has exactly the given columns. `read_blocks` reads chosen columns of
any delimited file with a header.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from orchestration.core.errors import InputError, no_such_file, suggest, unreadable
from orchestration.core.records import MISSING, Ints

Kind = Literal["integer", "number", "name"]

# Rows held as text at a time. With more, the garbage collector scans them over and over: a million
# rows take 1 s in chunks of a thousand, 3 s in chunks of a hundred thousand.
_CHUNK_ROWS = 1_000
_BLOCK_ROWS = 100_000
_KINDS_IN_WORDS = {"integer": "a whole number", "number": "a finite number", "name": "a name"}
# Up to this value the rounding error of a product of doubles is far below 1.
_EXACT = 2.0**50
_MAX = 2**62
_INT64 = np.iinfo(np.int64)
COPY = "copy the file again; if it is complete, end its last line with a line break"
_NO_LINE_BREAK = "the last line has no line break: the file may be cut off"


def refuse(path: str | Path, line: int, what: str, remedy: str) -> NoReturn:
    """Raise InputError about a line of a file."""
    raise InputError.single(f"{path}:{line}", what, remedy)


def quoted_cell(cell: bytes | str) -> str:
    """Return a cell in quotation marks for a message, shortened to 40 characters."""
    text = cell.decode("ascii", "backslashreplace") if isinstance(cell, bytes) else cell
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file to read its bytes. Raises InputError if it cannot be opened."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise no_such_file(path) from None
    except OSError as error:
        raise unreadable(path, error) from error


def numbered_lines(path: Path, remedy: str) -> Iterator[tuple[int, bytes]]:
    """Yield a file's lines with their numbers, from 1.

    Raises InputError if the file cannot be read or is empty. Raises it after the last line if that
    line has no line break, because then the file may be cut off.
    """
    number, line = 0, b""
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            yield number, line
    if not number:
        raise InputError.single(str(path), "is empty", remedy)
    if not line.endswith(b"\n"):
        refuse(path, number, _NO_LINE_BREAK, remedy)


def refuse_where(
    wrong: NDArray[np.bool_], path: str | Path, lines: Sequence[int], what: str, remedy: str
) -> None:
    """Raise InputError about the first line for which `wrong`, shape (lines,), is True, if any."""
    if wrong.any():
        refuse(path, lines[int(np.argmax(wrong))], what, remedy)


@contextmanager
def opened_csv(
    path: str | Path, remedy: str, *, delimiter: str = ","
) -> Iterator[tuple[IO[str], Iterator[list[str]]]]:
    """Open a delimited UTF-8 file; yield the file and an iterator over its rows.

    Errors while reading become an InputError with `remedy`. The delimiter " " means any amount of
    white space.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            if delimiter == " ":
                yield file, (line.split() for line in file)
            else:
                yield file, csv.reader(file, delimiter=delimiter)
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise InputError.single(str(path), "is not UTF-8 text", "save the file as UTF-8") from error
    except csv.Error as error:
        raise InputError.single(str(path), f"is not CSV: {error}", remedy) from error


@dataclass(frozen=True)
class NameColumn:
    """A column of names: `codes`, shape (rows,), index `names`, in order of first appearance."""

    codes: Ints
    names: tuple[str, ...]


@dataclass(frozen=True)
class CsvColumns:
    """The columns of a file by name, each with an entry for every row."""

    path: str
    integers: Mapping[str, Ints]
    numbers: Mapping[str, NDArray[np.float64]]
    names: Mapping[str, NameColumn]

    def where(self, row: int) -> str:
        """Return `file:line` of a row, counted from 0."""
        return f"{self.path}:{row + 2}"

    def refuse(self, wrong: NDArray[np.bool_], what: str, remedy: str) -> None:
        """Raise InputError about the first row for which `wrong` is True, if any.

        If `wrong` is shorter than the columns, it is about the last rows.
        """
        if wrong.any():
            columns = (*self.integers.values(), *self.numbers.values())
            row = int(np.argmax(wrong)) + len(columns[0]) - len(wrong)
            raise InputError.single(self.where(row), what, remedy)


def read_csv(path: str, columns: Mapping[str, Kind]) -> CsvColumns:
    """Return the columns of a CSV file whose header has the names of `columns`, in that order.

    Raises InputError, with the line, for a file that cannot be read, has another header or ends in
    the middle of a line, and for a row with a wrong number of cells or a cell that is not a number.
    """
    header = ",".join(columns)
    remedy = f"write each row as one line: {header}"
    chunks: dict[str, list[NDArray[Any]]] = {name: [] for name in columns}
    codes: dict[str, dict[str, int]] = {
        name: {} for name, kind in columns.items() if kind == "name"
    }
    with opened_csv(path, remedy) as (file, reader):
        _refuse_cut_off(path, "write or " + COPY)
        first = file.readline().rstrip("\r\n")
        if "".join(first.split()) != header:
            what = "the file is empty" if not first else f"its first line is {first[:80]!r}"
            refuse(path, 1, what, f"begin the file with {header}")
        line = 2
        while chunk := list(islice(reader, _CHUNK_ROWS)):
            for offset, row in enumerate(chunk):
                if len(row) != len(columns):
                    what = f"{len(row)} cells instead of {len(columns)}"
                    refuse(path, line + offset, what if row else "the line is empty", remedy)
            for (name, kind), texts in zip(columns.items(), zip(*chunk, strict=True), strict=True):
                if kind == "name":
                    chunks[name].append(_coded(texts, codes[name], name, path, line))
                else:
                    chunks[name].append(_parsed(texts, kind, name, path, line))
            line += len(chunk)

    def joined(kind: Kind, dtype: type) -> dict[str, NDArray[Any]]:
        names = (name for name, its_kind in columns.items() if its_kind == kind)
        return {name: np.concatenate([np.zeros(0, dtype), *chunks[name]]) for name in names}

    names = joined("name", np.int64)
    return CsvColumns(
        path=path,
        integers=joined("integer", np.int64),
        numbers=joined("number", np.float64),
        names={name: NameColumn(column, tuple(codes[name])) for name, column in names.items()},
    )


def write_csv(path: Path, columns: Mapping[str, Sequence[object] | NDArray[Any]]) -> None:
    """Write columns of equal length under their names. Numbers read back exactly."""
    lists = [c.tolist() if isinstance(c, np.ndarray) else c for c in columns.values()]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*lists, strict=True))


def _refuse_cut_off(path: str | Path, remedy: str) -> None:
    """Raise InputError for a file that does not end with a line break."""
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            return
        file.seek(-1, 2)
        if file.read() == b"\n":
            return
        file.seek(0)
        lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    refuse(path, lines + 1, _NO_LINE_BREAK, remedy)


def _coded(
    texts: Sequence[str], codes: dict[str, int], name: str, path: str, line: int
) -> NDArray[np.int64]:
    """Return the code of each text; new texts are added to `codes`."""
    for text in dict.fromkeys(texts):
        if not text.strip():
            raise _wrong_cell(path, line + texts.index(text), name, text, "name")
        codes.setdefault(text, len(codes))
    return np.fromiter(map(codes.__getitem__, texts), np.int64, len(texts))


def _parsed(
    texts: Sequence[str], kind: Literal["integer", "number"], name: str, path: str, line: int
) -> NDArray[Any]:
    parse, dtype = (int, np.int64) if kind == "integer" else (float, np.float64)
    try:
        values = np.fromiter(map(parse, texts), dtype, len(texts))
        if kind == "integer" or np.isfinite(values).all():
            return values
    except (ValueError, OverflowError):
        pass
    is_valid = is_integer if kind == "integer" else is_finite
    wrong = next(row for row, text in enumerate(texts) if not is_valid(text))
    raise _wrong_cell(path, line + wrong, name, texts[wrong], kind)


def _wrong_cell(path: str, line: int, name: str, text: str, kind: Kind) -> InputError:
    what = f"{name} is {text!r}, not {_KINDS_IN_WORDS[kind]}"
    return InputError.single(f"{path}:{line}", what, f"write {_KINDS_IN_WORDS[kind]}")


def is_integer(text: Any, base: int = 10) -> bool:
    """Return whether a text is a 64-bit integer."""
    try:
        return bool(_INT64.min <= int(text, base) <= _INT64.max)
    except ValueError:
        return False


def is_finite(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


@dataclass(frozen=True)
class Block:
    """Rows of a file as text columns by name; `lines` has each row's line number."""

    path: Path
    lines: Sequence[int]
    cells: Mapping[str, Sequence[str]]

    def refuse(self, row: int, what: str, remedy: str) -> NoReturn:
        """Raise InputError about a row of the block."""
        refuse(self.path, self.lines[row], what, remedy)

    def scaled(self, column: str, factor: int, *, minimum: int = 0, empty: bool = False) -> Ints:
        """Return a column of decimal numbers multiplied by `factor` and rounded to integers.

        With `empty`, an empty cell becomes `MISSING`. Raises InputError, with the line, for a cell
        that is not a number or is less than `minimum`.
        """
        cells = self.cells[column]
        blank = np.array([empty and not cell.strip() for cell in cells])
        filled = [cell if cell.strip() else "0" for cell in cells] if empty else cells
        try:
            values = scaled_integers(filled, factor)
        except (ValueError, ArithmeticError):
            row = next(n for n, cell in enumerate(filled) if not _is_scalable(cell, factor))
            remedy = (
                f"write a number without a unit; the unit goes into the mapping file ({column})"
            )
            self.refuse(row, f"{column} is {quoted_cell(cells[row])}, not a number", remedy)
        low = (values < minimum) & ~blank
        if low.any():
            row = int(np.argmax(low))
            what = f"{column} is {quoted_cell(cells[row])}, less than {minimum} after scaling"
            self.refuse(row, what, "correct or remove the row; check the column's unit")
        return np.where(blank, MISSING, values)


def read_blocks(path: Path, wanted: Mapping[str, str], delimiter: str) -> Iterator[Block]:
    """Yield the rows of a file in blocks; `wanted` maps column names to names in the header.

    Raises InputError, with the line, for a file that cannot be read or is cut off, a header without
    a wanted column, and rows with a different number of cells.
    """
    with opened_csv(path, "give a CSV file", delimiter=delimiter) as (_, reader):
        if not path.stat().st_size:
            raise InputError.single(str(path), "is empty", "give a CSV file with a header")
        _refuse_cut_off(path, COPY)
        header = [name.strip() for name in next(reader, [])]
        indices = {name: _index_of(path, header, column) for name, column in wanted.items()}
        line = 2
        while chunk := list(islice(reader, _BLOCK_ROWS)):
            lines = [line + n for n, row in enumerate(chunk) if row]
            rows = [row for row in chunk if row]
            bad = next((n for n, row in enumerate(rows) if len(row) != len(header)), None)
            if bad is not None:
                what = f"has {len(rows[bad])} cells, the header {len(header)}"
                refuse(path, lines[bad], what, "correct the row, or the delimiter's name")
            line += len(chunk)
            if rows:
                columns = list(zip(*rows, strict=True))
                yield Block(path, lines, {name: columns[index] for name, index in indices.items()})


def _index_of(path: Path, header: list[str], column: str) -> int:
    if header.count(column) != 1:
        count = "two columns" if column in header else "no column"
        remedy = f"{suggest(column, header)}it has {', '.join(header)[:200] or 'nothing'}"
        refuse(path, 1, f"has {count} {column!r}", remedy)
    return header.index(column)


def scaled_integers(cells: Sequence[str], factor: int) -> Ints:
    """Return decimal numbers multiplied by `factor` and rounded to integers.

    Raises ValueError or ArithmeticError for cells that are not numbers.
    """
    try:
        integers = [int(cell) * factor for cell in cells]
        return np.array(integers, dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    values = np.array([float(cell) for cell in cells]) * factor
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) > _MAX:
        raise ValueError
    if np.abs(values).max(initial=0) < _EXACT:
        return np.asarray(np.rint(values), dtype=np.int64)
    return np.array([round(Decimal(cell) * factor) for cell in cells], dtype=np.int64)


def _is_scalable(cell: str, factor: int) -> bool:
    """Return whether `scaled_integers` accepts this cell, regardless of the other cells."""
    try:
        Decimal(cell)
        return abs(float(cell) * factor) <= _MAX
    except (ValueError, ArithmeticError):
        return False
