"""CSV files of numbers and names, read strictly into columns: a fault has its file and line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orchestration.model.errors import InputError
from orchestration.model.records import Ints

Kind = Literal["integer", "number", "name"]

# Rows that are text at one time. More of them, and the garbage collector looks through them all
# again and again: a million rows take 1 s in thousands, 3 s in hundreds of thousands.
_CHUNK_ROWS = 1_000
_WANTED = {"integer": "a whole number", "number": "a finite number", "name": "a name"}


@dataclass(frozen=True)
class NameColumn:
    """A column of names: `codes` (rows,) index `names`, which stand in order of appearance."""

    codes: Ints
    names: tuple[str, ...]


@dataclass(frozen=True)
class CsvColumns:
    """The columns of a file: `integers` and `numbers` as arrays (rows,), and `names`."""

    path: str
    integers: Mapping[str, Ints]
    numbers: Mapping[str, NDArray[np.float64]]
    names: Mapping[str, NameColumn]

    def where(self, row: int) -> str:
        """Return `file:line` of a row, counted from 0."""
        return f"{self.path}:{row + 2}"


def read_csv(path: str, columns: Mapping[str, Kind]) -> CsvColumns:
    """Return the columns of a CSV file whose header is the names of `columns`, in their order.

    Raises InputError, with the line, for a file that cannot be read, has another header, ends in
    the middle of a line, or has a row of too few cells or with what is no number.
    """
    header = ",".join(columns)
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in columns}
    codes: dict[str, dict[str, int]] = {
        name: {} for name, kind in columns.items() if kind == "name"
    }
    try:
        _refuse_torn(path)
        with open(path, newline="", encoding="utf-8-sig") as file:
            first = file.readline().rstrip("\r\n")
            if "".join(first.split()) != header:
                what = "the file is empty" if not first else f"its first line is {first[:80]!r}"
                raise InputError.single(f"{path}:1", what, f"begin the file with {header}")
            line = 2
            for rows in _chunks(csv.reader(file)):
                cells = _transposed(rows, len(columns), path, line, header)
                for (name, kind), texts in zip(columns.items(), cells, strict=True):
                    if kind == "name":
                        found[name].append(_coded(texts, codes[name], name, path, line))
                    else:
                        found[name].append(_parsed(texts, kind, name, path, line))
                line += len(rows)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError.single(path, f"cannot be read: {reason}", "check the path") from error
    except UnicodeDecodeError as error:
        raise InputError.single(path, "is not UTF-8 text", "save the file as UTF-8") from error
    except csv.Error as error:
        remedy = f"write one line a row: {header}"
        raise InputError.single(path, f"is not CSV: {error}", remedy) from error

    def joined(name: str, dtype: type) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *found[name]])

    of_kind = {kind: [n for n, k in columns.items() if k == kind] for kind in _WANTED}
    return CsvColumns(
        path=path,
        integers={name: joined(name, np.int64) for name in of_kind["integer"]},
        numbers={name: joined(name, np.float64) for name in of_kind["number"]},
        names={
            name: NameColumn(joined(name, np.int64), tuple(codes[name])) for name in of_kind["name"]
        },
    )


def write_csv(path: Path, columns: Mapping[str, Sequence[object] | NDArray[Any]]) -> None:
    """Write columns of one length under their names. Numbers are written so that they read back."""
    lists = [c.tolist() if isinstance(c, np.ndarray) else c for c in columns.values()]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*lists, strict=True))


def _refuse_torn(path: str) -> None:
    """Raise InputError for a file that does not end with the end of a line."""
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            return
        file.seek(-1, 2)
        if file.read() == b"\n":
            return
        file.seek(0)
        lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    raise InputError.single(
        f"{path}:{lines + 1}",
        "the last line has no end: the file may be cut off",
        "write or copy the file again; if it is whole, end its last line with a line break",
    )


def _chunks(reader: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    while rows := list(islice(reader, _CHUNK_ROWS)):
        yield rows


def _transposed(
    rows: list[list[str]], width: int, path: str, line: int, header: str
) -> list[tuple[str, ...]]:
    for place, row in enumerate(rows):
        if len(row) != width:
            what = f"{len(row)} cells instead of {width}" if row else "the line is empty"
            raise InputError.single(
                f"{path}:{line + place}", what, f"write one line a row: {header}"
            )
    return list(zip(*rows, strict=True))


def _coded(
    texts: Sequence[str], codes: dict[str, int], name: str, path: str, line: int
) -> NDArray[np.int64]:
    """Return the texts' numbers; `codes` takes the new ones."""
    for text in dict.fromkeys(texts):
        if not text.strip():
            raise _fault(path, line + texts.index(text), name, text, "name")
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
    wrong = next(place for place, text in enumerate(texts) if not _reads(text, kind))
    raise _fault(path, line + wrong, name, texts[wrong], kind)


def _reads(text: str, kind: Literal["integer", "number"]) -> bool:
    try:
        return bool(np.isfinite(float(text)) if kind == "number" else abs(int(text)) < 2**63)
    except ValueError:
        return False


def _fault(path: str, line: int, name: str, text: str, kind: Kind) -> InputError:
    what = f"{name} is {text!r}, not {_WANTED[kind]}"
    return InputError.single(f"{path}:{line}", what, f"write {_WANTED[kind]}")
