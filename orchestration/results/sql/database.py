"""Run folders as a read-only database in DuckDB, which reads the Parquet files itself.

A user's statement can access only the tables of run folders: other files, extensions, settings and
variables of the Python program are made inaccessible before it runs.

The tables `trials` and `reasons` have a row for each trial, and for each reason of its stamp; they
are made from `trial.json`. The others are views over the Parquet files of all trials, with columns
that identify the trial. A view is created when a query first names it, so that no file is read that
no query needs.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orchestration.core.condition import campaign_tuner_name, labels_of
from orchestration.core.errors import InputError
from orchestration.core.signals import FLOW_SCOPE, TABLE_OF, names, sampled_scopes
from orchestration.core.trial import checkpoint_in
from orchestration.results.question import arm_of, read_question
from orchestration.results.reader import TrialInRun, find_trials, recorded_load_shares
from orchestration.results.tables import TABLES, check_file, is_absent, no_rows_arrow

if TYPE_CHECKING:
    import duckdb

IDENTITY = ("run", "campaign", "trial")
_TEXT, _LIST = "VARCHAR", ["VARCHAR"]
_TRIALS: Mapping[str, Any] = {
    **dict.fromkeys(IDENTITY, _TEXT),
    "folder": _TEXT,
    "tuner": _TEXT,
    "arm": _TEXT,
    "checkpoint": _TEXT,
    "backend": _TEXT,
    "testbed": _TEXT,
    "seed": "BIGINT",
    "repeat": "BIGINT",
    "valid": "BOOLEAN",
    "reasons": _LIST,
    "checked": _LIST,
    "warm_up_ns": "BIGINT",
    "duration_ns": "BIGINT",
    "drain_ns": "BIGINT",
    "sample_period_ns": "BIGINT",
    "action_period_ns": "BIGINT",
    "decision_latency_ns": "BIGINT",
    "congestion_control": _TEXT,
    "min_rto_ns": "BIGINT",
    "parent": _TEXT,
    "wall_s": "DOUBLE",
    "offered_load": "DOUBLE",
    "delivered_load": "DOUBLE",
    "discarded_load": "DOUBLE",
    "tuner_params": "JSON",
    "traffic": "JSON",
    "faults": "JSON",
    "facts": "JSON",
    "versions": "JSON",
}
_REASONS = {**dict.fromkeys(IDENTITY, _TEXT), "code": _TEXT, "severity": _TEXT, "text": _TEXT}
# The database schema (a namespace) of tables that only the views use.
INTERNAL = "closloop"
# Columns in which -1 or null in a file means that there is no value; it becomes NULL in SQL.
_UNKNOWN = {
    "flows": ("sent_ns", "end_ns", "fct_ns", "retransmits"),
    **{TABLE_OF[scope]: names(scope) for scope in (*sampled_scopes(), FLOW_SCOPE)},
}


def create_trials(connection: duckdb.DuckDBPyConnection, trials: Sequence[TrialInRun]) -> None:
    """Create the tables `trials` and `reasons` in `connection`."""
    cell = cell_types(trials)
    shape = {**_TRIALS, "cell": cell} if cell else {**_TRIALS, "cell": "JSON"}
    compares = cache(lambda folder: read_question(folder).compare)
    rows = [_trial_row(trial, compares(trial.result.folder.parent)) for trial in trials]
    _create(connection, "trials", shape, rows)
    reasons = [
        {**identity(trial), "code": item.code, "severity": item.severity, "text": item.text}
        for trial in trials
        for item in trial.result.stamp.reasons
    ]
    _create(connection, "reasons", _REASONS, reasons)


def identity(trial: TrialInRun) -> dict[str, str]:
    """Return the columns that identify a row's trial in every table."""
    return {"run": trial.run, "campaign": trial.result.spec.campaign, "trial": trial.trial}


def cell_types(trials: Sequence[TrialInRun]) -> dict[str, str]:
    """Return the SQL type of each factor: numeric or boolean if all its levels are, else text."""
    kinds: dict[str, set[str]] = {}
    for trial in trials:
        for name, value in labels_of(trial.result.spec).items():
            number = "DOUBLE" if isinstance(value, int | float) else _TEXT
            kinds.setdefault(name, set()).add("BOOLEAN" if isinstance(value, bool) else number)
    return {name: kind.pop() if len(kind) == 1 else _TEXT for name, kind in kinds.items()}


