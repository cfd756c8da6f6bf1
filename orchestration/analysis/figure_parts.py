"""Parts of pictures that reports and comparisons share: axes, names, rows of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestration.core.records import Floats
from orchestration.core.units import format_size
from orchestration.render.csv import Data
from orchestration.render.figure import Figure, heatmap, scatter
from orchestration.render.figure_style import (
    INK,
    TITLE_LINE_PIXELS,
    Colours,
    base_figure,
    line,
    log_ticks,
    padded,
    ratio_ticks,
    readable,
    short,
    wrapped,
)
from orchestration.render.numbers import Unit, quantity
from orchestration.render.page import lines_of

# Background of text, to keep it readable on top of lines.
_VEIL = "rgba(255,255,255,0.75)"
# Heights for rows of values, one row per tuner.
_ROW_PIXELS, _ROWS_BESIDES_PIXELS = 46, 80


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
    """Write what a panel shows in its upper left corner."""
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
    """Return an empty figure with axes for rows of values, one row per tuner."""
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


# Above and below the panels of a grid: the scale with its title, the x axis with its title.
# A panel's name is written above it.
_SCALE_PIXELS, _SCALE_NAME_PIXELS, _AXIS_PIXELS, _NAME_PIXELS = 84, 22, 52, 32


@dataclass(frozen=True)
class Cells:
    """A panel of cells: the names of columns and rows, and each cell's value and text.

    `z` and `text` are rows of columns; a value of None or NaN leaves its cell blank.
    """

    x: Sequence[Any] | Floats
    y: Sequence[str]
    z: Sequence[Sequence[float | None]]
    text: Sequence[Sequence[str]]


def texts_of(grid: Floats, unit: Unit) -> list[list[str]]:
    """Return the values of a grid as text, "" where unknown."""
    return [["" if v != v else quantity(float(v), unit) for v in row] for row in grid]


def cell_panels(
    panels: Mapping[str, Cells],
    colours: Colours,
    *,
    says: str,
    row_pixels: int,
    x_title: str,
    scale: Mapping[str, Any],
    scale_title: str,
    below_pixels: int = _AXIS_PIXELS,
) -> Figure:
    """Return heat maps of one colour scale, one below the other, a panel per tuner.

    `panels` is tuner -> cells, the first row on top; `says` is what is shown of a cell, after the
    tuner's name. `scale` has the attributes of a colour axis of plotly.js, `colorbar` those of its
    bar; `below_pixels` is for the x axis.
    """
    rows = max(len(panel.y) for panel in panels.values())
    height = len(panels) * (row_pixels * rows + _NAME_PIXELS)
    figure = Figure(len(panels), gap=_NAME_PIXELS / height if len(panels) > 1 else 0)
    base_figure(height=height + _SCALE_PIXELS + below_pixels + 14, right=12, figure=figure)
    figure.update_layout({"margin": {"t": _SCALE_PIXELS, "b": below_pixels}})
    for row, (tuner, panel) in enumerate(panels.items(), start=1):
        trace = heatmap(
            **vars(panel),
            hovertemplate=f"{tuner}{says}<extra></extra>",
            hoverongaps=False,
            ygap=1,
            coloraxis="coloraxis",
        )
        figure.add_trace(trace, row=row)
        figure.add_annotation(
            x=0,
            xref="paper",
            y=figure.top(row),
            yref="paper",
            text=f"<b>{short(tuner)}</b>",
            font={"color": readable(colours[tuner]), "size": 13},
            xanchor="left",
            yanchor="bottom",
            showarrow=False,
        )
    # plotly.js' own title of the bar would touch the bar
    figure.add_annotation(
        x=0.5,
        xref="paper",
        y=1,
        yref="paper",
        yshift=_SCALE_PIXELS,
        text=scale_title,
        xanchor="center",
        yanchor="top",
        showarrow=False,
    )
    bar = {
        "orientation": "h",
        "thickness": 10,
        "x": 0.5,
        "y": 1 - _SCALE_NAME_PIXELS / figure.layout["height"],
        "yref": "container",
        "yanchor": "top",
        "ypad": 0,
    }
    figure.update_layout({"coloraxis": {"colorbar": bar}})
    figure.update_layout({"coloraxis": scale})
    figure.update_yaxes(
        autorange="reversed", showgrid=False, tickfont={"size": 10}, dtick=1, ticks=""
    )
    figure.update_xaxes(title=x_title, row=len(panels))
    return figure


def grid_data(
    grids: Mapping[str, Floats], begins_ns: Sequence[int], columns: Sequence[str]
) -> Data:
    """Return grids (columns, spans) by tuner as data: a row for each tuner and span of time."""
    lines = {tuner: dict(zip(columns, grid.tolist(), strict=True)) for tuner, grid in grids.items()}
    return lines_of("tuner", lines, {"from_ns": begins_ns})
