"""A picture: a figure, what to see in it, how it was made, and its data as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestration.render.csv import Data

if TYPE_CHECKING:
    from orchestration.render.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure, what to see in it, and how it was made.

    `name` is the name of its CSV file without the extension, `data` the file's contents.
    """

    title: str
    caption: str
    figure: Figure
    name: str = ""
    data: Data = field(default_factory=dict)


def rows_of(rows: Iterable[Mapping[str, Any]]) -> Data:
    """Return a picture's data, given row by row."""
    found = list(rows)
    return {name: [row[name] for row in found] for name in found[0]} if found else {}


def lines_of(
    key: str, lines: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Sequence[Any]]
) -> Data:
    """Return the data of lines in long form: a row for each line and point.

    `lines` is name -> column -> values, one for each point; or one value, for all of them.
    `shared` are columns that all lines have, such as time; `key` is the names' column.
    """
    count = len(next(iter(shared.values())))
    columns: dict[str, list[Any]] = {key: [name for name in lines for _ in range(count)]}
    columns |= {name: [value for _ in lines for value in shared[name]] for name in shared}
    for name in next(iter(lines.values()), {}):
        columns[name] = [
            value
            for line in lines.values()
            for value in (line[name] if hasattr(line[name], "__len__") else [line[name]] * count)
        ]
    return columns
