"""Recorded flows: a CSV of `start_ns,src,dst,bytes,class`, sorted by start, hosts by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orchestration.core.csv_columns import CsvColumns, Kind, NameColumn, read_csv
from orchestration.core.errors import InputError, unreadable
from orchestration.core.records import Ints
from orchestration.core.topology import Testbed

COLUMNS: dict[str, Kind] = {
    "start_ns": "integer",
    "src": "name",
    "dst": "name",
    "bytes": "integer",
    "class": "name",
}
HEADER = ",".join(COLUMNS)
# The patterns and tuners of a campaign share the files of their repeats.
_FILES_KEPT = 4


@dataclass(frozen=True)
class RecordedFlows:
    """The rows of a flow file, sorted by start; arrays of shape (flows,)."""

    columns: CsvColumns
    start_ns: Ints
    size_bytes: Ints
    src: NameColumn
    dst: NameColumn
    klass: NameColumn

    def __len__(self) -> int:
        return len(self.start_ns)


def read_flows(path: str) -> RecordedFlows:
    """Return the flows of a file. A file that has not changed is not read again.

    Raises InputError, with file and line, for a file that cannot be read or is cut off, for cells
    that are not numbers, and for flows that are not sorted by start, start before 0, have no bytes,
    or go from a host to itself.
    """
    try:
        about = os.stat(path)
    except OSError as error:
        raise unreadable(path, error, f"give a CSV file of {HEADER}") from error
    return _read(path, about.st_mtime_ns, about.st_size, about.st_ino)


@lru_cache(_FILES_KEPT)
def _read(path: str, *_version: int) -> RecordedFlows:
    columns = read_csv(path, COLUMNS)
    start_ns, size_bytes = columns.integers["start_ns"], columns.integers["bytes"]
    src, dst, klass = (columns.names[name] for name in ("src", "dst", "class"))
    falls = np.diff(start_ns) < 0
    columns.refuse(falls, "the flow starts before the one above it", "sort the file by start_ns")
    early = "the flow starts before 0"
    columns.refuse(start_ns < 0, early, "count start_ns from the trial's start")
    remedy = "a flow has at least 1 byte: correct or remove it"
    columns.refuse(size_bytes < 1, "a flow of no bytes", remedy)
    code_of = {name: code for code, name in enumerate(src.names)}
    same = np.array([code_of.get(name, -1) for name in dst.names], dtype=np.int64)
    if len(same):
        remedy = "name two hosts, or remove it"
        columns.refuse(same[dst.codes] == src.codes, "a flow from a host to itself", remedy)
    return RecordedFlows(columns, start_ns, size_bytes, src, dst, klass)


def host_numbers(flows: RecordedFlows, testbed: Testbed) -> tuple[Ints, Ints]:
    """Return each flow's source and destination as indices of `Testbed.hosts`, shapes (flows,).

    Raises InputError with the line of the first flow of a host that the testbed does not have.
    """
    number = {name: place for place, name in enumerate(testbed.hosts)}
    ends = []
    for column in (flows.src, flows.dst):
        known = np.array([number.get(name, -1) for name in column.names], dtype=np.int64)
        ends.append(known[column.codes] if len(known) else column.codes)
    absent = np.flatnonzero((ends[0] < 0) | (ends[1] < 0))
    if len(absent):
        row = int(absent[0])
        column = flows.src if ends[0][row] < 0 else flows.dst
        first, last = testbed.hosts[0], testbed.hosts[-1]
        raise InputError.single(
            flows.columns.where(row),
            f"testbed {testbed.name} has no host {column.names[column.codes[row]]!r}",
            f"its hosts are {first} to {last}: rename the file's hosts, or name their testbed",
        )
    return ends[0], ends[1]
