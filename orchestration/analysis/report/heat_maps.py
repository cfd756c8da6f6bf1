"""What the report's heat maps share: bins of time, and panels of cells, one per arm."""

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

# With more rows or columns their names would be unreadable on a phone.
MAX_ROWS = 24
# Above and below the panels of a grid: the scale with its title, the x axis with its title.
# A panel's name is written above it.
_SCALE_PIXELS, _SCALE_NAME_PIXELS, _AXIS_PIXELS, _NAME_PIXELS = 84, 22, 52, 32


@dataclass(frozen=True)
class Bins:
    """Bins of time, with edges of shape (bins + 1,). No sample lies on an edge."""

    edges_ns: Floats

    @property
    def begins_ns(self) -> Ints:
        """Where each bin begins, shape (bins,)."""
        return self.edges_ns[:-1].astype(np.int64)

    @property
    def bin_ns(self) -> float:
        """The length of a bin, in ns."""
        return float(self.edges_ns[1] - self.edges_ns[0])

    @property
    def middle_ms(self) -> Floats:
        """The middle of each bin in ms, shape (bins,)."""
        return np.round((self.begins_ns + self.bin_ns / 2) / 1e6, 4)

    def binned(
        self, t_ns: Ints, values: Floats, reduced: Callable[..., Floats] = np.nanmax
    ) -> Floats:
        """Return one value per bin: (samples, rows) becomes (rows, bins), NaN without samples.

        `reduced` makes one value of those of a bin.
        """
        bins = len(self.edges_ns) - 1
        grid = np.full((values.shape[1], bins), math.nan)
        bin_of = np.clip(np.searchsorted(self.edges_ns, t_ns, side="left") - 1, 0, bins - 1)
        for number in np.unique(bin_of):
            part = values[bin_of == number]
            known = ~np.isnan(part).all(axis=0)
            grid[known, number] = reduced(part[:, known], axis=0)
        return grid


def bins_of(times_ns: Sequence[Ints], maximum: int) -> Bins:
    """Return at most `maximum` bins for samples taken at each of `times_ns`, shapes (samples,)."""
    first, last = times_ns[0][0], min(float(t_ns[-1]) for t_ns in times_ns)
    samples = min(len(t_ns) for t_ns in times_ns)
    count, half_ns = min(maximum, samples), (last - first) / max(1, samples - 1) / 2
    return Bins(np.linspace(max(0.0, first - half_ns), last + half_ns + 1, count + 1))


def bins_between(times_ns: Sequence[Ints], maximum: int) -> Bins:
    """Return at most `maximum` bins between samples at `times_ns`, shapes (samples,).

    The first sample begins the first bin, and every bin ends with a sample.
    """
    first, last = float(times_ns[0][0]), min(float(t_ns[-1]) for t_ns in times_ns)
    count = min(maximum, min(len(t_ns) for t_ns in times_ns) - 1)
    return Bins(np.linspace(first, last + 1, count + 1))


def over_time(
    grids: Mapping[str, Floats],
    bins: Bins,
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
    """Return heat maps of grids (rows, bins) over time; `grids` and names of `rows` are by arm.

    `shades` turns a grid into the values of its colours; `says` stands before the value of a cell.
    """
    panels = {
        arm: {
            "x": bins.middle_ms,
            "y": rows[arm],
            "z": shades(grid).tolist(),
            "text": [["" if v != v else quantity(float(v), unit) for v in row] for row in grid],
        }
        for arm, grid in grids.items()
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
    """Return heat maps of one colour scale, one below the other, a panel per arm.

    `panels` is arm -> `x` and `y`, the names of columns and rows, the first row on top, and `z`
    and `text`, rows of columns; a `z` of None or NaN leaves its cell blank. `says` is the text of a
    cell after the arm's name. `scale` has the attributes of plotly.js' colour axis, with those of
    its bar in `colorbar`; the x axis has `below_pixels` below the panels.
    """
    rows = max(len(panel["y"]) for panel in panels.values())
    height = len(panels) * (row_pixels * rows + _NAME_PIXELS)
    figure = Figure(len(panels), gap=_NAME_PIXELS / height if len(panels) > 1 else 0)
    base_figure(height=height + _SCALE_PIXELS + below_pixels + 14, right=12, figure=figure)
    figure.update_layout({"margin": {"t": _SCALE_PIXELS, "b": below_pixels}})
    for row, (arm, panel) in enumerate(panels.items(), start=1):
        trace = heatmap(
            **panel,
            hovertemplate=f"{arm}{says}<extra></extra>",
            hoverongaps=False,
            ygap=1,
            coloraxis="coloraxis",
        )
        figure.add_trace(trace, row=row)
        at = {"x": 0, "xref": "paper", "y": figure.top(row), "yref": "paper"}
        write_name(figure, arm, colours[arm], **at, xanchor="left", yanchor="bottom")
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


def grid_data(grids: Mapping[str, Floats], bins: Bins, columns: Sequence[str]) -> Data:
    """Return grids (columns, bins) by arm as data: a row for each arm and bin of time."""
    lines = {arm: dict(zip(columns, grid.tolist(), strict=True)) for arm, grid in grids.items()}
    return lines_of("arm", lines, {"from_ns": bins.begins_ns.tolist()})


def sentence(clauses: Iterable[str]) -> str:
    """Return clauses as one sentence."""
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."
