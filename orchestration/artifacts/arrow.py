"""Arrow, Parquet and CSV for other programs: tables that they can read as is, and exports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestration.artifacts.tables import TABLES, check_version, read_table
from orchestration.model.errors import InputError


def is_current(path: Path, name: str) -> bool:
    """Return whether the file is table `name` in its current version, which any program can read.

    Reads only the end of the file. Raises InputError, naming the file, when it is missing, damaged,
    another table, or written by a newer closloop.
    """
    where, again = str(path), "run the trial again, or restore the file from a copy"
    try:
        schema = pq.read_schema(path)
    except FileNotFoundError as error:
        raise InputError.single(where, "the file is missing", again) from error
    except (OSError, pa.ArrowException) as error:
        said = str(error).splitlines()[0]
        raise InputError.single(where, f"cannot be read as Parquet: {said}", again) from error
    return check_version(schema.metadata or {}, name, where) == TABLES[name].version


def read_arrow(path: Path, name: str) -> Any:
    """Return table `name` as an Arrow table in its current version; missing integers are -1.

    Raises InputError as `read_table` does.
    """
    columns = read_table(path, name)
    arrays = {}
    for key, kind in TABLES[name].columns.items():
        plain = pa.string() if pa.types.is_dictionary(kind) else kind
        arrays[key] = pa.array(columns[key], type=plain)
    return pa.table(arrays)


def write_parquet(path: Path, batches: Any) -> int:
    """Write record batches to a Parquet file and return how many rows it has."""

    def writer(schema: Any) -> Any:
        return pq.ParquetWriter(path, schema, compression="zstd")

    return _write(batches, writer)


def write_csv(path: Any, batches: Any) -> int:
    """Write record batches as CSV to a path or binary file; return how many rows it has."""
    from pyarrow import csv

    return _write(batches, lambda schema: csv.CSVWriter(path, schema))


def _write(batches: Any, open_writer: Callable[[Any], Any]) -> int:
    rows = 0
    with open_writer(batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows
