"""Figures, differences and verdicts of the results page as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import product

from orchestration.analysis.paper_metrics import PAPER_METRICS, PaperUnit
from orchestration.analysis.statistics import Estimate, PairedDifference
from orchestration.analysis.words import NOTHING, quantity
from orchestration.model.units import format_rate
from orchestration.studies.papers.claims import Claim
from orchestration.studies.papers.results import (
    BEST_STATIC,
    PLACEBO,
    Condition,
    SectionResult,
)
from orchestration.studies.papers.verdicts import ClaimResult

# A share nearer to 0 than this is shown as 0, without a sign.
_NOTHING_SHARE = 5e-5
_RIVALS = {BEST_STATIC: "the best static setting", PLACEBO: "the placebo"}


def amount(value: float, unit: PaperUnit) -> str:
    """Return a value with its unit, three significant digits: `398Gbps`, `12.6KB`, `2.84`."""
    if unit == "share":
        return quantity(value if abs(value) >= _NOTHING_SHARE else 0.0, unit)
    if unit != "bps":
        return quantity(value, unit)
    if not math.isfinite(value):
        return NOTHING
    digits = max(0, 2 - math.floor(math.log10(abs(value))) % 3) if value else 0
    return format_rate(round(value), digits)


def estimate_text(estimate: Estimate, unit: PaperUnit) -> str:
    """Return `2.84 ±0.10`: the mean and half of its interval."""
    text = amount(estimate.mean, unit)
    half = (estimate.high - estimate.low) / 2
    return f"{text} ±{amount(half, unit)}" if half > 0 else text


def relative(share: float) -> str:
    """Return `-12.6%`."""
    text = f"{100 * share:+.1f}%"
    return "0.0%" if text in ("+0.0%", "-0.0%") else text


def difference_text(difference: PairedDifference, unit: PaperUnit) -> str:
    """Return `-12.6% [-15.0% to -9.8%]`; of shares the difference in points.

    The interval is in the metric's unit where one of shares does not exist: where the other's mean
    cannot be told from 0.
    """
    if not difference.n or not math.isfinite(difference.mean):
        return NOTHING
    if unit == "share":
        points = [100 * x for x in (difference.mean, difference.low, difference.high)]
        bounds = f" [{points[1]:+.2f} to {points[2]:+.2f}]" if math.isfinite(points[1]) else ""
        return f"{points[0]:+.2f}{bounds} points"
    if math.isfinite(difference.relative_low):
        bounds = f"{relative(difference.relative_low)} to {relative(difference.relative_high)}"
        return f"{relative(difference.relative)} [{bounds}]"
    text = relative(difference.relative) if math.isfinite(difference.relative) else ""
    if math.isfinite(difference.low) or not text:
        sign = "+" if difference.mean > 0 else ""
        text = f"{text}, {sign}{amount(difference.mean, unit)}".removeprefix(", ")
    if math.isfinite(difference.low):
        text += f" [{amount(difference.low, unit)} to {amount(difference.high, unit)}]"
    return text


def claim_text(result: ClaimResult) -> str:
    """Return what was measured for a claim: each condition, or of many the extremes."""
    claim, rows = result.claim, result.findings
    if not rows:
        return "not run"
    unit = PAPER_METRICS[claim.metric].unit
    if claim.direction == "value":
        return "; ".join(
            _labelled(condition.label, len(rows), estimate_text(_estimate(claim, condition), unit))
            for condition, _, _ in rows
        )
    pairs = [(condition.label, diff) for condition, diff, _ in rows if diff is not None]
    if len(pairs) == 1:
        return f"{difference_text(pairs[0][1], unit)}, {pairs[0][1].n} seeds"
    ordered = sorted(pairs, key=lambda pair: (pair[1].relative, pair[0]))
    shown = ordered if len(ordered) <= 3 else [ordered[0], ordered[-1]]
    text = "; ".join(f"{label}: {difference_text(diff, unit)}" for label, diff in shown)
    held = sum(finding != "no" for _, _, finding in rows)
    word = "the same" if claim.direction == "same" else f"{claim.direction} beyond chance"
    return f"{word} in {held} of {len(rows)} conditions; {text}"


def against_yardsticks(results: Iterable[SectionResult]) -> list[str]:
    """Return a sentence for each learned tuner and yardstick that both ran in these sections.

    Each condition counts once, by the first metric of its section.
    """
    counts: dict[tuple[str, str], Counter[str]] = {}
    labels: dict[str, None] = {}
    for result in results:
        metric = PAPER_METRICS[result.section.metrics[0]]
        for condition, arm, rival in product(result.conditions, result.section.learned, _RIVALS):
            difference = condition.difference(arm, rival, metric.key)
            if difference.n >= 2:
                standing = _standing(difference, metric.better)
                counts.setdefault((arm, rival), Counter())[standing] += 1
                labels[metric.label] = None
    what = next(iter(labels)) if len(labels) == 1 else "the first figure of each table"
    return [_sentence(arm, _RIVALS[rival], what, count) for (arm, rival), count in counts.items()]


def _standing(difference: PairedDifference, better: str) -> str:
    if difference.low <= 0 <= difference.high:
        return "even"
    return "better" if (difference.high < 0) == (better == "lower") else "worse"


def _sentence(arm: str, rival: str, metric: str, counts: Counter[str]) -> str:
    total = sum(counts.values())
    where = "in the one condition" if total == 1 else f"in {counts['better']} of {total} conditions"
    rest = []
    if counts["worse"]:
        rest.append(f"worse in {counts['worse']}")
    if counts["even"]:
        rest.append(f"not to be told from it in {counts['even']}")
    tail = f" ({', '.join(rest)})" if rest else ""
    if counts["better"]:
        return f"`{arm}` beats {rival} in {metric} {where}{tail}."
    return f"**`{arm}` does not beat {rival}** in {metric} under any condition{tail}."


def _labelled(label: str, count: int, text: str) -> str:
    return f"{label}: {text}" if count > 1 else text


def _estimate(claim: Claim, condition: Condition) -> Estimate:
    return condition.estimate(claim.arm, claim.metric)
