"""Tables as CSV."""

from __future__ import annotations

import csv
import io
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

# Column -> values.
Data = Mapping[str, Sequence[Any]]


def csv_text(data: Data) -> str:
    """Return the columns as CSV; NaN becomes an empty field."""
    buffer = io.StringIO()
    columns = [[_field(value) for value in values] for values in data.values()]
    write_rows(buffer, [list(data), *zip(*columns, strict=True)])
    return buffer.getvalue()


def write_rows(file: TextIO, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows to a file that was opened with newline=""."""
    csv.writer(file, lineterminator="\n").writerows(rows)


def _field(value: Any) -> Any:
    if isinstance(value, str | int):  # most are, and abstract classes take longer to ask
        return value
    if isinstance(value, float) or (
        isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral)
    ):
        return f"{value:.9g}" if math.isfinite(value) else ""
    return value
