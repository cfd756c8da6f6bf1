"""The report's figures of flows: slowdown and FCT by size, and their distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from orchestration.analysis.figure_parts import flow_size_axis, log_axis
from orchestration.analysis.report.selection import shown_arms
from orchestration.analysis.sequential import InterimAnalysis
from orchestration.analysis.statistics import Estimate, t_interval
from orchestration.analysis.summary import Arm, Condition
from orchestration.core.records import Floats
from orchestration.render.figure_style import (
    Colours,
    band,
    base_figure,
    curve,
    end_labels,
    label_room,
    name_line,
)
from orchestration.render.numbers import Unit, interval, quantity
from orchestration.render.page import CaptionedFigure, lines_of

_QUANTILE_NAMES = ("Median", "p95", "p99")
# column of a trial's metrics -> name of the data, verb, unit, title of the axis
_DISTRIBUTIONS: dict[str, tuple[str, str, Unit, str]] = {
    "slowdown": ("slowdown", "have a slowdown of", "ratio", "slowdown"),
    "fct_ns": ("fct", "take", "ns", "flow completion time"),
}
# Shares at which distributions are drawn, finer near 1.
_SHARES = np.concatenate((np.linspace(0, 0.98, 50), np.linspace(0.985, 1, 16)))


def slowdown_by_size(condition: Condition, quantile: int, colours: Colours) -> CaptionedFigure:
    """Draw one quantile of the slowdown over flow size, a line per arm."""
    arms = shown_arms(condition)
    curves = {}
    for arm in arms:
        size = arm.by_size
        ends = (part[:, quantile] for part in (size.slowdown, size.low, size.high))
        curves[arm.name] = np.stack([*ends, size.flows])
    name = _QUANTILE_NAMES[quantile]
    return _by_size(
        arms,
        curves,
        colours,
        "ratio",
        title=f"{name}: {_lowest(arms, quantile)}",
        how="Band: 95% bootstrap interval over repeats and flows. Clearly lowest: the "
        "whole band is below all other bands.",
        name=f"slowdown-by-size-{name.lower()}",
    )


def fct_by_size(condition: Condition, colours: Colours) -> CaptionedFigure:
    """Draw the mean FCT over flow size, a line per arm."""
    arms = shown_arms(condition)
    curves = {arm.name: _mean_fcts(arm, condition.interim) for arm in arms}
    spans = (
        f"{interval(values[0, 0], values[0, -1], 'ns')} with {arm}"
        for arm, values in list(curves.items())[:2]
    )
    return _by_size(
        arms,
        curves,
        colours,
        "ns",
        title=f"Mean FCT, smallest to largest flows: {', '.join(spans)}",
        how="Band: Student's 95% interval over the repeats' means.",
        name="fct-by-size",
    )


def _mean_fcts(arm: Arm, interim: InterimAnalysis) -> Floats:
    """Return mean, low, high and number of flows of each size group, shape (4, groups)."""
    edges = arm.by_size.upto_bytes
    groups = [np.searchsorted(edges, trial.metrics.size_bytes) for trial in arm.valid]
    columns = []
    for group in range(len(edges)):
        means = [
            float(trial.metrics.fct_ns[of_trial == group].mean())
            for trial, of_trial in zip(arm.valid, groups, strict=True)
            if (of_trial == group).any()
        ]
        estimate: Estimate = t_interval(means, interim)
        low = estimate.low if estimate.low > 0 else math.nan  # a log axis cannot show 0
        columns.append((estimate.mean, low, estimate.high, arm.by_size.flows[group]))
    return np.array(columns).T


def _by_size(
    arms: Sequence[Arm],
    curves: dict[str, Floats],
    colours: Colours,
    unit: Unit,
    *,
    title: str,
    how: str,
    name: str,
) -> CaptionedFigure:
    """Draw curves of shape (4: mean, low, high, flows; groups) over the size groups."""
    axis, column = ("mean FCT", "mean_fct") if unit == "ns" else ("slowdown", "slowdown")
    sizes = arms[0].by_size.upto_bytes
    groups = np.arange(len(sizes))
    figure = base_figure(height=330, right=label_room(curves))
    ends = {}
    for arm, (mean, low, high, flows) in curves.items():
        colour = colours[arm]
        figure.add_trace(band(groups, low, high, colour))
        trace = curve(groups, mean, colour)
        trace.update(
            mode="lines+markers",
            text=[
                f"{quantity(mean[at], unit)} ({interval(low[at], high[at], unit)}), "
                f"{flows[at]:.0f} flows"
                for at in groups
            ],
            hovertemplate=f"{arm}: %{{text}}<extra></extra>",
        )
        figure.add_trace(trace)
        ends[arm] = (len(sizes) - 1, math.log10(mean[-1]))
    every = np.stack(list(curves.values()))[:, :3]
    low_end, high_end = float(np.nanmin(every)), float(np.nanmax(every))
    end_labels(figure, ends, colours, math.log10(high_end / low_end))
    flow_size_axis(figure, sizes, room=0.4)
    figure.update_yaxes(**log_axis(axis, low_end, high_end, unit))
    suffix = "_ns" if unit == "ns" else ""
    names = [f"{column}{suffix}" for column in (column, "low", "high")]
    columns = {
        arm: {
            "flows": flows.astype(int).tolist(),
            **dict(zip(names, (mean.tolist(), low.tolist(), high.tolist()), strict=True)),
        }
        for arm, (mean, low, high, flows) in curves.items()
    }
    return CaptionedFigure(
        title,
        f"{_widest_gap(curves, sizes, unit)} {how}",
        figure,
        name,
        lines_of("arm", columns, {"upto_bytes": [int(size) for size in sizes]}),
    )


def _widest_gap(curves: dict[str, Floats], sizes: Floats, unit: Unit) -> str:
    """Return where the highest and the lowest line differ most."""
    means = np.stack([values[0] for values in curves.values()])
    if len(means) == 1:
        return ""
    ratio = np.nanmax(means, axis=0) / np.nanmin(means, axis=0)
    at = int(np.nanargmax(ratio))
    names = list(curves)
    low, high = int(np.nanargmin(means[:, at])), int(np.nanargmax(means[:, at]))
    return (
        f"The widest gap is for flows up to {quantity(sizes[at], 'bytes')}: "
        f"{quantity(means[low, at], unit)} with {names[low]}, {quantity(means[high, at], unit)} "
        f"with {names[high]}."
    )


def _lowest(arms: Sequence[Arm], quantile: int) -> str:
    """Return which arm is clearly lowest, and how often: `secn1 is lowest in 8 of 10 groups`."""
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
        return "no arm is clearly lowest in any size group"
    return f"{arms[best].name} is clearly lowest in {clear[best]} of {low.shape[1]} size groups"


def cdf(
    condition: Condition, column: Literal["slowdown", "fct_ns"], colours: Colours
) -> CaptionedFigure:
    """Draw the share of flows with a slowdown, or a completion time, of at most x."""
    name, verb, unit, title = _DISTRIBUTIONS[column]
    figure = base_figure(height=330)
    curves: dict[str, Floats] = {}
    for one in shown_arms(condition):
        values = [getattr(trial.metrics, column) for trial in one.valid]
        every = [np.quantile(part, _SHARES) for part in values if len(part)]
        if every:
            pooled = np.asarray(np.quantile(np.concatenate(values), _SHARES))
            curves[one.name] = np.stack([pooled, np.min(every, 0), np.max(every, 0)])
    for arm, (line, low, high) in curves.items():
        around = np.concatenate([low, high[::-1]])
        area = band(_SHARES, low, high, colours[arm])
        area.update(x=around, y=100 * np.concatenate([_SHARES, _SHARES[::-1]]))
        trace = curve(line, 100 * _SHARES, colours[arm])
        trace.update(
            text=[quantity(value, unit) for value in line],
            hovertemplate=f"{arm}: %{{y:.1f}}% up to %{{text}}<extra></extra>",
        )
        figure.add_trace(area)
        figure.add_trace(trace)
    for number, (arm, (line, *_)) in enumerate(curves.items()):
        # at different heights to avoid overlap
        point = int(np.argmin(np.abs(_SHARES - (0.3 + 0.5 * number / max(1, len(curves))))))
        at = float(np.log10(line[point])), 100 * float(_SHARES[point])
        name_line(figure, arm, *at, colours[arm])
    every_value = np.concatenate([values[0] for values in curves.values()])
    ends = float(every_value.min()), float(every_value.max())
    figure.update_xaxes(**log_axis(title, *ends, unit, maximum=6))
    figure.update_yaxes(title="flows, %", range=[-2, 102])
    names = (column, f"{column}_repeats_low", f"{column}_repeats_high")
    columns = {arm: dict(zip(names, c.tolist(), strict=True)) for arm, c in curves.items()}
    return CaptionedFigure(
        f"Half of the flows {verb} at most {_at(curves, 0.5, unit)}",
        f"1 in 20 flows {verb} over {_at(curves, 0.95, unit)}. {_apart(curves, unit)}"
        "All finished flows of all valid repeats together; band: range over the repeats.",
        figure,
        f"{name}-cdf",
        lines_of("arm", columns, {"share": _SHARES.tolist()}),
    )


def _at(curves: dict[str, Floats], share: float, unit: Unit) -> str:
    """Return the value that each arm's curve has at a share of flows."""
    point = int(np.argmin(np.abs(_SHARES - share)))
    return ", ".join(
        f"{quantity(values[0, point], unit)} with {arm}" for arm, values in curves.items()
    )


def _apart(curves: dict[str, Floats], unit: Unit) -> str:
    """Return where two distributions differ most (the Kolmogorov-Smirnov distance)."""
    if len(curves) != 2:
        return ""
    (one, first), (two, second) = ((name, values[0]) for name, values in curves.items())
    grid = np.unique(np.concatenate([first, second]))
    low, high = np.interp(grid, first, _SHARES), np.interp(grid, second, _SHARES)
    at = int(np.argmax(np.abs(low - high)))
    return (
        f"The curves are farthest apart at {quantity(grid[at], unit)}: {100 * low[at]:.1f}% of "
        f"flows with {one}, {100 * high[at]:.1f}% with {two}. "
    )
