"""The figure of throughput over time: of chosen flows, or of the busiest port; a panel per arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from orchestration.analysis.figure_parts import corner_name, time_axis
from orchestration.analysis.report.selection import ShownRepeat
from orchestration.analysis.throughput import Throughput, throughput_over_time
from orchestration.core.records import Floats, Ints
from orchestration.render.figure import Figure
from orchestration.render.figure_style import Colours, base_figure, line, readable, short
from orchestration.render.numbers import extremes, quantity
from orchestration.render.page import CaptionedFigure, rows_of

_FLOWS = 6
# The lines of chosen flows: the slowest is what a reader looks for.
_WIDTHS = {"largest": 1.6, "slowest": 2.6, "fastest": 1.0, "busiest": 1.6}


def throughput_figure(shown: ShownRepeat, points: int, colours: Colours) -> CaptionedFigure | None:
    """Draw the throughput of chosen flows or of the busiest port; None if nothing was sampled."""
    drawn = {arm: throughput_over_time(one, _FLOWS) for arm, one in shown.by_arm.items()}
    drawn = {arm: lines for arm, lines in drawn.items() if lines}
    # an import may have queues and no bytes that were sent
    if not any(one.mean_bps > 0 for lines in drawn.values() for one in lines):
        return None
    top = max(float(np.nanmax(one.bps, initial=0.0)) for lines in drawn.values() for one in lines)
    figure = Figure(len(drawn), gap=0.05, same_y=True)
    base_figure(height=90 + 130 * len(drawn), right=16, figure=figure)
    for row, (arm, lines) in enumerate(drawn.items(), start=1):
        for one in lines:
            t_ns, bps = _reduced(one, points)
            trace = line(t_ns / 1e6, bps / 1e9, colours[arm], _WIDTHS[one.choice])
            of = f"{one.choice}, {one.pattern}: " if one.pattern else ""
            words = f"{of}{one.name}, %{{x:.2f}} ms: %{{y:.2f}} Gbps"
            trace["hovertemplate"] = f"{words}<extra></extra>"
            figure.add_trace(trace, row=row)
        corner_name(figure, row, f"<b>{short(arm)}</b>", readable(colours[arm]))
    figure.update_yaxes(title="Gbps", range=[0, 1.25 * (top or 1.0) / 1e9])
    time_axis(figure, len(drawn))
    return CaptionedFigure(
        _title(drawn),
        f"{_caption(next(iter(drawn.values())))} Repeat {shown.repeat}.",
        figure,
        "throughput",
        rows_of(
            {
                "arm": arm,
                "choice": one.choice,
                "name": one.name,
                "pattern": one.pattern,
                "t_ns": int(t_ns),
                "bps": float(bps),
            }
            for arm, lines in drawn.items()
            for one in lines
            for t_ns, bps in zip(one.t_ns, one.bps, strict=True)
            if math.isfinite(bps)
        ),
    )


def _reduced(one: Throughput, points: int) -> tuple[Ints, Floats]:
    """Return at most `points` points of a line: means of neighbours, so that no byte is lost."""
    each = -(-len(one.bps) // points)
    if each < 2:
        return one.t_ns, one.bps
    starts = np.arange(0, len(one.bps), each)
    count = np.add.reduceat(np.isfinite(one.bps), starts)
    total = np.add.reduceat(np.nan_to_num(one.bps), starts)
    ends = np.minimum(starts + each, len(one.bps)) - 1
    return one.t_ns[ends], np.where(count > 0, total / np.maximum(count, 1), math.nan)


def _title(drawn: Mapping[str, Sequence[Throughput]]) -> str:
    first = next(iter(drawn.values()))[0]
    if first.choice == "busiest":
        means = {arm: lines[0].mean_bps for arm, lines in drawn.items()}
        return f"The busiest port carries {extremes(means, 'bps')} on average"
    slowest = {arm: min(one.mean_bps for one in lines) for arm, lines in drawn.items()}
    return f"The slowest of the chosen flows gets {extremes(slowest, 'bps')} on average"


def _caption(lines: Sequence[Throughput]) -> str:
    if lines[0].choice == "busiest":
        rate = quantity(lines[0].line_bps, "bps")
        return f"All bytes that the busiest port sent, headers included; its rate is {rate}."
    return (
        "Payload that was acknowledged, of up to six flows: the largest of each pattern, then the "
        "slowest (thick) and the fastest (thin) of those that compete."
    )
