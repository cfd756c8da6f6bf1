"""Choosing and judging settings on other seeds, with every seed used for both.

Whoever takes the best of several settings by the figures that it is then judged by sees it better
than it is (the optimizer's curse: Smith and Winkler, Management Science 2006), and finds headroom
where all settings are alike. So seeds are split into folds: a fold's seeds are judged under the
settings that all other folds choose (cross-fitting: Chernozhukov et al., Econometrics J. 2018).
What few seeds choose is less good than the true best, and never better (van Hasselt,
arXiv:1302.7175, on cross-validation of the best of several). The oracle is chosen by fewer trials
than the setting for all conditions, so headroom tends to come out too small; a single setting that
is chosen badly makes it too large.

A `StaticTrials` is a run folder whose tuners are static settings, as groups of conditions with an arm a
setting.
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
    """What some seeds choose: one setting for all conditions, and one for each (in their order).

    `regrets` has the regret of each setting by condition; infinite where a trial is missing.
    """

    best_static: str
    oracle: tuple[str, ...]
    regrets: dict[str, tuple[float, ...]]

    @property
    def in_sample_regrets(self) -> tuple[float, ...]:
        """What the best setting loses in each condition by the figures that chose it."""
        return self.regrets[self.best_static]


@dataclass(frozen=True)
class CrossFitted:
    """Conditions with two arms, `best-static` and `oracle`, and what each fold's others chose."""

    conditions: tuple[Condition, ...]
    choices: tuple[ChosenSettings, ...]


def seeds_of(conditions: Iterable[Condition], metric: str) -> list[int]:
    """Return the seeds at which some setting has a figure in some condition, in order."""
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
    """Choose by these seeds: by least figure in a condition, by least mean regret over them.

    Of equal settings the first in `settings` is chosen. None if no setting has all of its trials.
    """
    wanted = set(seeds)
    columns = []
    for condition in conditions:
        column = np.array(
            [_mean_or_quantile(condition, one, metric, wanted, settings) for one in settings]
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
        regrets={one: tuple(regrets[:, at].tolist()) for at, one in enumerate(settings)},
    )


def cross_fit(
    conditions: Sequence[Condition], metric: str, folds: int, settings: Sequence[str]
) -> CrossFitted | None:
    """Judge each seed under what the seeds of the other folds choose; None if these cannot choose.

    The nth seed belongs to fold n modulo `folds`, the same under all conditions, since repeats of
    a seed are paired. With fewer seeds each has a fold of its own.
    """
    seeds = seeds_of(conditions, metric)
    folds = min(folds, len(seeds))
    if folds < 2:
        return None
    choices = []
    judged: list[dict[str, dict[int, Repeat]]] = [{BEST_STATIC: {}, ORACLE: {}} for _ in conditions]
    for fold in range(folds):
        others = [seed for place, seed in enumerate(seeds) if place % folds != fold]
        choice = choose_settings(conditions, metric, others, settings)
        if choice is None:
            return None
        choices.append(choice)
        for place, condition in enumerate(conditions):
            chosen = {BEST_STATIC: choice.best_static, ORACLE: choice.oracle[place]}
            for arm, setting in chosen.items():
                repeats = condition.repeats[setting]
                known = _seeds_with_value(condition, setting, metric)
                mine = [seed for seed in seeds[fold::folds] if seed in known]
                judged[place][arm] |= {seed: repeats[seed] for seed in mine}
    fitted = (
        replace(condition, repeats=arms) for condition, arms in zip(conditions, judged, strict=True)
    )
    return CrossFitted(tuple(fitted), tuple(choices))


def _seeds_with_value(condition: Condition, arm: str, metric: str) -> set[int]:
    """Return the seeds at which a setting has a figure, or for a tail at least one flow."""
    if METRICS[metric].tail is not None:
        return {seed for seed, flows in condition.samples(arm, metric).items() if len(flows)}
    figures = condition.values_by_seed(arm, metric).items()
    return {seed for seed, figure in figures if math.isfinite(figure)}


def _mean_or_quantile(
    condition: Condition, arm: str, metric: str, seeds: set[int], settings: Sequence[str]
) -> float:
    """Return a setting's mean, or the tail of all flows together; infinite if a trial is missing.

    Seeds at which no setting has a figure, like one without a large flow, count for none.
    """
    known = {one: _seeds_with_value(condition, one, metric) for one in settings}
    needed = {seed for one in known.values() for seed in one if seed in seeds}
    if not needed or not needed <= known[arm]:
        return math.inf
    order = sorted(needed)
    tail = METRICS[metric].tail
    if tail is None:
        figures = condition.values_by_seed(arm, metric)
        return float(np.mean([figures[seed] for seed in order]))
    samples = condition.samples(arm, metric)
    return float(np.quantile(np.concatenate([samples[seed] for seed in order]), tail))


