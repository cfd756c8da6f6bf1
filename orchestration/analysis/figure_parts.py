"""Parts of figures that reports and comparisons share: axes, names, rows of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestration.core.records import Floats, Ints
from orchestration.core.units import format_size
from orchestration.render.figure import Figure, scatter
from orchestration.render.figure_style import (
    INK,
    TITLE_LINE_PIXELS,
    base_figure,
    line,
    log_ticks,
    padded,
    ratio_ticks,
    size_ticks,
    wrapped,
)
from orchestration.render.numbers import Unit, quantity

# Background of text, to keep it readable on top of lines.
_VEIL = "rgba(255,255,255,0.75)"
# Heights for rows of values, one row per arm.
_ROW_PIXELS, _ROWS_BESIDES_PIXELS = 46, 80


def time_axis(figure: Figure, row: int) -> None:
    """Set the title of the x axis of time, below the last panel `row`."""
    figure.update_xaxes(title="time since the start, ms", row=row)


def size_axis(figure: Figure, top: float, row: int | None = None) -> None:
    """Set up y axes of bytes from 0 to `top`."""
    ticks = size_ticks(top)
    texts = [format_size(tick) for tick in ticks]
    figure.update_yaxes(range=[0, top], tickvals=ticks, ticktext=texts, row=row)


def flow_size_axis(figure: Figure, upto_bytes: Sequence[float] | Floats, room: float) -> None:
    """Set up an x axis of groups of flow sizes, with `room` on either side."""
    figure.update_xaxes(
        title="flow size",
        tickvals=np.arange(len(upto_bytes)),
        ticktext=[f"≤{quantity(size, 'bytes')}" for size in upto_bytes],
        tickangle=-45,
        range=[-room, len(upto_bytes) - 1 + room],
    )


def log_axis(title: str, low: float, high: float, unit: Unit = "ratio", maximum: int = 0) -> Any:
    """Return the attributes of a log axis of times or ratios, with `maximum` ticks at most."""
    ticks = log_ticks(low, high)
    if maximum and len(ticks) > maximum:
        ticks = ticks[:: -(-len(ticks) // maximum)]
    texts = [quantity(tick, unit) if unit == "ns" else f"{tick:.3g}" for tick in ticks]
    return {"title": title, "type": "log", "tickvals": ticks, "ticktext": texts}


def thresholds(
    figure: Figure, set_ns: Ints, kmin: Ints, kmax: Ints, end_ns: int, row: int, when: str = ""
) -> None:
    """Draw the thresholds in force from each of `set_ns` on, shapes (changes,)."""
    at_ms = [*(set_ns / 1e6), end_ns / 1e6]
    for name, values, dash in (("kmin", kmin, "dot"), ("kmax", kmax, "dash")):
        steps = line(at_ms, [*values, values[-1]], INK, 1.2)
        steps["line"].update(shape="hv", dash=dash)
        steps["hovertemplate"] = f"{name} %{{y:,}} B{when}<extra></extra>"
        figure.add_trace(steps, row=row)


def queue_share_axes(figure: Figure, floor: float, longest: float, room: float) -> None:
    """Set up log-log axes: share of samples in which a queue is longer than x.

    `floor` is the smallest share drawn and `longest` the longest queue in bytes; the x axis ends at
    `room` times that.
    """
    decades = 10.0 ** np.arange(min(-1.0, np.floor(np.log10(floor))), 1)
    figure.update_yaxes(
        title="share of queue samples above x",
        type="log",
        range=[min(-1.0, math.log10(floor)) - 0.1, 0.02],
        tickvals=decades,
        ticktext=[f"{100 * share:g}%" for share in decades],
    )
    sizes = log_ticks(1e3, longest * 1.3)
    figure.update_xaxes(
        title="queue length",
        type="log",
        range=[3, math.log10(longest * room)],
        tickvals=sizes,
        ticktext=[format_size(size) for size in sizes],
    )


def ratio_axes(figure: Figure, title: str, ratios: Sequence[float], rows: Sequence[float]) -> None:
    """Set up a log x axis of ratios with a line at 1; `rows` is the range of the y axis."""
    figure.add_vline(x=1, line={"color": INK, "width": 1})
    ticks = ratio_ticks(min(ratios), max(ratios))
    figure.update_xaxes(
        title=title,
        type="log",
        range=padded([math.log10(ratio) for ratio in ratios]),
        tickvals=ticks,
        ticktext=[f"{100 * (tick - 1):+.0f}%" if tick != 1 else "same" for tick in ticks],
        tickangle=0,
    )
    named_rows(figure, rows)


def estimate_row(
    figure: Figure, row: int, ratio: float, ends: Sequence[float], colour: str, *, filled: bool,
    says: str,
) -> None:  # fmt: skip
    """Draw an estimate as a point, and its interval as a bar if it has `ends`."""
    if ends:
        figure.add_trace(line(ends, [row, row], colour, 3))
    figure.add_trace(
        scatter(
            x=[ratio],
            y=[row],
            mode="markers",
            marker={
                "size": 11,
                "color": colour if filled else "white",
                "line": {"color": colour, "width": 2},
            },
            hovertemplate=f"{says}<extra></extra>",
        )
    )


def named_rows(figure: Figure, rows: Sequence[float]) -> None:
    """Make room for rows whose names are written above them (`row_name`)."""
    figure.update_yaxes(showgrid=False, showticklabels=False, ticks="", range=rows)
    figure.update_layout({"margin": {"l": 12}})


def row_name(figure: Figure, row: int, text: str, above_pixels: int = 13, size: int = 12) -> None:
    """Write a row's name above it, at the left."""
    figure.add_annotation(
        x=0,
        xref="paper",
        xanchor="left",
        y=row,
        yshift=above_pixels,
        text=text,
        font={"size": size},
        showarrow=False,
        bgcolor=_VEIL,
    )


