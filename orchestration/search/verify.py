"""Verification: the finalists of a search run again at fresh seeds, and are ranked by these alone.

The best setting of a search looks better than it is, because it was chosen for its luck, too (the
winner's curse). Fresh seeds have no part in that choice. The difference between the best finalist
and another is still biased by choosing the best, but only among a few finalists.

Headroom of a condition (tuning headroom, not PFC's buffer) is how much slower the best single
setting for all conditions is than the best setting for that condition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from orchestration.analysis.statistics import Estimate, holm, paired_difference, t_interval
from orchestration.campaign.search_result import (
    ResultCondition,
    ResultGroup,
    ResultInterval,
    ResultRank,
    When,
)
from orchestration.core.records import Floats
from orchestration.search.halving import (
    Halving,
    Measure,
    MetricValues,
    Seed,
    TrialKey,
    best_of,
    first_seeds,
)
from orchestration.search.space import Setting

VERIFICATION = "search verification"
# How many of the best settings are verified: those for all conditions, and those for each one.
FINALISTS, FINALISTS_OF_A_CONDITION = 5, 3
_SURE = 0.05


def verify(
    halving: Halving,
    cells: Mapping[int, When],
    count: int,
    metric_values: MetricValues,
    measure: Measure,
    when: When,
) -> ResultGroup:
    """Run the finalists of a search at `count` fresh seeds, and return their ranking.

    `cells` are the levels of the conditions, by their numbers; `when` has the levels that all of
    them have in common.
    """
    seeds, conditions = first_seeds(count, VERIFICATION), list(cells)
    everywhere = halving.best(FINALISTS)
    finalists = {
        number: list(
            dict.fromkeys([*everywhere, *halving.best_in(number, FINALISTS_OF_A_CONDITION)])
        )
        for number in conditions
    }
    keys = [
        TrialKey(setting, number, seed)
        for number in conditions
        for setting in finalists[number]
        for seed in seeds
    ]
    measure("verification", keys)
    losses = {n: _losses(metric_values, finalists[n], n, seeds) for n in conditions}
    mean_losses = {s: np.mean([losses[n][s] for n in conditions], axis=0) for s in everywhere}
    ranking = _ranked(metric_values.mean_regret(everywhere, conditions, seeds), mean_losses)
    best = tuple(ranking[0].setting.items())
    results, headrooms = [], []
    for number, levels in cells.items():
        local = _ranked(metric_values.regret(finalists[number], number, seeds), losses[number])
        oracle = tuple(local[0].setting.items())
        values = metric_values.table([oracle], number, seeds)
        headrooms.append(losses[number][best] - losses[number][oracle])
        results.append(
            ResultCondition(
                when=levels,
                oracle=local[0].setting,
                figure=_interval(t_interval(values[0] if len(values) else [])),
                headroom=_interval(t_interval(headrooms[-1])),
                ranking=local,
            )
        )
    return ResultGroup.model_validate(
        {
            "when": when,
            "best-static": ranking[0].setting,
            "headroom": _interval(t_interval(np.mean(headrooms, axis=0))),
            "ranking": ranking,
            "conditions": tuple(results),
        }
    )


def _losses(
    metric_values: MetricValues, settings: Sequence[Setting], condition: int, seeds: Sequence[Seed]
) -> dict[Setting, Floats]:
    """Return each setting's loss at each seed (seeds,), as a share of the best setting's mean.

    The mean of the losses is the regret; for metrics that should be high this holds to first order.
    A loss is NaN at a seed at which no setting has a value.
    """
    values = np.array(
        [
            [metric_values.at(TrialKey(setting, condition, seed)) for seed in seeds]
            for setting in settings
        ],
        dtype=np.float64,
    )
    # NaN for a setting without any value; its regret is infinite
    means = np.array([t_interval(row).mean for row in values])
    best = float(np.nanmax(means) if metric_values.higher else np.nanmin(means))
    share = 1.0 - values / best if metric_values.higher else values / best - 1.0
    return dict(zip(settings, share, strict=True))


def _ranked(
    regrets: Mapping[Setting, float], losses: Mapping[Setting, Floats]
) -> tuple[ResultRank, ...]:
    """Return the settings, the best first, and whether the others are significantly worse.

    That is by a paired t-test against the best: p < 0.05 after Holm's correction.
    """
    order = best_of(dict(regrets), len(regrets))
    best = order[0]
    differences = [
        paired_difference(losses[best].tolist(), losses[one].tolist()) for one in order[1:]
    ]
    corrected = holm([one.p_t for one in differences])
    others = [
        ResultRank(
            setting=dict(setting),
            regret=_digits(regrets[setting]),
            behind=_interval(
                Estimate(difference.mean, difference.low, difference.high, difference.n)
            ),
            # a setting that lacks a value at some seed counts as worse
            told_apart=p < _SURE or not math.isfinite(regrets[setting]),
        )
        for setting, difference, p in zip(order[1:], differences, corrected, strict=True)
    ]
    return (ResultRank(setting=dict(best), regret=_digits(regrets[best])), *others)


def _interval(estimate: Estimate) -> ResultInterval:
    mean = _digits(estimate.mean)
    return ResultInterval(
        mean=0.0 if mean is None else mean, low=_digits(estimate.low), high=_digits(estimate.high)
    )


def _digits(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
