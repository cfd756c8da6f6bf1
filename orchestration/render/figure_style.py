"""The common style of all figures: colours, fonts, margins, labels at lines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from orchestration.render.figure import Figure, Trace, scatter

INK, FAINT, GRID = "#222222", "#8a8a8a", "#e8e8e8"
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif"
# Three colours of Okabe and Ito (2008) with a contrast of at least 3 to white, and three more that
# colour-blind readers can distinguish. Each has its own line pattern.
_PALETTE = {
    "#0072B2": "solid",
    "#D55E00": "dash",
    "#009E73": "dashdot",
    "#6000A0": "dot",
    "#A02000": "longdash",
    "#606060": "longdashdot",
}
_LABEL_CHARACTERS = 12
# The length of an axis title that fits below a figure on a phone 360 pixels wide.
_TITLE_CHARACTERS = 30
TITLE_LINE_PIXELS = 18
# The width of a bold letter in a line's label, the gap before the label, and its least width.
_LETTER_PIXELS, _LABEL_GAP_PIXELS, _MIN_LABEL_PIXELS = 8, 14, 76
# How many labels such as +100% fit side by side on a phone.
_RATIO_TICKS = 5.5
# The least contrast of text, WCAG 2.2, 1.4.3.
_TEXT_CONTRAST = 4.5


Colours = dict[str, str]


def colours_of(arms: Sequence[str]) -> Colours:
    """Return each arm's colour, the same in every figure."""
    palette = tuple(_PALETTE)
    return {arm: palette[index % len(palette)] for index, arm in enumerate(arms)}


def readable(colour: str) -> str:
    """Return the colour, darkened until text in it is readable on white."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    while contrast_to_white(f"#{red:02X}{green:02X}{blue:02X}") < _TEXT_CONTRAST:
        red, green, blue = (int(0.95 * part) for part in (red, green, blue))
    return f"#{red:02X}{green:02X}{blue:02X}"


def contrast_to_white(colour: str) -> float:
    """Return the WCAG contrast ratio of a colour `#rrggbb` to white, 1 to 21."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)


def short(name: str) -> str:
    """Return the name, shortened to fit beside a line; tags are escaped for plotly.js."""
    kept = name if len(name) <= _LABEL_CHARACTERS else name[: _LABEL_CHARACTERS - 1] + "…"
    return escape(kept, quote=False)


def wrapped(title: str) -> str:
    """Return an axis title, wrapped to fit below or beside a figure on a phone."""
    return "<br>".join(textwrap.wrap(title, _TITLE_CHARACTERS))


def label_room(names: Iterable[str]) -> int:
    """Return the right margin in pixels that the names at the ends of lines need."""
    longest = max((len(short(name)) for name in names), default=0)
    return max(_MIN_LABEL_PIXELS, _LABEL_GAP_PIXELS + _LETTER_PIXELS * longest)


_AXIS: dict[str, Any] = {
    "gridcolor": GRID,
    "linecolor": FAINT,
    "zeroline": False,
    "ticks": "outside",
    "tickcolor": FAINT,
    "title": {"standoff": 8},
    "automargin": True,
}


def base_figure(height: int, right: int = 20, figure: Figure | None = None) -> Figure:
    """Return `figure`, or an empty one, in the common style and as wide as the page allows.

    `height` and the right margin `right` are in pixels.
    """
    figure = figure or Figure()
    layout = {
        "height": height,
        "autosize": True,
        "margin": {"l": 56, "r": right, "t": 12, "b": 52},
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "white", "bordercolor": INK, "font": {"color": INK}},
        "dragmode": False,
    }
    figure.update_layout(layout)
    figure.update_xaxes(**_AXIS)
    figure.update_yaxes(**_AXIS)
    return figure


def line(x: Any, y: Any, colour: str, width: float = 2.5) -> Trace:
    """Return a solid line."""
    return scatter(x=x, y=y, mode="lines", line={"color": colour, "width": width})


def curve(x: Any, y: Any, colour: str, width: float = 2.5) -> Trace:
    """Return a line in the pattern of its colour, so that lines differ without colours too."""
    trace = line(x, y, colour, width)
    trace["line"]["dash"] = _PALETTE.get(colour, "solid")
    return trace


def band(x: Any, low: Any, high: Any, colour: str) -> Trace:
    """Return the area between two lines, for the background."""
    known = np.isfinite(low) & np.isfinite(high)
    x, low, high = np.asarray(x)[known], np.asarray(low)[known], np.asarray(high)[known]
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.15)",
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
    )


def end_labels(
    figure: Figure, ends: Mapping[str, tuple[float, float]], colours: Mapping[str, str], span: float
) -> None:
    """Write each line's name at its end, moving names apart where they would overlap.

    `ends` is name -> (x, y) of the last point; `span` is the length of the y axis. Both are in axis
    units, so logarithms on log axes.
    """
    known = {name: end for name, end in ends.items() if math.isfinite(end[1])}
    placed = -math.inf
    for name, (x, y) in sorted(known.items(), key=lambda item: item[1][1]):
        placed = max(y, placed + 0.075 * span)
        write_name(figure, name, colours[name], x=x, y=placed, xanchor="left", xshift=8)


def name_line(
    figure: Figure, name: str, x: float, y: float, colour: str, *, above: bool = False
) -> None:
    """Write a line's name to the right of the point (x, y), below or above it.

    The point is in axis units, so logarithms on log axes.
    """
    yshift = 6 if above else -9
    write_name(figure, name, colour, x=x, y=y, xanchor="left", xshift=6, yshift=yshift)


def write_name(figure: Figure, name: str, colour: str, **at: Any) -> None:
    """Write a name in bold and in its colour; `at` has plotly.js' attributes of its position."""
    position = {key: at.pop(key) for key in ("x", "xref", "y", "yref") if key in at}
    style: dict[str, Any] = {
        "text": f"<b>{short(name)}</b>",
        "font": {"color": readable(colour), "size": 13},
    }
    figure.add_annotation(**position, **style, **at, showarrow=False)


def log_ticks(low: float, high: float) -> list[float]:
    """Return round ticks for a log axis, as many as fit."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    span = math.log10(high / low)
    steps: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 7)
    if span > 1.2:
        steps = (1, 2, 5) if span < 3 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in ticks if low * 0.99 <= tick <= high * 1.01] or [low, high]


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return ticks for a log axis of ratios around 1, as many as fit on a phone."""
    span = math.log10(max(high, 1.01) / min(low, 0.99))
    if span < 0.2:
        ticks = [0.7, 0.8, 0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5]
    elif span < 1.3:
        ticks = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10]
    else:
        ticks = [0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1000]
    shown = [tick for tick in ticks if min(low, 1) * 0.98 <= tick <= max(high, 1) * 1.02]
    kept = [1.0]
    for side in ([tick for tick in shown if tick > 1], [tick for tick in shown if tick < 1][::-1]):
        last = 1.0
        for tick in side:
            if abs(math.log10(tick / last)) >= span / _RATIO_TICKS:
                kept.append(tick)
                last = tick
    return sorted(kept)


def padded(values: Sequence[float]) -> list[float]:
    """Return an axis range that contains all of `values`, including the ends of bars."""
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return [low - margin, high + margin]


def size_ticks(top: float) -> list[float]:
    """Return three to six round ticks for a linear axis from 0 to `top`."""
    step = 10.0 ** math.floor(math.log10(top))
    for part in (1, 0.5, 0.2):
        if top / (step * part) >= 3:
            break
    return [float(tick) for tick in np.arange(0, top, step * part)]
