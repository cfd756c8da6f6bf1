"""The picture of how intervals narrow with more repeats, and how many more would help."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.metrics import METRICS
from orchestration.analysis.report.differences import paired_values
from orchestration.analysis.report.shown import shown_arms
from orchestration.analysis.statistics import repeats_needed, t_interval
from orchestration.analysis.summary import Condition
from orchestration.analysis.tuner_differences import IDENTICAL
from orchestration.core.records import Floats
from orchestration.render.figure_style import (
    INK,
    Colours,
    band,
    base_figure,
    curve,
    end_labels,
    label_room,
    padded,
    short,
)
from orchestration.render.numbers import short_percent
from orchestration.render.picture import Picture

# The half-width that readers would like to reach.
_TARGET = 0.01


@dataclass(frozen=True)
class _Path:
    """An estimate in percent after 1, 2, ... repeats, shapes (repeats,).

    A difference is `identical` if no pair differs.
    """

    tuner: str
    mean: Floats
    low: Floats
    high: Floats
    needed: int
    identical: bool = False

    @property
    def half_width(self) -> float:
        return float(self.high[-1] - self.low[-1]) / 2


def convergence(condition: Condition, key: str, colours: Colours) -> Picture | None:
    """Draw a metric's estimate and interval over the number of repeats; None for fewer than two.

    Shows the paired difference from the baseline or, without one, the mean, both in percent.
    """
    paired = paired_values(condition, key)
    paths = _differences(condition, key) if paired else _means(condition, key)
    paths = [path for path in paths if len(path.mean) > 1]
    if not paths:
        return None
    label = METRICS[key].label
    baseline = paired[0].baseline if paired else ""
    figure = base_figure(height=330, right=label_room(path.tuner for path in paths))
    for place, path in enumerate(paths):
        # side by side, so that bars do not hide each other
        shift = 0.05 * (place - (len(paths) - 1) / 2)
        count, colour = np.arange(1, len(path.mean) + 1) + shift, colours[path.tuner]
        figure.add_trace(band(count, path.low, path.high, colour))
        trace = curve(count, path.mean, colour)
        above, below = np.nan_to_num(path.high - path.mean), np.nan_to_num(path.mean - path.low)
        trace.update(
            mode="lines+markers",
            error_y={"array": above, "arrayminus": below, "thickness": 1.5, "width": 3},
            text=_texts(path),
            hovertemplate=f"{path.tuner}, %{{text}}<extra></extra>",
        )
        figure.add_trace(trace)
    bounds = np.concatenate([part[1:] for path in paths for part in (path.low, path.high)])
    known_bounds = bounds[np.isfinite(bounds)]
    spread = float(np.ptp(known_bounds)) if len(known_bounds) else 0.0
    names = {path.tuner: (len(path.mean), float(path.mean[-1])) for path in paths}
    end_labels(figure, names, colours, spread)
    most = max(len(path.mean) for path in paths)
    figure.add_hline(y=0, line={"color": INK, "width": 1})
    # the interval after two repeats is so wide that it would hide the others
    settled = 2 if most > 3 else 1
    ends = [float(value) for path in paths for value in (*path.low[settled:], *path.high[settled:])]
    figure.update_yaxes(
        title=f"{label} against {short(baseline)}, %" if baseline else f"{label}, % off its mean",
        range=padded([0.0, *ends]),
    )
    step = max(1, -(-most // 10))
    figure.update_xaxes(title="repeats", range=[0.8, most + 0.2], dtick=step, tick0=step)
    widest = max(paths, key=lambda path: (math.isnan(path.half_width), path.half_width))
    what = f"the difference in {label}" if paired else label
    known = f"is known to ±{short_percent(widest.half_width, sign='')}"
    if all(path.identical for path in paths):
        known = f"is 0: {IDENTICAL}"
    elif not math.isfinite(widest.half_width):
        known = "cannot be told from chance"
    return Picture(
        f"After {most} repeats {what} {known}",
        f"{' '.join(_said(path) for path in paths)} "
        f"Line and band: {'ratio of the means' if paired else 'mean'} with its 95% interval after "
        "that many repeats, in their order.",
        figure,
        f"convergence-{key}",
        {
            "tuner": [path.tuner for path in paths for _ in path.mean],
            "repeats": [number for path in paths for number in range(1, len(path.mean) + 1)],
            "percent": [value for path in paths for value in path.mean],
            "low": [value for path in paths for value in path.low],
            "high": [value for path in paths for value in path.high],
        },
    )


def _differences(condition: Condition, key: str) -> list[_Path]:
    paths = []
    for item in paired_values(condition, key):
        steps = [item.upto(pairs) for pairs in range(1, len(item.first) + 1)]
        mean, low, high = (
            100 * np.array([getattr(step, name) for step in steps])
            for name in ("relative", "relative_low", "relative_high")
        )
        apart = np.array(item.second) - np.array(item.first)
        needed = repeats_needed(apart, _TARGET * float(np.mean(item.first)))
        paths.append(_Path(item.tuner, mean, low, high, needed, steps[-1].identical))
    return paths


def _means(condition: Condition, key: str) -> list[_Path]:
    paths = []
    for arm in shown_arms(condition):
        known = [
            (trial.metrics.scalars[key], condition.looks.at(trial.spec.repeat))
            for trial in sorted(arm.valid, key=lambda trial: trial.spec.repeat)
            if math.isfinite(trial.metrics.scalars[key])
        ]
        values = [value for value, _ in known]
        whole = float(np.mean(values)) if values else 0.0
        if whole > 0:
            steps = [
                t_interval(values[:count], look) for count, (_, look) in enumerate(known, start=1)
            ]
            mean, low, high = (
                100 * (np.array([getattr(step, name) for step in steps]) / whole - 1)
                for name in ("mean", "low", "high")
            )
            needed = repeats_needed(values, _TARGET * whole)
            paths.append(_Path(arm.tuner, mean, low, high, needed))
    return paths


def _texts(path: _Path) -> list[str]:
    """Return the hover text of each point."""
    return [
        f"{count} {'repeat' if count == 1 else 'repeats'}: {mean:+.2f}%"
        + (f" ({low:+.2f} to {high:+.2f})" if math.isfinite(low) else "")
        for count, (mean, low, high) in enumerate(
            zip(path.mean, path.low, path.high, strict=True), start=1
        )
    ]


def _said(path: _Path) -> str:
    count = len(path.mean)
    if path.identical:
        return f"{path.tuner}: {IDENTICAL}."
    known = f"{path.tuner}: ±{short_percent(path.half_width, sign='')}"
    if not math.isfinite(path.half_width):
        return f"{path.tuner}: no interval after {count} repeats."
    if path.half_width <= 100 * _TARGET:
        return f"{known}, more repeats are hardly needed."
    if path.needed <= count:
        return f"{known}."
    return f"{known}; at this spread ±1% takes about {path.needed:,} repeats."
