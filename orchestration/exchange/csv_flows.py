"""CSV files of flows: import one with the help of a mapping file, and export a trial's flows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from inventory.testbed_json import testbed_to_json
from orchestration.cli.options import Json
from orchestration.cli.terminal import print_json, waiting
from orchestration.core.csv_columns import Block, read_blocks, refuse, refuse_where, write_csv
from orchestration.core.errors import InputError
from orchestration.core.records import DONE, FAILED, MISSING, UNFINISHED, Ints
from orchestration.exchange.imported import Imported, ImportedFlows, number_names
from orchestration.exchange.mapping import (
    DELIMITERS,
    SIZE_UNITS,
    TIME_UNITS,
    CsvMapping,
    Hosts,
    TimeColumn,
    read_mapping,
)
from orchestration.exchange.records import FlowRecord, RecordedFlows
from orchestration.exchange.source import ExportedTrial, NewFolder, Run, export_targets, new_folder

_STATUS = {"done": DONE, "unfinished": UNFINISHED, "failed": FAILED}
ALL = "all"
SCHEDULE_FILE, FLOWS_FILE, MAPPING_FILE = "schedule.csv", "flows.csv", "mapping.yml"
_TESTBED_FILE = "testbed.json"
_MAPPING = """\
# closloop import csv flows.csv --mapping mapping.yml -o runs/NAME
testbed: testbed.json
columns:
  src: src
  dst: dst
  bytes: {column: bytes, unit: B}
  start: {column: start_ns, unit: ns}
  class: class
  flow_id: flow_id
"""
_MAPPING_ENDS = """\
  fct: {column: fct_ns, unit: ns}
  ideal: {column: ideal_ns, unit: ns}
  status: status