def corner_name(figure: Figure, row: int, text: str, colour: str = INK) -> None:
    """Write the name of a panel in its upper left corner."""
    figure.add_annotation(
        x=0.005,
        y=0.99,
        xref="x domain",
        yref="y domain",
        text=text,
        font={"color": colour, "size": 12},
        xanchor="left",
        yanchor="top",
        showarrow=False,
        bgcolor=_VEIL,
        row=row,
    )


def value_rows(rows: int, title: str) -> Figure:
    """Return an empty figure with axes for rows of values, one row per arm."""
    axis = wrapped(title)
    more = TITLE_LINE_PIXELS * axis.count("<br>")
    figure = base_figure(height=_ROWS_BESIDES_PIXELS + more + _ROW_PIXELS * rows)
    figure.update_xaxes(title=axis)
    figure.update_yaxes(showgrid=False, range=[-0.6, rows - 0.4])
    return figure


def value_row(
    figure: Figure,
    name: str,
    colour: str,
    *,
    ends: tuple[float, float],
    values: Sequence[float],
    texts: Sequence[str],
    mean: float,
    mean_name: str,
    number: str,
) -> None:
    """Draw a row: circles for values, labelled `texts`, and the mean as diamond with interval bar.

    `number` is the format of a value, such as `%{x:.4g}us`. The interval's `ends` are NaN if
    unknown.
    """
    if math.isfinite(ends[0]):
        figure.add_trace(line(list(ends), [name, name], colour, 5))
        figure.data[-1]["hoverinfo"] = "skip"
    figure.add_trace(
        scatter(
            x=values,
            y=[name] * len(values),
            mode="markers",
            marker={"size": 9, "color": "white", "line": {"color": colour, "width": 2}},
            text=texts,
            hovertemplate=f"%{{text}}: {number}<extra></extra>",
        )
    )
    figure.add_trace(
        scatter(
            x=[mean],
            y=[name],
            mode="markers",
            marker={"size": 13, "symbol": "diamond", "color": colour},
            hovertemplate=f"{mean_name} {number}<extra></extra>",
        )
    )
