"""The pictures of where two runs part: over time, and at which ports."""

from __future__ import annotations

import math

import numpy as np

from orchestration.analysis.comparison.result import ComparedCell
from orchestration.analysis.figure_parts import corner_name, named_rows, row_name
from orchestration.analysis.figure_style import (
    FAINT,
    INK,
    Colours,
    Picture,
    band,
    base_figure,
    line,
    size_ticks,
)
from orchestration.analysis.plot import Figure, scatter
from orchestration.analysis.words import quantity
from orchestration.model.units import format_duration, format_size

_PORTS = 10
# what -> its name, how to scale it, the unit's word on the axis
_ROWS = {
    "queued_bytes": ("bytes in all queues", 1e-3, "KB"),
    "utilisation": ("utilisation of all links", 100.0, "%"),
    "marked_share": ("packets marked", 100.0, "%"),
}


def timelines(cell: ComparedCell, colours: Colours) -> Picture | None:
    """Draw queues, utilisation and marks over time in both runs, each with its difference."""
    lines = cell.places.timelines
    if not lines:
        return None
    figure = Figure(2 * len(lines), heights=[0.6, 0.4] * len(lines), gap=0.025)
    base_figure(height=90 + 210 * len(lines), right=16, figure=figure)
    for number, aligned in enumerate(lines):
        title, scale, unit = _ROWS[aligned.name]
        t_ms = aligned.t_ns / 1e6
        row = 2 * number + 1
        for name, values in (("A", aligned.a), ("B", aligned.b)):
            trace = line(t_ms, scale * values, colours[name], 1.6)
            trace["hovertemplate"] = f"{name}: %{{y:.4g}} {unit} at %{{x:.2f}} ms<extra></extra>"
            figure.add_trace(trace, row=row)
        if np.isfinite(aligned.low).any():
            figure.add_trace(
                band(t_ms, scale * aligned.low, scale * aligned.high, INK), row=row + 1
            )
        trace = line(t_ms, scale * aligned.difference, INK, 1.4)
        trace["hovertemplate"] = f"B - A: %{{y:+.4g}} {unit}<extra></extra>"
        figure.add_trace(trace, row=row + 1)
        corner_name(figure, row, f"<b>{title}, {unit}</b>")
        corner_name(figure, row + 1, "B − A")
    parted = cell.places.parted_ns
    if math.isfinite(parted):
        figure.add_vline(x=parted / 1e6, line={"color": FAINT, "width": 1, "dash": "dash"})
    figure.update_xaxes(title="time since the start, ms", row=2 * len(lines))
    when = "Links and marks over time"
    if math.isfinite(parted):
        when = f"The queues part at {format_duration(parted)}"
    elif any(aligned.name == "queued_bytes" for aligned in lines):
        when = "The queues never part"
    return Picture(
        when,
        "Mean over repeats, on one clock. Black: B minus A, with its 95% interval where there are "
        "repeats. Dashed: where the queues first differ by a tenth for three samples on end.",
        figure,
    )


def ports(cell: ComparedCell, colours: Colours) -> Picture | None:
    """Draw the queues that differ most, their mean length in both runs."""
    gaps = [gap for gap in cell.places.ports if gap.gap_bytes][:_PORTS][::-1]
    if not gaps:
        return None
    figure = base_figure(height=86 + 34 * len(gaps))
    for row, gap in enumerate(gaps):
        ends = [gap.queue_a_bytes / 1e3, gap.queue_b_bytes / 1e3]
        figure.add_trace(line(ends, [row, row], FAINT, 2))
        for name, value, marked in zip(colours, ends, (gap.marked_a, gap.marked_b), strict=True):
            figure.add_trace(
                scatter(
                    x=[value],
                    y=[row],
                    mode="markers",
                    marker={"size": 11, "color": colours[name]},
                    hovertemplate=f"{name}, {gap.label}: {value:.1f} KB, "
                    f"{quantity(marked, 'count')} marks<extra></extra>",
                )
            )
        row_name(figure, row, gap.label)
    top = 1.05 * max(max(gap.queue_a_bytes, gap.queue_b_bytes) for gap in gaps)
    ticks = size_ticks(top)
    figure.update_xaxes(
        title="mean queue length",
        range=[-0.02 * top / 1e3, top / 1e3],
        tickvals=[tick / 1e3 for tick in ticks],
        ticktext=[format_size(tick) for tick in ticks],
    )
    named_rows(figure, [-0.6, len(gaps) - 0.2])
    most = cell.places.ports[0]
    return Picture(
        f"{most.label} differs most: {format_size(most.queue_a_bytes)} in A, "
        f"{format_size(most.queue_b_bytes)} in B",
        f"The {len(gaps)} queues whose mean length differs most, mean over repeats.",
        figure,
    )