"""


def import_csv(
    file: Annotated[Path, "A delimited text file with a header."],
    mapping: Annotated[
        Path, "--mapping", "The mapping file: which column is what, and in which unit."
    ],
) -> Imported:
    """Import a CSV of flows of your own; a small YAML file says which column is what.

    Example: closloop import csv results.csv --mapping mapping.yml -o runs/mine
    """
    described, _ = read_mapping(mapping, CsvMapping)
    table = _Table(file, described)
    for block in read_blocks(file, table.columns, DELIMITERS[described.delimiter]):
        table.take(block)
    if not table.lines:
        raise InputError.single(str(file), "has no flows below its header", "give a file with some")
    lines, src, dst = table.lines, table.src, table.dst
    hosts = Hosts(described, mapping, [*src, *dst])

    def where(row: int) -> str:
        return f"{file}:{lines[row]}"

    src_number, dst_number = (hosts.numbers(ends, where) for ends in (src, dst))
    what = "the flow goes from a host to itself"
    refuse_where(src_number == dst_number, file, lines, what, "remove the row")
    flows = table.flows(src_number, dst_number)
    columns = described.columns
    ends_known = columns.fct is not None or columns.end is not None
    missing = ["samples of ports", "TCP counters of hosts", "when each flow's first byte was sent"]
    missing += ["thresholds", *(["retransmits"] if columns.retransmits is None else [])]
    return Imported(
        format="CSV",
        testbed=hosts.testbed,
        flows=flows,
        inputs={"mapping": mapping, "flows": file},
        results={},
        missing=[*missing, *hosts.notes],
        complete=ends_known,
        measured=ends_known,
        facts={"hosts_named": hosts.renamed} if hosts.renamed else {},
    )


class _Table:
    """The columns of the file, block by block."""

    def __init__(self, path: Path, mapping: CsvMapping) -> None:
        self.path, self.mapping = path, mapping
        self.lines: list[int] = []
        self.src: list[str] = []
        self.dst: list[str] = []
        self._klass: list[str] = []
        self._numbers: dict[str, list[Ints]] = {}
        self.columns = _column_names(mapping)

    def take(self, block: Block) -> None:
        mapped = self.mapping.columns
        self.lines += block.lines
        self.src += block.cells["src"]
        self.dst += block.cells["dst"]
        self._klass += block.cells.get("klass", [ALL] * len(block.lines))
        start = block.scaled("start", TIME_UNITS[mapped.start.unit], minimum=self.mapping.base)
        values = {
            "start": start - self.mapping.base,
            "bytes": block.scaled("bytes", SIZE_UNITS[mapped.bytes.unit], minimum=1),
            "end": self._end(block, start),
            "ideal": self._time(block, "ideal", mapped.ideal),
        }
        for name in ("retransmits", "flow_id"):
            if name in self.columns:
                values[name] = block.scaled(name, 1)
        values["status"] = self._status(block, values["end"])
        for name, column in values.items():
            self._numbers.setdefault(name, []).append(column)

    def _time(self, block: Block, name: str, column: TimeColumn | None, minimum: int = 1) -> Ints:
        if column is None:
            return np.full(len(block.lines), MISSING, dtype=np.int64)
        return block.scaled(name, TIME_UNITS[column.unit], minimum=minimum, empty=True)

    def _end(self, block: Block, start: Ints) -> Ints:
        mapped, base = self.mapping.columns, self.mapping.base
        if mapped.end is None:
            fct = self._time(block, "fct", mapped.fct)
            return np.where(fct >= 0, start - base + fct, MISSING)
        end = self._time(block, "end", mapped.end, minimum=0)
        early = (end >= 0) & (end <= start)
        what = "the flow ends before it starts"
        refuse_where(early, block.path, block.lines, what, "correct the row, or the units")
        return np.where(end >= 0, end - base, MISSING)

    def _status(self, block: Block, end: Ints) -> Ints:
        if "status" not in self.columns:
            return np.where(end >= 0, DONE, UNFINISHED)
        known = {**{name: name for name in _STATUS}, **self.mapping.statuses}
        statuses = []
        for row, cell in enumerate(block.cells["status"]):
            name = known.get(cell.strip())
            if name is None:
                remedy = "add its meaning to `statuses:` of the mapping file"
                block.refuse(row, f"status is {cell!r}", remedy)
            if (name == "done") != (end[row] >= 0):
                remedy = "flows that are done have an end, other flows have none"
                block.refuse(row, f"status is {cell!r}, which does not fit its end", remedy)
            statuses.append(_STATUS[name])
        return np.array(statuses, dtype=np.int64)

    def flows(self, src: Ints, dst: Ints) -> ImportedFlows:
        joined = {name: np.concatenate(parts) for name, parts in self._numbers.items()}
        klass, classes = number_names(self._klass)
        ids = joined.get("flow_id")
        order = np.arange(len(src))
        if ids is None:
            keys = [joined["end"], klass, joined["bytes"], dst, src, joined["start"]]
            remedy = "remove one; if they are two flows, map a column of numbers as `flow_id`"
            self._refuse_duplicates(keys, "the row is there twice", remedy)
        else:
            self._refuse_duplicates([ids], "the flow_id is there twice", "remove one")
            order = np.argsort(ids, kind="stable")
        return ImportedFlows(
            start_ns=joined["start"],
            src=src,
            dst=dst,
            size_bytes=joined["bytes"],
            klass=klass,
            classes=classes,
            end_ns=joined["end"],
            status=joined["status"],
            retransmits=joined.get("retransmits"),
            ideal=joined["ideal"] if "ideal" in self.columns else None,
            in_order=ids is not None and bool((np.diff(joined["start"][order]) >= 0).all()),
        ).rows(order)

    def _refuse_duplicates(self, keys: Sequence[Ints], what: str, remedy: str) -> None:
        """Raise InputError for two rows that are equal in all of these columns."""
        order = np.lexsort(keys)
        same = np.ones(max(0, len(order) - 1), dtype=bool)
        for key in keys:
            same &= np.diff(key[order]) == 0
        if same.any():
            row = int(np.argmax(same))
            first, second = sorted((self.lines[order[row]], self.lines[order[row + 1]]))
            refuse(self.path, second, f"{what}: in line {first}, too", remedy)


def _column_names(mapping: CsvMapping) -> dict[str, str]:
    """Return the name in the file's header of each mapped column."""
    items = {name: getattr(mapping.columns, name) for name in type(mapping.columns).model_fields}
    return {
        name: item if isinstance(item, str) else item.column
        for name, item in items.items()
        if item is not None
    }


