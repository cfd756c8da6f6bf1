"""A scorecard as a table of texts: plain for Markdown, laid out for a terminal's width."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from orchestration.render.scorecard import Scorecard, ScoreCell, ScoreRow, on_scale
from orchestration.render.table import Column, Row, Span, Style, Table, Text, plain_text

_GAP = 2
# The smallest and the largest number of characters of a bar; odd, so that 0 is in its middle.
_MIN_BAR, _MAX_BAR = 11, 21
_MIN_LABEL, _MAX_LABEL = 12, 36
_STYLES: dict[str, Style] = {"better": "good", "worse": "bad"}
_MARKS = {"better": "●", "worse": "◆"}
_ARROWS = {"lower": "↓", "higher": "↑"}


def plain_table(card: Scorecard) -> Table:
    """Return the card as a table: a row for each row, a column for each arm."""
    heads = ["", f"{card.baseline} (baseline)", *card.arms]
    rows = [
        Row(
            [
                _label(card, row, ", "),
                _joined(row.baseline_value, row.unit_text),
                *(_joined(cell.text, cell.interval_text, "★" * cell.best) for cell in row.cells),
            ]
        )
        for row in card.rows
    ]
    return Table([Column(head) for head in heads], rows, card.title, plain_text(card.caption))


def fitted_table(card: Scorecard, width: int) -> Table:
    """Return the card as a table for `width` characters, with the first layout that fits.

    Arms are columns, with their intervals and bars or without bars; or else arms are rows, below
    each metric.
    """
    for arms_as_columns in (_with_bars, _without_bars):
        made = arms_as_columns(card, width)
        if made is not None:
            return made
    return _stacked(card, width)


def text_bar(cell: ScoreCell, span: float, width: int) -> str:
    """Return the interval in `width` characters: `━━●━··│······`.

    The middle is the baseline, each half is `span` percent. A point that lies beyond is an arrow.
    """
    half = width // 2

    def index(value: float) -> int:
        return half + round(half * on_scale(value, span))

    characters = ["·"] * width
    if cell.interval:
        low, high = (index(value) for value in cell.interval)
        characters[low : high + 1] = "━" * (high - low + 1)
    characters[half] = "┿" if characters[half] == "━" else "│"
    if cell.point is not None:
        beyond = "◀" if cell.point < -span else "▶" if cell.point > span else ""
        characters[index(cell.point)] = beyond or _MARKS.get(cell.verdict, "○")
    return "".join(characters)


def _with_bars(card: Scorecard, width: int) -> Table | None:
    def natural(cell: ScoreCell) -> int:
        return max(len(_joined(cell.text, cell.interval_text)), _MIN_BAR + 2 * cell.best)

    def shown(cell: ScoreCell, span: float, room: int) -> Text:
        size = min(_MAX_BAR, room - 2)
        bar = text_bar(cell, span, size - 1 + size % 2) if cell.extent else ""
        return _lines(cell, _joined(cell.interval_text), _joined(bar, "★" * cell.best))

    return _columns(card, width, natural, shown)


def _without_bars(card: Scorecard, width: int) -> Table | None:
    def natural(cell: ScoreCell) -> int:
        return max(len(cell.text) + 2 * cell.best, len(cell.interval_text))

    def shown(cell: ScoreCell, span: float, room: int) -> Text:
        return _lines(cell, "★" * cell.best, cell.interval_text)

    return _columns(card, width, natural, shown)


def _columns(
    card: Scorecard,
    width: int,
    natural: Callable[[ScoreCell], int],
    shown: Callable[[ScoreCell, float, int], Text],
) -> Table | None:
    """Return arms as columns, None if they do not fit; `natural` is the width a cell needs."""
    arm = max([*map(len, card.arms), *(natural(cell) for row in card.rows for cell in row.cells)])
    values = [row.baseline_value for row in card.rows]
    base = max(map(len, [card.baseline, "baseline", *values]))
    room = width - base - len(card.arms) * (arm + _GAP) - _GAP
    longest = max([_MIN_LABEL, *(len(_label(card, row)) for row in card.rows)])
    if room < _MIN_LABEL:
        return None
    label = min(longest, room, _MAX_LABEL)
    arm = min(_MAX_BAR + 3, arm + (room - label) // len(card.arms))
    rows = [
        Row(
            [
                _wrapped_label(card, row, label),
                _wrapped(row.baseline_value, row.unit_text, base),
                *(shown(cell, row.span, arm) for cell in row.cells),
            ]
        )
        for row in card.rows
    ]
    heads = ["", f"{card.baseline}\nbaseline", *card.arms]
    return Table([Column(head) for head in heads], rows, card.title, _caption(card))


def _stacked(card: Scorecard, width: int) -> Table:
    """Return a line for each row and arm."""
    rows: list[Row] = []
    for row in card.rows:
        value = _joined(card.baseline, row.baseline_value, row.unit_text)
        rows.append(Row([Span(_label(card, row, ", "), "strong"), value, "", ""], section=True))
        for arm, cell in zip(card.arms, row.cells, strict=True):
            bar = text_bar(cell, row.span, _MIN_BAR) if cell.extent else ""
            style = _STYLES.get(cell.verdict, "faint")
            rows.append(
                Row(
                    [
                        f"  {arm}",
                        Span(cell.text, style),
                        cell.interval_text,
                        _joined(bar, "★" * cell.best),
                    ]
                )
            )
    columns = [Column(head) for head in ("", "baseline", "interval", "")]
    return Table(columns, rows, card.title, _caption(card))


def _lines(cell: ScoreCell, beside: str, below: str) -> Text:
    """Return a cell of two lines: its text with what stands beside it, and what stands below."""
    style = _STYLES.get(cell.verdict, "faint")
    faint: Style = "faint" if cell.verdict not in _STYLES else ""
    first = Span(cell.text, style)
    rest = (f" {beside}" if beside else "") + (f"\n{below}" if below else "")
    return (first, Span(rest, faint))


def _label(card: Scorecard, row: ScoreRow, between: str = " ") -> str:
    arrow = "" if card.better else _ARROWS[row.better]
    return f"{row.label} {arrow}".rstrip()


def _wrapped_label(card: Scorecard, row: ScoreRow, width: int) -> Text:
    text = textwrap.fill(_label(card, row), width)
    return (Span(text, "strong"), Span("\njudged by", "faint")) if row.judged else text


def _wrapped(value: str, unit: str, width: int) -> Text:
    one = _joined(value, unit)
    if len(one) <= width:
        return one
    return (value, Span("\n" + textwrap.fill(unit, width), "faint"))


def _caption(card: Scorecard) -> str:
    key = f"{card.better} is better" if card.better else "↓ lower is better, ↑ higher is better"
    best = "★ best" if any(cell.best for row in card.rows for cell in row.cells) else ""
    return _joined(plain_text(card.caption), "; ".join(filter(None, (key, best))))


def _joined(*parts: str) -> str:
    return " ".join(filter(None, parts))
