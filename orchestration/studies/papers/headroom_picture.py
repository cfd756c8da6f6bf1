"""The page's picture: headroom by condition, and where each arm lies, as SVG.

One panel a transport, one row a condition. The axis is how far a figure is above the oracle's; the
grey bar from the oracle to `best-static` is the headroom.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from orchestration.analysis.figure_style import FAINT, GRID, INK, colours_of, readable
from orchestration.studies.papers.condition import in_order
from orchestration.studies.papers.headroom import LEAST, METRICS, Headroom, Placed

_LEAST_LABELS, _LETTER, _PANEL, _GAP, _RIGHT = 150, 6.9, 400, 36, 24
_ROW, _TOP, _BOTTOM, _TITLE = 26, 74, 52, 20
_LEGEND_ROW, _LEGEND_COLUMN = 20, 150
# The axis reaches what is shown, within these shares; arms beyond it stand at its edge.
_LEAST_LOW, _MOST_LOW, _LEAST_HIGH, _MOST_HIGH = -0.05, -0.3, 0.15, 0.6
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2)
_TICKS_MOST = 8
_FONT = "'Liberation Sans', 'DejaVu Sans', Arial, sans-serif"


def picture(rows: Sequence[Headroom]) -> str:
    """Return the picture of the headroom in the first metric; "" if none is known."""
    shown = [row for row in rows if row.metric == METRICS[0] and math.isfinite(row.headroom[0])]
    if not shown:
        return ""
    return _Drawing(shown).svg()


class _Drawing:
    def __init__(self, rows: Sequence[Headroom]) -> None:
        self.rows = rows
        self.transports = in_order({row.transport for row in rows})
        # each paper's own conditions, then all of them together
        keys = dict.fromkeys((row.paper, row.place) for row in rows)
        papers = list(dict.fromkeys(paper for paper, _ in keys))
        self.places = sorted(keys, key=lambda key: (papers.index(key[0]), not key[1]))
        longest = max(len(_label(key)) for key in self.places)
        self.labels = max(_LEAST_LABELS, 24 + math.ceil(_LETTER * longest))
        arms = {placed.arm: placed.kind for row in rows for placed in row.arms}
        learned = [arm for arm, kind in arms.items() if kind == "learned"]
        self.colours = colours_of(learned)
        self.arms = list(arms.items())
        far = [placed.regret[0] for row in rows for placed in row.arms] + [
            row.headroom[end] for row in rows for end in (0, 1, 2)
        ]
        known = [value for value in far if math.isfinite(value)]
        self.low = max(_MOST_LOW, min(_LEAST_LOW, 1.1 * min(known)))
        self.high = min(_MOST_HIGH, max(_LEAST_HIGH, 1.1 * max(known)))

    def svg(self) -> str:
        columns = max(1, (self.width - 20) // _LEGEND_COLUMN)
        legend = math.ceil((len(self.arms) + 1) / columns)
        self.top = _TOP + legend * _LEGEND_ROW
        height = self.top + _ROW * len(self.places) + _BOTTOM
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height}" '
            f'width="{self.width}" height="{height}" font-family="{_FONT}" font-size="12" '
            f'fill="{INK}">',
            "<title>Headroom by condition, and where each tuner lies</title>",
            f'<rect width="{self.width}" height="{height}" fill="white"/>',
            '<text x="12" y="22" font-size="15" font-weight="bold">'
            "Mean slowdown above the oracle&#8217;s; the grey bar is the headroom</text>",
            *self._legend(columns),
            *self._labels(),
        ]
        for number, transport in enumerate(self.transports):
            parts += self._panel(self.labels + number * (_PANEL + _GAP), transport)
        return "\n".join([*parts, "</svg>", ""])

    @property
    def width(self) -> int:
        return self.labels + len(self.transports) * (_PANEL + _GAP) - _GAP + _RIGHT

    def _x(self, left: int, value: float) -> float:
        inside = min(self.high, max(self.low, value))
        return left + _PANEL * (inside - self.low) / (self.high - self.low)

    def _y(self, key: tuple[str, str]) -> float:
        return self.top + _ROW * (self.places.index(key) + 0.5)

    def _legend(self, columns: int) -> Iterator[str]:
        entries = [("best-static", ""), *self.arms]
        for number, (arm, kind) in enumerate(entries):
            x = 20 + _LEGEND_COLUMN * (number % columns)
            y = 46 + _LEGEND_ROW * (number // columns)
            yield self._mark(arm, kind, x, y) if kind else _static(x, y)
            yield f'<text x="{x + 12}" y="{y + 4}">{escape(arm)}</text>'

    def _labels(self) -> Iterator[str]:
        for key in self.places:
            y, text = self._y(key), _label(key)
            weight = "" if key[1] else ' font-weight="bold"'
            yield (
                f'<text x="{self.labels - 12}" y="{y + 4:.1f}" text-anchor="end"{weight}>'
                f"{escape(text)}</text>"
            )

    def _panel(self, left: int, transport: str) -> Iterator[str]:
        bottom = self.top + _ROW * len(self.places)
        if transport:
            yield (
                f'<text x="{left}" y="{self.top - 8}" font-weight="bold">'
                f"{escape(transport.upper())}</text>"
            )
        step = next((s for s in _STEPS if (self.high - self.low) / s <= _TICKS_MOST), _STEPS[-1])
        for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1):
            x = self._x(left, number * step)
            colour = FAINT if number == 0 else GRID
            yield f'<path d="M{x:.1f} {self.top}V{bottom}" stroke="{colour}"/>'
            text = f"{100 * number * step:+.0f}%" if number else "oracle"
            yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>'
        x = self._x(left, LEAST)
        yield f'<path d="M{x:.1f} {self.top}V{bottom}" stroke="{FAINT}" stroke-dasharray="3 3"/>'
        yield (
            f'<text x="{x:.1f}" y="{bottom + 34}" text-anchor="middle" fill="{readable(FAINT)}">'
            f"below {100 * LEAST:.0f}%: nothing to learn</text>"
        )
        rows = {(row.paper, row.place): row for row in self.rows if row.transport == transport}
        for key in self.places:
            if key in rows:
                yield from self._row(left, rows[key])
            else:
                yield (
                    f'<text x="{self._x(left, LEAST) + 8:.1f}" y="{self._y(key) + 4:.1f}" '
                    f'fill="{readable(FAINT)}">not run</text>'
                )

    def _row(self, left: int, row: Headroom) -> Iterator[str]:
        y = self._y((row.paper, row.place))
        value, low, high = row.headroom
        ends = sorted((self._x(left, 0), self._x(left, value)))
        yield (
            f'<rect x="{ends[0]:.1f}" y="{y - 9:.1f}" width="{ends[1] - ends[0]:.1f}" '
            'height="18" fill="#d4d4d4"/>'
        )
        if math.isfinite(low):
            begin, end = self._x(left, low), self._x(left, high)
            yield f'<path d="M{begin:.1f} {y:.1f}H{end:.1f}" stroke="{INK}" stroke-width="1"/>'
        yield _static(self._x(left, value), y)
        for number, placed in enumerate(row.arms):
            # side by side in height, so that equal arms are all seen
            spread = (number - (len(row.arms) - 1) / 2) * min(3.0, 16 / max(1, len(row.arms)))
            yield from self._arm(left, y + spread, placed)

    def _arm(self, left: int, y: float, placed: Placed) -> Iterator[str]:
        value = placed.regret[0]
        if not math.isfinite(value):
            return
        x = self._x(left, value)
        yield self._mark(placed.arm, placed.kind, x, y)
        if value > self.high:
            colour = self._colour(placed.arm)
            yield f'<path d="M{x + 6:.1f} {y - 3:.1f}l5 3l-5 3z" fill="{colour}"/>'

    def _mark(self, arm: str, kind: str, x: float, y: float) -> str:
        colour = self._colour(arm)
        if kind == "rule":
            return (
                f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z" fill="{colour}" '
                'stroke="white" stroke-width="0.7"/>'
            )
        fill = colour if kind == "learned" else "white"
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2" fill="{fill}" stroke="{colour}" '
            'stroke-width="1.6"/>'
        )

    def _colour(self, arm: str) -> str:
        """Return an arm's colour; a placebo has that of its tuner, rules are grey."""
        own = arm.removeprefix("placebo-")
        if own in self.colours:
            return self.colours[own]
        return {"amt": "#303030", "qaecn": "#8a8a8a"}.get(arm, "#707070")


def _label(key: tuple[str, str]) -> str:
    paper, place = key
    return place or f"{paper}, all together"


def _static(x: float, y: float) -> str:
    """Return the mark of the single best static setting."""
    return f'<path d="M{x:.1f} {y - 9:.1f}v18" stroke="{INK}" stroke-width="3"/>'
