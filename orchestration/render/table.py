"""Descriptions of tables and running text, which every output shows in its own way.

Text is plain, without the markup of any output. A part with a meaning of its own (a verdict, a
name, a link) is a `Span`. A newline in a text is a line break.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestration.render.numbers import NOTHING, Estimate, Unit, quantity, with_error

# The kind of a part of a text, or how good the news is.
Style = Literal["", "strong", "faint", "code", "good", "warning", "bad"]


@dataclass(frozen=True)
class Span:
    """A part of a text with a style, and the address that it links to."""

    text: str
    style: Style = ""
    link: str = ""


# A text: a plain one, or several parts.
Text = str | Span | tuple[str | Span, ...]
# What a cell may be: a text, or a number, an estimate or truth value in its column's unit.
Value = Text | float | int | bool | Estimate | None


def strong(text: str) -> Span:
    """Return a text that stands out."""
    return Span(text, "strong")


def code(text: str) -> Span:
    """Return a name as programs write it."""
    return Span(text, "code")


def joined(parts: Iterable[Text], between: str = "\n") -> Text:
    """Return several texts as one, with `between` them; empty ones are left out."""
    text: list[str | Span] = []
    for part in parts:
        if part in ("", ()):
            continue
        text += [between] if text else []
        text += spans(part)
    return tuple(text)


def spans(text: Text) -> list[Span]:
    """Return the parts of a text."""
    parts = text if isinstance(text, tuple) else (text,)
    return [part if isinstance(part, Span) else Span(part) for part in parts if part != ""]


def plain_text(text: Text) -> str:
    """Return a text without styles and links."""
    return "".join(part.text for part in spans(text))


@dataclass(frozen=True)
class Column:
    """A column: its head, the unit of its numbers, and whether it has `figures`, set to the right.

    A `detail` is shown on pages only; a column that `wraps` has long texts.
    """

    name: str
    figures: bool = False
    unit: Unit | Literal[""] = ""
    detail: bool = False
    wraps: bool = False

    def text(self, value: Value) -> Text:
        """Return the text of a cell of this column."""
        if isinstance(value, str | Span | tuple):
            return value
        if value is None:
            return NOTHING
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, Estimate):
            return with_error(value, self.unit or "ratio")
        if self.unit:
            return quantity(value, self.unit)
        return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Row:
    """A row of cells with one style, and with a note below it.

    With `section`, a line may separate it from the row before.
    """

    cells: Sequence[Value]
    note: Text = ""
    style: Style = ""
    section: bool = False


@dataclass(frozen=True)
class Table:
    """A table: columns, rows, a title above and a caption below it.

    Without `heads`, the columns' names are not shown.
    """

    columns: Sequence[Column]
    rows: Sequence[Row] = field(default_factory=list)
    title: str = ""
    caption: str = ""
    heads: bool = True

    def shown(self, *, details: bool) -> tuple[list[Column], list[tuple[list[Text], Row]]]:
        """Return the columns that are shown, and for each row its texts and the row itself."""
        indices = [at for at, column in enumerate(self.columns) if details or not column.detail]
        columns = [self.columns[at] for at in indices]
        rows = [
            ([self.columns[at].text(row.cells[at]) for at in indices], row) for row in self.rows
        ]
        return columns, rows

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield each row as column name -> value: numbers as they are, texts plain."""
        for row in self.rows:
            yield {
                column.name: plain_text(value)
                if isinstance(value, str | Span | tuple)
                else None
                if isinstance(value, float) and not math.isfinite(value)
                else value
                for column, value in zip(self.columns, row.cells, strict=True)
            }


def table(
    words: Sequence[str],
    figures: Sequence[str],
    rows: Iterable[Sequence[Any] | Row],
    title: str = "",
    caption: str = "",
    *,
    heads: bool = True,
) -> Table:
    """Return a table with columns of `words`, then of `figures`, by their heads."""
    columns = [Column(name) for name in words] + [Column(name, figures=True) for name in figures]
    made = [row if isinstance(row, Row) else Row(row) for row in rows]
    return Table(columns, made, title, caption, heads=heads)
