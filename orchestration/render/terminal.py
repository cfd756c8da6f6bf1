"""Tables and texts in a terminal, a file or a pipe. No text is shortened.

In a terminal, lines are wrapped at words; a table whose words do not fit becomes a text for each
row. In a file or pipe, lines are not wrapped.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TextIO

from orchestration.render.page import Block, Fold, Heading, Items, Paragraph, Section
from orchestration.render.scorecard import Headline, Scorecard, Trust
from orchestration.render.scorecard_table import fitted
from orchestration.render.table import Row, Span, Style, Table, Text, joined, plain_text, spans

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text as RichText

_STYLES = {"strong": "bold", "faint": "dim", "good": "green", "warning": "yellow", "bad": "red"}
_KINDS: dict[str, Style] = {"warning": "warning", "bad": "strong", "ok": "strong"}
_GAP = 2
# Wider than any line, as rich needs a width.
_NO_LIMIT = 1_000_000
# The width of a scorecard in a file or pipe.
_PAPER_WIDTH = 80
# Control characters except newline, which could move the cursor or change colours.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")

# What `show` prints: texts, tables and other blocks.
Part = Text | Block


def show(*parts: Part, file: TextIO | None = None, full: bool = True) -> None:
    """Print texts, tables and other blocks, one below the other; folds only if `full`."""
    file = file or sys.stdout
    shown = [part for part in parts if full or not isinstance(part, Fold)]
    # rich counts a file or pipe as a terminal, of 80 columns, if FORCE_COLOR is set
    if file.isatty():
        _print(console_of(file), shown)
    else:
        file.write(lines(shown))
        file.flush()


def _print(console: Console, parts: Iterable[Part]) -> None:
    before: Text | Table = ""
    width = console.width if console.width < _NO_LIMIT else _PAPER_WIDTH
    for number, part in enumerate(flat(parts, width)):
        if isinstance(part, Table) and number and before != "":
            console.print()
        if part != "" or before != "":
            console.print(renderable(part))
        before = part


def flat(parts: Iterable[Part], width: int) -> Iterator[Text | Table]:
    """Yield blocks as texts and tables; blocks for pages only are left out.

    A scorecard is laid out for `width` characters.
    """
    for part in parts:
        match part:
            case str() | Span() | tuple() | Table():
                yield part
            case Heading(text):
                yield ""
                yield Span(text, "strong")
            case Paragraph(text, kind) if text:
                yield Span(plain_text(text), _KINDS[kind]) if kind in _KINDS else text
            case Items(items):
                for item in items:
                    yield ("• ", *spans(item))
            case Section(blocks):
                yield from flat(blocks, width)
            case Fold(title, blocks):
                yield from flat([Heading(title), *blocks], width)
            case Headline(kicker, sentence):
                yield Span(kicker, "faint")
                yield Span(sentence, "strong")
            case Scorecard():
                yield from fitted(part, width)
            case Trust():
                yield ""
                yield _trust_text(part)


def _trust_text(trust: Trust) -> Text:
    words = {"plain": "", "warning": "warning: ", "bad": "problem: "}
    style: dict[str, Style] = {"plain": "strong", "warning": "warning", "bad": "bad"}
    items = [
        (Span(words[item.tone] + item.strong, style[item.tone]), f" {item.rest}")
        for item in trust.items
    ]
    return joined(items, " · ")


def console_of(file: TextIO) -> Console:
    """Return rich's console on a file, without rich's own markup and highlighting."""
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, emoji=False)


def renderable(part: Text | Table) -> RenderableType:
    """Return a table or text as an object that rich can print."""
    return _Wrapped(part) if isinstance(part, Table) else rich_text(part)


def rich_text(text: Text, style: str = "") -> RichText:
    """Return a text with its styles for rich; control characters are shown as `\\x1b`."""
    from rich.text import Text as RichText

    made = RichText(style=style, overflow="fold")
    for part in spans(text):
        made.append(printable(part.text), _STYLES.get(part.style))
    return made


def printable(text: str) -> str:
    """Return the text with control characters other than newline written as `\\x1b`."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def lines(parts: Iterable[Part], width: int | None = None) -> str:
    """Return what `show` prints, without styles: wrapped at `width`, or not wrapped."""
    from rich.console import Console

    wide = width or _NO_LIMIT
    console = Console(width=wide, highlight=False, markup=False, color_system=None, emoji=False)
    with console.capture() as captured:
        _print(console, parts)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


