"""How every picture looks: colours, fonts, margins, direct labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

INK, FAINT, GRID = "#222222", "#8a8a8a", "#e8e8e8"
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif"
# Okabe and Ito (2008), without black and with yellow last: it is faint on white.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#F0E442")
_LABEL_CHARACTERS = 12


def colours_of(tuners: Sequence[str]) -> dict[str, str]:
    """Return each tuner's colour, the same in every picture."""
    return {tuner: _PALETTE[place % len(_PALETTE)] for place, tuner in enumerate(tuners)}


def short(name: str) -> str:
    """Return a name that fits beside a line."""
    return name if len(name) <= _LABEL_CHARACTERS else name[: _LABEL_CHARACTERS - 1] + "…"


def base_figure(height: int, right: int = 20, figure: Any = None) -> Any:
    """Return an empty figure, or `figure`, in the common style; as wide as its place allows."""
    figure = go.Figure() if figure is None else figure
    figure.update_layout(
        template="none",
        height=height,
        autosize=True,
        margin={"l": 56, "r": right, "t": 12, "b": 52},
        font={"family": FONT, "size": 13, "color": INK},
        paper_bgcolor="white",
        plot_bgcolor="white",
        showlegend=False,
        hovermode="closest",
        dragmode=False,
    )
    axis = {
        "gridcolor": GRID,
        "linecolor": FAINT,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": FAINT,
        "title": {"standoff": 8},
        "automargin": True,
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def line(x: Any, y: Any, colour: str, width: float = 2.5) -> Any:
    """Return a line."""
    return go.Scatter(x=x, y=y, mode="lines", line={"color": colour, "width": width})


def band(x: Any, low: Any, high: Any, colour: str) -> Any:
    """Return the area between two lines, as a background."""
    known = np.isfinite(low) & np.isfinite(high)
    x, low, high = np.asarray(x)[known], np.asarray(low)[known], np.asarray(high)[known]
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return go.Scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.15)",
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
    )


def end_labels(
    figure: Any,
    ends: Mapping[str, tuple[float, float]],
    colours: Mapping[str, str],
    span: tuple[float, float],
) -> None:
    """Write each line's name at its end, moved apart where they would meet, on a log y axis.

    `ends` is name -> (x, y) of the last point; `span` the lowest and highest y drawn.
    """
    gap = 0.075 * math.log10(span[1] / span[0])
    known = {name: end for name, end in ends.items() if math.isfinite(end[1])}
    placed = -math.inf
    for name, (x, y) in sorted(known.items(), key=lambda item: item[1][1]):
        placed = max(math.log10(y), placed + gap)
        figure.add_annotation(
            x=x,
            y=placed,
            text=f"<b>{short(name)}</b>",
            font={"color": colours[name], "size": 13},
            xanchor="left",
            xshift=8,
            showarrow=False,
        )


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1-2-5 ticks of a log axis; only the decades if that would be too many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 3 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in ticks if low * 0.99 <= tick <= high * 1.01] or [low, high]
