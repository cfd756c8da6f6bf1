"""Rebuild run folders from InfluxDB, and check that they are complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collectors.sinks.influx import InfluxConnection, Server
from collectors.sinks.lines import (
    COMMON_TAGS,
    FILE,
    FLOW,
    OF_TABLES,
    ROW,
    TRIAL,
    Column,
    Kind,
    Measurement,
)
from inventory.testbed_json import testbed_from_json
from orchestration.core.errors import InputError, TrialError, unwritable
from orchestration.core.files import whole_folder
from orchestration.core.problems import Code, Problem
from orchestration.core.signals import TABLE_OF, target_names
from orchestration.core.topology import Testbed
from orchestration.results.reader import finished_trials, read_trial
from orchestration.results.tables import OPTIONAL, TABLES, write_table
from orchestration.results.writer import TESTBED_FILE
from orchestration.run.folder import JOURNAL_FILE, Journal
from orchestration.telemetry.points import CAMPAIGN_FILE

Say = Callable[[Problem], None]
_PULLED = "pulled"
_MISSING = -1
_TIME = "_time"
_SCHEDULE, _FLOWS = "schedule", "flows"
_NULLABLE = ("sent_ns", "end_ns", "fct_ns")
Columns = dict[str, Column]
# InfluxDB reports an error that occurs during an answer as a table of its own.
_ERROR = "error"
_HEADER = ["result", "table"]


@dataclass
class Pulled:
    """The outcome of a pull: trials by id, of which the `broken` are incomplete in the database."""

    folder: Path
    rebuilt: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def pull(
    campaign: str,
    out: Path,
    server: Server,
    only: Sequence[str] = (),
    *,
    say: Say,
    progress: Callable[[str], None] = lambda text: None,
) -> Pulled:
    """Write `out/<campaign>/` from the server's data; existing trials stay unchanged.

    If a trial was run several times, its last complete run is used. Raises InputError if the server
    does not know the campaign or trial, NotReadyError if it refuses to answer, TrialError if it
    does not answer.
    """
    with closing(InfluxConnection(server)) as connection:
        stored = stored_trials(connection, campaign)
        chosen = {name: trial for name, trial in stored.items() if not only or name in only}
        unknown = [name for name in only if name not in stored]
        if unknown or not chosen:
            what = f"trial {unknown[0]!r} of campaign" if unknown else "campaign"
            known = f"trials there: {', '.join(sorted(stored))}" if stored else ""
            raise InputError.single(
                "pull",
                f"there is no {what} {campaign!r} in {server}",
                known or "give the name as in the campaign file; `closloop push RUN` sends a run",
            )
        pulled = Pulled(out / campaign)
        present = {folder.name for folder in finished_trials(pulled.folder)}
        for name, trial in sorted(chosen.items()):
            if name in present:
                pulled.present.append(name)
                continue
            progress(name)
            try:
                rebuild(connection, trial, pulled.folder)
                pulled.rebuilt.append(name)
            except Incomplete as error:
                pulled.broken.append(name)
                remedy = f"`closloop push --again {pulled.folder}` on the machine of its archive"
                say(Problem(name, str(error), remedy, Code.DAMAGED_FILE))
    if pulled.rebuilt:  # with a journal, the campaign can be continued in the folder
        with closing(Journal(pulled.folder / JOURNAL_FILE)) as journal:
            journal.add(_PULLED, url=server.url, bucket=server.bucket, trials=pulled.rebuilt)
    return pulled


def stored_trials(connection: InfluxConnection, campaign: str) -> dict[str, StoredTrial]:
    """Return the trials of a campaign that are complete in the database, by id."""
    trials: dict[str, StoredTrial] = {}
    flux = query(connection.server.bucket, TRIAL, {"campaign": campaign})
    for row in rows_of(connection.query(flux)):
        fields = {name: row.get(name, "") for name in TRIAL.fields}
        try:
            rows = {
                name.removeprefix("rows_"): int(value)
                for name, value in fields.items()
                if name.startswith("rows_")
            }
            trial = StoredTrial(
                campaign=row["campaign"],
                trial=row["trial"],
                run=row["run"],
                started_ns=int(fields["started_ns"]),
                rows=rows,
                parts=int(fields["parts"]),
            )
        except (KeyError, ValueError) as error:
            raise TrialError(
                f"{connection.server} has a {TRIAL.name} that closloop did not write: {error}",
                "choose the bucket that closloop push wrote to",
            ) from error
        known = trials.get(trial.trial)
        if known is None or known.started_ns < trial.started_ns:
            trials[trial.trial] = trial
    return trials


class Incomplete(Exception):  # noqa: N818 (a finding)
    """The database lacks parts of a trial, or has data of another trial under its name."""


def rebuild(connection: InfluxConnection, trial: StoredTrial, campaign_folder: Path) -> None:
    """Write `campaign_folder/<trial>/`. Raises Incomplete, and writes nothing, if rows are missing.

    Raises NotReadyError or TrialError if the server does not answer, and TrialError if the disk
    cannot be written.
    """
    folder = campaign_folder / trial.trial
    try:
        with whole_folder(folder, sync=True) as partial:
            _write(connection, trial, partial)
            rebuilt = read_trial(partial)
            if rebuilt.spec.id != trial.trial or Path(trial.trial).name != trial.trial:
                raise Incomplete(f"its trial.json is that of {rebuilt.spec.id}")
            campaign_file = partial / CAMPAIGN_FILE
            if campaign_file.exists():
                campaign_file.replace(campaign_folder / CAMPAIGN_FILE)
    except (InputError, KeyError, ValueError) as error:
        raise Incomplete(str(error)) from error
    except OSError as error:
        raise unwritable(
            campaign_folder,
            error,
            "make room there, or choose another folder with --out",
            TrialError,
        ) from error


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
        expected = trial.rows.get(measurement.table, 0)  # none for a knob declared later
        if rows != expected:
            raise Incomplete(
                f"{rows} of {expected} rows of the table {measurement.table} are there"
            )
        if not rows and measurement.table in OPTIONAL:
            continue
        order = _order(measurement, columns, testbed)
        columns = {name: values[order] for name, values in columns.items()}
        if measurement is FLOW:
            _write_table(folder, _SCHEDULE, columns)
        _write_table(folder, measurement.table, columns)


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
    """Return the points of a measurement as columns of the table's types, in received order."""
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
    # Times are UTC, with as many decimals as needed.
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
    """Return the row indices in the order of the archive's table."""
    if measurement is FLOW:
        return np.argsort(columns["flow_id"], kind="stable")
    if ROW in columns:
        return np.argsort(columns[ROW], kind="stable")
    scope = next(scope for scope, table in TABLE_OF.items() if table == measurement.table)
    indices = {names: index for index, names in enumerate(target_names(testbed, scope))}
    keys = zip(*(columns[tag].tolist() for tag in measurement.tags), strict=True)
    index = np.array([indices[key] for key in keys], dtype=np.int64)
    return np.lexsort((columns[_TIME], index))