def read_csv_records(path: Path, mapping_path: Path) -> tuple[RecordedFlows, dict[str, str]]:
    """Return the planned flows of a CSV, and the mapping file's `hosts`. Raises InputError."""
    mapping, _ = read_mapping(mapping_path, CsvMapping)
    columns = mapping.columns
    planned = ("src", "dst", "bytes", "start", "klass")
    names = {name: column for name, column in _column_names(mapping).items() if name in planned}
    records: list[FlowRecord] = []
    for block in read_blocks(path, names, DELIMITERS[mapping.delimiter]):
        start = block.scaled("start", TIME_UNITS[columns.start.unit]).tolist()
        size = block.scaled("bytes", SIZE_UNITS[columns.bytes.unit], minimum=1).tolist()
        klass = block.cells.get("klass", [ALL] * len(start))
        cells = zip(block.lines, block.cells["src"], block.cells["dst"], strict=True)
        records += [
            FlowRecord((line,), src, dst, start_ns, start_ns, size_bytes, name)
            for (line, src, dst), start_ns, size_bytes, name in zip(
                cells, start, size, klass, strict=True
            )
        ]
    if not records:
        raise InputError.single(str(path), "has no flows below its header", "give a file with some")
    records.sort(key=lambda record: record.start_ns)
    return RecordedFlows(f"{len(records)} rows", records), dict(mapping.hosts)


def export_runs(run: Run, out: NewFolder, as_json: Json = False) -> None:
    """Write schedule.csv (for a replay), flows.csv (with results of flows), and testbed.json.

    mapping.yml says how `closloop import csv` reads flows.csv again. A campaign gets a folder for
    each of its trials.

    Example: closloop export csv runs/quickstart -o exported
    """
    targets = export_targets(run, out)
    with waiting("exporting"):
        for item, folder, _ in targets:
            export_csv(item, folder)
    if as_json:
        flows = [{"folder": str(path), "flows": len(item.schedule)} for item, path, _ in targets]
        print_json(flows)
        return
    for item, folder, _ in targets:
        typer.echo(f"{folder}: {len(item.schedule)} flows")


def export_csv(item: ExportedTrial, folder: Path) -> None:
    """Write one trial into the new folder `folder`. Raises InputError if the folder exists."""
    if not len(item.schedule):
        raise InputError.single(f"trial {item.name}", "has no flows", "export a trial with flows")
    schedule, hosts = item.schedule, item.testbed.hosts
    columns: dict[str, list[object]] = {
        "start_ns": schedule.start_ns.tolist(),
        "src": [hosts[number] for number in schedule.src.tolist()],
        "dst": [hosts[number] for number in schedule.dst.tolist()],
        "bytes": schedule.size_bytes.tolist(),
        "class": [schedule.classes[number] for number in schedule.klass.tolist()],
    }
    with new_folder(folder) as partial:
        write_csv(partial / SCHEDULE_FILE, columns)
        flows: dict[str, list[object]] = {"flow_id": list(range(len(schedule))), **columns}
        mapping = _MAPPING
        if item.result is not None:
            table = item.result.table("flows")
            for name in ("end_ns", "fct_ns", "ideal_ns", "retransmits"):
                flows[name] = ["" if value == MISSING else value for value in table[name].tolist()]
            flows["status"] = table["status"].tolist()
            mapping += _MAPPING_ENDS
            if np.all(table["retransmits"] >= 0):
                mapping += "  retransmits: retransmits\n"
        write_csv(partial / FLOWS_FILE, flows)
        (partial / MAPPING_FILE).write_text(mapping)
        text = json.dumps(testbed_to_json(item.testbed), indent=1)
        (partial / _TESTBED_FILE).write_text(text + "\n", encoding="utf-8")
