"""The report's pictures as plotly figures, apart from the page that shows them.

Colours are Okabe and Ito's, told apart by readers who confuse red and green; lines carry their
tuner's name. A picture's title says what to see in it, its caption how it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from orchestration.analysis.compare import Comparison
from orchestration.analysis.figure_style import (
    FAINT,
    INK,
    band,
    base_figure,
    end_labels,
    line,
    log_ticks,
    ratio_ticks,
    short,
)
from orchestration.analysis.metrics import METRIC, QUEUE_GRID_BYTES
from orchestration.analysis.summary import Arm, Condition
from orchestration.analysis.timeline import QueueTimelines, mean_bytes
from orchestration.analysis.words import extremes, quantity
from orchestration.model.units import format_size

Colours = dict[str, str]
_QUANTILE_NAMES = ("Median", "p95", "p99")


@dataclass(frozen=True)
class Picture:
    """A figure, what to see in it, and how it was made."""

    title: str
    caption: str
    figure: Any


def differences(comparisons: Sequence[Comparison], colours: Colours) -> Picture:
    """Draw one tuner's relative differences from the baseline, a row for each metric.

    On a log axis: half as much is as far from no difference as twice as much.
    """
    tuner, baseline = comparisons[0].tuner, comparisons[0].baseline
    drawn = [item for item in comparisons if item.difference.relative > -1][::-1]
    figure = base_figure(height=74 + 32 * len(drawn))
    ratios = [1.0]
    for item in drawn:
        difference, colour = item.difference, colours[tuner] if item.real else FAINT
        label, ratio = METRIC[item.metric].label, 1 + difference.relative
        ratios.append(ratio)
        if difference.relative_low > -1:
            ends = [1 + difference.relative_low, 1 + difference.relative_high]
            ratios += ends
            figure.add_trace(line(ends, [label, label], colour, 3))
        marker = {"size": 11, "color": colour if item.real else "white"}
        figure.add_trace(
            go.Scatter(
                x=[ratio],
                y=[label],
                mode="markers",
                marker={**marker, "line": {"color": colour, "width": 2}},
                hovertemplate=f"{label}: {100 * difference.relative:+.1f}%<br>{item.verdict}"
                "<extra></extra>",
            )
        )
    figure.add_vline(x=1, line={"color": INK, "width": 1})
    ticks = ratio_ticks(min(ratios), max(ratios))
    figure.update_xaxes(
        title=f"{tuner} against {baseline}",
        type="log",
        tickvals=ticks,
        ticktext=[f"{100 * (tick - 1):+.0f}%" if tick != 1 else "same" for tick in ticks],
    )
    figure.update_yaxes(showgrid=False)
    real = sum(item.real for item in comparisons)
    return Picture(
        f"{real} of {len(comparisons)} differences between {tuner} and {baseline} are real",
        f"Mean difference relative to {baseline}, paired by seed, with its 95% interval "
        "(Fieller's), on a log axis. Filled: p < 0.05 in a paired t-test after Holm's correction "
        f"for {comparisons[0].family} comparisons.",
        figure,
    )


def slowdown_by_size(condition: Condition, quantile: int, colours: Colours) -> Picture:
    """Draw one quantile of the slowdown against flow size, a line for each tuner."""
    arms = [arm for arm in condition.arms if arm.valid]
    sizes = arms[0].by_size.upto_bytes
    groups = np.arange(len(sizes))
    figure = base_figure(height=330, right=76)
    ends = {}
    for arm in arms:
        curve, colour = arm.by_size, colours[arm.tuner]
        figure.add_trace(band(groups, curve.low[:, quantile], curve.high[:, quantile], colour))
        trace = line(groups, curve.slowdown[:, quantile], colour)
        trace.update(
            mode="lines+markers",
            customdata=np.stack([curve.flows, curve.low[:, quantile], curve.high[:, quantile]], 1),
            hovertemplate=f"{arm.tuner}: %{{y:.2f}} (%{{customdata[1]:.2f}} to "
            "%{customdata[2]:.2f}), %{customdata[0]} flows<extra></extra>",
        )
        figure.add_trace(trace)
        ends[arm.tuner] = (len(sizes) - 1, float(curve.slowdown[-1, quantile]))
    high = max(float(np.nanmax(arm.by_size.high[:, quantile])) for arm in arms)
    low = min(float(np.nanmin(arm.by_size.low[:, quantile])) for arm in arms)
    end_labels(figure, ends, colours, (low, high))
    text = [f"≤{quantity(size, 'bytes')}" for size in sizes]
    figure.update_xaxes(title="flow size", tickvals=groups, ticktext=text, tickangle=-45)
    ticks = log_ticks(low, high)
    figure.update_yaxes(
        title="slowdown", type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks]
    )
    name = _QUANTILE_NAMES[quantile]
    return Picture(f"{name}: {_lowest(arms, quantile)}", "", figure)


def _lowest(arms: Sequence[Arm], quantile: int) -> str:
    """Return which tuner has the lowest line: `secn1 is lowest in 8 of 10 size groups`."""
    if len(arms) == 1:
        worst = int(np.argmax(arms[0].by_size.slowdown[:, quantile]))
        return (
            f"highest, {arms[0].by_size.slowdown[worst, quantile]:.2f}, for flows up to "
            f"{quantity(arms[0].by_size.upto_bytes[worst], 'bytes')}"
        )
    table = np.stack([arm.by_size.slowdown[:, quantile] for arm in arms])
    lowest = np.argmin(np.nan_to_num(table, nan=np.inf), axis=0)
    wins = np.bincount(lowest, minlength=len(arms))
    best = int(np.argmax(wins))
    return f"{arms[best].tuner} is lowest in {wins[best]} of {table.shape[1]} size groups"


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
            f"{arm.tuner}: above %{{x:.3s}}B %{{y:.2%}} of the time<extra></extra>"
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
        title="share of port samples above x",
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
        "Complementary distribution of the queue length over all switch ports and samples while "
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
    top = 1.08 * max(float(item.qlen_bytes.max(initial=1)) for item in lines)
    for row, item in enumerate(lines, start=1):
        colour = colours[item.tuner]
        trace = line(item.t_ns / 1e6, item.qlen_bytes, colour, 1.5)
        trace.update(fill="tozeroy", hovertemplate="%{x:.2f}ms: %{y:.3s}B<extra></extra>")
        figure.add_trace(trace, row=row, col=1)
        words = f"<b>{short(item.tuner)}</b>"
        if len(item.set_ns):
            end_ms = float(item.t_ns[-1]) / 1e6
            at_ms = [*(item.set_ns / 1e6), end_ms]
            for name, values in (("kmin", item.kmin_bytes), ("kmax", item.kmax_bytes)):
                steps = line(at_ms, [*values, values[-1]], INK, 1.2)
                steps.line.update(shape="hv", dash="dot" if name == "kmin" else "dash")
                steps.hovertemplate = f"{name} %{{y:.3s}}B<extra></extra>"
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
    figure.update_yaxes(range=[0, top], tickformat=".2s", ticksuffix="B", nticks=4)
    figure.update_xaxes(title="time since the start, ms", row=len(lines), col=1)
    return Picture(
        f"{queue.label} towards {queue.towards} holds {extremes(mean_bytes(queue), 'bytes')} on "
        "average",
        f"The busiest such queue, seed {queue.seed}, while flows arrived. Dotted: kmin, dashed: "
        "kmax, as read back from the queue.",
        figure,
    )


def _range(values: np.ndarray) -> str:
    low, high = (format_size(int(value)) for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def repeats(condition: Condition, key: str, title: str, colours: Colours) -> Picture:
    """Draw a metric's value in every valid repeat, its mean and 95 % interval, a row a tuner."""
    arms = [arm for arm in condition.arms if arm.valid][::-1]
    metric = METRIC[key]
    scale = {"ns": 1e-3, "share": 100.0}.get(metric.unit, 1.0)
    suffix = {"ns": "us", "share": "%", "bytes": "B"}.get(metric.unit, "")
    figure = base_figure(height=78 + 46 * len(arms))
    for seed in dict.fromkeys(trial.spec.seed for arm in arms for trial in arm.valid):
        same = [(trial, arm) for arm in arms for trial in arm.valid if trial.spec.seed == seed]
        joined = [scale * trial.metrics.scalars[key] for trial, _ in same]
        figure.add_trace(line(joined, [short(arm.tuner) for _, arm in same], "#c4c4c4", 1))
    for arm in arms:
        values = scale * np.array([trial.metrics.scalars[key] for trial in arm.valid])
        name, colour, estimate = short(arm.tuner), colours[arm.tuner], arm.estimates[key]
        if np.isfinite(estimate.low):
            ends = [scale * estimate.low, scale * estimate.high]
            figure.add_trace(line(ends, [name, name], colour, 5))
        figure.add_trace(
            go.Scatter(
                x=values,
                y=[name] * len(values),
                mode="markers",
                marker={"size": 9, "color": "white", "line": {"color": colour, "width": 2}},
                text=[f"seed {trial.spec.seed}" for trial in arm.valid],
                hovertemplate=f"%{{text}}: %{{x:.4g}}{suffix}<extra></extra>",
            )
        )
        figure.add_trace(
            go.Scatter(
                x=[scale * estimate.mean],
                y=[name],
                mode="markers",
                marker={"size": 13, "symbol": "diamond", "color": colour},
                hovertemplate=f"mean %{{x:.4g}}{suffix}<extra></extra>",
            )
        )
        bad = [trial for trial in arm.trials if not trial.stamp.valid]
        figure.add_trace(
            go.Scatter(
                x=[scale * trial.metrics.scalars[key] for trial in bad],
                y=[name] * len(bad),
                mode="markers",
                marker={"size": 9, "symbol": "x", "color": FAINT},
                text=[f"seed {trial.spec.seed}, invalid" for trial in bad],
                hovertemplate=f"%{{text}}: %{{x:.4g}}{suffix}<extra></extra>",
            )
        )
    figure.update_xaxes(title=f"{metric.label}, {suffix or 'times'}", rangemode="tozero")
    figure.update_yaxes(showgrid=False)
    means = {arm.tuner: arm.estimates[key].mean for arm in arms[::-1]}
    return Picture(title.format(extremes(means, metric.unit)), "", figure)


def marking_caption(condition: Condition) -> str:
    """Return what the backend says of its marking law, "" if it says nothing."""
    for arm in condition.arms:
        for trial in arm.valid:
            law = trial.facts.get("red")
            if isinstance(law, dict):
                return "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in law.items())
            if law:
                return str(law)
    return ""
