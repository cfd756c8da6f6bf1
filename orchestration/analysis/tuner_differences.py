"""Paired comparisons between tuners, with a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestration.analysis.metrics import METRICS
from orchestration.analysis.sequential import FIXED, InterimAnalysis
from orchestration.analysis.statistics import PairedDifference, holm, paired_difference
from orchestration.render.numbers import change, interval, percent_change, points, quantity

SIGNIFICANCE = 0.05
# The end of a real difference's verdict.
REAL = ", real"
# The verdict where the two do not differ in any pair, however few.
IDENTICAL = "identical in every pair"


@dataclass(frozen=True)
class Comparison:
    """A tuner compared with the baseline on one metric, over their common seeds.

    `p_holm` is the paired t-test's p-value, corrected for `family` comparisons; the difference is
    `real` if it is below 5 %. They are `identical` if no pair differs at all.
    """

    metric: str
    baseline: str
    tuner: str
    difference: PairedDifference
    p_holm: float
    family: int
    real: bool
    verdict: str
    identical: bool = False


def compare(
    values: Mapping[str, Mapping[int, Mapping[str, float]]], interim: InterimAnalysis = FIXED
) -> tuple[Comparison, ...]:
    """Compare every tuner with the first, on the metrics marked as compared.

    `values` is tuner -> seed -> metric -> value of one valid trial. All comparisons with a p-value
    form one family for Holm's correction. `interim` is the one at which they are read.
    """
    baseline, *others = values
    keys = [metric.key for metric in METRICS.report if metric.compared]
    return compare_pairs(values, [(baseline, tuner) for tuner in others], keys, interim)


def compare_pairs(
    values: Mapping[str, Mapping[int, Mapping[str, float]]],
    pairs: Sequence[tuple[str, str]],
    keys: Sequence[str],
    interim: InterimAnalysis = FIXED,
) -> tuple[Comparison, ...]:
    """Compare the second tuner of each pair with the first on some metrics, as one family."""
    drafts = []
    for baseline, tuner in pairs:
        seeds = sorted(set(values[baseline]) & set(values[tuner]))
        for key in keys:
            difference = paired_difference(
                [values[baseline][seed][key] for seed in seeds],
                [values[tuner][seed][key] for seed in seeds],
                interim,
            )
            if difference.n:
                drafts.append((key, baseline, tuner, difference))
    corrected = holm([difference.p_t for *_, difference in drafts])
    family = sum(not math.isnan(p) for p in corrected)
    return tuple(
        Comparison(
            key, baseline, tuner, difference, p, family, p < SIGNIFICANCE,
            _verdict(key, difference, p), difference.identical,
        )
        for (key, baseline, tuner, difference), p in zip(drafts, corrected, strict=True)
    )  # fmt: skip


def _verdict(metric: str, difference: PairedDifference, p_holm: float) -> str:
    """Return the verdict: `12% higher (95% CI 8% to 16%), real`."""
    if difference.identical:
        return IDENTICAL
    if difference.n < 2:
        return "cannot be told from chance with one pair"
    if not p_holm < SIGNIFICANCE:
        text = f"no difference shown with {difference.n} repeats"
        if difference.p_t < SIGNIFICANCE:
            text += " after Holm's correction"
        return text
    unit = METRICS[metric].unit
    side = "higher" if difference.mean > 0 else "lower"
    if math.isfinite(difference.relative_low):
        low, high = sorted((abs(difference.relative_low), abs(difference.relative_high)))
        size = percent_change(difference.relative)
        bounds = f"{percent_change(low)} to {percent_change(high)}"
    else:
        low, high = sorted((abs(difference.low), abs(difference.high)))
        size = quantity(abs(difference.mean), unit)
        bounds = interval(low, high, unit)
    return f"{size} {side} (95% CI {bounds}){REAL}"


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
