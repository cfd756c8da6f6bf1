"""Flow records: source, destination, bytes, time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class FlowRecord(NamedTuple):
    """One flow in one direction. Times are ns since 1970; `key` is a five-tuple or similar."""

    key: tuple[object, ...]
    src: str
    dst: str
    start_ns: int
    end_ns: int
    size_bytes: int
    klass: str


@dataclass
class Recorded:
    """The records of a file, its kind, and notes on what was left out, estimated or unknown."""

    source: str
    records: list[FlowRecord]
    notes: list[str] = field(default_factory=list)


def merged(records: Iterable[FlowRecord], idle_ns: int) -> tuple[list[FlowRecord], int]:
    """Join the records of one key that follow each other within `idle_ns`, sorted by start.

    Exporters report a long flow in pieces. Also return how many records begin before the one that
    they continue ends: pieces of one exporter do not.
    """
    overlaps = 0
    result: list[FlowRecord] = []
    last: dict[tuple[object, ...], int] = {}
    for record in sorted(records, key=lambda record: record.start_ns):
        place = last.get(record.key)
        if place is not None and record.start_ns - result[place].end_ns <= idle_ns:
            before = result[place]
            overlaps += record.start_ns < before.end_ns
            result[place] = before._replace(
                end_ns=max(before.end_ns, record.end_ns),
                size_bytes=before.size_bytes + record.size_bytes,
            )
        else:
            last[record.key] = len(result)
            result.append(record)
    return result, overlaps


def counted(notes: Sequence[tuple[int, str]]) -> list[str]:
    """Return `N words` for each count above 0."""
    return [f"{count} {words}" for count, words in notes if count]
