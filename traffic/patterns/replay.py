"""Recorded flows, replayed from a CSV file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from orchestration.core.csv_columns import CsvColumns, Kind, NameColumn, read_csv
from orchestration.core.errors import InputError, unreadable
from orchestration.core.files import local_path
from orchestration.core.pattern import (
    START,
    STOP,
    CampaignContext,
    Expected,
    Flows,
    PatternSpec,
    Streams,
    given,
)
from orchestration.core.problems import Problem, suggest
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
# So many files are kept in memory: patterns and tuners of a campaign share the files of repeats.
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

    Raises InputError with the line of the first flow from or to a host that the testbed lacks.
    """
    number = {name: index for index, name in enumerate(testbed.hosts)}
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


_FILE = "a CSV file of start_ns,src,dst,bytes,class, like flows.csv"
# The shortest row of a file of flows: `0,h1,h2,1,`.
_MIN_ROW_BYTES = 10


@dataclass(frozen=True)
class ReplaySpec(PatternSpec):
    """Recorded flows that start within the window, at their recorded times.

    `{repeat}` in the file's name is replaced by the number of the repeat. With `recorded_class`,
    only flows of that class are replayed; it is the file's column `class`, while `queue_class` is a
    traffic class of the testbed.
    """

    file: str = field(metadata=given(_FILE, "file"))
    start_ns: int = field(metadata=START)
    stop_ns: int = field(metadata=STOP)
    recorded_class: str = field(
        default="",
        metadata=given(
            "only flows of this class in the file's column `class`; by default all", name="class"
        ),
    )
    kind: ClassVar = "replay"

    @property
    def class_name(self) -> str:
        """The recorded class, or else the kind and the traffic class.

        The congestion control is not part of the name, because it need not be the recorded one.
        """
        name = "/".join(filter(None, (self.kind, self.queue_class)))
        return self.recorded_class or name

    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return the file's flows, in its order.

        Raises InputError, with the line, for a bad file and for hosts that the testbed lacks.
        """
        flows = read_flows(local_path(self.file))
        src, dst = host_numbers(flows, testbed)
        chosen = (flows.start_ns >= self.start_ns) & (flows.start_ns < self.stop_ns)
        if self.recorded_class:
            names = flows.klass.names
            wanted = names.index(self.recorded_class) if self.recorded_class in names else -1
            chosen &= flows.klass.codes == wanted
        return Flows(flows.start_ns[chosen], src[chosen], dst[chosen], flows.size_bytes[chosen])

    def expected(self, testbed: Testbed) -> Expected:
        """Return the maximum number of rows that a file of this size can have."""
        return Expected(os.path.getsize(local_path(self.file)) // _MIN_ROW_BYTES, 0)

    @classmethod
    def faults(cls, fields: Mapping[str, Any], context: CampaignContext) -> Iterator[Problem]:
        """Report the first fault of each file, and a class that no file has."""
        if "file" not in fields:
            return
        known: dict[str, None] = {}
        faulty = False
        for path in context.files(fields["file"]):
            try:
                flows = read_flows(path)
                known |= dict.fromkeys(flows.klass.names)
                if context.testbed is not None:
                    host_numbers(flows, context.testbed)
            except InputError as error:
                faulty = True
                for item in error.problems if path not in context.reported else ():
                    yield Problem("file", *item.parts)
                context.reported.add(path)
        wanted = fields.get("recorded_class")
        if wanted and wanted not in known and not faulty:
            remedy = f"{suggest(wanted, known)}it has {', '.join(known) or 'no flows at all'}"
            yield Problem("class", f"{fields['file']} has no flows of class {wanted!r}", remedy)
