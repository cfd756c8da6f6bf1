"""Verification of winners on fresh seeds, with intervals.

What a search found best looks better than it is, since it was chosen for its luck as well (the
winner's curse). So the finalists run again at seeds that no choice was made with, and are ranked by
those alone. What is told of the difference between the best and another is not free of choice
either, but of a choice among few.
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
# How many of the best settings are verified: over all conditions, and in each for itself.
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
    """Run the finalists of a search at `count` fresh seeds, and return what they say.

    `cells` are the levels of its conditions, by their numbers; `when` is what these share.
    """
    seeds, conditions = first_seeds(count, VERIFICATION), list(cells)
    everywhere = halving.best(FINALISTS)
    here = {
        one: list(dict.fromkeys([*everywhere, *halving.best_in(one, FINALISTS_OF_A_CONDITION)]))
        for one in conditions
    }
    keys = [
        TrialKey(setting, one, seed)
        for one in conditions
        for setting in here[one]
        for seed in seeds
    ]
    measure("verification", keys)
    losses = {one: _losses(metric_values, here[one], one, seeds) for one in conditions}
    whole = {s: np.mean([losses[one][s] for one in conditions], axis=0) for s in everywhere}
    ranking = _ranked(metric_values.mean_regret(everywhere, conditions, seeds), whole)
    best = tuple(ranking[0].setting.items())
    found, gaps = [], []
    for one, levels in cells.items():
        local = _ranked(metric_values.regret(here[one], one, seeds), losses[one])
        oracle = tuple(local[0].setting.items())
        own = metric_values.table([oracle], one, seeds)
        gaps.append(losses[one][best] - losses[one][oracle])
        found.append(
            ResultCondition(
                when=levels,
                oracle=local[0].setting,
                figure=_interval(t_interval(own[0] if len(own) else [])),
                headroom=_interval(t_interval(gaps[-1])),
                ranking=local,
            )
        )
    return ResultGroup.model_validate(
        {
            "when": when,
            "best-static": ranking[0].setting,
            "headroom": _interval(t_interval(np.mean(gaps, axis=0))),
            "ranking": ranking,
            "conditions": tuple(found),
        }
    )


def _losses(
    metric_values: MetricValues, settings: Sequence[Setting], condition: int, seeds: Sequence[Seed]
) -> dict[Setting, Floats]:
    """Return each setting's loss at each seed (seeds,), as a share of the best's mean figure.

    Its mean is the regret; of figures that should be high, to first order. NaN at a seed at which
    no setting has a figure.
    """
    values = np.array(
        [[metric_values.at(TrialKey(one, condition, seed)) for seed in seeds] for one in settings],
        dtype=np.float64,
    )
    # a setting that has no figure at all is infinitely worse, which regrets say
    means = np.array([t_interval(row).mean for row in values])
    best = float(np.nanmax(means) if metric_values.higher else np.nanmin(means))
    share = 1.0 - values / best if metric_values.higher else values / best - 1.0
    return dict(zip(settings, share, strict=True))


def _ranked(
    regrets: Mapping[Setting, float], losses: Mapping[Setting, Floats]
) -> tuple[ResultRank, ...]:
    """Return settings, the best first: told apart by a paired t-test, p < 0.05 after Holm's."""
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
            # a setting that has no figure at some seed is worse for that
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
