"""Pages and the output of verbs as blocks: headings, texts, lists, tables, pictures.

The same blocks are shown in a terminal, where pictures are left out, and as an HTML page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from orchestration.render.csv import Data
from orchestration.render.table import Table, Text

if TYPE_CHECKING:
    from orchestration.render.figure import Figure

# How a text is set; "ok" and "bad" are verdicts on the whole.
Kind = Literal["", "caption", "note", "kicker", "ok", "bad", "warning", "answers", "findings"]


@dataclass(frozen=True)
class Heading:
    """A heading of level 2 (a part) or 3."""

    text: str
    level: int = 3


@dataclass(frozen=True)
class Paragraph:
    """A text of its own."""

    text: Text
    kind: Kind = ""


@dataclass(frozen=True)
class Items:
    """A list; without items it is not shown."""

    items: Sequence[Text]
    kind: Kind = ""


@dataclass(frozen=True)
class Pictures:
    """Pictures side by side, as many as fit; `wide` ones get more room.

    Those that are None are left out. The names of their CSV files start with `prefix`.
    """

    pictures: Sequence[Picture | None]
    wide: bool = True
    prefix: str = ""


@dataclass(frozen=True)
class Key:
    """Which colour is whose, and what is not shown of them."""

    colours: Mapping[str, str]
    more: str = ""


@dataclass(frozen=True)
class Links:
    """Links to parts of the page: what is written, and the part's anchor."""

    anchors: Mapping[str, str]


@dataclass(frozen=True)
class Section:
    """Blocks that belong together."""

    blocks: Sequence[Block]
    anchor: str = ""


Block = Heading | Paragraph | Items | Pictures | Key | Links | Section | Table


@dataclass(frozen=True)
class Page:
    """A page: its heading, the line above that, what opens it, and the rest."""

    heading: str
    kicker: str = ""
    opening: Sequence[Block] = field(default_factory=tuple)
    blocks: Sequence[Block] = field(default_factory=tuple)
    title: str = ""


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
