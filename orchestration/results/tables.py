"""Versioned Parquet tables: each file states its table's name and the version of the schema.

Tables of samples and of actions are derived from the declared signals and knobs. A reader takes the
current version and adds to older files the columns that were introduced since. It refuses newer
files. Page checksums are written and verified, so a damaged file is an error, not a result.

For other programs there are Arrow tables, and exports of Parquet and CSV.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orchestration.core.errors import InputError
from orchestration.core.knobs import ECN, KNOBS
from orchestration.core.problems import Code
from orchestration.core.signals import (
    FLOW_SCOPE,
    OPTIONAL_SCOPES,
    TABLE_OF,
    TARGET_COLUMNS,
    Scope,
    names,
    recorded,
    sampled_scopes,
)

Columns = dict[str, NDArray[Any]]

_NAME_KEY, _VERSION_KEY = b"closloop.table", b"closloop.version"
_NAME = pa.dictionary(pa.int32(), pa.string())
_INT = pa.int64()
# Readers get this for integers that the file lacks.
_MISSING = -1


@dataclass(frozen=True)
class TableSpec:
    """A table's name, the version of its schema, and its columns with their types."""

    name: str
    version: int
    columns: Mapping[str, Any]

    @property
    def file(self) -> str:
        """The table's file in a run folder."""
        return f"{self.name}.parquet"


_KINDS = {"int64": _INT, "float64": pa.float64()}


def _target(scope: Scope) -> dict[str, Any]:
    """Return the columns that name a row's target. A queue's number is its traffic class."""
    kinds = {"queue": pa.int16(), "flow_id": _INT}
    return {name: kinds.get(name, _NAME) for name in TARGET_COLUMNS[scope]}


TABLES: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        TableSpec(
            "schedule",
            1,
            {
                **dict.fromkeys(("flow_id", "start_ns"), _INT),
                **dict.fromkeys(("src", "dst"), _NAME),
                "bytes": _INT,
                "class": _NAME,
            },
        ),
        TableSpec(
            "flows",
            1,
            {
                **dict.fromkeys(("flow_id", "start_ns", "sent_ns", "end_ns"), _INT),
                **dict.fromkeys(("fct_ns", "ideal_ns", "retransmits"), _INT),
                "status": _NAME,
            },
        ),
        *(
            TableSpec(
                TABLE_OF[scope],
                max(signal.since for signal in recorded(scope)),
                {"t_ns": _INT, **_target(scope), **dict.fromkeys(names(scope), _INT)},
            )
            for scope in (*sampled_scopes(), FLOW_SCOPE)
        ),
        *(
            TableSpec(
                knob.table,
                1,
                {
                    **dict.fromkeys(("t_ns", "decided_ns", "applied_ns"), _INT),
                    **_target(knob.scope),
                    **{column.name: _KINDS[column.dtype] for column in knob.columns},
                },
            )
            for knob in KNOBS.values()
        ),
        TableSpec("events", 1, {"t_ns": _INT, "kind": _NAME, "detail": pa.string()}),
    )
}

# Tables that a run folder may lack: the knob was introduced later, or nothing turned it; the
# switches have no shared buffer; or flows were not sampled.
OPTIONAL = frozenset(
    [
        *(knob.table for knob in KNOBS.values() if knob is not ECN),
        *(TABLE_OF[scope] for scope in (*OPTIONAL_SCOPES, FLOW_SCOPE)),
    ]
)


@dataclass(frozen=True)
class Names:
    """A column of names: `codes` (rows,) index `names`."""

    codes: NDArray[Any]
    names: tuple[str, ...]


def write_table(path: Path, name: str, columns: Mapping[str, Any]) -> None:
    """Write table `name` to `path`: zstd, names as dictionaries, its version in the metadata.

    `columns` holds an array, `Names` or list for every column of the table's schema, all of one
    length. Raises OSError if the file cannot be written.
    """
    spec = TABLES[name]
    arrays = [_to_arrow(columns[key], kind) for key, kind in spec.columns.items()]
    metadata = {_NAME_KEY: name.encode(), _VERSION_KEY: str(spec.version).encode()}
    schema = pa.schema(list(spec.columns.items()), metadata=metadata)
    integers = [key for key, kind in spec.columns.items() if pa.types.is_integer(kind)]
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        path,
        compression="zstd",
        use_dictionary=[key for key, kind in spec.columns.items() if kind == _NAME],
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    )


class _NoPandas:
    """An importer that makes pandas look as if it were not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse pandas; leave every other module to the other importers."""
        if name == "pandas":
            raise ModuleNotFoundError("not looked for", name=name)