class _Wrapped:
    """A table that rich prints within the width of the terminal."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        made = self._table
        columns, shown = made.shown(details=False)
        cells = [[rich_text(text, _STYLES.get(row.style, "")) for text in t] for t, row in shown]
        heads = [column.name for column in columns]
        if made.title:
            yield rich_text(made.title, "bold")
        named = heads if made.heads else [""] * len(heads)
        widths = _widths(named, cells, options.max_width)
        if widths is None:
            yield from _blocks(heads, cells, options.max_width)
        else:
            right = [column.figures for column in columns]
            yield _grid(made.heads, heads, cells, widths, right, [row for _, row in shown])
        for texts, row in shown:
            if row.note:  # below the table, named by the row's first cell
                name = next((plain_text(text) for text in texts if text), "")
                yield rich_text(joined((f"{name}:", row.note), " "))
        if made.caption:
            yield rich_text(made.caption, "dim")


def _grid(
    with_heads: bool,
    heads: Sequence[str],
    cells: Sequence[Sequence[RichText]],
    widths: Sequence[int],
    right: Sequence[bool],
    rows: Sequence[Row],
) -> RenderableType:
    from rich import box
    from rich.table import Table as RichTable

    made = RichTable(
        box=box.SIMPLE_HEAD if with_heads else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GAP - 1 if with_heads else _GAP, 0, 0),
        show_header=with_heads,
    )
    for number, (head, width) in enumerate(zip(heads, widths, strict=True)):
        justify: Literal["right", "left"] = "right" if right[number] else "left"
        made.add_column(rich_text(head), width=width, justify=justify, overflow="fold")
    for texts, row in zip(cells, rows, strict=True):
        if row.section:
            made.add_section()
        made.add_row(*texts)
    return made


def _widths(
    heads: Sequence[str], cells: Sequence[Sequence[RichText]], room: int
) -> list[int] | None:
    """Return the width of each column in characters; None if single words do not fit."""
    from rich.cells import cell_len

    def widest(column: int, pattern: str) -> int:
        texts = [printable(heads[column]), *(row[column].plain for row in cells)]
        return max([1, *(cell_len(word) for text in texts for word in re.split(pattern, text))])

    columns = range(len(heads))
    full = [widest(column, r"\n") for column in columns]
    left = room - _GAP * (len(full) - 1)
    if sum(full) <= left:
        return full
    widths = [widest(column, r"\s") for column in columns]
    left -= sum(widths)
    if left < 0:
        return None
    while left > 0:  # the columns that lack most get the rest
        neediest = max(columns, key=lambda column: full[column] / widths[column])
        widths[neediest] += 1
        left -= 1
    return widths


def _blocks(
    heads: Sequence[str], cells: Sequence[Sequence[RichText]], room: int
) -> Iterable[RichText]:
    """Yield each row as a text of cells named by their columns, and an empty line after it.

    A cell with its name is on one line if it fits there.
    """
    from rich.cells import cell_len

    for row in cells:
        made = rich_text("")
        for head, text in zip(heads, row, strict=True):
            if not text.plain:
                continue
            part = rich_text("")
            part.append(f"{printable(head)}: " if head else "", "dim")
            part.append_text(text)
            if made.plain:
                last = made.plain.rpartition("\n")[2]
                fits = cell_len(f"{last}{' ' * _GAP}{part.plain}") <= room
                made.append(" " * _GAP if fits else "\n")
            made.append_text(part)
        yield made
        yield rich_text("")
