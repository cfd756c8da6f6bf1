"""The figures of a comparison: all metrics, distributions, flow sizes, ports and timelines."""

from __future__ import annotations

import math

import numpy as np

from orchestration.analysis.comparison import sentences
from orchestration.analysis.comparison.equivalence import DIFFERENT, EQUIVALENT
from orchestration.analysis.comparison.estimates import mean_distribution
from orchestration.analysis.comparison.hypothesis_tests import MetricVerdict
from orchestration.analysis.comparison.result import ComparedCell
from orchestration.analysis.figure_parts import (
    corner_name,
    estimate_row,
    flow_size_axis,
    log_axis,
    named_rows,
    queue_share_axes,
    ratio_axes,
    row_name,
    time_axis,
)
from orchestration.analysis.metrics import METRICS, QUEUE_WASSERSTEIN, SLOWDOWN_WASSERSTEIN
from orchestration.analysis.port_metrics import queue_span
from orchestration.core.records import Floats
from orchestration.core.units import format_duration, format_size
from orchestration.render.figure import Figure, scatter
from orchestration.render.figure_style import (
    FAINT,
    INK,
    Colours,
    band,
    base_figure,
    line,
    padded,
    size_ticks,
)
from orchestration.render.numbers import quantity
from orchestration.render.page import CaptionedFigure

_MARGIN_COLOUR = "#e3efe3"
# Axes of ratios end at this factor; values beyond it are drawn at the end.
_WIDEST = 8.0


def forest(cell: ComparedCell, colour: str) -> CaptionedFigure:
    """Draw each metric's relative difference with its interval, over its margin."""
    drawn = [item for item in cell.metrics if math.isfinite(item.interval.relative)][::-1]
    figure = base_figure(height=86 + 34 * len(drawn))
    ends = [1.0]
    for row, item in enumerate(drawn):
        ends += _margin(figure, row, item)
        ends += _estimate(figure, row, item, colour)
    ratio_axes(figure, "B against A", ends, [-0.6, len(drawn) - 0.2])
    count = sum(item.verdict == DIFFERENT for item in drawn)
    return CaptionedFigure(
        f"{count} of {len(drawn)} metrics {'differs' if count == 1 else 'differ'} by more than "
        f"{'its' if count == 1 else 'their'} margin",
        "Difference relative to A with its 95% interval, on a log axis. Green: the margin. Filled "
        "points: different. Open points in colour: equivalent. Grey points: not enough data. A "
        "distance between distributions is never below 0.",
        figure,
    )


def _margin(figure: Figure, row: int, item: MetricVerdict) -> list[float]:
    """Draw the margin of a row; return its ends as ratios."""
    relative, base = item.interval.relative, 1.0
    if item.metric.distance != "cdf":  # the value to which a relative difference refers
        base = item.interval.difference / relative if relative else item.allowed / item.margin
    share = item.allowed / base if base else math.inf
    if not math.isfinite(share):
        return []
    low = 1.0 if item.metric.distance else max(1 / _WIDEST, 1 - share)
    high = min(_WIDEST, 1 + share)
    shape = {"y0": row - 0.38, "y1": row + 0.3, "line": {"width": 0}, "fillcolor": _MARGIN_COLOUR}
    figure.add_shape(type="rect", x0=low, x1=high, layer="below", **shape)
    return [low, high]


def _estimate(figure: Figure, row: int, item: MetricVerdict, colour: str) -> list[float]:
    interval = item.interval
    shade = FAINT if item.verdict not in (DIFFERENT, EQUIVALENT) else colour
    ratio = _within(1 + interval.relative)
    bounds = (interval.relative_low, interval.relative_high)
    ends = [_within(1 + end) for end in bounds] if math.isfinite(bounds[0]) else []
    says = f"{item.metric.short_label}: {sentences.difference(item)}<br>{item.verdict}"
    estimate_row(figure, row, ratio, ends, shade, filled=item.verdict == DIFFERENT, says=says)
    row_name(figure, row, item.metric.short_label)
    return [ratio, *ends]


def _within(ratio: float) -> float:
    return min(_WIDEST, max(1 / _WIDEST, ratio))


