"""Paired comparisons between arms, with a verdict in words.

The trials of one seed have the same flows under every arm, so each seed gives one difference, and
what varies between seeds cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestration.analysis.metrics import METRICS, SCORECARD
from orchestration.analysis.sequential import FIXED, InterimAnalysis
from orchestration.analysis.statistics import PairedDifference, holm, paired_difference
from orchestration.render.numbers import change, interval, percent_change, points, quantity

SIGNIFICANCE = 0.05
# The verdicts on metrics without a significant difference.
IDENTICAL = "identical in every pair"
NOT_SHOWN, NOT_SHOWN_AFTER_HOLM = "no difference shown", "no difference shown (Holm)"
NOT_TESTED = "not tested: one pair only"
# What a reader has to know of verdicts, wherever they are printed.
VERDICTS_NOTE = (
    "In brackets: 95% confidence intervals, in percent where no unit is given. A difference is "
    "given if it is significant: p < 0.05 in a paired t-test after Holm's correction, of the "
    "metrics that judge among themselves, and of all others, which are exploratory, among "
    "themselves. (Holm): p is below 0.05 only without that correction."
)


@dataclass(frozen=True)
class Comparison:
    """An arm compared with the baseline on one metric, over their common seeds.

    `p_holm` is the paired t-test's p-value, corrected for `family` comparisons; the difference is
    `real`, that is, significant, if `p_holm` is below 0.05. The two arms are `identical` on the
    metric if it is the same in every pair.
    """

    metric: str
    baseline: str
    arm: str
    difference: PairedDifference
    p_holm: float
    family: int
    real: bool
    verdict: str
    identical: bool = False
    judged: bool = False


def compare_arms(
    values: Mapping[str, Mapping[int, Mapping[str, float]]],
    judge: Sequence[str],
    interim: InterimAnalysis = FIXED,
) -> tuple[Comparison, ...]:
    """Compare every arm with the first, on the metrics that judge and on those marked as compared.

    `values` is arm -> seed -> metric -> value of one valid trial. The comparisons on the metrics
    `judge` form one family for Holm's correction; all others, which are exploratory, form another.
    `interim` is the analysis at which a campaign with adaptive repeats is read.
    """
    baseline, *others = values
    pairs = [(baseline, arm) for arm in others]
    keys = [
        metric.key
        for metric in METRICS.report
        if (metric.compared or metric.key in SCORECARD) and metric.key not in judge
    ]
    judged = compare_pairs(values, pairs, judge, interim)
    return (
        *(replace(item, judged=True) for item in judged),
        *compare_pairs(values, pairs, keys, interim),
    )


def compare_pairs(
    values: Mapping[str, Mapping[int, Mapping[str, float]]],
    pairs: Sequence[tuple[str, str]],
    keys: Sequence[str],
    interim: InterimAnalysis = FIXED,
) -> tuple[Comparison, ...]:
    """Compare the second arm of each of `pairs` with the first, on the metrics `keys`.

    All these comparisons form one family for Holm's correction. A metric that no pair of trials has
    on both sides is left out.
    """
    drafts = []
    for baseline, arm in pairs:
        seeds = sorted(set(values[baseline]) & set(values[arm]))
        for key in keys:
            difference = paired_difference(
                [values[baseline][seed][key] for seed in seeds],
                [values[arm][seed][key] for seed in seeds],
                interim,
            )
            if difference.n:
                drafts.append((key, baseline, arm, difference))
    corrected = holm([difference.p_t for *_, difference in drafts])
    family = sum(not math.isnan(p) for p in corrected)
    return tuple(
        Comparison(
            key, baseline, arm, difference, p, family, p < SIGNIFICANCE,
            _verdict(key, difference, p), difference.identical,
        )
        for (key, baseline, arm, difference), p in zip(drafts, corrected, strict=True)
    )  # fmt: skip


def _verdict(metric: str, difference: PairedDifference, p_holm: float) -> str:
    """Return the verdict: `12% higher [8.1, 16]`, or why there is no significant difference."""
    if difference.identical:
        return IDENTICAL
    if difference.n < 2:
        return NOT_TESTED
    if not p_holm < SIGNIFICANCE:
        return NOT_SHOWN_AFTER_HOLM if difference.p_t < SIGNIFICANCE else NOT_SHOWN
    bounds = bounds_text(difference)
    if not bounds:
        low, high = sorted((abs(difference.low), abs(difference.high)))
        bounds = f"[{interval(low, high, METRICS[metric].unit)}]"
    return f"{size_words(difference, metric)} {bounds}"


def bounds_text(difference: PairedDifference) -> str:
    """Return a relative difference's interval: `[27, 35]` in percent, of the sizes if it can."""
    low, high = difference.relative_low, difference.relative_high
    if not math.isfinite(low):
        return ""
    ends = sorted((abs(low), abs(high))) if low * high >= 0 else [low, high]
    shown = [percent_change(end).removesuffix("%") for end in ends]
    if low * high < 0:
        shown[0] = f"-{shown[0]}"
    return f"[{', '.join(shown)}]"


def size_words(difference: PairedDifference, key: str) -> str:
    """Return `31% lower`, or with a unit where the baseline is 0: `12.3KB higher`, `5 more`."""
    side = side_word(key, higher=difference.mean > 0)
    if math.isfinite(difference.relative_low):
        return f"{percent_change(difference.relative)} {side}"
    return f"{quantity(abs(difference.mean), METRICS[key].unit)} {side}"


def side_word(key: str, *, higher: bool) -> str:
    """Return `higher` or `lower`; of counts `more` or `fewer`."""
    more, less = ("more", "fewer") if METRICS[key].unit == "count" else ("higher", "lower")
    return more if higher else less


def describe_difference(comparison: Comparison) -> str:
    """Return the mean difference with its interval, in the metric's unit: `+12us [8us to 16us]`.

    Differences of shares are in percentage points, to avoid confusion with relative ones.
    """
    difference = comparison.difference
    unit = METRICS[comparison.metric].unit
    if unit == "share":
        return f"{points(difference.mean, difference.low, difference.high)} points"
    if math.isnan(difference.low):
        return change(difference.mean, unit)
    return f"{change(difference.mean, unit)} [{interval(difference.low, difference.high, unit)}]"
