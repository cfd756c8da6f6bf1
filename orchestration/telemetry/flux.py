"""Questions to InfluxDB in Flux, and their answers: annotated CSV as rows by column name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from collectors.sinks.names import COMMON_TAGS, Measurement
from orchestration.model.errors import TrialError

# InfluxDB keeps an error of a query that had begun to answer in a table of its own.
_ERROR = "error"
_HEADER = ["result", "table"]


@dataclass(frozen=True)
class StoredTrial:
    """A run of a trial as the database has it: how many rows of each table, parts of files."""

    campaign: str
    trial: str
    run: str
    started_ns: int
    rows: Mapping[str, int]
    parts: int


def query(bucket: str, measurement: Measurement, tags: Mapping[str, str]) -> str:
    """Return the Flux that asks for all points of a measurement with these tags, a row a point."""
    wanted = " and ".join(
        f"r.{name} == {_text(value)}"
        for name, value in {"_measurement": measurement.name, **tags}.items()
    )
    shown = ["_time", *COMMON_TAGS, *measurement.tags, *measurement.fields]
    columns = ", ".join(_text(name) for name in shown)
    return (
        f"from(bucket: {_text(bucket)})\n"
        "  |> range(start: 1970-01-01T00:00:00Z, stop: 2200-01-01T00:00:00Z)\n"
        f"  |> filter(fn: (r) => {wanted})\n"
        '  |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")\n'
        f"  |> keep(columns: [{columns}])\n"
    )


def rows_of(csv: Iterable[list[str]]) -> Iterator[dict[str, str]]:
    """Yield the records of annotated CSV by column name. Raises TrialError if it tells of an error.

    A table begins with annotations, or with an empty row, and then its header.
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
