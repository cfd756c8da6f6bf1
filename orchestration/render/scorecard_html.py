"""The first screen of a report as HTML: its card becomes a list on a phone, by the style sheet."""

from __future__ import annotations

import re

from orchestration.render.elements import Html, element, inline
from orchestration.render.numbers import short_percent
from orchestration.render.scorecard import (
    IN_WORDS,
    Headline,
    Scorecard,
    ScoreCell,
    ScoreRow,
    Trust,
    on_scale,
)

# With more arms than these beside the baseline, intervals stand below the changes; with more than
# those, a row is printed as a list.
_MAX_WIDE_ARMS, _MAX_PRINTED_ARMS = 4, 5
_MARKS = {
    "better": "M0-4.5A4.5 4.5 0 1 1 0 4.5A4.5 4.5 0 1 1 0-4.5Z",
    "worse": "M0-5L5 0L0 5L-5 0Z",
    "beyond": "M-4-4.5L5 0L-4 4.5Z",
}
_MINUS = re.compile(r"(?<![\w.])-(?=[\d.])")
# Spaces before a percent sign and inside an interval, at which no line is broken.
_KEPT_TOGETHER = re.compile(r"(?<=\d) (?=%)|(?<=,) (?=[^\[\]]*\])")


def headline_html(headline: Headline) -> Html:
    """Return the headline, which is the page's main heading."""
    kicker = element("p", headline.kicker, css="kicker")
    return Html(kicker + element("h1", _typeset(headline.sentence), css="headline"))


def trust_html(trust: Trust) -> Html:
    """Return the line of trust as a list."""
    items = []
    for item in trust.items:
        # the words are for readers who do not see the sign and its colour
        word = {"plain": "", "warning": "Warning:", "bad": "Problem:"}[item.tone]
        sign = element("span", "!", css="sign", role="img", aria_label=word) if word else ""
        strong = element("b", _typeset(item.strong))
        items.append(element("li", sign, strong, f" {item.rest}", css=item.tone))
    return element("ul", *items, css="trust") if items else Html("")


def scorecard_html(card: Scorecard) -> Html:
    """Return the card. Roles are given, as a phone's layout would take a table's from it."""
    below = element("small", "baseline")
    corner = f"{card.better} is better" if card.better else ""
    heads = [
        _cell("td", element("small", corner), css="label"),
        _cell("th", card.baseline, below, css="base", scope="col", role="columnheader"),
        *(_cell("th", arm, scope="col", role="columnheader") for arm in card.arms),
    ]
    head = element("thead", element("tr", *heads, role="row"), role="rowgroup")
    body = element("tbody", *(_row(card, row) for row in card.rows), role="rowgroup")
    name = card.title or "Scorecard"
    table = element("table", head, body, role="table", aria_label=name)
    area = {"tabindex": "0", "role": "region", "aria_label": f"Table: {name}"}
    scroll = element("div", table, css="scroll", **area)
    css = "scorecard" + " narrow" * (len(card.arms) > _MAX_WIDE_ARMS)
    css += " many" * (len(card.arms) > _MAX_PRINTED_ARMS)
    title = element("h3", card.title) if card.title else ""
    caption = element("p", inline(card.caption), css="caption") if card.caption else ""
    style = f"--arms:{len(card.arms)}"
    return Html(f"{title}{element('div', scroll, css=css, style=style)}{caption}")


def _row(card: Scorecard, row: ScoreRow) -> Html:
    judged = element("span", "judged by", css="judged") if row.judged else ""
    better = "" if card.better else element("small", f"{row.better} is better")
    about = element("div", better, " ", judged) if better or judged else ""
    label = element("th", row.label, about, css="label", scope="row", role="rowheader")
    value = element("b", _typeset(row.baseline_value))
    unit = element("small", row.unit_text) if row.unit_text else ""
    base = _cell("td", value, " ", unit, css="base", data_arm=f"{card.baseline}, baseline")
    cells = [
        _cell("td", *_contents(cell, row.span), css=_css(cell), data_arm=arm)
        for arm, cell in zip(card.arms, row.cells, strict=True)
    ]
    return element("tr", label, base, *cells, role="row")


def _cell(tag: str, *content: str, css: str = "", role: str = "cell", **attributes: str) -> Html:
    return element(tag, *content, css=css, role=role, **attributes)


def _css(cell: ScoreCell) -> str:
    return f"{cell.verdict} best" if cell.best else cell.verdict


def _contents(cell: ScoreCell, span: float) -> list[str]:
    star = element("span", "★", css="star", role="img", aria_label="best") if cell.best else ""
    value = element("b", _typeset(cell.text), star)
    interval = element("small", _typeset(cell.interval_text))
    return [value, " ", interval, _bar(cell, span)]


def _bar(cell: ScoreCell, span: float) -> Html:
    """Return the interval as a bar on its row's scale, and what it shows in words."""
    if cell.point is None and cell.interval is None:
        return Html("")
    parts = [_line("track", -1, 1), _line("zero", 0, 0, "1", "15")]
    words = IN_WORDS[cell.verdict]
    if cell.interval:
        low, high = cell.interval
        parts.append(_line("interval", on_scale(low, span), on_scale(high, span)))
        words += f", between {short_percent(low)} and {short_percent(high)}"
    if cell.point is not None:
        parts.append(_mark(cell, span))
    size = {"width": "100%", "height": "16"}
    return element("svg", *parts, css="bar", role="img", aria_label=words, **size)


def _line(css: str, start: float, end: float, top: str = "8", bottom: str = "8") -> Html:
    return element("line", css=css, x1=_x(start), x2=_x(end), y1=top, y2=bottom)


def _mark(cell: ScoreCell, span: float) -> Html:
    point = cell.point or 0.0
    beyond = abs(point) > span
    shape = "beyond" if beyond else "worse" if cell.verdict == "worse" else "better"
    turned = {"transform": "scale(-1,1)"} if beyond and point < 0 else {}
    path = element("path", d=_MARKS[shape], **turned)
    return element("svg", path, css="mark", x=_x(on_scale(point, span)), y="8", overflow="visible")


def _x(position: float) -> str:
    return f"{50 + 50 * position:.1f}%"


def _typeset(text: str) -> str:
    """Return the text with minus signs, which are as wide as digits, and unbroken intervals."""
    return _KEPT_TOGETHER.sub("\N{NO-BREAK SPACE}", _MINUS.sub("−", text))
