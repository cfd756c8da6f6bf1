"""The views over the trials' Parquet files: one a table, all trials' rows with whose they are.

A view is made when a query first names it, so that files that no query asks for are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestration.artifacts.arrow import is_current, read_arrow
from orchestration.artifacts.found import Found
from orchestration.artifacts.tables import TABLES
from orchestration.query.trials import IDENTITY, identity

if TYPE_CHECKING:
    import duckdb

# The schema of what only the views use. It must exist.
INTERNAL = "closloop"
# Where -1 in a file, or null, means that there is no such number. SQL's word for that is NULL.
_UNKNOWN = {
    "flows": ("sent_ns", "end_ns", "fct_ns", "retransmits"),
    "ports": ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets"),
    "hosts": ("retransmits", "timeouts", "out_of_order", "tx_bytes"),
}


def create_view(
    connection: duckdb.DuckDBPyConnection, name: str, found: Sequence[Found]
) -> list[str]:
    """Create the view of table `name` over all trials; return the files that it reads.

    DuckDB reads files of the current version itself, older ones are upgraded into memory first.
    Raises InputError, naming the file, for one that is missing, damaged or of a newer closloop.
    """
    file = TABLES[name].file
    current, parts = [], []
    for number, trial in enumerate(found):
        path = trial.result.folder / file
        if is_current(path, name):
            current.append((str(path), trial))
        else:
            older = f"{INTERNAL}.{name}_{number}"
            connection.register("upgraded", read_arrow(path, name))
            connection.execute(f"create table {older} as from upgraded")
            connection.unregister("upgraded")
            parts.append(f"select {_quoted(identity(trial))}, {_columns(name)} from {older}")
    if current:
        _map_files(connection, name, current)
        files = ", ".join(_text(path) for path, _ in current)
        parts.append(
            f"select {', '.join(IDENTITY)}, {_columns(name)} "
            f"from read_parquet([{files}], filename = '_file') join {INTERNAL}.{name} using (_file)"
        )
    connection.execute(f"create view {name} as {' union all by name '.join(parts)}")
    return [path for path, _ in current]


def _map_files(
    connection: duckdb.DuckDBPyConnection, name: str, current: Sequence[tuple[str, Found]]
) -> None:
    """Create the table that says whose rows a file has."""
    keys = [identity(trial) for _, trial in current]
    columns = {"_file": [path for path, _ in current]}
    columns |= {key: [of[key] for of in keys] for key in IDENTITY}
    lists = ", ".join(f"unnest(?::VARCHAR[]) as {key}" for key in columns)
    connection.execute(f"create table {INTERNAL}.{name} as select {lists}", list(columns.values()))


def _columns(name: str) -> str:
    unknown = _UNKNOWN.get(name, ())
    return ", ".join(
        f'nullif("{key}", -1) as "{key}"' if key in unknown else f'"{key}"'
        for key in TABLES[name].columns
    )


def _quoted(values: dict[str, str]) -> str:
    return ", ".join(f"{_text(value)} as {key}" for key, value in values.items())


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
