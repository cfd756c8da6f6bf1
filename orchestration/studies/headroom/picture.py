"""The map's picture: a heat map of headroom, a row a condition, a block of columns an objective."""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from orchestration.analysis.figure_style import FAINT, GRID, INK, contrast_to_white, readable
from orchestration.studies.headroom.map import WORTH, HeadroomMap, Place
from orchestration.studies.headroom.page import ALL, metric_label
from orchestration.studies.papers.headroom import LEAST

_ROW, _CELL, _GAP, _TOP, _BOTTOM = 28, 74, 22, 92, 64
_LETTER, _SMALL = 7.0, 5.9
_FONT = "'Liberation Sans', 'DejaVu Sans', Arial, sans-serif"
# Upper ends of headroom and their colours: Brewer's Blues, a single hue that varies in lightness.
# The first two are the limits of "nothing to learn" and of what is worth a training.
_STEPS = (
    (LEAST, "#F7FAFD"),
    (WORTH, "#DCE9F5"),
    (0.2, "#B4D2E8"),
    (0.4, "#6BAED6"),
    (0.8, "#2171B5"),
    (math.inf, "#08306B"),
)


def picture(found: HeadroomMap) -> str:
    """Return the map as SVG."""
    return _Drawing(found).svg()


class _Drawing:
    def __init__(self, found: HeadroomMap) -> None:
        self.found = found
        several = any(one.place == "" for one in found.places)
        self.places = [*found.conditions, *([""] if several else [])]
        longest = max(len(place or ALL) for place in self.places)
        self.left = 24 + math.ceil(_LETTER * longest)
        groups = max(len(group) for group in found.groups)
        self.cell = max(_CELL, 10 + math.ceil(_SMALL * groups))
        wide = max(len(metric_label(metric)) for metric in found.metrics)
        self.block = max(len(found.groups) * self.cell, math.ceil(_LETTER * wide))

    def svg(self) -> str:
        bottom = _TOP + _ROW * len(self.places)
        width = self.left + len(self.found.metrics) * (self.block + _GAP)
        width, height = max(width, self.left + 560), bottom + _BOTTOM
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="{_FONT}" font-size="12" '
            f'fill="{INK}">',
            "<title>Headroom by condition and objective</title>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            '<text x="12" y="22" font-size="15" font-weight="bold">'
            "What the best static setting loses to the best of each condition</text>",
            '<text x="12" y="41">Bold: above '
            f"{100 * WORTH:.0f} % beyond chance. Grey: the interval includes 0. "
            "few: too few flows for the tail.</text>",
        ]
        for number, metric in enumerate(self.found.metrics):
            parts += self._block(self.left + number * (self.block + _GAP), metric)
        parts += self._names()
        return "\n".join([*parts, *self._legend(bottom), "</svg>", ""])

    def _names(self) -> Iterator[str]:
        for row, place in enumerate(self.places):
            weight = "" if place else ' font-weight="bold"'
            yield (
                f'<text x="{self.left - 10}" y="{_TOP + _ROW * (row + 0.5) + 4:.1f}" '
                f'text-anchor="end"{weight}>{escape(place or ALL)}</text>'
            )

    def _block(self, left: int, metric: str) -> Iterator[str]:
        yield (
            f'<text x="{left}" y="{_TOP - 26}" font-weight="bold">'
            f"{escape(metric_label(metric))}</text>"
        )
        for column, group in enumerate(self.found.groups):
            x = left + column * self.cell
            yield (
                f'<text x="{x + self.cell / 2:.1f}" y="{_TOP - 8}" font-size="11" '
                f'text-anchor="middle">{escape(group)}</text>'
            )
            for row, place in enumerate(self.places):
                one = self.found.at(group, place, metric)
                yield from self._cell(x, _TOP + row * _ROW, one)

    def _cell(self, x: float, y: float, one: Place | None) -> Iterator[str]:
        fill, text, style = "white", "–", f' fill="{readable(FAINT)}"'
        if one is not None and one.few:
            text = "few"
        elif one is not None and math.isfinite(one.headroom[0]):
            value, low, high = one.headroom
            fill = _colour(value)
            text = f"{100 * value:+.0f}%"
            ink = "white" if contrast_to_white(fill) > 4.5 else INK
            doubtful = not (math.isfinite(low) and (low > 0 or high < 0))
            if doubtful and ink == INK:
                ink = readable("#606060")
            style = f' fill="{ink}"' + (' font-weight="bold"' if one.sure else "")
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="{self.cell}" height="{_ROW}" fill="{fill}" '
            f'stroke="{GRID}"/>'
        )
        yield (
            f'<text x="{x + self.cell / 2:.1f}" y="{y + _ROW / 2 + 4:.1f}" '
            f'text-anchor="middle"{style}>{text}</text>'
        )

    def _legend(self, bottom: int) -> Iterator[str]:
        before = None
        for number, (end, colour) in enumerate(_STEPS):
            x, y = self.left + 90 * number, bottom + 20
            yield f'<rect x="{x}" y="{y}" width="90" height="14" fill="{colour}" stroke="{GRID}"/>'
            text = f"{100 * before:.0f} %" if before is not None else ""
            if text:
                yield f'<text x="{x}" y="{y + 30}" text-anchor="middle">{text}</text>'
            else:
                yield f'<text x="{x - 8}" y="{y + 11}" text-anchor="end">nothing to learn</text>'
            before = end


def _colour(value: float) -> str:
    return next(colour for end, colour in _STEPS if value < end)
