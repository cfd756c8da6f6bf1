"""The figure of one metric in every repeat, with mean and interval, a row per arm."""

from __future__ import annotations

import math

from orchestration.analysis.figure_parts import value_row, value_rows
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.report.selection import shown_arms
from orchestration.analysis.summary import Arm, Condition
from orchestration.render.figure import Figure, scatter
from orchestration.render.figure_style import FAINT, Colours, line, padded, short
from orchestration.render.numbers import Unit, extremes, quantity
from orchestration.render.page import CaptionedFigure, rows_of

HOW_REPEATS = (
    "A circle is one repeat; lines join repeats of the same seed. Diamond and bar: mean over "
    "repeats with its 95% interval. Crosses: invalid trials, which are not averaged."
)


def repeats(condition: Condition, key: str, colours: Colours) -> CaptionedFigure | None:
    """Draw a metric's value in every repeat, its mean and 95 % interval; None without values."""
    arms = shown_arms(condition)[::-1]
    metric = METRICS[key]
    if not any(math.isfinite(arm.estimates[key].mean) for arm in arms):
        return None
    drawn = [trial.metrics.scalars[key] for arm in arms for trial in arm.trials]
    drawn += [end for arm in arms for end in (arm.estimates[key].low, arm.estimates[key].high)]
    scale, suffix = _scale(metric.unit, max(filter(math.isfinite, drawn), default=0.0))
    figure = value_rows(len(arms), f"{metric.label}{f', {suffix}' if suffix else ''}")
    for seed in dict.fromkeys(trial.spec.seed for arm in arms for trial in arm.valid):
        same = [(trial, arm) for arm in arms for trial in arm.valid if trial.spec.seed == seed]
        joined = [scale * trial.metrics.scalars[key] for trial, _ in same]
        figure.add_trace(line(joined, [short(arm.name) for _, arm in same], "#c4c4c4", 1))
        figure.data[-1]["hoverinfo"] = "skip"
    for arm in arms:
        _row(figure, arm, key, scale, suffix, colours[arm.name])
    figure.update_xaxes(range=padded([scale * value for value in drawn]))
    means = {arm.name: arm.estimates[key].mean for arm in arms[::-1]}
    spreads = " ".join(text for arm in arms[::-1] if (text := _spread(arm, key)))
    return CaptionedFigure(
        metric.title.format(extremes(means, metric.unit)),
        f"{spreads} {HOW_REPEATS}",
        figure,
        f"repeats-{key}",
        rows_of(
            {
                "arm": arm.name,
                "seed": trial.spec.seed,
                "repeat": trial.spec.repeat,
                "valid": trial.stamp.valid,
                key: trial.metrics.scalars[key],
                **{name: getattr(arm.estimates[key], name) for name in ("mean", "low", "high")},
            }
            for arm in arms[::-1]
            for trial in arm.trials
        ),
    )


def _row(figure: Figure, arm: Arm, key: str, scale: float, suffix: str, colour: str) -> None:
    name, estimate = short(arm.name), arm.estimates[key]
    value_row(
        figure,
        name,
        colour,
        ends=(scale * estimate.low, scale * estimate.high),
        values=[scale * trial.metrics.scalars[key] for trial in arm.valid],
        texts=[f"repeat {trial.spec.repeat}" for trial in arm.valid],
        mean=scale * estimate.mean,
        mean_name="mean",
        number=f"%{{x:.4g}}{suffix}",
    )
    bad = [trial for trial in arm.trials if not trial.stamp.valid]
    if bad:
        figure.add_trace(
            scatter(
                x=[scale * trial.metrics.scalars[key] for trial in bad],
                y=[name] * len(bad),
                mode="markers",
                marker={"size": 9, "symbol": "x", "color": FAINT},
                text=[f"repeat {trial.spec.repeat}, invalid" for trial in bad],
                hovertemplate=f"%{{text}}: %{{x:.4g}}{suffix}<extra></extra>",
            )
        )


def _spread(arm: Arm, key: str) -> str:
    values = [(trial.metrics.scalars[key], trial.spec.repeat) for trial in arm.valid]
    known = [item for item in values if math.isfinite(item[0])]
    if len(known) < 2:
        return ""
    (low, first), (high, last) = min(known), max(known)
    if low == high:
        return f"{arm.name}: the same in all {len(known)} repeats."
    unit = METRICS[key].unit
    return (
        f"{arm.name}: from {quantity(low, unit)} in repeat {first} to {quantity(high, unit)} in "
        f"repeat {last}."
    )


def _scale(unit: Unit, highest: float) -> tuple[float, str]:
    """Return the scale factor, and the unit to write on the axis."""
    if unit == "ns":
        return (1e-6, "ms") if highest >= 1e7 else (1e-3, "us")
    scales = {"share": (100.0, "%"), "bytes": (1e-3, "KB"), "bps": (1e-9, "Gbps")}
    return scales.get(unit, (1.0, ""))
