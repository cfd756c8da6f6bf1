"""Pages: self-contained HTML files, in which style, plotly.js, pictures and their data are.

A text is escaped here, once: `Html` is what was escaped.
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
from orchestration.render.page import (
    Block,
    Heading,
    Items,
    Key,
    Links,
    Page,
    Paragraph,
    Picture,
    Pictures,
    Section,
)
from orchestration.render.table import Column, Row, Table, Text, spans

# The page must work offline, so it may fetch nothing.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
# The plotly.js build for two-axis plots, from plotly's package: a third of the full size.
PLOTLY_FILE = "plotly-cartesian.min.js"
# Characters that some file system refuses in a name, or that a shell needs quoted.
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")
_TAGS = {"strong": "b", "code": "code"}
_CLASSES = {"warning": "warning", "bad": "invalid", "faint": "note"}
_PARAGRAPHS = {"ok": "standing ok", "bad": "standing bad"}


class Html(str):
    """A text that is HTML already."""


@dataclass(frozen=True)
class Rendered:
    """A page as HTML, and the data of its pictures as CSV, by file name."""

    html: str
    csv: dict[str, str]


def replace_file(path: Path, text: str) -> None:
    """Write `text` to `path` atomically. Raises NotReadyError if that is impossible."""
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
    """Return a page as HTML, with its pictures' data."""
    made = _Pictures()
    kicker = element("p", page.kicker, css="kicker") if page.kicker else ""
    head = [kicker, element("h1", page.heading), *(_block(block, made) for block in page.opening)]
    body = [
        element("a", "Skip to the figures", css="skip", href="#content"),
        element("header", Html("".join(head))),
        '<main id="content">',
        *(_block(block, made) for block in page.blocks),
        "</main>",
        made.script(),
    ]
    script = f"<script>{asset(PLOTLY_FILE)}</script>\n" if made.count else ""
    shown = "\n".join(filter(None, body))
    html = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title or page.heading)} · closloop</title>\n"
        f"<style>\n{asset('page.css')}</style>\n{script}</head><body>\n{shown}\n</body></html>\n"
    )
    return Rendered(html, made.tables)


def element(tag: str, *content: str, css: str = "", **attributes: str) -> Html:
    """Return an element; content that is not `Html` is escaped, as are attributes."""
    inner = "".join(part if isinstance(part, Html) else escape(part) for part in content)
    named = {"class": css, **attributes} if css else attributes
    told = "".join(f' {name.replace("_", "-")}="{escape(v)}"' for name, v in named.items())
    return Html(f"<{tag}{told}>{inner}</{tag}>")


def inline(text: Text) -> Html:
    """Return a text with its styles and links."""
    found = []
    for part in spans(text):
        shown = Html(escape(part.text).replace("\n", "<br>"))
        if part.style in _TAGS:
            shown = element(_TAGS[part.style], shown)
        elif part.style in _CLASSES:
            shown = element("span", shown, css=_CLASSES[part.style])
        found.append(element("a", shown, href=quote(part.link, "/#:")) if part.link else shown)
    return Html("".join(found))


def html_table(made: Table) -> Html:
    """Return a table. The note of a row is a row below it that spans the table, on phones too."""
    columns, rows = made.shown(details=True)
    head = element("thead", element("tr", *_cells("th", columns, [c.name for c in columns])))
    body = "\n".join(_row(columns, texts, row) for texts, row in rows)
    title = element("h3", made.title) if made.title else ""
    shown = element("table", head if made.heads else "", Html(f"<tbody>\n{body}\n</tbody>"))
    told = element("p", inline(made.caption), css="caption") if made.caption else ""
    name = made.title or next((c.name for c in columns if c.name), "")
    # a scrolling area must be reachable by keyboard
    area = {"tabindex": "0", "role": "region", "aria_label": f"Table: {name}"}
    return Html(f"{title}{element('div', shown, css='scroll', **area)}{told}")


def _row(columns: Sequence[Column], texts: Sequence[Text], row: Row) -> Html:
    style = _CLASSES.get(row.style, "")
    shown = [inline(text) for text in texts]
    if row.style == "strong":
        shown = [element("b", text) if text else text for text in shown]
    below = f"with-more {style}".strip() if row.note else style
    made = element("tr", *_cells("td", columns, shown), css=below)
    if not row.note:
        return made
    note = element("td", element("div", inline(row.note)), colspan=str(len(columns)))
    return Html(f"{made}{element('tr', note, css='more')}")


def _cells(tag: str, columns: Sequence[Column], texts: Sequence[str]) -> list[Html]:
    return [
        element(tag, text, css="number" if column.figures else "wraps" * column.wraps)
        for column, text in zip(columns, texts, strict=True)
    ]


def _block(block: Block, made: _Pictures) -> str:
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
        case Pictures():
            return made.grid(block)
        case Section(blocks, anchor):
            inner = Html("\n".join(_block(one, made) for one in blocks))
            return element("section", inner, **({"id": anchor} if anchor else {}))


class _Pictures:
    """The pictures of a page, numbered in order, and the CSV files of their data."""

    def __init__(self) -> None:
        self.count = 0
        self.tables: dict[str, str] = {}

    def grid(self, block: Pictures) -> str:
        """Return pictures side by side."""
        known = [picture for picture in block.pictures if picture is not None]
        if not known:
            return ""
        cells = "\n".join(self._figure(picture, block.prefix) for picture in known)
        return f'<div class="grid{" wide" if block.wide else ""}">\n{cells}\n</div>'

    def _figure(self, picture: Picture, prefix: str) -> str:
        place, height = self.count, picture.figure.layout["height"]
        self.count += 1
        # a name that contains </script> must not end the script
        drawn = picture.figure.to_json().replace("<", "\\u003c")
        caption = escape(picture.caption) + self._link(picture, prefix)
        return (
            f'<figure><h4 id="title-{place}">{escape(picture.title)}</h4>\n'
            f'<div id="picture-{place}" class="picture" tabindex="0" role="img" '
            f'aria-labelledby="title-{place}" aria-describedby="caption-{place}" '
            f'style="height:{height}px"></div>\n'
            f'<script type="application/json">{drawn}</script>\n'
            f'<figcaption id="caption-{place}">{caption}</figcaption></figure>'
        )

    def _link(self, picture: Picture, prefix: str) -> str:
        if not picture.data:
            return ""
        base = prefix + _UNSAFE.sub("-", picture.name).strip("-")
        name, number = f"{base}.csv", 1
        while name in self.tables:  # another picture has it
            number += 1
            name = f"{base}-{number}.csv"
        self.tables[name] = text = csv_text(picture.data)
        # quote() keeps the characters that a URL allows; most of the others are commas
        address = f"data:text/csv;charset=utf-8,{quote(text, safe=',:()')}"
        label = f"Data of this picture: {name}"
        link = element("a", "CSV", css="csv", download=name, href=address, aria_label=label)
        return f" {link}"

    def script(self) -> str:
        """Return the script that draws the pictures, if there are any."""
        if not self.count:
            return ""
        return (
            f'<p id="told" aria-live="polite"></p>\n<script>\n{asset("page.js")}</script>\n'
            '<noscript><p class="note">Pictures are drawn by a script, which this viewer does not '
            "run. Tables and CSV links need none.</p></noscript>"
        )