def _convert_without_pandas() -> None:
    """Make pyarrow's first conversion without pandas, which it would import if installed.

    That import takes a quarter of a second, and nothing here uses pandas. Asking pyarrow for a data
    frame later still works: it then looks for pandas again.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)


_convert_without_pandas()


def read_table(path: Path, name: str) -> Columns:
    """Return table `name` from `path` as column -> array of shape (rows,).

    Names are arrays of str; missing integers are -1. An optional table without a file has no rows.
    Raises InputError, naming the file, when it is missing, truncated, damaged, another table, or
    written by a newer closloop.
    """
    if is_absent(path, name):
        return no_rows(name)
    table = of_parquet(path, partial(pq.read_table, page_checksum_verification=True))
    newer = _check_columns(table.schema, name, path)
    columns = {key: _to_numpy(table.column(key)) for key in table.column_names}
    absent = np.full(table.num_rows, _MISSING, dtype=np.int64)
    return {**columns, **dict.fromkeys(newer, absent)}


def check_file(path: Path, name: str) -> None:
    """Raise InputError, naming the file, unless it is table `name` in a version known here.

    Reads only the end of the file, which may be missing, damaged or another table.
    """
    _check_columns(of_parquet(path, pq.read_schema), name, path)


def _check_columns(schema: Any, name: str, path: Path) -> list[str]:
    """Return the signals that were introduced since the file was written.

    Raises InputError if it is another table, of a newer version, or lacks another column.
    """
    version = check_version(schema.metadata or {}, name, str(path))
    newer = [
        signal.name
        for scope, table in TABLE_OF.items()
        if table == name
        for signal in recorded(scope)
        if signal.since > version
    ]
    absent = [key for key in TABLES[name].columns if key not in (*schema.names, *newer)]
    if absent:
        raise damaged(path, f"has no column {absent[0]!r}")
    return newer


def damaged(path: Path, what: str, remedy: str = "") -> InputError:
    """Return the error for a file that cannot be used as it is: a trial's, unless `remedy` says."""
    remedy = remedy or (
        f"restore it from a copy, or `rm -r {shlex.quote(str(path.parent))}` and give the run's "
        "command again, which then runs that trial only"
    )
    return InputError.single(str(path), what, remedy, Code.DAMAGED_FILE)


def of_parquet(path: Path, read: Callable[[Path], Any]) -> Any:
    """Return what `read` takes from a Parquet file. Raises InputError if it is none."""
    try:
        return read(path)
    except FileNotFoundError as error:
        raise damaged(path, "the file is missing") from error
    except (OSError, pa.ArrowException) as error:
        said = str(error).splitlines()[0]
        raise damaged(path, f"cannot be read as Parquet: {said}") from error


def is_absent(path: Path, name: str) -> bool:
    """Return whether table `name` is absent and allowed to be (see `OPTIONAL`)."""
    return name in OPTIONAL and not path.exists()


def no_rows(name: str) -> Columns:
    """Return table `name` with no rows."""
    kinds = {_INT: np.int64, pa.int16(): np.int16, pa.float64(): np.float64}
    return {
        column: np.zeros(0, kinds.get(kind, object))
        for column, kind in TABLES[name].columns.items()
    }


def check_version(metadata: Mapping[bytes, bytes], name: str, where: str) -> int:
    """Return the version of table `name` from the metadata of its file `where`.

    Raises InputError when the file is another table, not written by closloop, or of a newer
    version.
    """
    spec = TABLES[name]
    found = metadata.get(_NAME_KEY, b"").decode(errors="replace")
    text = metadata.get(_VERSION_KEY, b"").decode(errors="replace")
    if found != spec.name or not text.isdecimal():
        said = f"is table {found!r}" if found else "was not written by closloop"
        raise InputError.single(
            where, f"{said}, not the table {spec.name!r}", "put the trial's own file back"
        )
    version = int(text)
    if version > spec.version:
        raise InputError.single(
            where,
            f"has version {version} of the table {spec.name!r}; this closloop reads versions up to "
            f"{spec.version}",
            "use the closloop that wrote it, or a newer one",
        )
    return version


def _to_arrow(values: Any, kind: Any) -> Any:
    if isinstance(values, Names):
        codes = pa.array(values.codes, type=pa.int32())
        return pa.DictionaryArray.from_arrays(codes, pa.array(values.names, type=pa.string()))
    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values.data, type=kind, mask=np.ma.getmaskarray(values))
    return pa.array(values, type=kind)


def _to_numpy(column: Any) -> NDArray[Any]:
    if pa.types.is_dictionary(column.type):
        one = column.unify_dictionaries().combine_chunks()
        if isinstance(one, pa.ChunkedArray):  # without rows
            return np.zeros(0, dtype=object)
        names = np.array(one.dictionary.to_pylist(), dtype=object)
        return np.asarray(names[one.indices.to_numpy()])
    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    if column.null_count:
        column = column.fill_null(_MISSING)
    return np.asarray(column.to_numpy())


def no_rows_arrow(name: str) -> Any:
    """Return table `name` without rows as an Arrow table, names as plain strings."""
    kinds = TABLES[name].columns.items()
    plain = [(key, pa.string() if kind == _NAME else kind) for key, kind in kinds]
    return pa.schema(plain).empty_table()


def write_parquet(path: Path, batches: Any) -> int:
    """Write record batches to a Parquet file and return how many rows it has."""
    return _write(batches, lambda schema: pq.ParquetWriter(path, schema, compression="zstd"))


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