def slowdown_cdf(cell: ComparedCell, colours: Colours) -> CaptionedFigure | None:
    """Draw the slowdown distributions of both runs."""
    distribution = mean_distribution(cell.pairs, METRICS[SLOWDOWN_WASSERSTEIN])
    if distribution is None:
        return None
    edges, *shares = distribution
    figure = base_figure(height=340)
    top = 1.0
    for name, share in zip(colours, shares, strict=True):
        kept = _changes(share)
        trace = line(edges[kept], share[kept], colours[name])
        trace["line"]["shape"] = "hv"
        trace["hovertemplate"] = f"{name}: %{{y:.1%}} up to %{{x:.2f}}<extra></extra>"
        figure.add_trace(trace)
        top = max(top, float(edges[np.searchsorted(share, 0.9999)]))
    low = float(edges[min(np.searchsorted(share, 1e-6) for share in shares)])
    gaps = np.abs(shares[1] - shares[0])
    worst = int(np.argmax(gaps))
    if gaps[worst] > 0:
        at = [float(edges[worst])] * 2
        figure.add_trace(line(at, [float(s[worst]) for s in shares], INK, 2))
    figure.update_xaxes(type="log", range=[math.log10(low), math.log10(top * 1.05)])
    figure.update_xaxes(**log_axis("slowdown", low, top))
    figure.update_yaxes(title="share of flows up to x", range=[0, 1.01], tickformat=".0%")
    widest = (
        f" The widest gap is {100 * gaps[worst]:.1f} percentage points, at {edges[worst]:.2f} "
        "(black: the Kolmogorov-Smirnov distance)."
    )
    return CaptionedFigure(
        f"Half of the flows have a slowdown of up to {_median(edges, shares[0])} in A, "
        f"{_median(edges, shares[1])} in B",
        "Distribution of the slowdown over all flows, mean over repeats."
        + (widest if gaps[worst] > 0 else ""),
        figure,
    )


def _median(edges: Floats, share: Floats) -> str:
    return f"{edges[min(int(np.searchsorted(share, 0.5)), len(edges) - 1)]:.2f}"


def _changes(share: Floats) -> np.ndarray:
    """Return the points where a distribution rises, and their neighbours, to drop flat parts."""
    rises = np.diff(share, prepend=share[0], append=share[-1]) != 0
    return np.flatnonzero(rises[:-1] | rises[1:])


def queue_ccdf(cell: ComparedCell, colours: Colours) -> CaptionedFigure | None:
    """Draw the share of queue samples longer than x in both runs."""
    distribution = mean_distribution(cell.pairs, METRICS[QUEUE_WASSERSTEIN])
    if distribution is None:
        return None
    edges, *shares = distribution
    span = queue_span(cell.pairs[0].a.trial.facts)
    figure = base_figure(height=340)
    floor, longest = 0.1, 2e3
    for name, share in zip(colours, shares, strict=True):
        above = np.maximum(1 - share, 0)
        kept = np.intersect1d(_changes(share), np.flatnonzero((above > 1e-9) & (edges > 0)))
        if not len(kept):
            continue
        floor, longest = min(floor, above[kept].min()), max(longest, float(edges[kept[-1]]))
        trace = line(edges[kept], above[kept], colours[name])
        trace["hovertemplate"] = f"{name}: above %{{x:,.0f}} B %{{y:.2%}} of samples<extra></extra>"
        figure.add_trace(trace)
    if not figure.data:  # no queue ever held anything
        return None
    queue_share_axes(figure, floor, longest, room=1.3)
    p99 = [float(edges[int(np.searchsorted(share, 0.99))]) for share in shares]
    return CaptionedFigure(
        f"1% of the time a queue is longer than {quantity(p99[0], 'bytes')} in A, "
        f"{quantity(p99[1], 'bytes')} in B"
        if any(p99)
        else "Queues are empty 99% of the time or more",
        f"All switch queues and samples {span or 'while flows arrived'}, mean over repeats.",
        figure,
    )


