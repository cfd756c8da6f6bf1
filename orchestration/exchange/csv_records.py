"""Makes flow records of a CSV of one's own, as its mapping file says."""

from __future__ import annotations

from pathlib import Path

from orchestration.exchange.csv_import import ALL
from orchestration.exchange.delimited import blocks
from orchestration.exchange.mapping import (
    DELIMITERS,
    SIZE_UNITS,
    TIME_UNITS,
    CsvMapping,
    read_mapping,
)
from orchestration.exchange.records import FlowRecord, Recorded
from orchestration.model.errors import InputError


def read_csv_records(path: Path, mapping_path: Path) -> tuple[Recorded, dict[str, str]]:
    """Return the planned flows of a CSV, and the mapping file's `hosts`. Raises InputError."""
    mapping, _ = read_mapping(mapping_path, CsvMapping)
    columns = mapping.columns
    wanted = {
        "src": columns.src,
        "dst": columns.dst,
        "bytes": columns.bytes.column,
        "start": columns.start.column,
    }
    if columns.klass:
        wanted["class"] = columns.klass
    records: list[FlowRecord] = []
    for block in blocks(path, wanted, DELIMITERS[mapping.delimiter]):
        start = block.scaled("start", TIME_UNITS[columns.start.unit]).tolist()
        size = block.scaled("bytes", SIZE_UNITS[columns.bytes.unit], least=1).tolist()
        klass = block.cells.get("class", [ALL] * len(start))
        rows = zip(
            block.lines, block.cells["src"], block.cells["dst"], start, size, klass, strict=True
        )
        records += [
            FlowRecord((line,), src, dst, start_ns, start_ns, size_bytes, name)
            for line, src, dst, start_ns, size_bytes, name in rows
        ]
    if not records:
        raise InputError.single(str(path), "has no flows below its header", "give a file with some")
    records.sort(key=lambda record: record.start_ns)
    return Recorded(f"{len(records)} rows", records), dict(mapping.hosts)
