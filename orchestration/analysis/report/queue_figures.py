"""The report's pictures of queues: how long they are, how often, and when."""

from __future__ import annotations

import numpy as np
from plotly.subplots import make_subplots

from orchestration.analysis.figure_style import (
    INK,
    Colours,
    Picture,
    band,
    base_figure,
    line,
    log_ticks,
    short,
    size_ticks,
)
from orchestration.analysis.metrics import QUEUE_GRID_BYTES
from orchestration.analysis.summary import Condition
from orchestration.analysis.timeline import QueueTimelines, mean_bytes
from orchestration.analysis.words import extremes
from orchestration.model.units import format_size


def queue_distribution(condition: Condition, colours: Colours) -> Picture:
    """Draw how often a queue is longer than x, as a mean over repeats and their range."""
    arms = [arm for arm in condition.arms if arm.valid]
    figure = base_figure(height=360, right=20)
    figure.update_layout(hovermode="closest")
    floor, longest = 1.0, 2e3
    for number, arm in enumerate(arms):
        shares = np.stack([trial.metrics.queue_ccdf for trial in arm.valid])[:, 1:]
        mean = shares.mean(axis=0)
        grid, colour = QUEUE_GRID_BYTES[1:], colours[arm.tuner]
        seen = mean > 0
        if not seen.any():
            continue
        floor = min(floor, float(mean[seen].min()))
        longest = max(longest, float(grid[seen][-1]))
        x, low, high = grid[seen], shares.min(axis=0)[seen], shares.max(axis=0)[seen]
        figure.add_trace(band(x, np.maximum(low, floor), high, colour))
        trace = line(x, mean[seen], colour)
        trace.hovertemplate = (
            f"{arm.tuner}: above %{{x:,.0f}} B %{{y:.2%}} of the time<extra></extra>"
        )
        figure.add_trace(trace)
        # where the curve falls through a level of its own, so that the names do not meet
        level = float(mean[seen][0]) * 10 ** (-0.5 - 0.35 * number)
        place = min(int(np.searchsorted(-mean[seen], -level)), int(seen.sum()) - 1)
        figure.add_annotation(
            x=np.log10(x[place]),
            y=np.log10(mean[seen][place]),
            text=f"<b>{short(arm.tuner)}</b>",
            font={"color": colour, "size": 13},
            xanchor="left",
            xshift=6,
            yshift=6,
            showarrow=False,
            bgcolor="rgba(255,255,255,0.75)",
        )
    decades = 10.0 ** np.arange(np.floor(np.log10(floor)), 1)
    figure.update_yaxes(
        title="share of queue samples above x",
        type="log",
        range=[np.log10(floor) - 0.1, 0.02],
        tickvals=decades,
        ticktext=[f"{100 * share:g}%" for share in decades],
    )
    sizes = log_ticks(1e3, longest * 1.3)
    figure.update_xaxes(
        title="queue length",
        type="log",
        range=[3, np.log10(longest * 1.3)],
        tickvals=sizes,
        ticktext=[format_size(size) for size in sizes],
    )
    p99 = {arm.tuner: arm.estimates["queue_p99_bytes"].mean for arm in arms}
    return Picture(
        f"1% of the time a queue is longer than {extremes(p99, 'bytes')}",
        "Complementary distribution of the queue length over all switch queues and samples while "
        "flows arrived. Line: mean over repeats; band: their lowest and highest.",
        figure,
    )


def queue_timeline(queue: QueueTimelines, colours: Colours) -> Picture:
    """Draw one queue over time, a row for each tuner, with the thresholds that held."""
    lines = queue.timelines
    figure = make_subplots(
        rows=len(lines), cols=1, shared_xaxes=True, shared_yaxes="all", vertical_spacing=0.05
    )
    base_figure(height=90 + 130 * len(lines), right=16, figure=figure)
    top = 1.2 * max(float(item.qlen_bytes.max(initial=1)) for item in lines)
    for row, item in enumerate(lines, start=1):
        colour = colours[item.tuner]
        trace = line(item.t_ns / 1e6, item.qlen_bytes, colour, 1.5)
        trace.update(fill="tozeroy", hovertemplate="%{x:.2f} ms: %{y:,} B<extra></extra>")
        figure.add_trace(trace, row=row, col=1)
        words = f"<b>{short(item.tuner)}</b>"
        if len(item.set_ns):
            end_ms = float(item.t_ns[-1]) / 1e6
            at_ms = [*(item.set_ns / 1e6), end_ms]
            for name, values in (("kmin", item.kmin_bytes), ("kmax", item.kmax_bytes)):
                steps = line(at_ms, [*values, values[-1]], INK, 1.2)
                steps.line.update(shape="hv", dash="dot" if name == "kmin" else "dash")
                steps.hovertemplate = f"{name} %{{y:,}} B<extra></extra>"
                figure.add_trace(steps, row=row, col=1)
                beyond = " (off the scale)" if values.min() > top else ""
                words += f", {name} {_range(values)}{beyond}"
        figure.add_annotation(
            x=0.005,
            y=0.99,
            xref="x domain",
            yref="y domain",
            text=words,
            font={"color": colour, "size": 12},
            xanchor="left",
            yanchor="top",
            showarrow=False,
            bgcolor="rgba(255,255,255,0.75)",
            row=row,
            col=1,
        )
    ticks = size_ticks(top)
    figure.update_yaxes(
        range=[0, top], tickvals=ticks, ticktext=[format_size(tick) for tick in ticks]
    )
    figure.update_xaxes(title="time since the start, ms", row=len(lines), col=1)
    return Picture(
        f"{queue.label} towards {queue.towards} holds {extremes(mean_bytes(queue), 'bytes')} on "
        "average",
        f"The busiest queue {queue.kind} of repeat {queue.repeat}, while flows arrived. Dotted: "
        "kmin, dashed: kmax, as read back from the queue.",
        figure,
    )


def _range(values: np.ndarray) -> str:
    low, high = (format_size(int(value)) for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"
