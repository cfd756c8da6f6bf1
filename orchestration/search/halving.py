"""Successive halving, then steps around the winners.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS 2016, algorithm 1: all settings get a few trials, the better ones get more, until few are
left. Here the best 1/eta of the settings stay and get eta times as many seeds, as in a bracket of
Li et al., "Hyperband", JMLR 18, 2018 (eta = 3). All settings get the same seeds, so that they are
compared in pairs, and a setting that stays keeps its trials.

There are two kinds of search, which share their trials: one for the best single setting over all
conditions, whose settings run under all of them, and one for the best setting of each condition,
whose settings run under that condition only. Then settings one step away from each winner are
tried; the step is halved where none of them is better. A winner at the edge of a range widens that
range. The search goes on until no winner is at an edge, or the edge is a physical limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from orchestration.core.errors import ClosloopError
from orchestration.core.records import Floats
from orchestration.search.space import Setting, Space, short_name, value_text


class Seed(NamedTuple):
    """The nth seed of a random stream of the campaign; `purpose` names the stream."""

    purpose: str
    number: int


class TrialKey(NamedTuple):
    """What identifies a trial of a search: a setting, a condition (by its number), and a seed."""

    setting: Setting
    condition: int
    seed: Seed


class MetricValues:
    """The metric's values of a search's trials; NaN for a trial without one.

    `higher` says that high values are good.
    """

    def __init__(self, *, higher: bool = False) -> None:
        self.higher = higher
        self._of: dict[TrialKey, float] = {}

    def __contains__(self, key: TrialKey) -> bool:
        return key in self._of

    def __len__(self) -> int:
        return len(self._of)

    def add(self, key: TrialKey, value: float) -> None:
        """Record the value of a trial."""
        self._of[key] = value

    def at(self, key: TrialKey) -> float:
        """Return the value of a trial, which must have been added."""
        return self._of[key]

    def measured(self, condition: int, seeds: Sequence[Seed]) -> list[Setting]:
        """Return, sorted, the settings that were tried under a condition at all of these seeds."""
        counts: dict[Setting, int] = {}
        chosen = set(seeds)
        for key in self._of:
            if key.condition == condition and key.seed in chosen:
                counts[key.setting] = counts.get(key.setting, 0) + 1
        return sorted(setting for setting, count in counts.items() if count == len(chosen))

    def table(self, settings: Sequence[Setting], condition: int, seeds: Sequence[Seed]) -> Floats:
        """Return values as (settings, seeds), without the seeds at which no setting has one."""
        rows = np.array(
            [
                [self._of[TrialKey(setting, condition, seed)] for seed in seeds]
                for setting in settings
            ],
            dtype=np.float64,
        ).reshape(len(settings), len(seeds))
        return rows[:, np.isfinite(rows).any(axis=0)]

    def regret(
        self, settings: Sequence[Setting], condition: int, seeds: Sequence[Seed]
    ) -> dict[Setting, float]:
        """Return each setting's regret under a condition: its loss against the best, as a share.

        The best is chosen among all settings with values at all of these seeds. The regret is
        infinite for a setting that lacks a value at a seed at which another has one, because it may
        have missed a hard seed. Raises ClosloopError if no setting has a value, or the best is 0.
        """
        known = self.measured(condition, seeds)
        table = self.table(known, condition, seeds)
        if not table.size:
            raise ClosloopError(
                f"no setting has a value of the metric in condition {condition + 1}",
                "look at the trials there: closloop report RUN; or choose another --metric",
            )
        means = np.where(np.isfinite(table).all(axis=1), table.mean(axis=1), math.nan)
        if not np.isfinite(means).any():
            raise ClosloopError(
                f"no setting has a value of the metric at every seed in condition {condition + 1}",
                "look at the trials there: closloop report RUN; or choose another --metric",
            )
        best = float(np.nanmax(means) if self.higher else np.nanmin(means))
        if not best > 0:
            raise ClosloopError(
                f"the best value in condition {condition + 1} is {best:g}, but regret is relative",
                "choose a --metric that is above 0",
            )
        ratio = best / means if self.higher else means / best
        losses = np.where(np.isfinite(means), ratio - 1.0, math.inf)
        chosen = set(settings)
        return {
            setting: float(loss)
            for setting, loss in zip(known, losses.tolist(), strict=True)
            if setting in chosen
        }

    def mean_regret(
        self, settings: Collection[Setting], conditions: Iterable[int], seeds: Sequence[Seed]
    ) -> dict[Setting, float]:
        """Return the mean regret over conditions, of settings that were tried under all of them."""
        losses = [self.regret(list(settings), condition, seeds) for condition in conditions]
        return {
            setting: float(np.mean([loss[setting] for loss in losses]))
            for setting in sorted(settings)
            if all(setting in loss for loss in losses)
        }


def best_of(regrets: dict[Setting, float], count: int) -> list[Setting]:
    """Return the `count` settings of smallest regret; smaller values first among equals."""
    return sorted(regrets, key=lambda setting: (regrets[setting], setting))[:count]


ETA = 3
MAX_SEEDS = 9
# Steps around a winner, in octaves: halved when none of them is better, as in Hooke and Jeeves,
# "Direct search solution of numerical and statistical problems", JACM 8, 1961.
FIRST_STEP, LAST_STEP = 1.0, 0.25
# Of more neighbours than this, so many are drawn: many dimensions shall not cost many trials.
NEIGHBOURS = 9
# Rounds beyond those that the user asks for, while a winner lies at the edge of its range.
ROUNDS_AT_EDGES = 6

SEARCH = "search"


@dataclass(frozen=True)
class SearchBudget:
    """How many trials a search may run.

    `settings` are tried at first, then there are `rounds` of steps around winners; `verify` is the
    number of fresh seeds that verify the finalists.
    """

    settings: int = 27
    rounds: int = 2
    verify: int = 8

    def rungs(self) -> list[tuple[int, int]]:
        """Return (settings, seeds) of each rung, by default (27, 1), (9, 3), (3, 9)."""
        rungs, count, seeds = [(self.settings, 1)], self.settings, 1
        while count > ETA and seeds < MAX_SEEDS:
            count, seeds = -(-count // ETA), min(seeds * ETA, MAX_SEEDS)
            rungs.append((count, seeds))
        return rungs


# Called with a stage's name and its trials: runs those that are not known, and adds their values.
Measure = Callable[[str, Sequence[TrialKey]], None]


def first_seeds(count: int, purpose: str = SEARCH) -> list[Seed]:
    """Return the first `count` seeds of a random stream."""
    return [Seed(purpose, number) for number in range(1, count + 1)]


# Settings, and the conditions under which they are tried.
_Candidates = tuple[list[Setting], tuple[int, ...]]


class Halving:
    """One search over a group of conditions. It is deterministic: its draws follow from `seed`.

    Afterwards `space` has the ranges as they were widened, and `notes` say which winners lie at the
    edge of a range.
    """

    def __init__(
        self,
        space: Space,
        conditions: Sequence[int],
        budget: SearchBudget,
        metric_values: MetricValues,
        measure: Measure,
        seed: int,
    ) -> None:
        self.space = space
        self.notes: list[str] = []
        self._conditions = list(conditions)
        self._budget = budget
        self._metric_values = metric_values
        self._measure = measure
        self._seed = seed
        self._seeds = first_seeds(budget.rungs()[-1][1])

    def run(self) -> None:
        """Search. Afterwards `best` and `best_in` can choose from the measured values."""
        self._halve()
        self._refine()

    def best(self, count: int) -> list[Setting]:
        """Return the best single settings of those that got all seeds under every condition."""
        measured = (self._metric_values.measured(one, self._seeds) for one in self._conditions)
        common = set.intersection(*map(set, measured))
        regrets = self._metric_values.mean_regret(common, self._conditions, self._seeds)
        return best_of(regrets, count)

    def best_in(self, condition: int, count: int) -> list[Setting]:
        """Return the best settings of a condition, of those that got all seeds there."""
        known = self._metric_values.measured(condition, self._seeds)
        return best_of(self._metric_values.regret(known, condition, self._seeds), count)

    def _halve(self) -> None:
        """Run the rungs. `alive` are the settings for all conditions, `own` those of each one."""
        rungs = self._budget.rungs()
        alive = self.space.first(rungs[0][0], self._seed)
        own = dict.fromkeys(self._conditions, alive)
        for number, (_, count) in enumerate(rungs, start=1):
            seeds = first_seeds(count)
            keys = [
                TrialKey(setting, condition, seed)
                for condition in self._conditions
                for setting in dict.fromkeys([*alive, *own[condition]])
                for seed in seeds
            ]
            self._measure(f"rung {number} of {len(rungs)}", keys)
            if number == len(rungs):
                break
            stay = rungs[number][0]
            regrets = self._metric_values.mean_regret(alive, self._conditions, seeds)
            for condition in self._conditions:
                tried = list(dict.fromkeys([*alive, *own[condition]]))
                own[condition] = best_of(self._metric_values.regret(tried, condition, seeds), stay)
            alive = best_of(regrets, stay)

    def _refine(self) -> None:
        """Run the rounds of steps around winners, and widen ranges at whose edges these lie."""
        budget, number, widened = self._budget, 0, False
        octaves: dict[tuple[int, ...], float] = {}
        while number < budget.rounds or (widened and number < budget.rounds + ROUNDS_AT_EDGES):
            number += 1
            before = self._targets()
            self._round(number, before, octaves)
            after = self._targets()
            for conditions, winner in after.items():
                if winner == before[conditions]:
                    step = octaves.get(conditions, FIRST_STEP) / 2
                    octaves[conditions] = max(step, LAST_STEP)
            widened = self._widen(after.values())
        if widened:
            self.notes.append(
                "the search stopped with a winner at the edge of a range: give it more --rounds"
            )
        self._note_limits()

    def _targets(self) -> dict[tuple[int, ...], Setting]:
        """Return the winners by the conditions that each is best for: all, or a single one."""
        winners = {tuple(self._conditions): self.best(1)[0]}
        for condition in self._conditions if len(self._conditions) > 1 else ():
            winners[(condition,)] = self.best_in(condition, 1)[0]
        return winners

    def _round(
        self,
        number: int,
        targets: Mapping[tuple[int, ...], Setting],
        octaves: Mapping[tuple[int, ...], float],
    ) -> None:
        """Try the winners' neighbours at few seeds, then the better ones at all seeds.

        One more setting is tried with these: it takes all steps at once that were better alone.
        """
        few = self._seeds[: max(1, len(self._seeds) // ETA)]
        rng = np.random.default_rng([self._seed, number])
        around: list[_Candidates] = []
        for conditions, winner in targets.items():
            steps = self.space.neighbours(winner, octaves.get(conditions, FIRST_STEP))
            if len(steps) > NEIGHBOURS:
                drawn = rng.permutation(len(steps))[:NEIGHBOURS]
                steps = [steps[index] for index in sorted(drawn.tolist())]
            around.append((steps, conditions))
        self._measure(f"step {number}, few seeds", _trial_keys(around, few))
        better: list[_Candidates] = []
        for (steps, conditions), winner in zip(around, targets.values(), strict=True):
            regrets = self._metric_values.mean_regret([winner, *steps], conditions, few)
            of_steps = {setting: regrets[setting] for setting in steps}
            stay = best_of(of_steps, -(-len(steps) // ETA))
            improving = {step: loss for step, loss in of_steps.items() if loss < regrets[winner]}
            together = self.space.together(winner, best_of(improving, len(improving)))
            better.append(([*stay, together], conditions))
        self._measure(f"step {number}, all seeds", _trial_keys(better, self._seeds))

    def _widen(self, winners: Iterable[Setting]) -> bool:
        """Widen the ranges at whose edges winners lie; return whether any was widened."""
        wider = {
            (dimension.name, side): dimension
            for winner in winners
            for dimension, side in self.space.edges(winner)
            if not dimension.is_at_limit(side)
        }
        for (name, side), dimension in wider.items():
            edge = dimension.minimum if side < 0 else dimension.maximum
            self.space = self.space.widened(name, side)
            now = next(dim for dim in self.space.dimensions if dim.name == name)
            self.notes.append(
                f"a winner lies at the edge of the range of {short_name(name)}, "
                f"{value_text(name, edge)}: the search went on to "
                f"{value_text(name, now.minimum if side < 0 else now.maximum)}"
            )
        return bool(wider)

    def _note_limits(self) -> None:
        """Note which winners lie at a physical limit."""
        for conditions, winner in self._targets().items():
            for dimension, side in self.space.edges(winner):
                if not dimension.is_at_limit(side):
                    continue
                which = "the best single setting" if len(conditions) > 1 else ""
                which = which or f"the best setting of condition {conditions[0] + 1}"
                edge = dimension.minimum if side < 0 else dimension.maximum
                reason = dimension.limit_reasons[0 if side < 0 else 1]
                self.notes.append(
                    f"{which} has {short_name(dimension.name)} {value_text(dimension.name, edge)}, "
                    f"the limit: {reason}"
                )


def _trial_keys(around: Iterable[_Candidates], seeds: Sequence[Seed]) -> list[TrialKey]:
    keys = (
        TrialKey(setting, condition, seed)
        for settings, conditions in around
        for setting in settings
        for condition in conditions
        for seed in seeds
    )
    return list(dict.fromkeys(keys))


def stage_costs(budget: SearchBudget, conditions: int, neighbours: int) -> list[tuple[str, int]]:
    """Return the stages of a search, each with the maximum number of its trials.

    `neighbours` is the number of a setting's neighbours. Ranges that are widened cost more rounds.
    """
    stages, before = [], 0
    rungs = budget.rungs()
    for number, (count, seeds) in enumerate(rungs, start=1):
        kinds = 1 if number == 1 or conditions == 1 else 2
        maximum = kinds * count * (seeds - before) * conditions
        stages.append((f"rung {number}: {count} settings, {seeds} seeds", maximum))
        before = seeds
    seeds, few = rungs[-1][1], max(1, rungs[-1][1] // ETA)
    around = min(neighbours, NEIGHBOURS)
    kinds = 1 if conditions == 1 else 2
    stay = -(-around // ETA)
    each = kinds * conditions * (around * few + stay * (seeds - few) + seeds)
    stages.append((f"{budget.rounds} rounds around the winners", budget.rounds * each))
    return stages
