"""Read OMNeT++ result files, .sca and .vec, of versions 2 (OMNeT++ 4 and 5) and 3 (OMNeT++ 6).

Lines consist of words; words with blanks are in double quotes, with backslash escapes. A data line
has the number of its vector, and then the vector's columns: E is the event, T the time in seconds,
V the value. Only the names of statistics are kept, and no attributes of results, because nothing
here uses more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from orchestration.core.csv_columns import (
    is_finite,
    numbered_lines,
    quoted_cell,
    refuse,
    scaled_integers,
)
from orchestration.core.errors import InputError
from orchestration.core.records import Floats, Ints

VERSIONS = ("2", "3")
_BEGINNINGS = (
    *("run", "attr", "itervar", "param", "config", "par", "scalar"),
    *("statistic", "histogram", "field", "bin", "vector"),
)
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a"}
_CHECK = "give the file as OMNeT++ wrote it, whole"


@dataclass
class Result:
    """A result of a module.

    `value` (values,) has the values of a vector, or the value of a scalar; for a statistic it is
    empty. `t_ns` has the times of a vector's values.
    """

    kind: Literal["scalar", "statistic", "vector"]
    module: str
    name: str
    value: Floats = field(default_factory=lambda: np.zeros(0))
    t_ns: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass
class Run:
    """The results of a run. `settings` has its attributes, iteration variables and parameters."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)


def read_results(path: Path) -> dict[str, Run]:
    """Return the runs of a file by name. Raises InputError, with the line, for another format.

    A vector with decreasing times is refused, too: the file is damaged, or two files were joined.
    """
    reader = _Reader(path)
    for number, line in numbered_lines(path, _CHECK):
        reader.take(number, line)
    return reader.finish()


@dataclass
class _Rows:
    """A vector's data lines as text. `width`, `time` and `value` count words of a line."""

    number: int
    vector: Result
    width: int
    time: int
    value: int
    lines: list[int] = field(default_factory=list)
    times: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = ""
        self._runs: dict[str, Run] = {}
        self._run: Run | None = None
        self._vectors: dict[bytes, _Rows] = {}

    def take(self, number: int, line: bytes) -> None:
        if line[:1].isdigit():
            self._take_data(number, line)
            return
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError:
            refuse(self._path, number, "has bytes that are not text", _CHECK)
        if not text or text.startswith("#"):
            return
        words = self._words(number, text)
        if not self._version:
            if words[0] != "version" or len(words) != 2 or words[1] not in VERSIONS:
                what = f"{quoted_cell(text)} is not `version 2` or `version 3`"
                refuse(self._path, number, what, "give a .sca or .vec file of OMNeT++ 4, 5 or 6")
            self._version = words[1]
            return
        if words[0] not in _BEGINNINGS:
            refuse(
                self._path,
                number,
                f"{quoted_cell(words[0])} begins no line of a result file",
                _CHECK,
            )
        try:
            self._take_words(number, words)
        except ValueError:
            refuse(self._path, number, f"{quoted_cell(text)} is not complete", _CHECK)

    def _words(self, number: int, text: str) -> list[str]:
        words, position = [], 0
        while position < len(text):
            match = _WORD.match(text, position)
            if match is None or (match[2] or "").startswith('"'):
                refuse(self._path, number, "a quote has no end", _CHECK)
            words.append(_ESCAPE.sub(_unescaped, match[1]) if match[2] is None else match[2])
            position = match.end()
            while position < len(text) and text[position].isspace():
                position += 1
        return words

    def _take_words(self, number: int, words: list[str]) -> None:
        """Process the words of a line. Raises ValueError if the line is not complete."""
        if words[0] == "run":
            (name,) = words[1:]
            self._close()
            if name in self._runs:
                what = f"a second run {name!r}"
                refuse(self._path, number, what, "give the file of one recording")
            self._run = self._runs[name] = Run(name)
            return
        if self._run is None:
            refuse(self._path, number, "comes before the first `run`", _CHECK)
        settings, results = self._run.settings, self._run.results
        match words:
            case ["attr", name, *value]:
                if not results:  # else it is an attribute of a result
                    settings[name] = " ".join(value)
            case ["itervar" | "param" | "config", name, *value]:
                settings[name] = " ".join(value)
            case ["par", module, name, *value]:
                settings[f"{module}.{name}"] = " ".join(value)
            case ["scalar", module, name, value]:
                results.append(Result("scalar", module, name, np.array([float(value)])))
            case ["statistic" | "histogram", module, name]:
                results.append(Result("statistic", module, name))
            case ["field" | "bin", _, value]:
                if not results or results[-1].kind != "statistic":
                    refuse(self._path, number, "does not follow a statistic", _CHECK)
                float(value)
            case ["vector", id_, module, name, *columns]:
                vector = Result("vector", module, name)
                results.append(vector)
                self._take_vector(number, int(id_), vector, columns[0] if columns else "TV")
            case _:
                raise ValueError

    def _take_vector(self, number: int, id_: int, vector: Result, columns: str) -> None:
        if sorted(columns) not in (["E", "T", "V"], ["T", "V"]):
            refuse(self._path, number, f"columns {columns!r} are not of E, T and V", _CHECK)
        key = str(id_).encode()
        if key in self._vectors:
            refuse(self._path, number, f"a second vector {id_}", "give the file of one recording")
        time, value = (1 + columns.index(letter) for letter in "TV")
        self._vectors[key] = _Rows(id_, vector, 1 + len(columns), time, value)

    def _take_data(self, number: int, line: bytes) -> None:
        cells = line.split()
        rows = self._vectors.get(cells[0])
        if rows is None:
            refuse(self._path, number, f"there is no vector {quoted_cell(cells[0])} above", _CHECK)
        if len(cells) != rows.width:
            what = (
                f"{quoted_cell(line.strip())} does not have the vector's {rows.width - 1} columns"
            )
            refuse(self._path, number, what, _CHECK)
        rows.lines.append(number)
        rows.times.append(cells[rows.time].decode("ascii", "replace"))
        rows.values.append(cells[rows.value].decode("ascii", "replace"))

    def finish(self) -> dict[str, Run]:
        self._close()
        if not self._runs:
            raise InputError.single(str(self._path), "has no `run`", _CHECK)
        return self._runs

    def _close(self) -> None:
        """Turn the data lines of a run into arrays; the next run may reuse numbers of vectors."""
        for rows in self._vectors.values():
            vector, cells = rows.vector, rows.times
            try:
                vector.t_ns = scaled_integers(cells, 10**9)
                cells = rows.values
                vector.value = np.array([float(text) for text in cells])
            except (ValueError, ArithmeticError):
                bad = next(n for n, text in enumerate(cells) if not is_finite(text))
                refuse(
                    self._path,
                    rows.lines[bad],
                    f"{quoted_cell(cells[bad])} is not a number",
                    _CHECK,
                )
            back = np.flatnonzero(np.diff(vector.t_ns) < 0)
            if len(back):
                line = rows.lines[int(back[0]) + 1]
                what = f"the time of vector {rows.number} decreases"
                refuse(self._path, line, what, "give the file of one run, as it was written")
        self._vectors = {}


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 3:
        return chr(int(code[1:], 16))
    return _ESCAPED.get(code, code)
