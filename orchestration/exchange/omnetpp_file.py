"""Read OMNeT++ result files, .sca and .vec, of versions 2 (OMNeT++ 4 and 5) and 3 (6).

Lines consist of words; words with blanks are in double quotes, with backslash escapes. A data line
has the number of its vector and its columns: E the event, T the time in seconds, V the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from orchestration.model.csv_columns import opened, refuse, scaled_integers, shown
from orchestration.model.errors import InputError
from orchestration.model.records import Floats, Ints

VERSIONS = ("2", "3")
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a"}
_CHECK = "give the file as OMNeT++ wrote it, whole"


@dataclass
class Scalar:
    """One number of a module."""

    module: str
    name: str
    value: float
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass
class Statistic:
    """A summary of a module's values: fields by name, and bins as (lower edge, count)."""

    module: str
    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    fields: dict[str, float] = field(default_factory=dict)
    bins: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Vector:
    """Values of a module over time, shapes (values,); `event` is empty if it is not recorded."""

    number: int
    module: str
    name: str
    columns: str
    attributes: dict[str, str] = field(default_factory=dict)
    t_ns: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    value: Floats = field(default_factory=lambda: np.zeros(0))
    event: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass
class Run:
    """The results of one run. `settings` has its attributes, iteration variables and parameters."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    scalars: list[Scalar] = field(default_factory=list)
    statistics: list[Statistic] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)


def read_results(path: Path) -> dict[str, Run]:
    """Return the runs of a file by name. Raises InputError, with the line, for another format.

    A vector with decreasing times is refused too: the file is damaged, or two files were joined.
    """
    reader = _Reader(path)
    with opened(path) as file:
        number, line = 0, b""
        for number, line in enumerate(file, start=1):
            reader.take(number, line)
    if not number:
        raise InputError.single(str(path), "is empty", _CHECK)
    if not line.endswith(b"\n"):
        refuse(path, number, "the last line has no end: the file may be cut off", _CHECK)
    return reader.finish()


@dataclass
class _Rows:
    """The data lines of a vector as text: lines, times, values, events."""

    lines: list[int] = field(default_factory=list)
    times: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = ""
        self._runs: dict[str, Run] = {}
        self._run: Run | None = None
        self._vectors: dict[bytes, tuple[Vector, _Rows, tuple[int, ...]]] = {}
        self._attributes: dict[str, str] = {}
        self._statistic: Statistic | None = None
        self._takes: dict[str, Callable[[int, list[str]], None]] = {
            "run": self._take_run,
            "attr": self._take_attribute,
            "itervar": self._take_setting,
            "param": self._take_setting,
            "config": self._take_setting,
            "par": self._take_parameter,
            "scalar": self._take_scalar,
            "statistic": self._take_statistic,
            "histogram": self._take_statistic,
            "field": self._take_field,
            "bin": self._take_bin,
            "vector": self._take_vector,
        }

    def take(self, number: int, line: bytes) -> None:
        """Process a line."""
        if line[:1].isdigit():
            self._take_data(number, line)
            return
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError:
            refuse(self._path, number, "holds bytes that are no text", _CHECK)
        if not text or text.startswith("#"):
            return
        words = self._words(number, text)
        if not self._version:
            if words[0] != "version" or len(words) != 2 or words[1] not in VERSIONS:
                what = f"{shown(text)} is not `version 2` or `version 3`"
                refuse(self._path, number, what, "give a .sca or .vec file of OMNeT++ 4, 5 or 6")
            self._version = words[1]
            return
        take = self._takes.get(words[0])
        if take is None:
            refuse(self._path, number, f"{shown(words[0])} begins no line of a result file", _CHECK)
        if self._run is None and words[0] != "run":
            refuse(self._path, number, "comes before the first `run`", _CHECK)
        try:
            take(number, words[1:])
        except (IndexError, ValueError):
            refuse(self._path, number, f"{shown(text)} is not whole", _CHECK)

    def _words(self, number: int, text: str) -> list[str]:
        words, place = [], 0
        while place < len(text):
            match = _WORD.match(text, place)
            if match is None or (match[2] or "").startswith('"'):
                refuse(self._path, number, "a quote has no end", _CHECK)
            words.append(_ESCAPE.sub(_unescaped, match[1]) if match[2] is None else match[2])
            place = match.end()
            while place < len(text) and text[place].isspace():
                place += 1
        return words

    @property
    def _here(self) -> Run:
        assert self._run is not None
        return self._run

    def _take_run(self, number: int, words: list[str]) -> None:
        self._close()
        (name,) = words
        if name in self._runs:
            refuse(self._path, number, f"a second run {name!r}", "give the file of one recording")
        self._run = self._runs[name] = Run(name)
        self._attributes = self._run.settings

    def _take_attribute(self, number: int, words: list[str]) -> None:
        self._attributes[words[0]] = " ".join(words[1:])

    def _take_setting(self, number: int, words: list[str]) -> None:
        self._here.settings[words[0]] = " ".join(words[1:])

    def _take_parameter(self, number: int, words: list[str]) -> None:
        self._here.settings[f"{words[0]}.{words[1]}"] = " ".join(words[2:])

    def _take_scalar(self, number: int, words: list[str]) -> None:
        module, name, value = words
        self._statistic = None
        found = Scalar(module, name, float(value))
        self._here.scalars.append(found)
        self._attributes = found.attributes

    def _take_statistic(self, number: int, words: list[str]) -> None:
        module, name = words
        found = Statistic(module, name)
        self._here.statistics.append(found)
        self._attributes, self._statistic = found.attributes, found

    def _take_field(self, number: int, words: list[str]) -> None:
        name, value = words
        self._summary(number).fields[name] = float(value)

    def _take_bin(self, number: int, words: list[str]) -> None:
        lower, count = words
        self._summary(number).bins.append((float(lower), float(count)))

    def _summary(self, number: int) -> Statistic:
        if self._statistic is None:
            refuse(self._path, number, "stands below no statistic", _CHECK)
        return self._statistic

    def _take_vector(self, number: int, words: list[str]) -> None:
        text, module, name = words[:3]
        columns = words[3] if len(words) > 3 else "TV"
        if sorted(columns) not in (["E", "T", "V"], ["T", "V"]):
            refuse(self._path, number, f"columns {columns!r} are not of E, T and V", _CHECK)
        key = str(int(text)).encode()
        if key in self._vectors:
            refuse(self._path, number, f"a second vector {text}", "give the file of one recording")
        found = Vector(int(text), module, name, columns)
        self._here.vectors.append(found)
        self._attributes, self._statistic = found.attributes, None
        order = tuple(1 + columns.index(letter) for letter in "TVE" if letter in columns)
        self._vectors[key] = found, _Rows(), order

    def _take_data(self, number: int, line: bytes) -> None:
        cells = line.split()
        known = self._vectors.get(cells[0])
        if known is None:
            refuse(self._path, number, f"there is no vector {shown(cells[0])} above", _CHECK)
        _, rows, order = known
        if len(cells) != len(order) + 1:
            what = f"{shown(line.strip())} has not the vector's {len(order)} columns"
            refuse(self._path, number, what, _CHECK)
        rows.lines.append(number)
        rows.times.append(cells[order[0]].decode("ascii", "replace"))
        rows.values.append(cells[order[1]].decode("ascii", "replace"))
        if len(order) == 3:
            rows.events.append(cells[order[2]].decode("ascii", "replace"))

    def finish(self) -> dict[str, Run]:
        """Return the runs."""
        self._close()
        if not self._runs:
            raise InputError.single(str(self._path), "has no `run`", _CHECK)
        return self._runs

    def _close(self) -> None:
        """Turn the data lines of a run into arrays: the next run numbers its vectors anew."""
        for vector, rows, _ in self._vectors.values():
            vector.t_ns = self._column(rows, rows.times, 10**9)
            vector.event = self._column(rows, rows.events, 1)
            try:
                vector.value = np.array([float(text) for text in rows.values])
            except ValueError:
                bad = next(n for n, text in enumerate(rows.values) if not _is_float(text))
                what = f"{shown(rows.values[bad])} is not a number"
                refuse(self._path, rows.lines[bad], what, _CHECK)
            back = np.flatnonzero(np.diff(vector.t_ns) < 0)
            if len(back):
                line = rows.lines[int(back[0]) + 1]
                what = f"the time of vector {vector.number} goes back"
                refuse(self._path, line, what, "give the file of one run, as it was written")
        self._vectors = {}

    def _column(self, rows: _Rows, cells: list[str], factor: int) -> Ints:
        try:
            return scaled_integers(cells, factor)
        except (ValueError, ArithmeticError):
            bad = next(n for n, text in enumerate(cells) if not _is_float(text))
        what = f"{shown(cells[bad])} is not a number"
        raise InputError.single(f"{self._path}:{rows.lines[bad]}", what, _CHECK)


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 3:
        return chr(int(code[1:], 16))
    return _ESCAPED.get(code, code)


def _is_float(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
