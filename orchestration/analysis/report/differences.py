"""The report's figures of paired differences: by metric, pair by pair, by number of repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import lt

import numpy as np

from orchestration.analysis.arm_differences import IDENTICAL, Comparison
from orchestration.analysis.figure_parts import (
    estimate_row,
    ratio_axes,
    row_name,
    value_row,
    value_rows,
)
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.report.selection import shown_arms
from orchestration.analysis.sequential import AnalysisPlan
from orchestration.analysis.statistics import (
    PairedDifference,
    paired_difference,
    repeats_needed,
    t_interval,
)
from orchestration.analysis.summary import Condition
from orchestration.core.records import Floats
from orchestration.render.figure import Figure
from orchestration.render.figure_style import (
    FAINT,
    INK,
    Colours,
    band,
    base_figure,
    curve,
    end_labels,
    label_room,
    padded,
    short,
    wrapped,
)
from orchestration.render.numbers import short_percent
from orchestration.render.page import CaptionedFigure, rows_of


def differences(comparisons: Sequence[Comparison], colours: Colours) -> CaptionedFigure:
    """Draw one arm's relative differences from the baseline, one row per metric.

    The axis is logarithmic, so that half and twice are equally far from no difference.
    """
    arm, baseline = comparisons[0].arm, comparisons[0].baseline
    drawn = [item for item in comparisons if item.difference.relative > -1][::-1]
    figure = base_figure(height=74 + 40 * len(drawn))
    ratios = [1.0]
    for row, item in enumerate(drawn):
        difference, colour = item.difference, colours[arm] if item.real else FAINT
        label, ratio = METRICS[item.metric].label, 1 + difference.relative
        ends = [1 + difference.relative_low, 1 + difference.relative_high]
        ends = ends if difference.relative_low > -1 else []
        ratios += [ratio, *ends]
        says = f"{label}: {100 * difference.relative:+.1f}%<br>{item.verdict}"
        estimate_row(figure, row, ratio, ends, colour, filled=item.real, says=says)
        row_name(figure, row, label, above_pixels=15, size=13)
    title = f"{short(arm)} against {short(baseline)}"
    ratio_axes(figure, title, ratios, [-0.5, len(drawn) - 0.3])
    real, family = sum(item.real for item in comparisons), comparisons[0].family
    filled = " Filled: p < 0.05 in a paired t-test after Holm's correction for"
    tested = f"{filled} {family} comparisons." if family else ""
    columns = ("mean", "low", "high", "relative", "relative_low", "relative_high", "p_t", "n")
    return CaptionedFigure(
        f"{real} of {len(comparisons)} differences between {arm} and {baseline} are significant",
        f"{_largest(comparisons)} Mean difference relative to {baseline}, paired by seed, with its "
        f"95% interval (Fieller's), on a log axis.{tested}",
        figure,
        f"differences-{arm}",
        rows_of(
            {
                "metric": item.metric,
                "arm": arm,
                "baseline": baseline,
                **{key: getattr(item.difference, key) for key in columns},
                "p_holm": item.p_holm,
                "real": item.real,
            }
            for item in comparisons
        ),
    )


def _largest(comparisons: Sequence[Comparison]) -> str:
    """Return the largest significant difference or, without one, the size that can be missed."""
    significant = [item for item in comparisons if item.real]
    if significant:
        maximum = max(significant, key=lambda item: abs(_log(item.difference.relative)))
        return f"The largest: {METRICS[maximum.metric].label}, {maximum.verdict}."
    differing = [item for item in comparisons if not item.identical]
    if not differing:
        return f"All are {IDENTICAL}."
    bounded = [item for item in differing if math.isfinite(item.difference.relative_high)]
    if not bounded:
        return "One pair allows no test."
    first = bounded[0].difference
    return (
        f"No difference is shown; one of {METRICS[bounded[0].metric].label} from "
        f"{100 * first.relative_low:+.1f}% to {100 * first.relative_high:+.1f}% is possible."
    )


def _log(relative: float) -> float:
    return math.log(1 + relative) if math.isfinite(relative) and relative > -1 else -math.inf


@dataclass(frozen=True)
class PairedValues:
    """A metric of a arm and of the baseline on their common seeds, by repeat (pairs,)."""

    arm: str
    baseline: str
    repeats: tuple[int, ...]
    first: tuple[float, ...]
    second: tuple[float, ...]
    plan: AnalysisPlan

    @property
    def percent(self) -> Floats:
        """The relative difference of each pair, shape (pairs,)."""
        return np.asarray(100 * (np.array(self.second) / np.array(self.first) - 1))

    def upto(self, pairs: int) -> PairedDifference:
        """Return the difference over the first `pairs` pairs, at their interim analysis."""
        interim = self.plan.at(self.repeats[pairs - 1])
        return paired_difference(self.first[:pairs], self.second[:pairs], interim)


def paired_values(condition: Condition, key: str) -> list[PairedValues]:
    """Return the shown arms paired with the first arm; pairs with a NaN are left out."""
    arms = shown_arms(condition)
    if not arms or arms[0] is not condition.arms[0]:
        return []
    base = {trial.spec.seed: trial.metrics.scalars[key] for trial in arms[0].valid}
    values = []
    for arm in arms[1:]:
        pairs = sorted(
            (trial.spec.repeat, base[trial.spec.seed], trial.metrics.scalars[key])
            for trial in arm.valid
            if math.isfinite(trial.metrics.scalars[key])
            and math.isfinite(base.get(trial.spec.seed, math.nan))
        )
        if pairs and all(first > 0 for _, first, _ in pairs):
            repeats, first, second = zip(*pairs, strict=True)
            values.append(
                PairedValues(arm.name, arms[0].name, repeats, first, second, condition.plan)
            )
    return values


def pairs(condition: Condition, key: str, colours: Colours) -> CaptionedFigure | None:
    """Draw a metric's relative difference in every pair, a row per arm; None without pairs."""
    values = paired_values(condition, key)[::-1]
    if not values:
        return None
    label = METRICS[key].label
    figure = value_rows(len(values), f"{label} against {short(values[0].baseline)}, %")
    drawn = [0.0]
    for item in values:
        overall = item.upto(len(item.first))
        ends = (100 * overall.relative_low, 100 * overall.relative_high)
        percent = item.percent.tolist()
        drawn += [*percent, *ends]
        value_row(
            figure,
            short(item.arm),
            colours[item.arm],
            ends=ends,
            values=percent,
            texts=[f"repeat {number}" for number in item.repeats],
            mean=100 * overall.relative,
            mean_name="all pairs:",
            number="%{x:+.2f}%",
        )
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    figure.update_xaxes(range=padded(drawn))
    clauses = [
        f"with {item.arm} in {sum(map(lt, item.first, item.second))} of {len(item.first)} pairs"
        for item in values[::-1]
    ]
    ranges = [_pair_range(item) for item in values[::-1]]
    return CaptionedFigure(
        f"{label[0].upper() if label[0] == 'm' else label[0]}{label[1:]} against "
        f"{values[0].baseline}: higher {', '.join(clauses)}",
        f"{' '.join(ranges)} A circle is one pair of trials with the same flows. Diamond and bar: "
        "ratio of the means with its 95% interval.",
        figure,
        f"pairs-{key}",
        rows_of(
            {
                "arm": item.arm,
                "baseline": item.baseline,
                "repeat": number,
                f"{key}_baseline": first,
                f"{key}_arm": second,
            }
            for item in values
            for number, first, second in zip(item.repeats, item.first, item.second, strict=True)
        ),
    )


