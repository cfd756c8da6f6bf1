"""The frame of the report's heat maps: spans of time, and panels of cells, one per tuner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestration.core.records import Floats, Ints
from orchestration.render.csv import Data
from orchestration.render.figure import Figure, heatmap
from orchestration.render.figure_style import Colours, base_figure, write_name
from orchestration.render.numbers import Unit, quantity
from orchestration.render.page import lines_of

# The most rows and columns whose names are readable on a phone.
MAX_ROWS = 24
# Above and below the panels of a grid: the scale with its title, the x axis with its title.
# A panel's name is written above it.
_SCALE_PIXELS, _SCALE_NAME_PIXELS, _AXIS_PIXELS, _NAME_PIXELS = 84, 22, 52, 32


@dataclass(frozen=True)
class Bins:
    """Spans of time: `edges_ns` (spans + 1,). Samples are inside of spans, not on their edges."""

    edges_ns: Floats

    @property
    def begins_ns(self) -> Ints:
        """When each begins, shape (spans,)."""
        return self.edges_ns[:-1].astype(np.int64)

    @property
    def span_ns(self) -> float:
        """The length of a span."""
        return float(self.edges_ns[1] - self.edges_ns[0])

    @property
    def middle_ms(self) -> Floats:
        """The middle of each, in ms, shape (spans,)."""
        return np.round((self.begins_ns + self.span_ns / 2) / 1e6, 4)

    def binned(
        self, t_ns: Ints, values: Floats, reduced: Callable[..., Floats] = np.nanmax
    ) -> Floats:
        """Return one value for each span: (samples, rows) to (rows, spans), NaN without samples."""
        spans = len(self.edges_ns) - 1
        found = np.full((values.shape[1], spans), math.nan)
        place = np.clip(np.searchsorted(self.edges_ns, t_ns, side="left") - 1, 0, spans - 1)
        for span in np.unique(place):
            part = values[place == span]
            known = ~np.isnan(part).all(axis=0)
            found[known, span] = reduced(part[:, known], axis=0)
        return found


def bins_of(times_ns: Sequence[Ints], maximum: int) -> Bins:
    """Return at most `maximum` spans for samples taken at each of `times_ns`, shapes (samples,)."""
    first, last = times_ns[0][0], min(float(t_ns[-1]) for t_ns in times_ns)
    samples = min(len(t_ns) for t_ns in times_ns)
    count, half_ns = min(maximum, samples), (last - first) / max(1, samples - 1) / 2
    return Bins(np.linspace(max(0.0, first - half_ns), last + half_ns + 1, count + 1))


def bins_between(times_ns: Sequence[Ints], maximum: int) -> Bins:
    """Return at most `maximum` spans that each end with a sample, the first of which begins one."""
    first, last = float(times_ns[0][0]), min(float(t_ns[-1]) for t_ns in times_ns)
    count = min(maximum, min(len(t_ns) for t_ns in times_ns) - 1)
    return Bins(np.linspace(first, last + 1, count + 1))


def over_time(
    grids: Mapping[str, Floats],
    spans: Bins,
    rows: Mapping[str, Sequence[str]],
    unit: Unit,
    colours: Colours,
    *,
    shades: Callable[[Floats], Any],
    says: str,
    row_pixels: int,
    scale: Mapping[str, Any],
    scale_title: str,
) -> Figure:
    """Return heat maps of grids (rows, spans) over time; `grids` and names of `rows` are by tuner.

    `shades` gives what is coloured of a grid; `says` stands before the value of a cell.
    """
    panels = {
        tuner: {
            "x": spans.middle_ms,
            "y": rows[tuner],
            "z": shades(grid).tolist(),
            "text": [["" if v != v else quantity(float(v), unit) for v in row] for row in grid],
        }
        for tuner, grid in grids.items()
    }
    return cell_panels(
        panels,
        colours,
        says=f", %{{y}}, %{{x:.2f}} ms: {says} %{{text}}",
        row_pixels=row_pixels,
        x_title="time since the start, ms",
        scale=scale,
        scale_title=scale_title,
    )


def cell_panels(
    panels: Mapping[str, Mapping[str, Any]],
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

    `panels` is tuner -> `x` and `y`, the names of columns and rows, the first row on top, and `z`
    and `text`, rows of columns; a `z` of None or NaN leaves its cell blank. `says` is what is shown
    of a cell, after the tuner's name. `scale` has the attributes of a colour axis of plotly.js,
    `colorbar` those of its bar; `below_pixels` is for the x axis.
    """
    rows = max(len(panel["y"]) for panel in panels.values())
    height = len(panels) * (row_pixels * rows + _NAME_PIXELS)
    figure = Figure(len(panels), gap=_NAME_PIXELS / height if len(panels) > 1 else 0)
    base_figure(height=height + _SCALE_PIXELS + below_pixels + 14, right=12, figure=figure)
    figure.update_layout({"margin": {"t": _SCALE_PIXELS, "b": below_pixels}})
    for row, (tuner, panel) in enumerate(panels.items(), start=1):
        trace = heatmap(
            **panel,
            hovertemplate=f"{tuner}{says}<extra></extra>",
            hoverongaps=False,
            ygap=1,
            coloraxis="coloraxis",
        )
        figure.add_trace(trace, row=row)
        at = {"x": 0, "xref": "paper", "y": figure.top(row), "yref": "paper"}
        write_name(figure, tuner, colours[tuner], **at, xanchor="left", yanchor="bottom")
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


def grid_data(grids: Mapping[str, Floats], spans: Bins, columns: Sequence[str]) -> Data:
    """Return grids (columns, spans) by tuner as data: a row for each tuner and span of time."""
    lines = {tuner: dict(zip(columns, grid.tolist(), strict=True)) for tuner, grid in grids.items()}
    return lines_of("tuner", lines, {"from_ns": spans.begins_ns.tolist()})


def sentence(clauses: Iterable[str]) -> str:
    """Return clauses as one sentence."""
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."