def _files(connection: InfluxConnection, trial: StoredTrial) -> dict[str, str]:
    parts: dict[str, dict[int, dict[str, str]]] = {}
    for record in _records(connection, trial, FILE):
        parts.setdefault(record["file"], {})[int(record["part"])] = record
    received = sum(len(of_file) for of_file in parts.values())
    if received != trial.parts:
        raise Incomplete(f"{received} of {trial.parts} parts of its files are there")
    texts: dict[str, str] = {}
    for name, of_file in parts.items():
        text = "".join(json.loads(of_file[number]["text"]) for number in sorted(of_file))
        if hashlib.sha256(text.encode()).hexdigest() != of_file[0]["sha256"]:
            raise Incomplete(f"its {name} differs from what was sent")
        texts[name] = text
    return texts


@dataclass(frozen=True)
class StoredTrial:
    """A run of a trial in the database: its rows by table, and the number of parts of its files."""

    campaign: str
    trial: str
    run: str
    started_ns: int
    rows: Mapping[str, int]
    parts: int


def query(bucket: str, measurement: Measurement, tags: Mapping[str, str]) -> str:
    """Return the Flux query for all points of a measurement with these tags, one row per point."""
    condition = " and ".join(
        f"r.{name} == {_text(value)}"
        for name, value in {"_measurement": measurement.name, **tags}.items()
    )
    shown = ["_time", *COMMON_TAGS, *measurement.tags, *measurement.fields]
    columns = ", ".join(_text(name) for name in shown)
    return (
        f"from(bucket: {_text(bucket)})\n"
        "  |> range(start: 1970-01-01T00:00:00Z, stop: 2200-01-01T00:00:00Z)\n"
        f"  |> filter(fn: (r) => {condition})\n"
        '  |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")\n'
        f"  |> keep(columns: [{columns}])\n"
    )


def rows_of(csv: Iterable[list[str]]) -> Iterator[dict[str, str]]:
    """Yield the records of annotated CSV by column name. Raises TrialError if it has an error.

    A table begins with annotations or an empty row, followed by its header.
    """
    header: list[str] = []
    named = False
    for row in csv:
        if not any(row) or row[0].startswith("#"):
            named = False
        elif not named or row[1:3] == _HEADER:
            header, named = row, True
        else:
            values = dict(zip(header, row, strict=False))
            if header[1:2] == [_ERROR]:
                raise TrialError(
                    f"the database ended its answer with an error: {values[_ERROR]}",
                    "give the command again; if it persists, see the server's log",
                )
            yield values


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("${", "\\${") + '"'
