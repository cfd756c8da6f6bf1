"""A scorecard as tables of texts: plain for Markdown, laid out for a terminal's width."""

from __future__ import annotations

import textwrap
from dataclasses import replace

from orchestration.render.scorecard import Scorecard, ScoreCell, ScoreRow, on_scale
from orchestration.render.table import Column, Row, Span, Style, Table, Text, joined, plain_text

# The characters between two columns in a terminal.
_GAP = 2
# The smallest and the largest number of characters of a bar; odd, so that 0 is in its middle.
_MIN_BAR, _MAX_BAR = 11, 21
_MIN_LABEL, _MAX_LABEL = 12, 36
# The number of lines that a screen has for lists of arms.
_MAX_LIST_LINES = 20
_STYLES: dict[str, Style] = {"better": "good", "worse": "bad"}
_MARKS = {"better": "●", "worse": "◆"}
_ARROWS = {"lower": "↓", "higher": "↑"}
_KEY = "↓ lower is better, ↑ higher is better"
_STAR = "★"


def plain_table(card: Scorecard) -> Table:
    """Return the card as a table: a row for each row, a column for each arm."""
    heads = ["", f"{card.baseline} (baseline)", *card.arms]
    rows = [
        Row(
            [
                f"{_label(card, row)}{', judged by' if row.judged else ''}",
                _line(row.baseline_value, row.unit_text),
                *(_line(cell.text, cell.interval_text, _star(cell)) for cell in row.cells),
            ]
        )
        for row in card.rows
    ]
    return Table([Column(head) for head in heads], rows, card.title, _caption(card))


def fitted(card: Scorecard, width: int) -> list[Text | Table]:
    """Return the card in the first layout that fits into `width` characters.

    Arms are columns, with bars; a list of arms follows each row's label, if that is short; arms are
    columns without bars; or arms are rows and metrics are columns.
    """
    if not card.rows or not card.arms:
        return [plain_table(card)]
    made = _arms_as_columns(card, width, bars=True)
    if made is None and len(card.rows) * (len(card.arms) + 2) > _MAX_LIST_LINES:
        made = _arms_as_columns(card, width, bars=False) or _arms_as_rows(card, width)
    if made is None:
        return _lists(card, width)
    return [replace(made, caption=textwrap.fill(made.caption, width))]


def text_bar(cell: ScoreCell, span: float, width: int) -> str:
    """Return the interval in `width` characters: `━━●━··│······`, "" if nothing is known.

    The middle is the baseline, each half is `span` percent. A point that lies beyond is an arrow.
    """
    if cell.point is None and cell.interval is None:
        return ""
    half = width // 2
    low, high = cell.interval or (0.0, 0.0)
    side = 1 if low > 0 else -1 if high < 0 else 0

    def index(value: float) -> int:
        steps = round(half * on_scale(value, span))
        # an interval without 0 is not drawn through it
        return half + (side * max(side * steps, 1) if side else steps)

    characters = ["·"] * width
    if cell.interval:
        first, last = index(low), index(high)
        characters[first : last + 1] = "━" * (last - first + 1)
    characters[half] = "┿" if characters[half] == "━" else "│"
    if cell.point is not None:
        beyond = "◀" if cell.point < -span else "▶" if cell.point > span else ""
        characters[index(cell.point)] = beyond or _MARKS.get(cell.verdict, "○")
    return "".join(characters)


