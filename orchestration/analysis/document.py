"""Self-contained HTML files: style, plotly.js, pictures and their data are inside."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from orchestration.analysis.figure_style import Data, Picture
from orchestration.model.outputs import write_output

# The page must work offline, so it may fetch nothing.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
# The plotly.js build for two-axis plots, from plotly's package: a third of the full size.
PLOTLY_FILE = "plotly-cartesian.min.js"
# Characters that some file system refuses in a name, or that a shell needs quoted.
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")


def replace_file(path: Path, text: str) -> None:
    """Write `text` to `path` atomically. Raises NotReadyError if that is impossible."""
    write_output(
        path, text, "make room there or make it writable; --no-html prints the tables only"
    )


def asset(name: str) -> str:
    """Return the text of a packaged asset."""
    return files("orchestration.analysis").joinpath("assets", name).read_text(encoding="utf-8")


def html_document(title: str, body: str, *, pictures: bool = True) -> str:
    """Return the page with the project's style; `body` is HTML, `title` text.

    Without `pictures` it needs no plotly.js.
    """
    script = f"<script>{asset(PLOTLY_FILE)}</script>\n" if pictures else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{asset('page.css')}</style>\n"
        f"{script}</head><body>\n{body}\n</body></html>\n"
    )


def csv_text(data: Data) -> str:
    """Return the columns as CSV; NaN becomes an empty field."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(data)
    writer.writerows(zip(*([_field(value) for value in data[key]] for key in data), strict=True))
    return buffer.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return f"{value:.9g}" if np.isfinite(value) else ""
    return value


class Pictures:
    """The pictures of a page, numbered in order, and the CSV files of their data."""

    def __init__(self) -> None:
        self._count = 0
        self.tables: dict[str, str] = {}

    def grid(self, pictures: Sequence[Picture], *, wide: bool = False, prefix: str = "") -> str:
        """Return pictures side by side, as many as fit; `wide` ones get more room.

        The names of their CSV files start with `prefix`.
        """
        cells = "\n".join(self._figure(picture, prefix) for picture in pictures)
        return f'<div class="grid{" wide" if wide else ""}">\n{cells}\n</div>'

    def _figure(self, picture: Picture, prefix: str) -> str:
        place, height = self._count, picture.figure.layout["height"]
        self._count += 1
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
        name = self._free(prefix + _UNSAFE.sub("-", picture.name).strip("-")) + ".csv"
        text = csv_text(picture.data)
        self.tables[name] = text
        # quote() keeps the characters that a URL allows; most of the others are commas
        address = f"data:text/csv;charset=utf-8,{quote(text, safe=',:()')}"
        return (
            f' <a class="csv" download="{escape(name)}" href="{escape(address)}" '
            f'aria-label="Data of this picture: {escape(name)}">CSV</a>'
        )

    def _free(self, name: str) -> str:
        """Return the name, with a number appended if another picture has it."""
        number, free = 1, name
        while f"{free}.csv" in self.tables:
            number += 1
            free = f"{name}-{number}"
        return free

    def script(self) -> str:
        """Return the script that draws the pictures."""
        return (
            f'<p id="told" aria-live="polite"></p>\n<script>\n{asset("page.js")}</script>\n'
            '<noscript><p class="note">Pictures are drawn by a script, which this viewer does not '
            "run. Tables and CSV links need none.</p></noscript>"
        )