def _pair_range(item: PairedValues) -> str:
    percent = item.percent
    low, high = int(np.argmin(percent)), int(np.argmax(percent))
    text = f"{item.arm}: {short_percent(percent[low])} in repeat {item.repeats[low]}"
    if low != high:
        text += f" to {short_percent(percent[high])} in repeat {item.repeats[high]}"
    return f"{text}."


# The relative half-width for which captions give the number of repeats.
_TARGET = 0.01


@dataclass(frozen=True)
class _Convergence:
    """A arm's estimate in percent after 1, 2, ... repeats, shapes (repeats,).

    `needed` repeats would give an interval of ±1 %; 0 if that is unknown.
    """

    arm: str
    mean: Floats
    low: Floats
    high: Floats
    needed: int
    identical: bool = False

    @property
    def half_width(self) -> float:
        return float(self.high[-1] - self.low[-1]) / 2

    @property
    def steps(self) -> list[tuple[int, float, float, float]]:
        """Number of repeats, mean, low and high of each step."""
        return list(zip(range(1, len(self.mean) + 1), self.mean, self.low, self.high, strict=True))


def convergence(condition: Condition, key: str, colours: Colours) -> CaptionedFigure | None:
    """Draw a metric's estimate and interval over the number of repeats; None for fewer than two.

    It shows the paired difference from the baseline or, without a baseline, the mean, in percent.
    """
    paired = paired_values(condition, key)
    paths = _differences(condition, key) if paired else _means(condition, key)
    paths = [path for path in paths if len(path.mean) > 1]
    if not paths:
        return None
    label = METRICS[key].label
    title = f"{label}, % off its mean"
    if paired:
        title = f"{label} against {short(paired[0].baseline)}, %"
    maximum = max(len(path.mean) for path in paths)
    subject = f"the difference in {label}" if paired else label
    return CaptionedFigure(
        f"After {maximum} repeats {subject} {_precision(paths)}",
        f"{' '.join(_half_width_text(path) for path in paths)} "
        f"Line and band: {'ratio of the means' if paired else 'mean'} with its 95% interval after "
        "that many repeats, in their order.",
        _convergence_figure(paths, title, maximum, colours),
        f"convergence-{key}",
        rows_of(
            {"arm": path.arm, "repeats": count, "percent": mean, "low": low, "high": high}
            for path in paths
            for count, mean, low, high in path.steps
        ),
    )