def _arms_as_columns(card: Scorecard, width: int, *, bars: bool) -> Table | None:
    """Return metrics as rows, None if they do not fit."""

    def needs(cell: ScoreCell) -> int:
        if bars:
            return max(len(_line(cell.text, cell.interval_text)), _MIN_BAR + _GAP)
        return max(len(_line(cell.text, _star(cell))), len(cell.interval_text))

    arms = [
        max([len(arm), *(needs(row.cells[at]) for row in card.rows)])
        for at, arm in enumerate(card.arms)
    ]
    values = [row.baseline_value for row in card.rows]
    base = max(map(len, [card.baseline, "baseline", *values]))
    room = width - base - sum(arms) - _GAP * (len(arms) + 1)
    if room < _MIN_LABEL:
        return None
    label = min(room, _MAX_LABEL, max([_MIN_LABEL, *(len(_label(card, r)) for r in card.rows)]))
    size = min(_MAX_BAR, min(arms) - _GAP + (room - label) // len(arms))
    size -= (size + 1) % 2

    def text(cell: ScoreCell, span: float) -> Text:
        if not bars:
            return _two_lines(cell, _star(cell), cell.interval_text)
        bar = Span(_line(text_bar(cell, span, size), _star(cell)), _style(cell))
        return _two_lines(cell, cell.interval_text, bar)

    rows = [
        Row(
            [
                _label_lines(card, row, label),
                _value_lines(row, base),
                *(text(cell, row.span) for cell in row.cells),
            ]
        )
        for row in card.rows
    ]
    heads = ["", f"{card.baseline}\nbaseline", *card.arms]
    return Table([Column(head) for head in heads], rows, card.title, _caption(card))


def _arms_as_rows(card: Scorecard, width: int) -> Table | None:
    """Return metrics as columns, without bars; None if they do not fit."""

    def needs(row: ScoreRow) -> int:
        words = [*_label(card, row).split(" "), *(w for c in row.cells for w in _unbroken(c))]
        return max(map(len, [*words, row.baseline_value]))

    sizes = [needs(row) for row in card.rows]
    room = width - sum(size + _GAP for size in sizes)
    if room < len("baseline"):
        return None
    sized = list(zip(card.rows, sizes, strict=True))
    base = f"{textwrap.fill(card.baseline, room)}\nbaseline"
    rows = [Row([base, *(_value_lines(row, size) for row, size in sized)])]
    for at, arm in enumerate(card.arms):
        texts = [_wrapped(row.cells[at], size) for row, size in sized]
        rows.append(Row([textwrap.fill(arm, room), *texts]))
    judged = [row.label for row in card.rows if row.judged]
    note = f"judged by {', '.join(judged)}" if judged else ""
    heads = ["", *(textwrap.fill(_label(card, row), size) for row, size in sized)]
    return Table([Column(head) for head in heads], rows, card.title, _caption(card, note))


def _unbroken(cell: ScoreCell) -> list[str]:
    """Return the parts of a cell that stay on one line."""
    interval = cell.interval_text.replace(", ", ",")
    text = cell.text.replace(" %", "\N{NO-BREAK SPACE}%")
    if cell.best:
        text += f"\N{NO-BREAK SPACE}{_STAR}"
    return [*text.split(" "), interval]


def _wrapped(cell: ScoreCell, width: int) -> Text:
    *words, interval = _unbroken(cell)
    change = textwrap.fill(" ".join(words), width)
    return (Span(change, _style(cell)), f"\n{interval}" if interval else "")


def _lists(card: Scorecard, width: int) -> list[Text | Table]:
    """Return a table for each row of the card, with a line for each arm."""
    texts = [(cell.text, cell.interval_text) for row in card.rows for cell in row.cells]
    sizes = [max(map(len, column)) for column in zip(*texts, strict=True)]
    first = max(map(len, card.arms))
    bars = first + sum(sizes) + _MIN_BAR + 4 * _GAP <= width
    parts: list[Text | Table] = [Span(card.title, "strong")] if card.title else []
    for row in card.rows:
        value = _line(card.baseline, row.baseline_value, row.unit_text)
        title = f"{_label(card, row)}: {value}{', judged by' if row.judged else ''}"
        rows = []
        for arm, cell in zip(card.arms, row.cells, strict=True):
            bar = text_bar(cell, row.span, _MIN_BAR) if bars else ""
            change, interval = cell.text.ljust(sizes[0]), cell.interval_text.ljust(sizes[1])
            shown = (change, interval, _line(bar, _star(cell)))
            rows.append(Row([arm.ljust(first), *(Span(text, _style(cell)) for text in shown)]))
        parts.append(Table([Column("")] * 4, rows, title, heads=False))
    return [*parts, Span(textwrap.fill(_caption(card), width), "faint")]


def _two_lines(cell: ScoreCell, beside: str, below: str | Span) -> Text:
    """Return a cell's text with what stands beside it, and what stands below."""
    change = Span(cell.text, _style(cell))
    return joined((joined((change, beside), " "), below))


def _style(cell: ScoreCell) -> Style:
    return _STYLES.get(cell.verdict, "faint")


def _star(cell: ScoreCell) -> str:
    return _STAR if cell.best else ""


def _label(card: Scorecard, row: ScoreRow) -> str:
    """Return a row's label; where rows differ, an arrow that no line break parts from it."""
    return row.label if card.better else f"{row.label}\N{NO-BREAK SPACE}{_ARROWS[row.better]}"


def _label_lines(card: Scorecard, row: ScoreRow, width: int) -> Text:
    text = textwrap.fill(_label(card, row), width)
    return (Span(text, "strong"), Span("\njudged by", "faint")) if row.judged else text


def _value_lines(row: ScoreRow, width: int) -> Text:
    """Return the baseline's value, with its unit below it if both are wider than `width`."""
    one = _line(row.baseline_value, row.unit_text)
    if len(one) <= width:
        return one
    return (row.baseline_value, Span("\n" + textwrap.fill(row.unit_text, width), "faint"))


def _caption(card: Scorecard, note: str = "") -> str:
    """Return the caption, and the key to arrows and stars."""
    key = f"{card.better} is better" if card.better else _KEY
    best = f"{_STAR} best" if any(cell.best for row in card.rows for cell in row.cells) else ""
    return _line(plain_text(card.caption), "; ".join(filter(None, (key, best, note))))


def _line(*parts: str) -> str:
    return " ".join(filter(None, parts))