def _trial_row(trial: TrialInRun, compare: str) -> dict[str, Any]:
    """Return a trial's row; `compare` is the factor that its campaign compares."""
    result, spec = trial.result, trial.result.spec
    spec_json = spec.to_json()
    return {
        **{name: getattr(spec, name) for name in _TRIALS if hasattr(spec, name)},
        "cell": labels_of(spec),
        **identity(trial),
        "folder": str(result.folder),
        "tuner": spec.tuner.name,
        "arm": arm_of(spec, campaign_tuner_name(spec), compare),
        "checkpoint": checkpoint_in(spec) or None,
        "valid": result.stamp.valid,
        "reasons": [reason.code for reason in result.stamp.reasons],
        "checked": list(result.stamp.checked),
        "congestion_control": spec.host.congestion_control,
        "min_rto_ns": spec.host.min_rto_ns,
        "wall_s": result.facts.get("wall_s"),
        **recorded_load_shares(result),
        "tuner_params": spec.tuner.params,
        "traffic": spec_json["traffic"],
        "faults": spec_json["faults"],
        "facts": dict(result.facts),
        "versions": dict(result.versions),
    }


def _create(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    shape: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Create a table of `rows` in one statement; `shape` has its columns' types for `from_json`."""
    connection.execute(
        f"create table {name} as select unnest(item) from "
        "(select unnest(from_json(?::JSON, ?)) as item)",
        [json.dumps(list(rows)), json.dumps([shape])],
    )


def create_view(
    connection: duckdb.DuckDBPyConnection, name: str, trials: Sequence[TrialInRun]
) -> None:
    """Create the view of table `name` over all trials.

    Columns that files of older versions lack are NULL. Raises InputError, naming the file, if one
    is missing, damaged or of a newer closloop.
    """
    file = TABLES[name].file
    # optional tables may have no file in some trials
    paths = [path for trial in trials if not is_absent(path := trial.result.folder / file, name)]
    for path in paths:
        check_file(path, name)
    # a table without rows, so that the view has all columns even if no file does
    empty = f"{INTERNAL}.{name}"
    unknown = _UNKNOWN.get(name, ())
    columns = ", ".join(
        f'nullif("{key}", -1) as "{key}"' if key in unknown else f'"{key}"'
        for key in TABLES[name].columns
    )
    connection.register("no_rows", no_rows_arrow(name))
    connection.execute(
        f"create or replace table {empty} as select *, null::VARCHAR as _file from no_rows"
    )
    connection.unregister("no_rows")
    files = ["'" + str(path).replace("'", "''") + "'" for path in paths]
    of_files = f"read_parquet([{', '.join(files)}], union_by_name = true, filename = '_file')"
    parts = [f"from {empty}", *([f"from {of_files}"] if files else [])]
    connection.execute(
        f"create view {name} as select {', '.join(IDENTITY)}, {columns} "
        f"from ({' union all by name '.join(parts)}) join (select {', '.join(IDENTITY)}, "
        f"folder || '/{file}' as _file from trials) using (_file)"
    )


NAMES = ("trials", "reasons", *TABLES)
_WHERE = "the query"
_READING = re.compile(
    r"(select|with|from|values|table|describe|summarize|show|pivot|unpivot)\b|\(", re.IGNORECASE
)
# DuckDB's statement types for reading. A PIVOT is several statements.
_KINDS = ("SELECT", "EXPLAIN", "MULTI")
_EXPLAIN = re.compile(r"explain\s+(analyze\s+)?", re.IGNORECASE)
_COMMENTS = re.compile(r"\A(\s+|--[^\n]*(\n|\Z)|/\*.*?\*/)+", re.DOTALL)
_Result = TypeVar("_Result")
# How long to wait for an interrupted query. DuckDB checks for an interrupt only between pieces of
# work, and a large cross join has long ones: its thread is then left to end with the program.
_INTERRUPT_WAIT_S = 2.0


class Runs:
    """The finished trials at and below some paths, open for queries.

    The tables are `trials`, `reasons`, and those of the run folder (docs/sql.md). Each has the
    columns `run`, `campaign` and `trial`. Trials that finish later are not included.
    """

    def __init__(self, *paths: str | Path) -> None:
        """Find the trials. Raises InputError if there are none, or a `trial.json` is damaged."""
        self._trials = find_trials(Path(path) for path in paths)
        self._connection = self._connect()
        self._without_view = set(TABLES)

    def table(self, name: str) -> duckdb.DuckDBPyRelation:
        """Return a table over all trials, to filter, join or fetch: `.pl()`, `.df()`.

        Raises InputError for an unknown table, or files that cannot be read.
        """
        if name not in NAMES:
            raise InputError.single("table", f"there is no {name!r}", _tables_there_are())
        return self.sql(f"select * from {name}")

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return the result of a query: a single statement that only reads.

        Rows are computed when they are fetched. Raises InputError for other statements, for an
        error in the query, and for files that cannot be read.
        """
        import duckdb

        try:
            statements = self._connection.extract_statements(query)
        except duckdb.Error as error:
            raise query_error(error) from error
        if len(statements) != 1:
            raise InputError.single(
                _WHERE, f"has {len(statements)} statements", "give one: select ... from flows"
            )
        self._refuse_writing(query, statements[0].type.name)
        self._open_views(query)
        try:
            relation = self._connection.sql(query)
        except duckdb.Error as error:
            raise query_error(error) from error
        if relation is None:
            raise InputError.single(_WHERE, "yields nothing", "give a query: select ... from flows")
        return relation

    def interrupt(self) -> None:
        """Stop a query that runs in another thread."""
        self._connection.interrupt()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """Return a database of the trials that can read their tables, but no other file."""
        import duckdb

        connection = duckdb.connect()
        connection.execute(f"create schema {INTERNAL}")
        create_trials(connection, self._trials)
        set_to = {
            "allowed_paths": [
                str(trial.result.folder / spec.file)
                for trial in self._trials
                for spec in TABLES.values()
            ],
            # Large sorts write there. DuckDB creates the folder when needed, and removes it.
            "temp_directory": f"{tempfile.gettempdir()}/closloop-sql-{uuid.uuid4().hex}",
            "autoinstall_known_extensions": False,
            "python_enable_replacements": False,
            "enable_external_access": False,
            "lock_configuration": True,
        }
        for name, value in set_to.items():
            connection.execute(f"set {name} = $1", [value])
        return connection

    def _refuse_writing(self, query: str, kind: str) -> None:
        """Raise InputError for statements that could write, such as COPY to a file of a view."""
        plain = _COMMENTS.sub("", query)
        while explained := _EXPLAIN.match(plain):
            plain = _COMMENTS.sub("", plain[explained.end() :])
        if not _READING.match(plain) or kind not in _KINDS:
            word = plain.split(None, 1)[0] if plain.split() else query
            what = f"cannot begin with {word[:20]!r}" if kind in _KINDS else f"is {kind} for DuckDB"
            raise InputError.single(
                _WHERE,
                f"{what}: run folders are only read",
                "begin it with select, with, from, describe, summarize or show; -o FILE writes "
                "its result",
            )

    def _open_views(self, query: str) -> None:
        """Create the views that the query names and that do not exist yet."""
        import duckdb

        try:
            named = {name.lower() for name in self._connection.get_table_names(query)}
        except duckdb.Error:
            named = set()
        for name in TABLES:
            # a query that names none, such as SHOW TABLES, gets all of them
            if name in self._without_view and (name in named or not named):
                create_view(self._connection, name, self._trials)
                self._without_view.remove(name)


def table(paths: str | Path | Iterable[str | Path], name: str) -> duckdb.DuckDBPyRelation:
    """Return a table over the run folders at and below `paths`: `.pl()`, `.df()`, `.filter(…)`.

    Raises InputError as `Runs` does.
    """
    return _runs(paths).table(name)


def sql(paths: str | Path | Iterable[str | Path], query: str) -> duckdb.DuckDBPyRelation:
    """Return the result of a query over the run folders at and below `paths`.

    Raises InputError as `Runs` does.
    """
    return _runs(paths).sql(query)


def query_error(error: Exception) -> InputError:
    """Return the InputError for a DuckDB error, with its location in the query and the remedy."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    what = "\n    ".join(lines)
    remedy = "correct it: docs/sql.md has examples"
    if "Table with name" in what or "Referenced table" in what:
        remedy = _tables_there_are()
    elif "column" in what.lower() and "not found" in what:
        remedy = "`describe flows` and so on list a table's columns"
    elif "disabled by configuration" in what:
        remedy = f"only the run folders can be read; {_tables_there_are()}"
    elif "parquet" in what.lower() and ("Invalid Input" in what or "IO Error" in what):
        remedy = "run that trial again, or restore the file from a copy"
    return InputError.single(_WHERE, what, remedy)


def _tables_there_are() -> str:
    return f"there are {', '.join(NAMES)}"


def _runs(paths: str | Path | Iterable[str | Path]) -> Runs:
    return Runs(*([paths] if isinstance(paths, str | Path) else paths))


def interruptible(runs: Runs, work: Callable[[], _Result]) -> _Result:
    """Return the result of `work`; a KeyboardInterrupt stops its query on `runs` first.

    In a program that has imported pandas, the interrupt takes effect only after the query, because
    DuckDB then holds Python's global lock. `closloop sql` does not import pandas.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        runs.interrupt()
        thread.join(_INTERRUPT_WAIT_S)
        raise
