"""The report's pictures of paired differences: all metrics, pair by pair, and repeat by repeat.

A picture's title says what to see in it. The caption gives details and how it was made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.figure_parts import ratio_axes, row_name, value_row, value_rows
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.report.shown import shown_arms
from orchestration.analysis.sequential import Looks
from orchestration.analysis.statistics import PairedDifference, paired_difference
from orchestration.analysis.summary import Condition
from orchestration.analysis.tuner_differences import IDENTICAL, Comparison
from orchestration.render.figure import scatter
from orchestration.render.figure_style import (
    FAINT,
    INK,
    Colours,
    base_figure,
    line,
    padded,
    short,
)
from orchestration.render.numbers import short_percent
from orchestration.render.picture import Picture, rows_of


def differences(comparisons: Sequence[Comparison], colours: Colours) -> Picture:
    """Draw one tuner's relative differences from the baseline, one row per metric.

    The axis is logarithmic, so that half and twice are equally far from no difference.
    """
    tuner, baseline = comparisons[0].tuner, comparisons[0].baseline
    drawn = [item for item in comparisons if item.difference.relative > -1][::-1]
    figure = base_figure(height=74 + 40 * len(drawn))
    ratios = [1.0]
    for row, item in enumerate(drawn):
        difference, colour = item.difference, colours[tuner] if item.real else FAINT
        label, ratio = METRICS[item.metric].label, 1 + difference.relative
        ratios.append(ratio)
        if difference.relative_low > -1:
            ends = [1 + difference.relative_low, 1 + difference.relative_high]
            ratios += ends
            figure.add_trace(line(ends, [row, row], colour, 3))
        marker = {"size": 11, "color": colour if item.real else "white"}
        figure.add_trace(
            scatter(
                x=[ratio],
                y=[row],
                mode="markers",
                marker={**marker, "line": {"color": colour, "width": 2}},
                hovertemplate=f"{label}: {100 * difference.relative:+.1f}%<br>{item.verdict}"
                "<extra></extra>",
            )
        )
        row_name(figure, row, label, above_pixels=15, size=13)
    title = f"{short(tuner)} against {short(baseline)}"
    ratio_axes(figure, title, ratios, [-0.5, len(drawn) - 0.3])
    real, family = sum(item.real for item in comparisons), comparisons[0].family
    filled = " Filled: p < 0.05 in a paired t-test after Holm's correction for"
    tested = f"{filled} {family} comparisons." if family else ""
    columns = ("mean", "low", "high", "relative", "relative_low", "relative_high", "p_t", "n")
    return Picture(
        f"{real} of {len(comparisons)} differences between {tuner} and {baseline} are real",
        f"{_largest(comparisons)} Mean difference relative to {baseline}, paired by seed, with its "
        f"95% interval (Fieller's), on a log axis.{tested}",
        figure,
        f"differences-{tuner}",
        rows_of(
            {
                "metric": item.metric,
                "tuner": tuner,
                "baseline": baseline,
                **{key: getattr(item.difference, key) for key in columns},
                "p_holm": item.p_holm,
                "real": item.real,
            }
            for item in comparisons
        ),
    )


def _largest(comparisons: Sequence[Comparison]) -> str:
    """Return the largest real difference or, without one, the size that could have been missed."""
    real = [item for item in comparisons if item.real]
    if real:
        most = max(real, key=lambda item: abs(_log(item.difference.relative)))
        return f"The largest: {METRICS[most.metric].label}, {most.verdict}."
    apart = [item for item in comparisons if not item.identical]
    if not apart:
        return f"All are {IDENTICAL}."
    bounded = [item for item in apart if math.isfinite(item.difference.relative_high)]
    if not bounded:
        return "One pair tells nothing about chance."
    first = bounded[0].difference
    return (
        f"None is shown; in {METRICS[bounded[0].metric].label} anything from "
        f"{100 * first.relative_low:+.1f}% to {100 * first.relative_high:+.1f}% may have gone "
        "unseen."
    )


def _log(relative: float) -> float:
    return math.log(1 + relative) if math.isfinite(relative) and relative > -1 else -math.inf


@dataclass(frozen=True)
class PairedValues:
    """A metric of a tuner and of the baseline on their common seeds, by repeat (pairs,)."""

    tuner: str
    baseline: str
    repeats: tuple[int, ...]
    first: tuple[float, ...]
    second: tuple[float, ...]
    looks: Looks

    def upto(self, pairs: int) -> PairedDifference:
        """Return the paired difference over the first `pairs` pairs, as their look reads it."""
        look = self.looks.at(self.repeats[pairs - 1])
        return paired_difference(self.first[:pairs], self.second[:pairs], look)


def paired_values(condition: Condition, key: str) -> list[PairedValues]:
    """Return the shown tuners paired with the first arm; pairs with a NaN are left out."""
    arms = shown_arms(condition)
    if not arms or arms[0] is not condition.arms[0]:
        return []
    base = {trial.spec.seed: trial.metrics.scalars[key] for trial in arms[0].valid}
    found = []
    for arm in arms[1:]:
        pairs = sorted(
            (trial.spec.repeat, base[trial.spec.seed], trial.metrics.scalars[key])
            for trial in arm.valid
            if math.isfinite(trial.metrics.scalars[key])
            and math.isfinite(base.get(trial.spec.seed, math.nan))
        )
        if pairs and all(first > 0 for _, first, _ in pairs):
            repeats, first, second = zip(*pairs, strict=True)
            found.append(
                PairedValues(arm.tuner, arms[0].tuner, repeats, first, second, condition.looks)
            )
    return found


def pairs(condition: Condition, key: str, colours: Colours) -> Picture | None:
    """Draw a metric's relative difference in every pair, a row per tuner; None without pairs."""
    values = paired_values(condition, key)[::-1]
    if not values:
        return None
    label = METRICS[key].label
    figure = value_rows(len(values), f"{label} against {short(values[0].baseline)}, %")
    drawn = [0.0]
    for item in values:
        whole = item.upto(len(item.first))
        ends = (100 * whole.relative_low, 100 * whole.relative_high)
        percent = (100 * (np.array(item.second) / np.array(item.first) - 1)).tolist()
        drawn += [*percent, *ends]
        value_row(
            figure,
            short(item.tuner),
            colours[item.tuner],
            ends=ends,
            values=percent,
            texts=[f"repeat {number}" for number in item.repeats],
            mean=100 * whole.relative,
            mean_name="all pairs:",
            number="%{x:+.2f}%",
        )
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    figure.update_xaxes(range=padded(drawn))
    clauses = [_higher_in(item) for item in values[::-1]]
    ranges = [_pair_range(item) for item in values[::-1]]
    return Picture(
        f"{label[0].upper() if label[0] == 'm' else label[0]}{label[1:]} against "
        f"{values[0].baseline}: higher {', '.join(clauses)}",
        f"{' '.join(ranges)} Circles: one pair of trials with the same flows each. Diamond and "
        "bar: ratio of the means with its 95% interval.",
        figure,
        f"pairs-{key}",
        rows_of(
            {
                "tuner": item.tuner,
                "baseline": item.baseline,
                "repeat": number,
                f"{key}_baseline": first,
                f"{key}_tuner": second,
            }
            for item in values
            for number, first, second in zip(item.repeats, item.first, item.second, strict=True)
        ),
    )


def _higher_in(item: PairedValues) -> str:
    higher = sum(second > first for first, second in zip(item.first, item.second, strict=True))
    return f"with {item.tuner} in {higher} of {len(item.first)} pairs"


def _pair_range(item: PairedValues) -> str:
    percent = 100 * (np.array(item.second) / np.array(item.first) - 1)
    low, high = int(np.argmin(percent)), int(np.argmax(percent))
    text = f"{item.tuner}: {short_percent(percent[low])} in repeat {item.repeats[low]}"
    if low != high:
        text += f" to {short_percent(percent[high])} in repeat {item.repeats[high]}"
    return f"{text}."
