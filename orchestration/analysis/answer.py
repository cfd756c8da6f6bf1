"""The answer of a campaign in one or two sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestration.analysis.counters import why_identical
from orchestration.analysis.metrics import HEADLINES, METRICS
from orchestration.analysis.statistics import Estimate
from orchestration.analysis.summary import Condition, Summary
from orchestration.analysis.tuner_differences import IDENTICAL, REAL, Comparison
from orchestration.render.numbers import interval, quantity

# The number of real differences to name besides the headline metrics.
_OTHERS = 3


def answers(summary: Summary) -> list[str]:
    """Return one sentence per condition and compared tuner, in the report's order."""
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
    return f"{invalid} of {total} trials {verb} invalid: listed below, counted nowhere."


def _condition(condition: Condition) -> list[str]:
    measured = [arm for arm in condition.arms if arm.valid]
    if not measured:
        return ["No trial is valid, so no figure can be given."]
    if not condition.comparisons:
        return [
            f"{arm.tuner}: {', '.join(_figure(arm.estimates[key], key) for key in HEADLINES)}."
            for arm in measured
        ]
    found = (*condition.comparisons, *condition.baselines)
    pairs: dict[tuple[str, str], list[Comparison]] = {}
    for one in found:
        pairs.setdefault((one.baseline, one.tuner), []).append(one)
    return [_against(mine, condition) for mine in pairs.values()]


def _against(mine: Sequence[Comparison], condition: Condition) -> str:
    """Return the results for FCT and slowdown, then the other real differences."""
    pairs = max(item.difference.n for item in mine)
    count = f"{pairs} paired repeats" if pairs > 1 else "one pair"
    against = f"{mine[0].tuner} against {mine[0].baseline} ({count})"
    if all(item.identical for item in mine):
        both = [arm for arm in condition.arms if arm.tuner in (mine[0].baseline, mine[0].tuner)]
        why = why_identical(trial.stamp for arm in both for trial in arm.valid)
        return f"{against}: {IDENTICAL} by all {len(mine)} metrics{f': {why}' if why else ''}."
    clauses = [
        f"{METRICS[item.metric].label} {item.verdict}" for item in mine if item.metric in HEADLINES
    ]
    others = [
        f"{METRICS[item.metric].label} {item.verdict.removesuffix(REAL)}"
        for item in mine
        if item.real and item.metric not in HEADLINES
    ]
    if others:
        clauses.append(f"also real: {', '.join(others[:_OTHERS])}")
    return f"{against}: {'; '.join(clauses)}."


def _figure(estimate: Estimate, key: str) -> str:
    unit = METRICS[key].unit
    text = f"{METRICS[key].label} {quantity(estimate.mean, unit)}"
    if math.isfinite(estimate.low):
        text += f" (95% CI {interval(estimate.low, estimate.high, unit)})"
    return text
