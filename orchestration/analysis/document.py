"""An HTML file that opens offline: style, plotly.js and pictures are inside, nothing is fetched."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from plotly.offline import get_plotlyjs

from orchestration.analysis.figure_style import Picture
from orchestration.model.errors import NotReadyError

# Nothing may be fetched: the page is the same on a plane.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
_CONFIG = {"displayModeBar": False, "responsive": True, "showTips": False}
# Drawn when the page is laid out, so that every picture knows its width.
_DRAW = """
for (const [place, {data, layout}] of pictures.entries())
  Plotly.newPlot(`picture-${place}`, data, layout, config);
"""


def replace_file(path: Path, text: str) -> None:
    """Write `text` to `path`, replacing it whole. Raises NotReadyError if that is impossible."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise NotReadyError(
            f"{path} cannot be written: {error.strerror}",
            "make room there or make it writable; --no-html prints the tables only",
        ) from error


def html_document(title: str, body: str) -> str:
    """Return the page with the project's style; `body` is HTML, `title` text."""
    style = files("orchestration.analysis").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head><body>\n{body}\n</body></html>\n"
    )


class Pictures:
    """The pictures of a page, numbered as they are placed."""

    def __init__(self) -> None:
        self._figures: list[str] = []

    def grid(self, pictures: Sequence[Picture], *, wide: bool = False) -> str:
        """Return pictures side by side, as many as fit; `wide` ones need more room."""
        cells = "\n".join(self._figure(picture) for picture in pictures)
        return f'<div class="grid{" wide" if wide else ""}">\n{cells}\n</div>'

    def _figure(self, picture: Picture) -> str:
        place, height = len(self._figures), picture.figure.layout.height
        self._figures.append(picture.figure.to_json())
        caption = f"<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
        return (
            f"<figure><h4>{escape(picture.title)}</h4>\n"
            f'<div id="picture-{place}" style="height:{height}px"></div>\n{caption}</figure>'
        )

    def script(self) -> str:
        """Return the script that draws the pictures placed so far."""
        # a name with </script> in it must not end the script
        data = ",\n".join(self._figures).replace("<", "\\u003c")
        return (
            f"<script>\nconst config = {json.dumps(_CONFIG)};\nconst pictures = [\n{data}\n];"
            f"{_DRAW}</script>"
        )