def _convergence_figure(
    paths: Sequence[_Convergence], title: str, maximum: int, colours: Colours
) -> Figure:
    """Draw estimates and intervals over 1 to `maximum` repeats."""
    figure = base_figure(height=330, right=label_room(path.arm for path in paths))
    for number, path in enumerate(paths):
        # side by side, so that bars do not hide each other
        shift = 0.05 * (number - (len(paths) - 1) / 2)
        count, colour = np.arange(1, len(path.mean) + 1) + shift, colours[path.arm]
        figure.add_trace(band(count, path.low, path.high, colour))
        trace = curve(count, path.mean, colour)
        above, below = np.nan_to_num(path.high - path.mean), np.nan_to_num(path.mean - path.low)
        trace.update(
            mode="lines+markers",
            error_y={"array": above, "arrayminus": below, "thickness": 1.5, "width": 3},
            text=[
                f"{count} {'repeat' if count == 1 else 'repeats'}: {mean:+.2f}%"
                + (f" ({low:+.2f} to {high:+.2f})" if math.isfinite(low) else "")
                for count, mean, low, high in path.steps
            ],
            hovertemplate=f"{path.arm}, %{{text}}<extra></extra>",
        )
        figure.add_trace(trace)
    bounds = np.concatenate([part[1:] for path in paths for part in (path.low, path.high)])
    known_bounds = bounds[np.isfinite(bounds)]
    spread = float(np.ptp(known_bounds)) if len(known_bounds) else 0.0
    names = {path.arm: (len(path.mean), float(path.mean[-1])) for path in paths}
    end_labels(figure, names, colours, spread)
    figure.add_hline(y=0, line={"color": INK, "width": 1})
    # the interval after two repeats is so wide that it would hide the others
    settled = 2 if maximum > 3 else 1
    ends = [float(value) for path in paths for value in (*path.low[settled:], *path.high[settled:])]
    figure.update_yaxes(title=wrapped(title), range=padded([0.0, *ends]))
    step = max(1, -(-maximum // 10))
    figure.update_xaxes(title="repeats", range=[0.8, maximum + 0.2], dtick=step, tick0=step)
    return figure


def _precision(paths: Sequence[_Convergence]) -> str:
    """Return how precisely the least precise of the estimates is known."""
    widest = max(paths, key=lambda path: (math.isnan(path.half_width), path.half_width))
    if all(path.identical for path in paths):
        return f"is 0: {IDENTICAL}"
    if not math.isfinite(widest.half_width):
        return "has no interval yet"
    return f"is known to ±{short_percent(widest.half_width, sign='')}"


def _differences(condition: Condition, key: str) -> list[_Convergence]:
    paths = []
    for item in paired_values(condition, key):
        steps = [item.upto(pairs) for pairs in range(1, len(item.first) + 1)]
        mean, low, high = (
            100 * np.array([getattr(step, name) for step in steps])
            for name in ("relative", "relative_low", "relative_high")
        )
        gaps = np.array(item.second) - np.array(item.first)
        needed = repeats_needed(gaps, _TARGET * float(np.mean(item.first)))
        paths.append(_Convergence(item.arm, mean, low, high, needed, steps[-1].identical))
    return paths


def _means(condition: Condition, key: str) -> list[_Convergence]:
    paths = []
    for arm in shown_arms(condition):
        known = [
            (trial.metrics.scalars[key], condition.plan.at(trial.spec.repeat))
            for trial in sorted(arm.valid, key=lambda trial: trial.spec.repeat)
            if math.isfinite(trial.metrics.scalars[key])
        ]
        values = [value for value, _ in known]
        overall = float(np.mean(values)) if values else 0.0
        if overall > 0:
            steps = [
                t_interval(values[:count], interim)
                for count, (_, interim) in enumerate(known, start=1)
            ]
            mean, low, high = (
                100 * (np.array([getattr(step, name) for step in steps]) / overall - 1)
                for name in ("mean", "low", "high")
            )
            needed = repeats_needed(values, _TARGET * overall)
            paths.append(_Convergence(arm.name, mean, low, high, needed))
    return paths


def _half_width_text(path: _Convergence) -> str:
    """Return how precise a arm's estimate is, and how many repeats would give ±1 %."""
    count = len(path.mean)
    if path.identical:
        return f"{path.arm}: {IDENTICAL}."
    known = f"{path.arm}: ±{short_percent(path.half_width, sign='')}"
    if not math.isfinite(path.half_width):
        return f"{path.arm}: no interval after {count} repeats."
    if path.half_width <= 100 * _TARGET:
        return f"{known}, so more repeats are hardly needed."
    if path.needed <= count:
        return f"{known}."
    return f"{known}; at this spread ±1% takes about {path.needed:,} repeats in total."
