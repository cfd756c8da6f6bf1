"""Run folders as a read-only database.

DuckDB reads the Parquet files itself. A user's statement can access only the views: other files,
extensions, settings and variables of the Python program are shut off before it runs.
"""

from __future__ import annotations

import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orchestration.core.errors import InputError
from orchestration.results.found import find_trials
from orchestration.results.sql.trials import INTERNAL, create_trials, create_view
from orchestration.results.tables import TABLES

if TYPE_CHECKING:
    import duckdb

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
# DuckDB checks for an interrupt only between pieces of work. A large cross join has long pieces:
# its thread is then abandoned, and ends with the program.
_PATIENCE_S = 2.0


class Runs:
    """The finished trials at and below some paths, open for queries.

    The tables are `trials`, `reasons`, and those of the run folder (docs/sql.md). Each has the
    columns `run`, `campaign` and `trial`. Trials that finish later are not included.
    """

    def __init__(self, *paths: str | Path) -> None:
        """Find the trials. Raises InputError if there are none, or a `trial.json` is damaged."""
        self._found = find_trials(Path(path) for path in paths)
        self._connection = self._connect()
        self._missing = set(TABLES)

    def table(self, name: str) -> duckdb.DuckDBPyRelation:
        """Return a table over all trials, to filter, join or fetch: `.pl()`, `.df()`.

        Raises InputError for an unknown table, or files that cannot be read.
        """
        if name not in NAMES:
            raise InputError.single("table", f"there is no {name!r}", _tables_there_are())
        return self.sql(f"select * from {name}")

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return the result of a query, which must be one statement that only reads.

        Rows are computed when they are fetched. Raises InputError for other statements, for errors
        in the query, and for files that cannot be read.
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
        """Open a database of the trials that can read their tables, and nothing else."""
        import duckdb

        connection = duckdb.connect()
        connection.execute(f"create schema {INTERNAL}")
        create_trials(connection, self._found)
        set_to = {
            "allowed_paths": [
                str(trial.result.folder / spec.file)
                for trial in self._found
                for spec in TABLES.values()
            ],
            # Large sorts spill there. DuckDB creates the folder when needed, and removes it.
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
        """Refuse statements that could write files, such as COPY to a file of a view."""
        plain = _COMMENTS.sub("", query)
        while explained := _EXPLAIN.match(plain):
            plain = _COMMENTS.sub("", plain[explained.end() :])
        if not _READING.match(plain) or kind not in _KINDS:
            word = plain.split(None, 1)[0] if plain.split() else query
            what = f"cannot begin with {word[:20]!r}" if kind in _KINDS else f"is {kind} for DuckDB"
            raise InputError.single(
                _WHERE,
                f"{what}: run folders are read, never changed",
                "begin it with select, with, from, describe, summarize or show; -o FILE writes "
                "what it yields",
            )

    def _open_views(self, query: str) -> None:
        """Create the views that the query names, if they are not there yet."""
        import duckdb

        try:
            named = {name.lower() for name in self._connection.get_table_names(query)}
        except duckdb.Error:
            named = set()
        for name in TABLES:
            # all of them if none is named, as in SHOW TABLES
            if name in self._missing and (name in named or not named):
                create_view(self._connection, name, self._found)
                self._missing.remove(name)


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
    """Return a DuckDB error as one message: the fault, its place in the query, the remedy."""
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

    In a program that has loaded pandas, the interrupt takes effect only after the query, because
    DuckDB then holds Python's lock. `closloop sql` does not load pandas.
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
        thread.join(_PATIENCE_S)
        raise
