"""Verification of winners on fresh seeds, with intervals.

What a search found best looks better than it is, since it was chosen for its luck as well (the
winner's curse). So the finalists run again at seeds that no choice was made with, and are ranked by
those alone. What is told of the difference between the best and another is not free of choice
either, but of a choice among few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.statistics import Estimate, holm, paired_difference, t_interval
from orchestration.core.records import Floats
from orchestration.search.figures import Ask, Figures, Seed, best_of
from orchestration.search.halving import Halving, Measure, seeds_of
from orchestration.search.space import Setting

VERIFICATION = "search verification"
# How many of the best settings are verified: over all conditions, and in each for itself.
FINALISTS, FINALISTS_OF_A_CONDITION = 5, 3
_SURE = 0.05


@dataclass(frozen=True)
class Ranked:
    """A finalist: its regret, and what it is behind the best by, over seeds.

    `told_apart` says whether it differs from the best beyond chance (paired t-test, p < 0.05 after
    Holm's correction for all finalists).
    """

    setting: Setting
    regret: float
    behind: Estimate | None = None
    told_apart: bool = False


@dataclass(frozen=True)
class ConditionAnswer:
    """The answer for a condition: the finalists there, the best first, and its figure.

    `headroom` is the regret of the best single setting against this one, over seeds.
    """

    condition: int
    ranking: tuple[Ranked, ...]
    figure: Estimate
    headroom: Estimate

    @property
    def oracle(self) -> Setting:
        """The best static setting of the condition."""
        return self.ranking[0].setting


@dataclass(frozen=True)
class Answer:
    """The answer for a group of conditions: finalists over all, the best first, and by condition.

    `headroom` is the mean over conditions.
    """

    ranking: tuple[Ranked, ...]
    conditions: tuple[ConditionAnswer, ...]
    headroom: Estimate

    @property
    def best_static(self) -> Setting:
        """The best single setting."""
        return self.ranking[0].setting


def verify(
    found: Halving, conditions: Sequence[int], count: int, figures: Figures, measure: Measure
) -> Answer:
    """Run the finalists of a search at `count` fresh seeds, and return what they say."""
    seeds = seeds_of(count, VERIFICATION)
    everywhere = found.best(FINALISTS)
    here = {
        one: list(dict.fromkeys([*everywhere, *found.best_in(one, FINALISTS_OF_A_CONDITION)]))
        for one in conditions
    }
    asks = [
        Ask(setting, one, seed) for one in conditions for setting in here[one] for seed in seeds
    ]
    measure("verification", asks)
    losses = {one: _losses(figures, here[one], one, seeds) for one in conditions}
    whole = {s: np.mean([losses[one][s] for one in conditions], axis=0) for s in everywhere}
    ranking = _ranked(figures.mean_regret(everywhere, conditions, seeds), whole)
    best = ranking[0].setting
    answers = []
    for one in conditions:
        local = _ranked(figures.regret(here[one], one, seeds), losses[one])
        oracle = local[0].setting
        own = figures.table([oracle], one, seeds)
        gap = losses[one][best] - losses[one][oracle]
        answers.append(
            ConditionAnswer(one, local, t_interval(own[0] if len(own) else []), t_interval(gap))
        )
    gaps = [losses[a.condition][best] - losses[a.condition][a.oracle] for a in answers]
    return Answer(ranking, tuple(answers), t_interval(np.mean(gaps, axis=0)))


def _losses(
    figures: Figures, settings: Sequence[Setting], condition: int, seeds: Sequence[Seed]
) -> dict[Setting, Floats]:
    """Return each setting's loss at each seed (seeds,), as a share of the best's mean figure.

    Its mean is the regret; of figures that should be high, to first order. NaN at a seed at which
    no setting has a figure.
    """
    values = np.array(
        [[figures.at(Ask(one, condition, seed)) for seed in seeds] for one in settings],
        dtype=np.float64,
    )
    # a setting that has no figure at all is infinitely worse, which regrets say
    means = np.array([t_interval(row).mean for row in values])
    best = float(np.nanmax(means) if figures.higher else np.nanmin(means))
    share = 1.0 - values / best if figures.higher else values / best - 1.0
    return dict(zip(settings, share, strict=True))


def _ranked(
    regrets: Mapping[Setting, float], losses: Mapping[Setting, Floats]
) -> tuple[Ranked, ...]:
    order = best_of(dict(regrets), len(regrets))
    best = order[0]
    differences = [
        paired_difference(losses[best].tolist(), losses[one].tolist()) for one in order[1:]
    ]
    corrected = holm([one.p_t for one in differences])
    others = [
        Ranked(
            setting,
            regrets[setting],
            Estimate(difference.mean, difference.low, difference.high, difference.n),
            # a setting that has no figure at some seed is worse for that
            p < _SURE or not math.isfinite(regrets[setting]),
        )
        for setting, difference, p in zip(order[1:], differences, corrected, strict=True)
    ]
    return (Ranked(best, regrets[best]), *others)
