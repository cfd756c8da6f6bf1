"""Pages and the output of verbs as blocks: headings, texts, lists, tables, figures.

The same blocks are shown in a terminal, where figures are left out, and as an HTML page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from orchestration.render.csv import Data
from orchestration.render.scorecard import Headline, Scorecard, Trust
from orchestration.render.table import Table, Text

if TYPE_CHECKING:
    from orchestration.render.figure import Figure

# How a text is styled; "ok" and "bad" are verdicts on a whole page.
Kind = Literal["", "caption", "note", "kicker", "ok", "bad", "warning", "answers", "findings"]


@dataclass(frozen=True)
class Heading:
    """A heading of level 2 (a part) or 3."""

    text: str
    level: int = 3


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text."""

    text: Text
    kind: Kind = ""


@dataclass(frozen=True)
class Items:
    """A list; without items it is not shown."""

    items: Sequence[Text]
    kind: Kind = ""


@dataclass(frozen=True)
class FigureGrid:
    """Figures side by side, as many as fit; `wide` ones get more room.

    A figure that is None is left out. The names of CSV files start with `prefix`.
    """

    figures: Sequence[CaptionedFigure | None]
    wide: bool = True
    prefix: str = ""


@dataclass(frozen=True)
class Key:
    """A key of colours by name, and a text on names that are not shown."""

    colours: Mapping[str, str]
    more: str = ""


@dataclass(frozen=True)
class Links:
    """Links to parts of the page: text -> the part's anchor."""

    anchors: Mapping[str, str]


@dataclass(frozen=True)
class Section:
    """Blocks that belong together."""

    blocks: Sequence[Block]
    anchor: str = ""


@dataclass(frozen=True)
class Fold:
    """Blocks under a heading that opens and closes them; `is_open` is how they are at first.

    A terminal shows them if everything is asked for. Printed, all are open.
    """

    title: str
    blocks: Sequence[Block]
    is_open: bool = False


Block = (
    Headline
    | Scorecard
    | Trust
    | Heading
    | Paragraph
    | Items
    | FigureGrid
    | Key
    | Links
    | Section
    | Fold
    | Table
)


@dataclass(frozen=True)
class Page:
    """A page: a heading with the line `kicker` above it, opening blocks, and the rest.

    `title` is the title of the browser's window; if "", it is the heading. A page that opens with a
    `Headline` has no other heading.
    """

    heading: str = ""
    kicker: str = ""
    opening: Sequence[Block] = field(default_factory=tuple)
    blocks: Sequence[Block] = field(default_factory=tuple)
    title: str = ""


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure with a title, which says what it shows, and a caption on how it was made.

    `name` is the name of its CSV file without the extension, `data` the file's contents.
    """

    title: str
    caption: str
    figure: Figure
    name: str = ""
    data: Data = field(default_factory=dict)


def rows_of(rows: Iterable[Mapping[str, Any]]) -> Data:
    """Return a figure's data, given row by row, as columns."""
    every = list(rows)
    return {name: [row[name] for row in every] for name in every[0]} if every else {}


def lines_of(
    key: str, lines: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Sequence[Any]]
) -> Data:
    """Return the data of lines in long form: a row for each line and point.

    `lines` is name -> column -> one value per point, or one value for all points. `shared` are
    columns that all lines have, such as time; `key` is the column of the names.
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
