"""Workloads, which are flow-size distributions: published ones (`tables/*.csv`) and users' tables.

A table `bytes,cdf` has points of the cumulative distribution. Between two points, sizes are uniform
(the distribution function is linear). This choice matters: to take the upper end of each segment
instead would raise WebSearch's mean from 1.71 to 2.43 MB, and the offered load is flows per second
times the mean. If the first probability is above 0, that share of flows has exactly the first size.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property, lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from orchestration.core import plugins
from orchestration.core.errors import InputError, Problem, raise_any
from orchestration.core.files import local_path
from orchestration.core.records import Floats, Ints

GROUP = "closloop.workloads"
HEADER = "bytes,cdf"
# Other names of built-in tables in papers. Case, "-", "_" and spaces never matter.
_ALIASES = {"alistorage": "AliStorage2019", "hadoop": "FB_Hadoop"}
_MAX_BYTES = 2**53  # every integer up to here is exact as a float
_REMEDY_NUMBER = "write a size in bytes and a probability, like 30000,0.72"

Point = tuple[int, float]


@dataclass(frozen=True)
class Workload:
    """A flow-size distribution: `points` are (bytes, probability of at most that size).

    Both increase, and the last probability is 1. `source` says where the table comes from.
    """

    name: str
    points: tuple[Point, ...]
    source: str = ""

    @cached_property
    def mean_bytes(self) -> float:
        """Mean flow size, exact for the piecewise-linear table."""
        return math.fsum(share * (low + high) / 2 for share, low, high in self._segments())

    def quantile(self, u: ArrayLike) -> Floats:
        """Return the size in bytes, not rounded, at each probability `u`, in the shape of `u`."""
        sizes, cdf = np.array(self.points, dtype=np.float64).T
        return np.asarray(np.interp(np.asarray(u, dtype=np.float64), cdf, sizes))

    def sample(self, rng: np.random.Generator, n: int) -> Ints:
        """Return `n` flow sizes in whole bytes, at least 1, with one uniform draw each."""
        return self.sizes_bytes(rng.random(n))

    def sizes_bytes(self, u: ArrayLike) -> Ints:
        """Return the flow size in whole bytes, at least 1, at each probability `u` (flows,)."""
        return np.maximum(1, np.rint(self.quantile(u))).astype(np.int64)

    def share_up_to(self, size_bytes: int, *, inclusive: bool = True) -> tuple[float, float]:
        """Return which share of all flows, and which share of all bytes, is at most `size_bytes`.

        Without `inclusive`, only flows smaller than `size_bytes` count; that makes a difference if
        a certain share of flows has exactly this size.
        """
        flows, carried = [], []
        for share, low, high in self._segments():
            if low > size_bytes or (low == high == size_bytes and not inclusive):
                continue
            top = min(high, size_bytes)
            part = share * (top - low) / (high - low) if high > low else share
            flows.append(part)
            carried.append(part * (low + top) / 2)
        return math.fsum(flows), math.fsum(carried) / self.mean_bytes

    def _segments(self) -> Iterator[tuple[float, int, int]]:
        """Yield (share of flows, smallest size, largest size); sizes are uniform within one."""
        low, before = self.points[0][0], 0.0
        for high, probability in self.points:
            yield probability - before, low, high
            low, before = high, probability


@cache
def known_workloads() -> tuple[str, ...]:
    """Return the names of the built-in distributions."""
    tables = resources.files("traffic").joinpath("tables").iterdir()
    return tuple(sorted(t.name.removesuffix(".csv") for t in tables if t.name.endswith(".csv")))


def load_workload(name_or_path: str) -> Workload:
    """Return a workload, given its name or the path of its table (`.csv`, or with a `/`).

    A name is that of a built-in workload, or of an entry point of `closloop.workloads`, by which an
    installed package offers the path of its table. Raises InputError for an unknown name, for a
    file that cannot be read, and with all faults of a table.
    """
    if _is_path(name_or_path):
        path = Path(local_path(name_or_path))
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise InputError.single(
                name_or_path,
                f"cannot read the workload: {reason}",
                f"give a CSV file of {HEADER}",
            ) from error
        return parse_table(path.stem, text, name_or_path)
    name = _resolve(name_or_path)
    if name not in known_workloads():
        path = Path(plugins.load(name, GROUP))
        return parse_table(name, path.read_text(encoding="utf-8-sig"), str(path))
    table = resources.files("traffic").joinpath("tables", f"{name}.csv")
    return parse_table(name, table.read_text(encoding="utf-8"), f"{name}.csv")


def workload_name(name_or_path: str) -> str:
    """Return the name of the workload that `load_workload` returns, without reading a file."""
    return Path(name_or_path).stem if _is_path(name_or_path) else _resolve(name_or_path)


def _is_path(name_or_path: str) -> bool:
    return name_or_path.endswith(".csv") or "/" in name_or_path or os.sep in name_or_path


def _resolve(name: str) -> str:
    """Return the exact name of a workload, of which `name` may be another spelling."""
    built_in = known_workloads()
    by_spelling = {_plain(known): known for known in built_in} | _ALIASES
    if _plain(name) in by_spelling:
        return by_spelling[_plain(name)]
    if name in plugins.offered(GROUP):
        return name
    near = get_close_matches(_plain(name), by_spelling, n=1)
    guess = f"did you mean {by_spelling[near[0]]!r}? " if near else ""
    raise InputError.single(
        f"workload {name!r}",
        "not known",
        f"{guess}known are {', '.join(built_in)}, or the path of a CSV file of {HEADER}",
    )


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


# A campaign's trials name few workloads, each many times.
@lru_cache(maxsize=64)
def parse_table(name: str, text: str, where: str) -> Workload:
    """Return the workload of a `bytes,cdf` table; lines that begin with `#` name its source.

    Raises InputError with every problem found, each at `where:line`.
    """
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    comments = [line.lstrip("# ") for _, line in lines if line.startswith("#")]
    rows = [(n, line) for n, line in lines if not line.startswith("#")]
    if not rows or "".join(rows[0][1].lower().split()) != HEADER:
        line_number = rows[0][0] if rows else 1
        remedy = f"begin the table with {HEADER}"
        raise InputError.single(f"{where}:{line_number}", "no header", remedy)
    if not rows[1:]:
        raise InputError.single(f"{where}:{rows[0][0]}", "the table is empty", _REMEDY_NUMBER)
    points: list[Point] = []
    problems: list[Problem] = []
    last = len(rows) - 1
    for index, (n, row) in enumerate(rows[1:], 1):
        location = f"{where}:{n}"
        point = _parse_point(row, location)
        if isinstance(point, Problem):
            problems.append(point)
            continue
        before = points[-1] if points else None
        problems += [
            Problem(location, what, remedy)
            for what, remedy in _faults(point, before, index == last)
        ]
        points.append(point)
    raise_any(problems)
    return Workload(name, tuple(points), " ".join(comments))


def _parse_point(row: str, location: str) -> Point | Problem:
    cells = [cell.strip() for cell in row.split(",")]
    if len(cells) != 2:
        return Problem(location, f"{len(cells)} columns instead of 2", _REMEDY_NUMBER)
    try:
        size, probability = (float(cell) for cell in cells)
    except ValueError:
        return Problem(location, f"{row!r} is not two numbers", _REMEDY_NUMBER)
    if not size.is_integer() or size > _MAX_BYTES:
        return Problem(location, f"{cells[0]} is not a whole number of bytes", "round the size")
    return int(size), probability


def _faults(point: Point, before: Point | None, is_last: bool) -> Iterator[tuple[str, str]]:
    """Yield the faults of a point, by itself and relative to the one before, with remedies."""
    size, probability = point
    if size < 0 or (size == 0 and probability > 0):
        what = f"flows of {size} bytes at probability {probability:g}"
        yield what, "a flow has at least 1 byte: only a first point 0,0 may have 0"
    if not 0 <= probability <= 1:
        remedy = "divide percentages by 100" if probability > 1 else "correct the probability"
        yield f"probability {probability:g} is not within 0 to 1", remedy
    elif is_last and probability != 1:
        what = f"the last probability is {probability:g}, not 1"
        yield what, "add the largest size, with the probability 1"
    if before is not None and size < before[0]:
        yield f"{size} bytes come after {before[0]}", "sort the sizes upwards"
    if before is not None and probability < before[1]:
        what = f"probability {probability:g} is below the {before[1]:g} before it"
        yield what, "give the probability that a size is at most this one: it never decreases"
