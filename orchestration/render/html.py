"""Pages as self-contained HTML files: style, plotly.js, figures and their data are inside.

Text is escaped once, by `elements`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from orchestration.core.outputs import write_output
from orchestration.render.csv import csv_text
from orchestration.render.elements import CLASSES, Html, element, inline
from orchestration.render.page import (
    Block,
    CaptionedFigure,
    FigureGrid,
    Fold,
    Heading,
    Items,
    Key,
    Links,
    Page,
    Paragraph,
    Section,
)
from orchestration.render.scorecard import Headline, Scorecard, Trust
from orchestration.render.scorecard_html import headline_html, scorecard_html, trust_html
from orchestration.render.table import Column, Row, Table, Text

# The page must work offline, so it may fetch nothing.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
# The plotly.js build for two-axis plots, from plotly's package: a third of the full size.
PLOTLY_FILE = "plotly-cartesian.min.js"
# Characters that a file system may refuse in a name, or that need quotes in a shell.
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")
_PARAGRAPHS = {"ok": "standing ok", "bad": "standing bad"}


@dataclass(frozen=True)
class Rendered:
    """A page as HTML, and the data of its figures as CSV, by file name."""

    html: str
    csv: dict[str, str]


def replace_file(path: Path, text: str) -> None:
    """Write `text` to `path` atomically. Raises NotReadyError if it cannot be written."""
    write_output(
        path, text, "make room there or make it writable; --no-html prints the tables only"
    )


def asset(name: str) -> str:
    """Return the text of a packaged asset."""
    return files("orchestration.render").joinpath("assets", name).read_text(encoding="utf-8")


def page_html(page: Page) -> str:
    """Return a page as HTML."""
    return render(page).html


def render(page: Page) -> Rendered:
    """Return a page as HTML, with the data of its figures."""
    writer = _FigureWriter()
    kicker = element("p", page.kicker, css="kicker") if page.kicker else ""
    heading = element("h1", page.heading) if page.heading else ""
    head = [kicker, heading, *(_block(block, writer) for block in page.opening)]
    body = [
        element("a", "Skip to the figures", css="skip", href="#content"),
        element("header", Html("".join(head))),
        '<main id="content">',
        *(_block(block, writer) for block in page.blocks),
        "</main>",
        writer.script(),
    ]
    script = f"<script>{asset(PLOTLY_FILE)}</script>\n" if writer.count else ""
    shown = "\n".join(filter(None, body))
    html = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title or page.heading)} · closloop</title>\n"
        f"<style>\n{asset('page.css')}</style>\n{script}</head><body>\n{shown}\n</body></html>\n"
    )
    return Rendered(html, writer.tables)


def html_table(table: Table) -> Html:
    """Return a table as HTML. The note of a row is a row below it, over all columns."""
    columns, rows = table.shown(details=True)
    head = element("thead", element("tr", *_cells("th", columns, [c.name for c in columns])))
    body = "\n".join(_row(columns, texts, row) for texts, row in rows)
    title = element("h3", table.title) if table.title else ""
    shown = element("table", head if table.heads else "", Html(f"<tbody>\n{body}\n</tbody>"))
    caption = element("p", inline(table.caption), css="caption") if table.caption else ""
    name = table.title or next((c.name for c in columns if c.name), "")
    # a scrolling area must be reachable by keyboard
    area = {"tabindex": "0", "role": "region", "aria_label": f"Table: {name}"}
    return Html(f"{title}{element('div', shown, css='scroll', **area)}{caption}")


def _row(columns: Sequence[Column], texts: Sequence[Text], row: Row) -> Html:
    style = CLASSES.get(row.style, "")
    shown = [inline(text) for text in texts]
    if row.style == "strong":
        shown = [element("b", text) if text else text for text in shown]
    css = f"with-more {style}".strip() if row.note else style
    cells = element("tr", *_cells("td", columns, shown), css=css)
    if not row.note:
        return cells
    note = element("td", element("div", inline(row.note)), colspan=str(len(columns)))
    return Html(f"{cells}{element('tr', note, css='more')}")


def _cells(tag: str, columns: Sequence[Column], texts: Sequence[str]) -> list[Html]:
    return [
        element(tag, text, css="number" if column.figures else "wraps" * column.wraps)
        for column, text in zip(columns, texts, strict=True)
    ]


def _block(block: Block, writer: _FigureWriter) -> str:
    match block:
        case Table():
            return html_table(block)
        case Heading(text, level):
            return element(f"h{level}", text)
        case Paragraph(text, kind):
            return element("p", inline(text), css=_PARAGRAPHS.get(kind, kind)) if text else ""
        case Items(items, kind):
            shown = [element("li", inline(item)) for item in items]
            return element("ul", *shown, css=kind) if shown else ""
        case Key(colours, more):
            chips = [element("span", n, style=f"--colour:{colours[n]}") for n in colours]
            return element("div", *chips, more, css="key")
        case Links(anchors):
            links = [element("a", text, href=f"#{at}") for text, at in anchors.items()]
            return element("nav", *links, aria_label="Contents")
        case FigureGrid():
            return writer.grid(block)
        case Section(blocks, anchor):
            inner = Html("\n".join(_block(part, writer) for part in blocks))
            return element("section", inner, **({"id": anchor} if anchor else {}))
        case Fold(title, blocks, is_open):
            writer.folds += 1
            inner = element("div", Html("\n".join(_block(part, writer) for part in blocks)))
            heading = element("summary", element("h2", title))
            state = {"css": "fold", "open": ""} if is_open else {"css": "fold closed"}
            return element("details", heading, inner, **state)
        case Headline():
            return headline_html(block)
        case Scorecard():
            return scorecard_html(block)
        case Trust():
            return trust_html(block)


class _FigureWriter:
    """Writes the figures of a page, numbered in order, and the CSV files of their data.

    `folds` counts the page's folds, which need a script to be printed.
    """

    def __init__(self) -> None:
        self.count = self.folds = 0
        self.tables: dict[str, str] = {}

    def grid(self, block: FigureGrid) -> str:
        """Return figures side by side."""
        known = [captioned for captioned in block.figures if captioned is not None]
        if not known:
            return ""
        cells = "\n".join(self._figure(captioned, block.prefix) for captioned in known)
        return f'<div class="grid{" wide" if block.wide else ""}">\n{cells}\n</div>'

    def _figure(self, captioned: CaptionedFigure, prefix: str) -> str:
        number, height = self.count, captioned.figure.layout["height"]
        self.count += 1
        # a name that contains </script> must not end the script
        drawn = captioned.figure.to_json().replace("<", "\\u003c")
        caption = escape(captioned.caption) + self._link(captioned, prefix)
        return (
            f'<figure><h4 id="title-{number}">{escape(captioned.title)}</h4>\n'
            f'<div id="picture-{number}" class="picture" tabindex="0" role="img" '
            f'aria-labelledby="title-{number}" aria-describedby="caption-{number}" '
            f'style="height:{height}px"></div>\n'
            f'<script type="application/json">{drawn}</script>\n'
            f'<figcaption id="caption-{number}">{caption}</figcaption></figure>'
        )

    def _link(self, captioned: CaptionedFigure, prefix: str) -> str:
        if not captioned.data:
            return ""
        base = prefix + _UNSAFE.sub("-", captioned.name).strip("-")
        name, suffix = f"{base}.csv", 1
        while name in self.tables:  # another figure has that name
            suffix += 1
            name = f"{base}-{suffix}.csv"
        self.tables[name] = text = csv_text(captioned.data)
        # quote() keeps the characters that a URL allows; most of the others are commas
        address = f"data:text/csv;charset=utf-8,{quote(text, safe=',:()')}"
        label = f"Data of this figure: {name}"
        link = element("a", "CSV", css="csv", download=name, href=address, aria_label=label)
        return f" {link}"

    def script(self) -> str:
        """Return the scripts that open folds for a printer and draw figures, if there are any."""
        # folds are open before their figures are drawn
        folds = f"<script>\n{asset('folds.js')}</script>\n" if self.folds else ""
        if not self.count:
            return folds
        return folds + (
            f'<p id="told" aria-live="polite"></p>\n<script>\n{asset("page.js")}</script>\n'
            '<noscript><p class="note">Figures are drawn by a script, which this viewer does not '
            "run. Tables and CSV links work without it.</p></noscript>"
        )