# Tuners that set their parameters once and leave them.
STATIC_TUNERS = ("static", "secn1", "secn2", "timeout")


@dataclass(frozen=True)
class ConditionGroup:
    """Conditions that shall share a best static setting: those of one level of each factor `group_by`."""

    when: FactorLevels
    conditions: tuple[tuple[str, Condition], ...]

    @property
    def label(self) -> str:
        """The levels in words; "" for the only group."""
        return Condition(self.when, {}).label if self.when else ""


@dataclass(frozen=True)
class StaticTrials:
    """Groups of conditions, and the settings that were tried, in the order of their names.

    `left_out` names arms that are no static settings. `invalid` trials are in no condition.
    """

    groups: tuple[ConditionGroup, ...]
    settings: tuple[str, ...]
    left_out: tuple[str, ...]
    trials: int
    invalid: int


def check_metrics(metrics: Sequence[str]) -> None:
    """Raise InputError for a metric that is unknown, high if good, or may be 0."""
    usable = [
        key
        for key, metric in METRICS.papers.items()
        if metric.better == "lower" and not metric.may_be_zero
    ]
    check_known("--metric", "no headroom is told by {!r}", metrics, usable)


def static_trials_of(
    place: str,
    trials: Sequence[MeasuredTrial],
    group_by: Sequence[str],
    setting_factors: Sequence[str],
) -> StaticTrials:
    """Return the scene of a run folder's trials; `place` names the folder in errors.

    `group_by` are factors whose levels are groups, `setting_factors` those whose levels are part of the setting.
    Raises InputError for factors that no trial has, and for less than two settings or seeds.
    """
    _check_factors(trials, group_by, setting_factors)
    left_out = _not_static(trials)
    mine = [
        _with_factors_in_setting(one, setting_factors)
        for one in trials
        if str(one.cell.get(TUNER, "")) not in left_out
    ]
    settings = tuple(sorted({str(one.cell[TUNER]) for one in mine}))
    if len(settings) < 2:
        what = f"has {len(settings)} static setting{'s' * (len(settings) != 1)}, and headroom"
        remedy = "run a campaign with several tuners `static`, like examples/headroom.yml"
        raise InputError.single(place, f"{what} needs several", remedy)
    if len({one.seed for one in mine if one.valid}) < 2:
        remedy = "run it with more --repeats: no seed may both choose and judge"
        raise InputError.single(place, "has valid trials of less than two seeds", remedy)
    section = Section(
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
    )
    found = evaluate_section(section, tuple(mine))
    groups: dict[str, tuple[FactorLevels, list[tuple[str, Condition]]]] = {}
    for condition in found.conditions:
        when = {name: condition.factors[name] for name in group_by}
        rest = {name: level for name, level in condition.factors.items() if name not in group_by}
        _, members = groups.setdefault(repr(when), (when, []))
        members.append((replace(condition, factors=rest).label, condition))
    return StaticTrials(
        groups=tuple(ConditionGroup(when, tuple(members)) for when, members in groups.values()),
        settings=settings,
        left_out=left_out,
        trials=found.trials,
        invalid=found.invalid,
    )


def _check_factors(
    trials: Iterable[MeasuredTrial], group_by: Sequence[str], setting_factors: Sequence[str]
) -> None:
    known = list(dict.fromkeys(name for one in trials for name in factors_of(one.cell)))
    for option, names in (("--by", group_by), ("--setting", setting_factors)):
        check_known(option, "no factor is called {!r}", names, known, "its factors are ")
    for name in group_by:
        if name in setting_factors:
            what = f"{name!r} is also part of the setting"
            raise InputError.single("--by", what, "give it to one of --by and --setting")


def _not_static(trials: Iterable[MeasuredTrial]) -> tuple[str, ...]:
    """Return the arms that act, and those that are another setting under another condition."""
    params: dict[str, set[str]] = {}
    out: set[str] = set()
    for one in trials:
        arm = str(one.cell.get(TUNER, ""))
        params.setdefault(arm, set()).add(one.params)
        if one.tuner not in STATIC_TUNERS:
            out.add(arm)
    return tuple(sorted(out | {arm for arm, several in params.items() if len(several) > 1}))


def _with_factors_in_setting(trial: MeasuredTrial, factors: Sequence[str]) -> MeasuredTrial:
    """Return the trial as that of a setting that has these factors' levels too."""
    if not factors:
        return trial
    name = ", ".join(str(trial.cell[one]) for one in (TUNER, *factors))
    rest = {key: level for key, level in trial.cell.items() if key not in factors}
    return replace(trial, cell={**rest, TUNER: name})
