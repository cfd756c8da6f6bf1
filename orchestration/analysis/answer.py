"""The answer of a campaign: one sentence per condition and compared arm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestration.analysis.arm_differences import IDENTICAL, VERDICTS_NOTE, Comparison
from orchestration.analysis.counters import why_identical
from orchestration.analysis.metrics import METRICS, PRIMARY_METRICS, SIZE_CLASSES
from orchestration.analysis.statistics import Estimate
from orchestration.analysis.summary import Arm, Condition, Summary
from orchestration.render.numbers import interval, quantity

# How many significant differences are named besides those of the primary metrics.
_MAX_OTHERS = 3


def answers(summary: Summary) -> list[str]:
    """Return one sentence per condition and compared arm, in the report's order."""
    sentences = []
    for condition in summary.conditions:
        prefix = f"{condition.label}: " if len(summary.conditions) > 1 else ""
        sentences += [prefix + sentence for sentence in _condition(condition)]
    return sentences


def validity_text(summary: Summary) -> str:
    """Return how many trials are valid: `All 10 trials are valid.`"""
    total, invalid = len(summary.trials), len(summary.invalid)
    if not invalid:
        return f"All {total} trials are valid." if total > 1 else "The one trial is valid."
    verb = "is" if invalid == 1 else "are"
    pronoun = "It is" if invalid == 1 else "They are"
    return (
        f"{invalid} of {total} trials {verb} invalid. {pronoun} listed below and excluded from all "
        "figures."
    )


def answers_note(summary: Summary) -> str:
    """Return how the answers are to be read; "" if none of them is a comparison."""
    return VERDICTS_NOTE if any(condition.comparisons for condition in summary.conditions) else ""


def _condition(condition: Condition) -> list[str]:
    measured = [arm for arm in condition.arms if arm.valid]
    if not measured:
        return ["No trial is valid, so no figure can be given."]
    if not condition.comparisons:
        return [_figures(arm) for arm in measured]
    by_pair: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in (*condition.comparisons, *condition.baselines):
        by_pair.setdefault((comparison.baseline, comparison.arm), []).append(comparison)
    return [_against(comparisons, condition) for comparisons in by_pair.values()]


def _against(comparisons: Sequence[Comparison], condition: Condition) -> str:
    """Return the primary metrics' verdicts on two arms, then the other significant differences.

    `comparisons` are all of one pair of arms.
    """
    arms = comparisons[0].arm, comparisons[0].baseline
    pairs = max(item.difference.n for item in comparisons)
    count = f"{pairs} paired repeats" if pairs > 1 else "one pair"
    against = f"{arms[0]} against {arms[1]} ({count})"
    if all(item.identical for item in comparisons):
        both = [arm for arm in condition.arms if arm.name in arms]
        why = why_identical(trial.stamp for arm in both for trial in arm.valid)
        reason = f": {why}" if why else ""
        return f"{against}: {IDENTICAL} by all {len(comparisons)} metrics{reason}."
    primary = [_clause(item) for item in comparisons if item.metric in PRIMARY_METRICS]
    others = [
        _clause(item) for item in comparisons if item.real and item.metric not in PRIMARY_METRICS
    ]
    return f"{against}: {'; '.join([*primary, *others[:_MAX_OTHERS]])}."


def _clause(comparison: Comparison) -> str:
    """Return `small flows (up to 100KB): p99 slowdown 28% lower [19, 36]`."""
    metric = METRICS[comparison.metric]
    label, flows = metric.label, ""
    if metric.klass != "all":
        size = SIZE_CLASSES[metric.klass]
        label, flows = label.removesuffix(f", {size}"), f"{metric.klass} flows ({size}): "
    return f"{flows}{label}{' ' if comparison.real else ': '}{comparison.verdict}"


def _figures(arm: Arm) -> str:
    """Return the primary metrics of the only arm under a condition."""
    return f"{arm.name}: {', '.join(_figure(arm.estimates[key], key) for key in PRIMARY_METRICS)}."


def _figure(estimate: Estimate, key: str) -> str:
    unit = METRICS[key].unit
    text = f"{METRICS[key].label} {quantity(estimate.mean, unit)}"
    if math.isfinite(estimate.low):
        text += f" (95% CI {interval(estimate.low, estimate.high, unit)})"
    return text
