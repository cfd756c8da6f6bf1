"""One run folder out of the database: its files and tables as they were archived, or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collectors.sinks.influx import InfluxConnection
from collectors.sinks.lines import Column
from collectors.sinks.names import FILE, FLOW, OF_TABLES, ROW, Kind, Measurement
from inventory.testbed_json import testbed_from_json
from inventory.topology import Testbed
from orchestration.artifacts.reader import read_trial
from orchestration.artifacts.tables import TABLES, write_table
from orchestration.artifacts.writer import PARTIAL_SUFFIX, TESTBED_FILE
from orchestration.model.errors import InputError, TrialError
from orchestration.model.signals import TABLE_OF, target_names
from orchestration.telemetry.flux import StoredTrial, query, rows_of
from orchestration.telemetry.points import CAMPAIGN_FILE

_MISSING = -1
_TIME = "_time"
_SCHEDULE, _FLOWS = "schedule", "flows"
_NULLABLE = ("sent_ns", "end_ns", "fct_ns")

Columns = dict[str, Column]


class Incomplete(Exception):  # noqa: N818 (a finding)
    """The database has not all of a trial, or something else under its name."""


def rebuild(connection: InfluxConnection, trial: StoredTrial, campaign_folder: Path) -> None:
    """Write `campaign_folder/<trial>/`. Raises Incomplete, leaving nothing, if rows are missing.

    Raises TrialError if the server does not answer or the disk does not take it.
    """
    folder = campaign_folder / trial.trial
    partial = folder.with_name(f".{folder.name}{PARTIAL_SUFFIX}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write(connection, trial, partial)
        found = read_trial(partial)
        if found.spec.id != trial.trial or Path(trial.trial).name != trial.trial:
            raise Incomplete(f"its trial.json is that of {found.spec.id}")
        campaign_file = partial / CAMPAIGN_FILE
        if campaign_file.exists():
            campaign_file.replace(campaign_folder / CAMPAIGN_FILE)
        partial.rename(folder)
    except (InputError, KeyError, ValueError) as error:
        raise Incomplete(str(error)) from error
    except OSError as error:
        raise TrialError(
            f"{campaign_folder} cannot be written: {error.strerror or error}",
            "make room there, or choose another place with --out",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(connection: InfluxConnection, trial: StoredTrial, folder: Path) -> None:
    files = _files(connection, trial)
    for name, text in files.items():
        if Path(name).name != name or name.startswith("."):
            raise Incomplete(f"a file of it would be called {name!r}")
        (folder / name).write_bytes(text.encode())
    if TESTBED_FILE not in files:
        raise Incomplete(f"there is no {TESTBED_FILE}")
    testbed = testbed_from_json(json.loads(files[TESTBED_FILE]))
    for measurement in OF_TABLES:
        columns = _columns(connection, trial, measurement)
        rows = len(columns[_TIME])
        wanted = trial.rows.get(measurement.table, 0)  # a knob that joined since has none
        if rows != wanted:
            raise Incomplete(f"{rows} of {wanted} rows of the table {measurement.table} are there")
        order = _order(measurement, columns, testbed)
        columns = {name: values[order] for name, values in columns.items()}
        if measurement is FLOW:
            _write_table(folder, _SCHEDULE, columns)
        _write_table(folder, measurement.table, columns)
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_table(folder: Path, table: str, columns: Mapping[str, Column]) -> None:
    chosen: dict[str, Any] = {name: columns[name] for name in TABLES[table].columns}
    for name, values in chosen.items():
        if table == _FLOWS and name in _NULLABLE:
            chosen[name] = np.ma.masked_array(values, values == _MISSING)
        elif values.dtype == object:
            chosen[name] = values.tolist()
    write_table(folder / TABLES[table].file, table, chosen)


def _records(
    connection: InfluxConnection, trial: StoredTrial, measurement: Measurement
) -> Iterator[dict[str, str]]:
    tags = {"campaign": trial.campaign, "trial": trial.trial, "run": trial.run}
    return rows_of(connection.query(query(connection.server.bucket, measurement, tags)))


def _columns(connection: InfluxConnection, trial: StoredTrial, measurement: Measurement) -> Columns:
    """Return the points of a measurement as columns of the table's types, in the answer's order."""
    kinds: dict[str, Kind] = {
        _TIME: "text",
        **dict.fromkeys(measurement.tags, "text"),
        **measurement.fields,
    }
    texts: dict[str, list[str]] = {name: [] for name in kinds}
    for record in _records(connection, trial, measurement):
        for name, values in texts.items():
            values.append(record.get(name, ""))
    columns = {name: _typed(texts[name], kind) for name, kind in kinds.items()}
    # A time is UTC, with as many digits after the second as it takes.
    columns[_TIME] = np.array([time.removesuffix("Z") for time in texts[_TIME]], "datetime64[ns]")
    if "queue" in columns:
        columns["queue"] = columns["queue"].astype(np.int64)
    return columns


def _typed(texts: list[str], kind: Kind) -> Column:
    if kind == "text":
        return np.array([text.replace("\r\n", "\n") for text in texts], dtype=object)
    if kind == "float":
        return np.array([float(text) if text else float("nan") for text in texts], dtype=float)
    return np.array([int(text) if text else _MISSING for text in texts], dtype=np.int64)


def _order(measurement: Measurement, columns: Columns, testbed: Testbed) -> Column:
    """Return the rows in the order of the archive's table."""
    if measurement is FLOW:
        return np.argsort(columns["flow_id"], kind="stable")
    if ROW in columns:
        return np.argsort(columns[ROW], kind="stable")
    scope = next(scope for scope, table in TABLE_OF.items() if table == measurement.table)
    places = {names: number for number, names in enumerate(target_names(testbed, scope))}
    keys = zip(*(columns[tag].tolist() for tag in measurement.tags), strict=True)
    number = np.array([places[key] for key in keys], dtype=np.int64)
    return np.lexsort((columns[_TIME], number))


def _files(connection: InfluxConnection, trial: StoredTrial) -> dict[str, str]:
    parts: dict[str, dict[int, dict[str, str]]] = {}
    for record in _records(connection, trial, FILE):
        parts.setdefault(record["file"], {})[int(record["part"])] = record
    there = sum(len(of_file) for of_file in parts.values())
    if there != trial.parts:
        raise Incomplete(f"{there} of {trial.parts} parts of its files are there")
    texts: dict[str, str] = {}
    for name, of_file in parts.items():
        text = "".join(json.loads(of_file[number]["text"]) for number in sorted(of_file))
        if hashlib.sha256(text.encode()).hexdigest() != of_file[0]["sha256"]:
            raise Incomplete(f"its {name} is not what was sent")
        texts[name] = text
    return texts
