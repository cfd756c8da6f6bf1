"""Writes a trial's flows as CSV: the schedule for a replay, the outcomes, and how to read them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inventory.testbed_json import testbed_to_json
from orchestration.exchange.source import Exported
from orchestration.exchange.staging import staged
from orchestration.model.csv_columns import write_csv
from orchestration.model.errors import InputError
from orchestration.model.records import MISSING, Schedule

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
"""
_MAPPING_REST = """\
  class: class
  flow_id: flow_id
"""
_MAPPING_ENDS = """\
  fct: {column: fct_ns, unit: ns}
  ideal: {column: ideal_ns, unit: ns}
  status: status
"""


@dataclass(frozen=True)
class CsvExport:
    """The folder with schedule.csv, flows.csv, testbed.json and mapping.yml."""

    folder: Path
    flows: int


def export_csv(item: Exported, folder: Path) -> CsvExport:
    """Write one trial into the new folder `folder`. Raises InputError when it exists."""
    if not len(item.schedule):
        raise InputError.single(f"trial {item.name}", "has no flows", "export a trial with flows")
    columns = schedule_columns(item)
    with staged(folder) as partial:
        write_csv(partial / SCHEDULE_FILE, columns)
        count = len(item.schedule)
        flows: dict[str, list[object]] = {"flow_id": list(range(count)), **columns}
        mapping = _MAPPING + _MAPPING_REST
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
    return CsvExport(folder, len(item.schedule))


def schedule_columns(item: Exported) -> dict[str, list[object]]:
    """Return the columns of a replay's file: `start_ns,src,dst,bytes,class`."""
    schedule: Schedule = item.schedule
    hosts = item.testbed.hosts
    return {
        "start_ns": schedule.start_ns.tolist(),
        "src": [hosts[number] for number in schedule.src.tolist()],
        "dst": [hosts[number] for number in schedule.dst.tolist()],
        "bytes": schedule.size_bytes.tolist(),
        "class": [schedule.classes[number] for number in schedule.klass.tolist()],
    }
