"""Choose settings on some seeds and judge them on the others, so that every seed serves both.

Tuning headroom of a condition (here: headroom) is how much slower the best single setting for all
conditions is than the best setting for that condition. It is not PFC's headroom, a switch buffer.

Whoever picks the best of several settings by the same figures that judge it overrates it (the
optimizer's curse: Smith and Winkler, Management Science 2006), and finds headroom even where all
settings are equally good. So the seeds are split into folds, and the seeds of each fold are judged
under the settings that the other folds choose (cross-fitting: Chernozhukov et al., Econometrics J.
2018). A setting that few seeds choose is at best as good as the true best one (van Hasselt,
arXiv:1302.7175, on cross-validation of the best of several). The setting for one condition is
chosen by fewer trials than the setting for all, so headroom tends to come out too small; a badly
chosen setting for all makes it too large.

`StaticTrials` are the trials of a run folder whose tuners are static settings, sorted into groups
of conditions. Each condition has one arm for each setting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestration.analysis.metrics import METRICS
from orchestration.core.condition import BEST_STATIC, ORACLE, TUNER, factors_of
from orchestration.core.errors import InputError, check_known
from orchestration.papers.claims import FactorLevels, Section
from orchestration.papers.condition import Condition, Repeat
from orchestration.papers.results import MeasuredTrial, evaluate_section


@dataclass(frozen=True)
class ChosenSettings:
    """The settings that some seeds choose: one for all conditions, and one for each condition.

    `oracle` is in the order of the conditions. `regrets` has, for each setting, its regret in each
    condition: its figure over the best setting's, minus 1. It is infinite where a trial is missing.
    """

    best_static: str
    oracle: tuple[str, ...]
    regrets: dict[str, tuple[float, ...]]

    @property
    def in_sample_regrets(self) -> tuple[float, ...]:
        """The regret of `best_static` in each condition, by the same seeds that chose it."""
        return self.regrets[self.best_static]


@dataclass(frozen=True)
class CrossFitted:
    """Conditions whose two arms, `best-static` and `oracle`, were chosen on other seeds.

    `choices` has one item for each fold: what the seeds outside that fold choose.
    """

    conditions: tuple[Condition, ...]
    choices: tuple[ChosenSettings, ...]


def seeds_of(conditions: Iterable[Condition], metric: str) -> list[int]:
    """Return, in ascending order, the seeds at which any setting has a value in any condition."""
    return sorted(
        {
            seed
            for condition in conditions
            for arm in condition.repeats
            for seed in _seeds_with_value(condition, arm, metric)
        }
    )


def choose_settings(
    conditions: Sequence[Condition], metric: str, seeds: Iterable[int], settings: Sequence[str]
) -> ChosenSettings | None:
    """Choose settings by the trials of these seeds.

    The choice for one condition has the smallest figure there; the choice for all has the smallest
    mean regret over the conditions. Of equally good settings the first in `settings` is chosen.
    Returns None if no setting has a trial at every seed in every condition.
    """
    chosen_seeds = set(seeds)
    columns = []
    for condition in conditions:
        column = np.array(
            [
                _mean_or_quantile(condition, setting, metric, chosen_seeds, settings)
                for setting in settings
            ]
        )
        minimum = float(column.min(initial=math.inf))
        if not (math.isfinite(minimum) and minimum > 0):
            return None
        columns.append(column / minimum - 1)
    regrets = np.array(columns)
    means = regrets.mean(axis=0)
    if not np.isfinite(means).any():
        return None
    return ChosenSettings(
        best_static=settings[int(means.argmin())],
        oracle=tuple(settings[int(row.argmin())] for row in regrets),
        regrets={
            setting: tuple(regrets[:, number].tolist()) for number, setting in enumerate(settings)
        },
    )


def cross_fit(
    conditions: Sequence[Condition], metric: str, folds: int, settings: Sequence[str]
) -> CrossFitted | None:
    """Return the conditions with each seed under the settings that the other folds' seeds choose.

    The nth seed belongs to fold n modulo `folds`, under all conditions, because repeats of a seed
    are paired. With fewer seeds than folds, each seed has a fold of its own. Returns None with less
    than two seeds, or if the seeds outside some fold cannot choose.
    """
    seeds = seeds_of(conditions, metric)
    folds = min(folds, len(seeds))
    if folds < 2:
        return None
    choices = []
    judged: list[dict[str, dict[int, Repeat]]] = [{BEST_STATIC: {}, ORACLE: {}} for _ in conditions]
    for fold in range(folds):
        others = [seed for number, seed in enumerate(seeds) if number % folds != fold]
        choice = choose_settings(conditions, metric, others, settings)
        if choice is None:
            return None
        choices.append(choice)
        for number, condition in enumerate(conditions):
            chosen = {BEST_STATIC: choice.best_static, ORACLE: choice.oracle[number]}
            for arm, setting in chosen.items():
                repeats = condition.repeats[setting]
                known = _seeds_with_value(condition, setting, metric)
                fold_seeds = [seed for seed in seeds[fold::folds] if seed in known]
                judged[number][arm] |= {seed: repeats[seed] for seed in fold_seeds}
    fitted = (
        replace(condition, repeats=arms) for condition, arms in zip(conditions, judged, strict=True)
    )
    return CrossFitted(tuple(fitted), tuple(choices))


def _seeds_with_value(condition: Condition, arm: str, metric: str) -> set[int]:
    """Return the seeds at which an arm has a value of the metric; for a tail, at least one flow."""
    if METRICS[metric].tail is not None:
        return {seed for seed, flows in condition.samples(arm, metric).items() if len(flows)}
    figures = condition.values_by_seed(arm, metric).items()
    return {seed for seed, figure in figures if math.isfinite(figure)}


def _mean_or_quantile(
    condition: Condition, arm: str, metric: str, seeds: set[int], settings: Sequence[str]
) -> float:
    """Return a setting's mean over seeds, or for a tail the quantile of all their flows together.

    It is infinite if the setting lacks a trial that another setting has. Seeds at which no setting
    has a value, for instance because no large flow was drawn, are left out for all settings.
    """
    known = {setting: _seeds_with_value(condition, setting, metric) for setting in settings}
    needed = {seed for known_seeds in known.values() for seed in known_seeds if seed in seeds}
    if not needed or not needed <= known[arm]:
        return math.inf
    order = sorted(needed)
    tail = METRICS[metric].tail
    if tail is None:
        figures = condition.values_by_seed(arm, metric)
        return float(np.mean([figures[seed] for seed in order]))
    samples = condition.samples(arm, metric)
    return float(np.quantile(np.concatenate([samples[seed] for seed in order]), tail))


# The tuners that set their parameters once, at the start of a trial.
STATIC_TUNERS = ("static", "secn1", "secn2", "timeout")


@dataclass(frozen=True)
class ConditionGroup:
    """The conditions that share one best static setting.

    `when` has the levels that they have in common, of the factors that `--by` names; {} if all
    conditions are in one group. `conditions` are pairs of the label within the group and the
    condition.
    """

    when: FactorLevels
    conditions: tuple[tuple[str, Condition], ...]

    @property
    def label(self) -> str:
        """The common levels as text, like `DCTCP`; "" if all conditions are in one group."""
        return Condition(self.when, {}).label if self.when else ""


@dataclass(frozen=True)
class StaticTrials:
    """A run folder's trials of static settings, by groups of conditions.

    `settings` are sorted by name. `left_out` names the arms that are no static settings. `trials`
    counts the trials of the settings; `invalid` of them are invalid and belong to no condition.
    """

    groups: tuple[ConditionGroup, ...]
    settings: tuple[str, ...]
    left_out: tuple[str, ...]
    trials: int
    invalid: int


def check_metrics(metrics: Sequence[str]) -> None:
    """Raise InputError for an unknown metric, and for one that has no relative regret.

    Regret is relative, so that small values must be good and 0 must not occur.
    """
    usable = [
        key
        for key, metric in METRICS.papers.items()
        if metric.better == "lower" and not metric.may_be_zero
    ]
    check_known("--metric", "headroom cannot be measured by {!r}", metrics, usable)


def static_trials_of(
    run: str,
    trials: Sequence[MeasuredTrial],
    group_by: Sequence[str],
    setting_factors: Sequence[str],
) -> StaticTrials:
    """Return a run folder's trials of static settings; `run` names the folder in errors.

    Conditions with the same levels of the factors `group_by` form a group, which has a best static
    setting of its own. The levels of `setting_factors` become part of the setting: with `nics`
    among them, "kmin 5KB under DCTCP" and "kmin 5KB under DCQCN" are two settings.
    Raises InputError for factors that no trial has, and for less than two settings or seeds.
    """
    _check_factors(trials, group_by, setting_factors)
    left_out = _arms_not_static(trials)
    static = tuple(
        _with_factors_in_setting(trial, setting_factors)
        for trial in trials
        if str(trial.cell.get(TUNER, "")) not in left_out
    )
    settings = tuple(sorted({str(trial.cell[TUNER]) for trial in static}))
    if len(settings) < 2:
        what = f"has {len(settings)} static setting{'s' * (len(settings) != 1)}, and headroom"
        remedy = "run a campaign with several tuners `static`, like examples/headroom.yml"
        raise InputError.single(run, f"{what} needs several", remedy)
    if len({trial.seed for trial in static if trial.valid}) < 2:
        remedy = "run it with more --repeats: no seed may both choose and judge"
        raise InputError.single(run, "has valid trials of less than two seeds", remedy)
    result = evaluate_section(_ALL_TRIALS, static)
    groups: dict[str, tuple[FactorLevels, list[tuple[str, Condition]]]] = {}
    for condition in result.conditions:
        when = {name: condition.factors[name] for name in group_by}
        rest = {name: level for name, level in condition.factors.items() if name not in group_by}
        _, members = groups.setdefault(repr(when), (when, []))
        members.append((replace(condition, factors=rest).label, condition))
    return StaticTrials(
        groups=tuple(ConditionGroup(when, tuple(members)) for when, members in groups.values()),
        settings=settings,
        left_out=left_out,
        trials=result.trials,
        invalid=result.invalid,
    )


# `evaluate_section` sorts trials into conditions as a section of a claims file asks. This section
# asks for all trials of a run, compared by tuner, and has no paper, claims or printed numbers.
_ALL_TRIALS = Section(
    id="headroom",
    paper="",
    title="",
    campaign="",
    setting="",
    reference="",
    learned=(),
    placebos={},
    metrics=(),
    only={},
    compare=TUNER,
)


def _check_factors(
    trials: Iterable[MeasuredTrial], group_by: Sequence[str], setting_factors: Sequence[str]
) -> None:
    known = list(dict.fromkeys(name for trial in trials for name in factors_of(trial.cell)))
    for option, names in (("--by", group_by), ("--setting", setting_factors)):
        check_known(option, "no factor is called {!r}", names, known, "its factors are ")
    for name in group_by:
        if name in setting_factors:
            what = f"{name!r} is also part of the setting"
            raise InputError.single("--by", what, "give it to one of --by and --setting")


def _arms_not_static(trials: Iterable[MeasuredTrial]) -> tuple[str, ...]:
    """Return the arms that are not one static setting.

    Either their tuner acts during a trial, or their parameters differ between conditions.
    """
    params: dict[str, set[str]] = {}
    arms: set[str] = set()
    for trial in trials:
        arm = str(trial.cell.get(TUNER, ""))
        params.setdefault(arm, set()).add(trial.params)
        if trial.tuner not in STATIC_TUNERS:
            arms.add(arm)
    return tuple(sorted(arms | {arm for arm, several in params.items() if len(several) > 1}))


def _with_factors_in_setting(trial: MeasuredTrial, factors: Sequence[str]) -> MeasuredTrial:
    """Return the trial with the levels of these factors moved from its condition to its setting."""
    if not factors:
        return trial
    name = ", ".join(str(trial.cell[factor]) for factor in (TUNER, *factors))
    rest = {factor: level for factor, level in trial.cell.items() if factor not in factors}
    return replace(trial, cell={**rest, TUNER: name})