def by_size(cell: ComparedCell, colours: Colours) -> list[CaptionedFigure]:
    """Draw the mean slowdown by flow size in both runs, and its relative difference."""
    sizes = cell.subgroups.sizes
    if not sizes:
        return []
    groups = np.arange(len(sizes))
    both = base_figure(height=330)
    columns = ([group.a for group in sizes], [group.b for group in sizes])
    for name, values in zip(colours, columns, strict=True):
        trace = line(groups, values, colours[name])
        trace.update(mode="lines+markers", hovertemplate=f"{name}: %{{y:.2f}}<extra></extra>")
        both.add_trace(trace)
    every = [value for column in columns for value in column]
    both.update_yaxes(**log_axis("mean slowdown", min(every), max(every)))
    relative = base_figure(height=330)
    middle, low, high = (
        100 * np.array([getattr(group.interval, name) for group in sizes])
        for name in ("relative", "relative_low", "relative_high")
    )
    margin = 100 * next(
        (item.margin for item in cell.metrics if item.metric.family == "slowdown_mean"), 0.1
    )
    ends = np.array([-0.5, len(sizes) - 0.5])
    relative.add_trace(band(ends, np.full(2, -margin), np.full(2, margin), "#009E73"))
    trace = line(groups, middle, colours["B"])
    trace.update(
        mode="markers",
        marker={"size": 10, "color": colours["B"]},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": np.nan_to_num(high - middle),
            "arrayminus": np.nan_to_num(middle - low),
            "color": colours["B"],
            "thickness": 2,
        },
        customdata=[group.flows for group in sizes],
        hovertemplate="%{y:+.1f}%, %{customdata} flows<extra></extra>",
    )
    relative.add_trace(trace)
    relative.add_hline(y=0, line={"color": INK, "width": 1})
    shown = np.clip(np.concatenate([middle, low, high, [-margin, margin]]), -100, 300)
    relative.update_yaxes(title="B against A, %", range=padded(shown.tolist()))
    for figure in (both, relative):
        flow_size_axis(figure, [group.upto_bytes for group in sizes], room=0.5)
    sure = sum(group.surely_differs for group in sizes)
    return [
        CaptionedFigure(
            "Mean slowdown by flow size", "Each point is about a tenth of all flows.", both
        ),
        CaptionedFigure(
            f"In {sure} of {len(sizes)} groups of flow sizes the interval excludes 0",
            "Relative difference of the mean slowdown with its 95% interval, which is not "
            "corrected for the number of groups. Green: the margin.",
            relative,
        ),
    ]


_PORTS = 10
# quantity -> (name, scale factor, unit on the axis)
_ROWS = {
    "queued_bytes": ("bytes in all queues", 1e-3, "KB"),
    "utilisation": ("utilisation of all links", 100.0, "%"),
    "marked_share": ("packets marked", 100.0, "%"),
}


def timelines(cell: ComparedCell, colours: Colours) -> CaptionedFigure | None:
    """Draw queues, utilisation and marks over time in both runs, each with the difference."""
    lines = cell.subgroups.timelines
    if not lines:
        return None
    figure = Figure(2 * len(lines), heights=[0.6, 0.4] * len(lines), gap=0.025)
    base_figure(height=90 + 210 * len(lines), right=16, figure=figure)
    for number, aligned in enumerate(lines):
        name_of_row, scale, unit = _ROWS[aligned.name]
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
        corner_name(figure, row, f"<b>{name_of_row}, {unit}</b>")
        corner_name(figure, row + 1, "B − A")
    parted = cell.subgroups.diverged_ns
    if math.isfinite(parted):
        figure.add_vline(x=parted / 1e6, line={"color": FAINT, "width": 1, "dash": "dash"})
    time_axis(figure, 2 * len(lines))
    title = "Links and marks over time"
    if math.isfinite(parted):
        title = f"The queues first differ at {format_duration(parted)}"
    elif any(aligned.name == "queued_bytes" for aligned in lines):
        title = "The queues never differ"
    return CaptionedFigure(
        title,
        "Mean over repeats at the same times. Black: B minus A, with its 95% interval if there are "
        "several pairs. Dashed: when the queues first differ by a tenth for three samples in a "
        "row.",
        figure,
    )


def ports(cell: ComparedCell, colours: Colours) -> CaptionedFigure | None:
    """Draw the mean lengths of the queues that differ most between the runs."""
    gaps = [gap for gap in cell.subgroups.ports if gap.gap_bytes][:_PORTS][::-1]
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
    maximum = cell.subgroups.ports[0]
    return CaptionedFigure(
        f"{maximum.label} differs most: {format_size(maximum.queue_a_bytes)} in A, "
        f"{format_size(maximum.queue_b_bytes)} in B",
        f"The {len(gaps)} queues whose mean length differs most, mean over repeats.",
        figure,
    )
