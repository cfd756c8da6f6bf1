"""The report's pictures as plotly figures, apart from the page that shows them.

Colours are Okabe and Ito's, told apart by readers who confuse red and green; lines carry their
tuner's name. A picture's title says what to see in it, its caption how it was made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from orchestration.analysis.compare import Comparison
from orchestration.analysis.figure_style import (
    FAINT,
    INK,
    Colours,
    Picture,
    band,
    base_figure,
    end_labels,
    line,
    log_ticks,
    padded,
    ratio_ticks,
    short,
)
from orchestration.analysis.metrics import METRIC, Unit
from orchestration.analysis.summary import Arm, Condition
from orchestration.analysis.words import extremes, quantity

_QUANTILE_NAMES = ("Median", "p95", "p99")


def differences(comparisons: Sequence[Comparison], colours: Colours) -> Picture:
    """Draw one tuner's relative differences from the baseline, a row for each metric.

    On a log axis: half as much is as far from no difference as twice as much.
    """
    tuner, baseline = comparisons[0].tuner, comparisons[0].baseline
    drawn = [item for item in comparisons if item.difference.relative > -1][::-1]
    figure = base_figure(height=74 + 40 * len(drawn))
    ratios = [1.0]
    for row, item in enumerate(drawn):
        difference, colour = item.difference, colours[tuner] if item.real else FAINT
        label, ratio = METRIC[item.metric].label, 1 + difference.relative
        ratios.append(ratio)
        if difference.relative_low > -1:
            ends = [1 + difference.relative_low, 1 + difference.relative_high]
            ratios += ends
            figure.add_trace(line(ends, [row, row], colour, 3))
        marker = {"size": 11, "color": colour if item.real else "white"}
        figure.add_trace(
            go.Scatter(
                x=[ratio],
                y=[row],
                mode="markers",
                marker={**marker, "line": {"color": colour, "width": 2}},
                hovertemplate=f"{label}: {100 * difference.relative:+.1f}%<br>{item.verdict}"
                "<extra></extra>",
            )
        )
        figure.add_annotation(
            x=0,
            xref="paper",
            xanchor="left",
            y=row,
            yshift=15,
            text=label,
            showarrow=False,
            bgcolor="white",
        )
    figure.add_vline(x=1, line={"color": INK, "width": 1})
    ticks = ratio_ticks(min(ratios), max(ratios))
    figure.update_xaxes(
        title=f"{tuner} against {baseline}",
        type="log",
        range=padded([math.log10(ratio) for ratio in ratios]),
        tickvals=ticks,
        ticktext=[f"{100 * (tick - 1):+.0f}%" if tick != 1 else "same" for tick in ticks],
        tickangle=0,
    )
    figure.update_yaxes(
        showgrid=False, showticklabels=False, ticks="", range=[-0.5, len(drawn) - 0.3]
    )
    figure.update_layout(margin_l=12)
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
    figure.update_xaxes(
        title="flow size",
        tickvals=groups,
        ticktext=text,
        tickangle=-45,
        range=[-0.4, len(sizes) - 0.6],
    )
    ticks = log_ticks(low, high)
    figure.update_yaxes(
        title="slowdown", type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks]
    )
    name = _QUANTILE_NAMES[quantile]
    return Picture(f"{name}: {_lowest(arms, quantile)}", "", figure)


def _lowest(arms: Sequence[Arm], quantile: int) -> str:
    """Return which tuner is lowest where bands are apart: `secn1 is lowest in 8 of 10 groups`."""
    curves = [arm.by_size for arm in arms]
    if len(arms) == 1:
        worst = int(np.argmax(curves[0].slowdown[:, quantile]))
        size = quantity(curves[0].upto_bytes[worst], "bytes")
        return f"highest, {curves[0].slowdown[worst, quantile]:.2f}, for flows up to {size}"
    low = np.stack([curve.low[:, quantile] for curve in curves])
    high = np.stack([curve.high[:, quantile] for curve in curves])
    clear = [
        int(np.count_nonzero((high[arm] < np.delete(low, arm, axis=0)).all(axis=0)))
        for arm in range(len(arms))
    ]
    best = int(np.argmax(clear))
    if not clear[best]:
        return "no tuner is clearly lowest in any size group"
    return f"{arms[best].tuner} is clearly lowest in {clear[best]} of {low.shape[1]} size groups"


def repeats(condition: Condition, key: str, title: str, colours: Colours) -> Picture:
    """Draw a metric's value in every valid repeat, its mean and 95 % interval, a row a tuner."""
    arms = [arm for arm in condition.arms if arm.valid][::-1]
    metric = METRIC[key]
    drawn = [trial.metrics.scalars[key] for arm in arms for trial in arm.trials]
    drawn += [end for arm in arms for end in (arm.estimates[key].low, arm.estimates[key].high)]
    scale, suffix = _scale(metric.unit, max(filter(math.isfinite, drawn), default=0.0))
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
                text=[f"repeat {trial.spec.repeat}" for trial in arm.valid],
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
                text=[f"repeat {trial.spec.repeat}, invalid" for trial in bad],
                hovertemplate=f"%{{text}}: %{{x:.4g}}{suffix}<extra></extra>",
            )
        )
    figure.update_xaxes(
        title=f"{metric.label}{f', {suffix}' if suffix else ''}",
        range=padded([scale * value for value in drawn]),
    )
    figure.update_yaxes(showgrid=False, range=[-0.6, len(arms) - 0.4])
    means = {arm.tuner: arm.estimates[key].mean for arm in arms[::-1]}
    return Picture(title.format(extremes(means, metric.unit)), "", figure)


def _scale(unit: Unit, highest: float) -> tuple[float, str]:
    """Return what to multiply by, and the unit to write on the axis."""
    if unit == "ns":
        return (1e-6, "ms") if highest >= 1e7 else (1e-3, "us")
    return {"share": (100.0, "%"), "bytes": (1e-3, "KB")}.get(unit, (1.0, ""))
