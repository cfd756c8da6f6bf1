"""Versioned Parquet tables: each file states its table's name and the version of its schema.

Schemas of samples and actions are derived from the declared signals and knobs. A reader accepts the
current and all older versions, to which it adds the columns that were introduced since; it refuses
newer ones. Page checksums are written and verified, so a damaged file is an error, never a result.

There are also Arrow tables, and exports as Parquet and CSV.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

Columns = Mapping[str, NDArray[Any]]

_NAME_KEY, _VERSION_KEY = b"closloop.table", b"closloop.version"
_NAME = pa.dictionary(pa.int32(), pa.string())
_INT = pa.int64()
# The value that readers return for integers that the file lacks.
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
    """Return the columns that name a row's target, with types; a queue's number is its class."""
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

# Tables that a run folder may lack: no tuner set the knob, or it was introduced later; the switches
# have no shared buffer; or flows were not sampled.
OPTIONAL = frozenset(
    [
        *(knob.table for knob in KNOBS.values() if knob is not ECN),
        *(TABLE_OF[scope] for scope in (*OPTIONAL_SCOPES, FLOW_SCOPE)),
    ]
)


@dataclass(frozen=True)
class Names:
    """A column of names: `codes` (rows,) are indices into `names`."""

    codes: NDArray[Any]
    names: tuple[str, ...]


def write_table(path: Path, name: str, columns: Mapping[str, Any]) -> None:
    """Write table `name` to `path`, compressed by zstd, with its version in the metadata.

    `columns` has an array, `Names` or list for every column of the table's schema, all of the same
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
    """An importer by which pandas seems not to be installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse pandas, and leave all other modules to other importers."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)


def _convert_without_pandas() -> None:
    """Make pyarrow's first conversion without pandas, which it would import if it is installed.

    That import takes a quarter of a second, and nothing here uses pandas. pyarrow can still make
    data frames later: it then tries to import pandas again.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)


_convert_without_pandas()


class FileColumns(Mapping[str, NDArray[Any]]):
    """The columns of a table that was read, as arrays (rows,).

    Names are arrays of str; missing integers are -1. Each column is converted when first used.
    """

    def __init__(self, table: Any, absent: Sequence[str] = ()) -> None:
        """Take an Arrow table, and the names of columns that it lacks: their integers miss."""
        self._table = table
        missing = np.full(table.num_rows if absent else 0, _MISSING, dtype=np.int64)
        self._arrays: dict[str, NDArray[Any]] = dict.fromkeys(absent, missing)
        self._columns = (*table.column_names, *absent)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Return a column. Raises KeyError if the table has none of that name."""
        if column not in self._arrays:
            self._arrays[column] = _to_numpy(self._table.column(column))
        return self._arrays[column]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the columns."""
        return iter(self._columns)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self._columns)

    def names(self, column: str) -> Names:
        """Return a column of names as numbers, which take less time to compare than texts."""
        return _names(self._table.column(column))


def read_table(path: Path, name: str) -> FileColumns:
    """Return table `name` from `path`. An optional table without a file has no rows.

    Raises InputError, naming the file, if it is missing, damaged, another table, or of a newer
    closloop.
    """
    if is_absent(path, name):
        return no_rows(name)
    table = of_parquet(path, _read_verified)
    return FileColumns(table, _check_columns(table.schema, name, path))


def _read_verified(path: Path) -> Any:
    """Return an Arrow table from a file, whose checksums are verified."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read(use_threads=False)


def check_file(path: Path, name: str) -> None:
    """Raise InputError, naming the file, unless it is table `name` in a known version.

    Only the end of the file is read, where its schema is.
    """
    _check_columns(of_parquet(path, pq.read_schema), name, path)


def _check_columns(schema: Any, name: str, path: Path) -> list[str]:
    """Return the columns of signals that were introduced after the file was written.

    Raises InputError if it is another table, of a newer version, or lacks any other column.
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
    """Return the error for a damaged file; without a `remedy`, it is that for a trial's file."""
    remedy = remedy or (
        f"restore it from a copy, or `rm -r {shlex.quote(str(path.parent))}` and give the run's "
        "command again, which then runs that trial only"
    )
    return InputError.single(str(path), what, remedy, Code.DAMAGED_FILE)


def of_parquet(path: Path, read: Callable[[Path], Any]) -> Any:
    """Return `read(path)`. Raises InputError if `path` is not a readable Parquet file."""
    try:
        return read(path)
    except FileNotFoundError as error:
        raise damaged(path, "the file is missing") from error
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise damaged(path, f"cannot be read as Parquet: {reason}") from error


def is_absent(path: Path, name: str) -> bool:
    """Return whether table `name` has no file, and may have none (see `OPTIONAL`)."""
    return name in OPTIONAL and not path.exists()


def no_rows(name: str) -> FileColumns:
    """Return table `name` with no rows."""
    return FileColumns(pa.schema(list(TABLES[name].columns.items())).empty_table())


def check_version(metadata: Mapping[bytes, bytes], name: str, where: str) -> int:
    """Return the version of table `name` from the metadata of its file `where`.

    Raises InputError if the file is another table, was not written by closloop, or is of a newer
    version.
    """
    spec = TABLES[name]
    written_name = metadata.get(_NAME_KEY, b"").decode(errors="replace")
    text = metadata.get(_VERSION_KEY, b"").decode(errors="replace")
    if written_name != spec.name or not text.isdecimal():
        what = f"is table {written_name!r}" if written_name else "was not written by closloop"
        raise InputError.single(
            where, f"{what}, not the table {spec.name!r}", "put the trial's own file back"
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
        coded = _names(column)
        return np.asarray(np.array(coded.names, dtype=object)[coded.codes])
    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    if column.null_count:
        column = column.fill_null(_MISSING)
    return np.asarray(column.to_numpy())


def _names(column: Any) -> Names:
    """Return an Arrow column of names; those of plain text are numbered."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # without rows
        return Names(np.zeros(0, dtype=np.int32), ())
    return Names(array.indices.to_numpy(), tuple(array.dictionary.to_pylist()))


def no_rows_arrow(name: str) -> Any:
    """Return table `name` without rows as an Arrow table; names are plain strings in it."""
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
