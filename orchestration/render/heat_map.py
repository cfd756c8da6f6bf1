"""A heat map as SVG, for pages in Markdown, which cannot run scripts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestration.render.elements import element
from orchestration.render.figure_style import FAINT, GRID, INK, contrast_to_white, readable

_ROW, _CELL, _GAP, _TOP, _BOTTOM, _STEP = 28, 74, 22, 92, 64, 90
_LETTER, _SMALL = 7.0, 5.9
_FONT = "'Liberation Sans', 'DejaVu Sans', Arial, sans-serif"
_DOUBTFUL = readable("#606060")


@dataclass(frozen=True)
class HeatCell:
    """The text of a cell, and the value that gives its colour, NaN for none.

    A cell that is `sure` is bold, one that is `doubtful` is grey.
    """

    text: str
    value: float = math.nan
    sure: bool = False
    doubtful: bool = False


@dataclass(frozen=True)
class HeatMap:
    """Blocks of columns side by side, over the same rows.

    `about` is a line below the title. `blocks` is title -> column -> the cells of all rows. `steps`
    are the colours of the scale: upper end of the values, colour, and label; the label of the first
    step is written to the left of the scale.
    """

    title: str
    about: str
    rows: Sequence[str]
    blocks: Mapping[str, Mapping[str, Sequence[HeatCell]]]
    steps: Sequence[tuple[float, str, str]]
    bold_rows: Sequence[str] = ()

    def svg(self) -> str:
        """Return the heat map as SVG."""
        left = 24 + math.ceil(_LETTER * max(map(len, self.rows)))
        x = left
        parts: list[str] = []
        for title, columns in self.blocks.items():
            cell = max(_CELL, 10 + math.ceil(_SMALL * max(map(len, columns))))
            parts += self._block(x, cell, title, columns)
            x += max(len(columns) * cell, math.ceil(_LETTER * len(title))) + _GAP
        bottom = _TOP + _ROW * len(self.rows)
        width, height = max(x, left + _STEP * len(self.steps) + 20), bottom + _BOTTOM
        size = {"width": str(width), "height": str(height)}
        shown = [
            element("title", self.title),
            element("rect", fill="white", **size),
            _text(12, 22, self.title, font_size="15", font_weight="bold"),
            _text(12, 41, self.about),
            *parts,
            *self._names(left),
            *self._legend(left, bottom),
        ]
        style = {"font-family": _FONT, "font-size": "12", "fill": INK}
        view = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}"}
        return f"{element('svg', *shown, **view, **size, **style)}\n".replace("><", ">\n<")

    def _names(self, left: int) -> Iterator[str]:
        for row, name in enumerate(self.rows):
            bold = {"font_weight": "bold"} if name in self.bold_rows else {}
            yield _text(left - 10, _TOP + _ROW * (row + 0.5) + 4, name, "end", **bold)

    def _block(
        self, left: int, cell: int, title: str, columns: Mapping[str, Sequence[HeatCell]]
    ) -> Iterator[str]:
        yield _text(left, _TOP - 26, title, font_weight="bold")
        for number, (name, cells) in enumerate(columns.items()):
            x = left + number * cell
            yield _text(x + cell / 2, _TOP - 8, name, "middle", font_size="11")
            for row, shown in enumerate(cells):
                yield from self._cell(x, _TOP + row * _ROW, cell, shown)

    def _cell(self, x: float, y: float, width: int, cell: HeatCell) -> Iterator[str]:
        fill, ink = "white", readable(FAINT)
        if math.isfinite(cell.value):
            fill = next(colour for end, colour, _ in self.steps if cell.value < end)
            dark = contrast_to_white(fill) > 4.5
            ink = "white" if dark else _DOUBTFUL if cell.doubtful else INK
        yield _box(x, y, width, _ROW, fill)
        bold = {"font_weight": "bold"} if cell.sure else {}
        yield _text(x + width / 2, y + _ROW / 2 + 4, cell.text, "middle", fill=ink, **bold)

    def _legend(self, left: int, bottom: int) -> Iterator[str]:
        for number, (_, colour, text) in enumerate(self.steps):
            x, y = left + _STEP * number, bottom + 20
            yield _box(x, y, _STEP, 14, colour)
            if number:
                yield _text(x, y + 30, text, "middle")
            else:
                yield _text(x - 8, y + 11, text, "end")


def _text(x: float, y: float, text: str, anchor: str = "start", **style: str) -> str:
    named = {name.replace("_", "-"): value for name, value in style.items()}
    position = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    return element("text", text, **position, **named)


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    size = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": str(width), "height": str(height)}
    return element("rect", **size, fill=fill, stroke=GRID)
