"""What a query yields, as a file or a stream: CSV, JSON, Parquet. In pieces: it may be large."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from orchestration.artifacts.arrow import write_csv, write_parquet
from orchestration.artifacts.writer import TRIAL_FILE
from orchestration.model.errors import InputError
from orchestration.model.files import whole_file
from orchestration.query.database import query_error

if TYPE_CHECKING:
    import duckdb

FORMATS = ("table", "csv", "json", "parquet")
_BATCH_ROWS = 100_000


def write_result(relation: duckdb.DuckDBPyRelation, path: Path, kind: str) -> int:
    """Write all rows to `path`, which appears when it is complete; return how many there are.

    Raises InputError for a place that cannot be written, or is a trial's folder, and for rows that
    cannot be made.
    """
    if (path.absolute().parent / TRIAL_FILE).exists():
        raise InputError.single(
            str(path), "is in a trial's folder, which holds what was recorded", "choose another -o"
        )
    try:
        with whole_file(path) as partial:
            if kind == "parquet":
                return _fetched(relation, lambda batches: write_parquet(partial, batches))
            with partial.open("wb") as file:
                return stream_result(relation, file, kind)
    except OSError as error:
        raise InputError.single(
            str(path), f"cannot be written: {error.strerror or error}", "choose another -o"
        ) from error


def stream_result(relation: duckdb.DuckDBPyRelation, file: BinaryIO, kind: str) -> int:
    """Write all rows to a binary file as `kind`, csv or json; return how many there are."""
    if kind == "csv":
        return _fetched(relation, lambda batches: write_csv(file, batches))
    texts = {
        name for name, of in zip(relation.columns, relation.types, strict=True) if str(of) == "JSON"
    }
    return _fetched(relation, lambda batches: _write_json(file, batches, texts))


def first_rows(
    relation: duckdb.DuckDBPyRelation, count: int
) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """Return the columns' names, at most `count` rows, and whether there are more."""
    import duckdb

    try:
        rows = relation.limit(count + 1).fetchall()
    except duckdb.Error as error:
        raise query_error(error) from error
    return list(relation.columns), rows[:count], len(rows) > count


def _write_json(file: BinaryIO, batches: Any, texts: Collection[str]) -> int:
    """Write a JSON array with an object a row, a row a line; `texts` name columns of JSON text."""
    rows = 0
    file.write(b"[")
    for row in _rows(batches):
        for name in texts:
            row[name] = None if row[name] is None else json.loads(row[name])
        file.write(b",\n " if rows else b"\n ")
        file.write(json.dumps(_finite(row), default=str).encode())
        rows += 1
    file.write(b"\n]\n" if rows else b"]\n")
    return rows


def _rows(batches: Any) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _finite(value: Any) -> Any:
    """Return `value` with null for what JSON has no numbers for."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fetched(relation: duckdb.DuckDBPyRelation, take: Any) -> int:
    """Hand the rows to `take` in record batches. Raises InputError if they cannot be made."""
    import duckdb

    try:
        rows: int = take(relation.to_arrow_reader(_BATCH_ROWS))
    except duckdb.Error as error:
        raise query_error(error) from error
    except OSError as error:
        # Arrow passes on what DuckDB raises while it makes rows as an OSError without a number.
        if error.errno is not None:
            raise
        raise query_error(error) from error
    return rows
