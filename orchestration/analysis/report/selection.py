"""Which parts of a condition are drawn: its arms, and the repeat that is shown over time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestration.analysis.metrics import fct_key
from orchestration.analysis.summary import Arm, Condition, Trial
from orchestration.results.reader import TrialResult, read_trial

# More lines than colours and more rows than a screen are unreadable; the tables have all arms.
MAX_ARMS = 6


def shown_arms(condition: Condition) -> list[Arm]:
    """Return the arms that are drawn: of those with valid trials, at most `MAX_ARMS`.

    If there are more, these are the first, which is the baseline, and those with the lowest mean
    FCT.
    """
    arms = [arm for arm in condition.arms if arm.valid]
    if len(arms) <= MAX_ARMS:
        return arms
    best = sorted(arms[1:], key=_mean_fct)[: MAX_ARMS - 1]
    return [arm for arm in arms if arm is arms[0] or arm in best]


def _mean_fct(arm: Arm) -> float:
    mean = arm.estimates[fct_key("all")].mean
    return mean if math.isfinite(mean) else math.inf


@dataclass(frozen=True)
class ShownRepeat:
    """One repeat that all shown arms ran, with the tables of their trials."""

    repeat: int
    trials: tuple[Trial, ...]
    results: tuple[TrialResult, ...]

    @property
    def by_arm(self) -> dict[str, TrialResult]:
        """The trials' tables by arm."""
        return {t.arm: result for t, result in zip(self.trials, self.results, strict=True)}

    @property
    def sampled(self) -> bool:
        """Whether ports were sampled over time; some imports have lengths without times."""
        return all(len(result.ports.t_ns) for result in self.results)


def shown_repeat(condition: Condition) -> ShownRepeat | None:
    """Return the first repeat that every shown arm has; None without a valid trial.

    If no repeat is common to all, the first arm's first. Raises InputError for an unreadable
    table.
    """
    arms = shown_arms(condition)
    if not arms:
        return None
    common = set.intersection(*({trial.spec.seed for trial in arm.valid} for arm in arms))
    if not common:
        arms, common = arms[:1], {arms[0].valid[0].spec.seed}
    seed = next(trial.spec.seed for trial in arms[0].valid if trial.spec.seed in common)
    trials = tuple(next(trial for trial in arm.valid if trial.spec.seed == seed) for arm in arms)
    results = tuple(read_trial(trial.folder) for trial in trials)
    return ShownRepeat(trials[0].spec.repeat, trials, results)
