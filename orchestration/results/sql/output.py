"""Writes results of queries as CSV, JSON or Parquet, in batches because they may be large."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from orchestration.core.errors import InputError, unwritable
from orchestration.core.files import whole_file
from orchestration.render.json import plain
from orchestration.results.sql.database import query_error
from orchestration.results.tables import write_csv, write_parquet
from orchestration.results.writer import TRIAL_FILE

if TYPE_CHECKING:
    import duckdb

FORMATS = ("table", "csv", "json", "parquet")
_BATCH_ROWS = 100_000


def check_output_path(path: Path) -> None:
    """Raise InputError for a path in a trial's folder, where nothing may be added."""
    if (path.absolute().parent / TRIAL_FILE).exists():
        raise InputError.single(
            str(path), "is in a trial's folder, which has recorded files only", "choose another -o"
        )


def write_result(relation: duckdb.DuckDBPyRelation, path: Path, kind: str) -> int:
    """Write all rows to `path` atomically, and return their number.

    Raises InputError if the path cannot be written, if `check_output_path` refuses it, and if the
    query fails while it yields rows.
    """
    check_output_path(path)
    try:
        with whole_file(path) as partial:
            if kind == "parquet":
                return _write_batches(relation, lambda batches: write_parquet(partial, batches))
            with partial.open("wb") as file:
                return stream_result(relation, file, kind)
    except OSError as error:
        raise unwritable(path, error, "choose another -o", InputError) from error


def stream_result(relation: duckdb.DuckDBPyRelation, file: BinaryIO, kind: str) -> int:
    """Write all rows to a binary file as `kind` ("csv" or "json"); return their number."""
    if kind == "csv":
        return _write_batches(relation, lambda batches: write_csv(file, batches))
    texts = {
        name for name, of in zip(relation.columns, relation.types, strict=True) if str(of) == "JSON"
    }
    return _write_batches(relation, lambda batches: _write_json(file, batches, texts))


def first_rows(
    relation: duckdb.DuckDBPyRelation, count: int
) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """Return the column names, the first `count` rows, and whether there are more."""
    import duckdb

    try:
        rows = relation.limit(count + 1).fetchall()
    except duckdb.Error as error:
        raise query_error(error) from error
    return list(relation.columns), rows[:count], len(rows) > count


def _write_json(file: BinaryIO, batches: Any, texts: Collection[str]) -> int:
    """Write a JSON array, with an object on a line for each row.

    Columns in `texts` hold JSON as text, which is written as JSON.
    """
    rows = 0
    file.write(b"[")
    for row in (row for batch in batches for row in batch.to_pylist()):
        for name in texts:
            row[name] = None if row[name] is None else json.loads(row[name])
        file.write(b",\n " if rows else b"\n ")
        file.write(json.dumps(plain(row), default=str).encode())
        rows += 1
    file.write(b"\n]\n" if rows else b"]\n")
    return rows


def _write_batches(relation: duckdb.DuckDBPyRelation, write: Any) -> int:
    """Pass the rows to `write` in record batches; return what it returns, the number of rows.

    Raises InputError if the query fails.
    """
    import duckdb

    try:
        rows: int = write(relation.to_arrow_reader(_BATCH_ROWS))
    except duckdb.Error as error:
        raise query_error(error) from error
    except OSError as error:
        # Arrow turns DuckDB's errors during fetching into an OSError without errno.
        if error.errno is not None:
            raise
        raise query_error(error) from error
    return rows
