"""`closloop sql`: SQL queries over run folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.options import verb
from orchestration.core.errors import InputError, check_known

if TYPE_CHECKING:
    import duckdb

_MAX_ROWS = 1000


@verb(
    """Examples:

closloop sql runs "select tuner, count(*), avg(valid::int) from trials group by all"

closloop sql runs/quickstart "select tuner, quantile_cont(fct_ns / ideal_ns, 0.99) as p99
from flows join trials using (run, trial) where valid group by all"

closloop sql runs "from ports" -o ports.parquet
"""
)
def sql(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS...", help="Run folders, or folders that have some."),
    ],
    query: Annotated[str, "One SQL statement that only reads; - reads it from standard input."],
    kind: Annotated[
        str | None, "--format", "table, csv, json or parquet; default: by the name of -o."
    ] = None,
    as_json: Annotated[bool, "--json", "The same as --format json."] = False,
    output: Annotated[Path | None, "--output", "-o", "Write all rows to this file."] = None,
) -> None:
    """Query run folders in SQL (of DuckDB), for questions that no report answers.

    Tables: trials, reasons, schedule, flows, ports, hosts, actions, events, each with the columns
    run, campaign and trial; `describe flows` lists a table's columns. They have invalid trials too:
    join trials, where valid. Nothing is written except the file of -o.
    """
    from orchestration.core.outputs import check_outputs
    from orchestration.results.reader import recorded_files
    from orchestration.results.sql import Runs
    from orchestration.results.sql.database import interruptible
    from orchestration.results.sql.output import (
        FORMATS,
        check_output_path,
        first_rows,
        write_result,
    )

    kind = "json" if as_json else kind or _of_name(output, FORMATS)
    check_known("--format", "unknown {!r}", [kind], FORMATS, "give ")
    if output is None and kind == "parquet":
        raise InputError.single("--format", "parquet needs a file", "name one: -o rows.parquet")
    if output is not None and kind == "table":
        raise InputError.single(
            "-o", f"{output} does not name a format", "give --format csv, json or parquet"
        )
    if output is not None:
        check_output_path(output)
        check_outputs([output], recorded_files(runs))
    archive = Runs(*runs)
    text = sys.stdin.read() if query == "-" else query
    relation = interruptible(archive, lambda: archive.sql(text))
    if output is not None:
        rows = interruptible(archive, lambda: write_result(relation, output, kind))
        typer.echo(f"{rows:,} rows: {output}", err=True)
    elif kind == "table":
        _print_table(*interruptible(archive, lambda: first_rows(relation, _MAX_ROWS)))
    else:
        interruptible(archive, lambda: _print_rows(relation, kind))


def _of_name(output: Path | None, formats: tuple[str, ...]) -> str:
    """Return the format given by a file's extension, or "table"."""
    suffix = output.suffix.removeprefix(".") if output is not None else ""
    return suffix if suffix in formats else "table"


def _print_rows(relation: duckdb.DuckDBPyRelation, kind: str) -> None:
    from orchestration.results.sql.output import stream_result

    try:
        stream_result(relation, sys.stdout.buffer, kind)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # for example, piped to head
        sys.stderr.close()


def _print_table(columns: list[str], rows: list[tuple[Any, ...]], more: bool) -> None:
    from orchestration.render.table import Column, Row, Table
    from orchestration.render.terminal import show

    shown = [
        Column(name, bool(rows) and all(isinstance(row[i], int | float | None) for row in rows))
        for i, name in enumerate(columns)
    ]
    show(Table(shown, [Row([_text(value) for value in row]) for row in rows]))
    if more:
        typer.echo(f"only the first {_MAX_ROWS:,} rows; --format csv prints all", err=True)


def _text(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
