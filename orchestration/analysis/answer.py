"""What a campaign shows, in a sentence or two: what a reader came for."""

from __future__ import annotations

import math

from orchestration.analysis.metrics import METRIC, fct_key, slowdown_key
from orchestration.analysis.statistics import Estimate
from orchestration.analysis.summary import Condition, Summary
from orchestration.analysis.words import interval, quantity

_HEADLINES = (fct_key("all"), slowdown_key("p99", "all"))


def answers(summary: Summary) -> list[str]:
    """Return one sentence a condition and compared tuner, in the order of the report."""
    sentences = []
    for condition in summary.conditions:
        prefix = f"{condition.label}: " if len(summary.conditions) > 1 else ""
        sentences += [prefix + sentence for sentence in _condition(condition)]
    return sentences


def standing(summary: Summary) -> str:
    """Return how many trials count: `All 10 trials are valid.`"""
    total, invalid = len(summary.trials), len(summary.invalid)
    if not invalid:
        return f"All {total} trials are valid." if total > 1 else "The one trial is valid."
    verb = "is" if invalid == 1 else "are"
    return f"{invalid} of {total} trials {verb} invalid: listed below, counted nowhere."


def _condition(condition: Condition) -> list[str]:
    measured = [arm for arm in condition.arms if arm.valid]
    if not measured:
        return ["no figure can be given, no trial is valid."]
    if not condition.comparisons:
        sentences = []
        for arm in measured:
            figures = [_figure(METRIC[key].label, arm.estimates[key], key) for key in _HEADLINES]
            sentences.append(f"{arm.tuner}: {', '.join(figures)}.")
        return sentences
    others = dict.fromkeys(comparison.tuner for comparison in condition.comparisons)
    return [
        f"{tuner} against {condition.comparisons[0].baseline} ({_pairs(condition, tuner)}): "
        + "; ".join(
            f"{METRIC[comparison.metric].label} {comparison.verdict}"
            for comparison in condition.comparisons
            if comparison.tuner == tuner and comparison.metric in _HEADLINES
        )
        + "."
        for tuner in others
    ]


def _figure(label: str, estimate: Estimate, key: str) -> str:
    unit = METRIC[key].unit
    text = f"{label} {quantity(estimate.mean, unit)}"
    if math.isfinite(estimate.low):
        text += f" (95% CI {interval(estimate.low, estimate.high, unit)})"
    return text


def _pairs(condition: Condition, tuner: str) -> str:
    pairs = max(item.difference.n for item in condition.comparisons if item.tuner == tuner)
    return f"{pairs} paired repeats" if pairs > 1 else "one pair"
