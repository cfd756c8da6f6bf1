"""Tuning headroom: what a tuner can win at most over the best single static setting.

Headroom of a condition is how much slower the best single setting for all conditions (the arm
`best-static`) is than the best setting for that condition (the arm `oracle`), as a share of the
latter, over common seeds. It is the regret of `best-static`. PFC's headroom, a switch buffer, is
something else.

A tuner's share of the headroom is how far it gets from `best-static` (0) to the oracle (1). The
oracle is chosen on other seeds than those that judge it. So headroom can come out negative: the
setting chosen for one condition was then no better there than the setting chosen for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from orchestration.analysis.metrics import METRICS, TUNING_HEADROOM_METRICS
from orchestration.analysis.quantiles import (
    DRAWS,
    bootstrap_quantiles,
    draw_counts,
    pooled_difference,
    widened_interval,
)
from orchestration.analysis.statistics import PairedDifference, t_interval
from orchestration.core.condition import BEST_STATIC, ORACLE
from orchestration.papers.claims import FactorLevels, Section
from orchestration.papers.condition import TRANSPORT, Condition, Repeat, order_transports
from orchestration.papers.results import (
    RULE_TUNERS,
    MeasuredTrial,
    SectionResult,
    evaluate_section,
    is_placebo,
)

# With less headroom than this share there is nothing to learn.
MIN_HEADROOM = 0.05

Kind = Literal["learned", "placebo", "rule"]
# An estimate and the ends of its interval; NaN where one is unknown.
Interval = tuple[float, float, float]
UNKNOWN: Interval = (math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class ArmRegret:
    """An arm's `regret` against the oracle, and its `share` of the headroom.

    The share is unknown unless the headroom is significantly above 0.
    """

    arm: str
    kind: Kind
    regret: Interval
    share: Interval


@dataclass(frozen=True)
class TuningHeadroom:
    """The headroom under one condition, by one metric.

    `condition_label` names the campaign and the condition; it is "" for all conditions of a paper
    together. With `too_few_flows` the metric is a tail with too few flows beyond it, and everything
    else is unknown. The aliases are the keys of `results.json`.
    """

    paper: str
    transport: str
    condition_label: Annotated[str, Field(alias="place")]
    metric: str
    seeds: int
    too_few_flows: Annotated[bool, Field(alias="few")]
    headroom: Interval
    arms: tuple[ArmRegret, ...]


def headroom_of_paper(
    paper: str, parts: Iterable[tuple[Sequence[Section], tuple[MeasuredTrial, ...]]]
) -> list[TuningHeadroom]:
    """Return a paper's headroom by transport and metric: over all conditions, then for each one.

    `parts` are the campaigns of the paper: the sections of each, and its trials. Conditions without
    an oracle are left out. The headroom over all conditions is that over their common seeds.
    """
    labelled: list[tuple[str, Condition]] = []
    learned: dict[str, None] = {}
    for sections, trials in parts:
        result = _all_trials(sections, trials)
        learned |= dict.fromkeys(result.section.learned)
        campaign = result.section.campaign
        for condition in result.conditions:
            if {BEST_STATIC, ORACLE} <= set(condition.repeats):
                varies = set(condition.factors) - {TRANSPORT}
                within = f", {condition.label_without_transport}" if varies else ""
                labelled.append((campaign + within, condition))
    rows: list[TuningHeadroom] = []
    for transport in order_transports({condition.transport for _, condition in labelled}):
        chosen = [item for item in labelled if item[1].transport == transport]
        for metric in TUNING_HEADROOM_METRICS:
            rows += headroom_rows(paper, chosen, metric, tuple(learned))
    return rows


def headroom_rows(
    paper: str,
    labelled: Sequence[tuple[str, Condition]],
    metric: str,
    learned: tuple[str, ...] = (),
) -> list[TuningHeadroom]:
    """Return the headroom over all conditions, if there are several, then that of each one.

    `labelled` are pairs of a label and a condition, which has the arms `best-static` and `oracle`.
    """
    conditions = [condition for _, condition in labelled]
    over_all = _over_all_conditions(paper, conditions, metric, learned)
    return over_all + [
        _row(paper, condition, metric, learned, label) for label, condition in labelled
    ]


def _all_trials(sections: Sequence[Section], trials: tuple[MeasuredTrial, ...]) -> SectionResult:
    """Return the result of all trials of a campaign, whichever of them its sections select."""
    learned = tuple(dict.fromkeys(arm for section in sections for arm in section.learned))
    changes = {"arms": (), "only": {}, "learned": learned}
    return evaluate_section(sections[0].model_copy(update=changes), trials)


def _row(
    paper: str,
    condition: Condition,
    metric: str,
    learned: tuple[str, ...],
    condition_label: str,
) -> TuningHeadroom:
    too_few_flows = condition.has_too_few_flows((BEST_STATIC, ORACLE), metric)
    headroom, arms = UNKNOWN, list[ArmRegret]()
    if not too_few_flows:
        headroom = _relative_interval(condition.difference(BEST_STATIC, ORACLE, metric))
        arms = list(_arm_regrets(condition, metric, learned, headroom))
    return TuningHeadroom(
        paper=paper,
        transport=condition.transport,
        condition_label=condition_label,
        metric=metric,
        seeds=len(condition.pairs(BEST_STATIC, ORACLE)[0]),
        too_few_flows=too_few_flows,
        headroom=headroom,
        arms=tuple(arms),
    )


def _arm_regrets(
    condition: Condition, metric: str, learned: tuple[str, ...], headroom: Interval
) -> Iterator[ArmRegret]:
    kinds: dict[str, Kind] = dict.fromkeys(learned, "learned")
    kinds |= {arm: "placebo" for arm in sorted(condition.repeats) if is_placebo(arm)}
    kinds |= dict.fromkeys(RULE_TUNERS, "rule")
    for arm, kind in kinds.items():
        if arm not in condition.repeats or condition.has_too_few_flows((arm,), metric):
            continue
        share = _share(condition, arm, metric) if headroom[1] > 0 else UNKNOWN
        regret = _relative_interval(condition.difference(arm, ORACLE, metric))
        yield ArmRegret(arm, kind, regret, share)


def _relative_interval(difference: PairedDifference) -> Interval:
    return difference.relative, difference.relative_low, difference.relative_high


def _share(condition: Condition, arm: str, metric: str) -> Interval:
    """Return an arm's share of the headroom, which is a ratio of two paired differences."""
    seeds = [
        seed for seed in condition.pairs(BEST_STATIC, ORACLE)[0] if seed in condition.repeats[arm]
    ]
    networks = [condition.repeats[arm][seed].checkpoint for seed in seeds]
    names = (BEST_STATIC, ORACLE, arm)
    tail = METRICS[metric].tail
    if tail is None:
        static, oracle, own = (
            np.array([condition.values_by_seed(name, metric)[seed] for seed in seeds])
            for name in names
        )
        ratio = pooled_difference(static - oracle, static - own, [networks], condition.confidence)
        return ratio.relative + 1, ratio.relative_low + 1, ratio.relative_high + 1
    samples = [[condition.samples(name, metric)[seed] for seed in seeds] for name in names]
    groups = networks if len(set(networks)) > 1 else seeds
    if len(seeds) < 2:
        return UNKNOWN
    counts = draw_counts(networks, DRAWS // 4)
    static, oracle, own = (bootstrap_quantiles(values, tail, counts) for values in samples)
    if not np.all(static > oracle):  # in some draws there is no headroom
        return UNKNOWN
    points = [float(np.quantile(np.concatenate(values), tail)) for values in samples]
    point = (points[0] - points[2]) / (points[0] - points[1])
    draws = (static - own) / (static - oracle)
    return point, *widened_interval(point, draws, len(set(groups)), condition.confidence)


def _over_all_conditions(
    paper: str, conditions: Sequence[Condition], metric: str, learned: tuple[str, ...]
) -> list[TuningHeadroom]:
    """Return the headroom over all conditions in a list, which is empty for a single condition.

    It is the mean of the conditions' regrets over the seeds that all conditions have, so that each
    condition has the same weight: a seed's values are divided by the mean of the oracle in their
    condition, and then averaged.
    """
    if METRICS[metric].tail is not None:
        arms = (BEST_STATIC, ORACLE)
        conditions = [c for c in conditions if not c.has_too_few_flows(arms, metric)]
    if len(conditions) < 2:
        return []
    seeds = set.intersection(*(set(c.pairs(BEST_STATIC, ORACLE)[0]) for c in conditions))
    if len(seeds) < 2:
        return []
    order = sorted(seeds)
    if METRICS[metric].tail is not None:
        return [_quantiles_over_all_conditions(paper, conditions, metric, order)]
    shared = set.intersection(*(set(c.repeats) for c in conditions))
    repeats = {
        arm: {
            seed: Repeat({metric: mean}, checkpoint=conditions[0].repeats[arm][seed].checkpoint)
            for seed, mean in _mean_ratios(conditions, arm, metric, order)
        }
        for arm in sorted(shared)
    }
    transport = conditions[0].transport
    factors: FactorLevels = {TRANSPORT: transport} if transport else {}
    minimum = max(condition.confidence for condition in conditions)
    return [_row(paper, Condition(factors, repeats, minimum), metric, learned, condition_label="")]


def _mean_ratios(
    conditions: Sequence[Condition], arm: str, metric: str, seeds: Sequence[int]
) -> Iterator[tuple[int, float]]:
    """Yield each seed with the arm's mean ratio to the oracle over the conditions."""
    bases = [
        t_interval([condition.values_by_seed(ORACLE, metric)[seed] for seed in seeds]).mean
        for condition in conditions
    ]
    for seed in seeds:
        values = [
            condition.values_by_seed(arm, metric).get(seed, math.nan) for condition in conditions
        ]
        if all(map(math.isfinite, values)):
            yield seed, float(np.mean(np.array(values) / bases))


def _quantiles_over_all_conditions(
    paper: str, conditions: Sequence[Condition], metric: str, seeds: Sequence[int]
) -> TuningHeadroom:
    tail = METRICS[metric].tail or 0.0
    counts = draw_counts([0] * len(seeds), DRAWS // 4)
    points, draws = [], []
    for condition in conditions:
        static, oracle = (
            [condition.samples(arm, metric)[seed] for seed in seeds]
            for arm in (BEST_STATIC, ORACLE)
        )
        both = [float(np.quantile(np.concatenate(side), tail)) for side in (static, oracle)]
        points.append(both[0] / both[1] - 1)
        draws.append(
            bootstrap_quantiles(static, tail, counts) / bootstrap_quantiles(oracle, tail, counts)
            - 1
        )
    point = float(np.mean(points))
    minimum = max(condition.confidence for condition in conditions)
    ends = widened_interval(point, np.mean(draws, axis=0), len(seeds), minimum)
    return TuningHeadroom(
        paper=paper,
        transport=conditions[0].transport,
        condition_label="",
        metric=metric,
        seeds=len(seeds),
        too_few_flows=False,
        headroom=(point, *ends),
        arms=(),
    )


def headroom_verdict(headroom: Interval) -> str:
    """Return whether a headroom leaves something to learn, as text."""
    value, low, high = headroom
    if not math.isfinite(value):
        return "unknown"
    if value < MIN_HEADROOM:
        if high < MIN_HEADROOM:
            return "nothing to learn"
        return "nothing to learn, as far as this sample tells"
    return "something to learn" if low >= MIN_HEADROOM else "perhaps something to learn"
