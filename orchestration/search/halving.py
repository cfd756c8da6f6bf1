"""Successive halving, then steps around the winners.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS 2016, algorithm 1: all settings get a few trials, the better ones more, until few are left.
Here the best 1/eta stay and get eta times as many seeds, as in a bracket of Li et al., "Hyperband",
JMLR 18, 2018 (eta = 3). Seeds are shared, so settings are compared in pairs, and a setting that
stays keeps its trials.

Two kinds of search share the trials: one for the best single setting over all conditions, whose
settings run in all of them, and one a condition for its own best, whose settings run there only.
Then settings a step away from each winner are tried; steps shrink where none is better. A winner
at the edge of a range widens the range, and the search goes on until none is, or the edge is a
physical limit.
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
    """The nth seed of one of the streams that come from the campaign's seed."""

    purpose: str
    number: int


class TrialKey(NamedTuple):
    """A trial that a search wants: a setting in a condition (by its number) at a seed."""

    setting: Setting
    condition: int
    seed: Seed


class MetricValues:
    """Figures by setting, condition and seed; NaN for a trial that gave none.

    `higher` says that high figures are good.
    """

    def __init__(self, *, higher: bool = False) -> None:
        self.higher = higher
        self._of: dict[TrialKey, float] = {}

    def __contains__(self, key: TrialKey) -> bool:
        return key in self._of

    def __len__(self) -> int:
        return len(self._of)

    def add(self, key: TrialKey, figure: float) -> None:
        """Take a figure down."""
        self._of[key] = figure

    def at(self, key: TrialKey) -> float:
        """Return the figure of a trial that was asked for; NaN if it gave none."""
        return self._of[key]

    def measured(self, condition: int, seeds: Sequence[Seed]) -> list[Setting]:
        """Return the settings that were tried in a condition at all of these seeds, in order."""
        found: dict[Setting, int] = {}
        wanted = set(seeds)
        for key in self._of:
            if key.condition == condition and key.seed in wanted:
                found[key.setting] = found.get(key.setting, 0) + 1
        return sorted(setting for setting, count in found.items() if count == len(wanted))

    def table(self, settings: Sequence[Setting], condition: int, seeds: Sequence[Seed]) -> Floats:
        """Return figures as (settings, seeds), without the seeds at which no setting has one."""
        rows = np.array(
            [[self._of[TrialKey(one, condition, seed)] for seed in seeds] for one in settings],
            dtype=np.float64,
        ).reshape(len(settings), len(seeds))
        return rows[:, np.isfinite(rows).any(axis=0)]

    def regret(
        self, settings: Sequence[Setting], condition: int, seeds: Sequence[Seed]
    ) -> dict[Setting, float]:
        """Return the regret of settings in a condition against all that have these seeds.

        Infinite for a setting without a figure at a seed at which another has one, since it may
        have missed a hard seed. Raises ClosloopError if no setting has a figure, or the best is 0.
        """
        known = self.measured(condition, seeds)
        table = self.table(known, condition, seeds)
        if not table.size:
            raise ClosloopError(
                f"no setting has a figure in condition {condition + 1}",
                "look at the trials there: closloop report RUN; or choose another --metric",
            )
        means = np.where(np.isfinite(table).all(axis=1), table.mean(axis=1), math.nan)
        if not np.isfinite(means).any():
            raise ClosloopError(
                f"no setting has a figure at every seed in condition {condition + 1}",
                "look at the trials there: closloop report RUN; or choose another --metric",
            )
        best = float(np.nanmax(means) if self.higher else np.nanmin(means))
        if not best > 0:
            raise ClosloopError(
                f"the best figure in condition {condition + 1} is {best:g}, and regret is relative",
                "choose a --metric that is above 0",
            )
        ratio = best / means if self.higher else means / best
        losses = np.where(np.isfinite(means), ratio - 1.0, math.inf)
        wanted = set(settings)
        return {
            one: float(loss)
            for one, loss in zip(known, losses.tolist(), strict=True)
            if one in wanted
        }

    def mean_regret(
        self, settings: Collection[Setting], conditions: Iterable[int], seeds: Sequence[Seed]
    ) -> dict[Setting, float]:
        """Return the mean regret over conditions, of settings that were tried in all of them."""
        losses = [self.regret(list(settings), one, seeds) for one in conditions]
        return {
            one: float(np.mean([loss[one] for loss in losses]))
            for one in sorted(settings)
            if all(one in loss for loss in losses)
        }


def best_of(regrets: dict[Setting, float], count: int) -> list[Setting]:
    """Return the `count` settings of least regret; of equal ones the smaller values come first."""
    return sorted(regrets, key=lambda one: (regrets[one], one))[:count]


ETA = 3
MAX_SEEDS = 9
# Steps around a winner, in octaves: halved when none of them is better, as in Hooke and Jeeves,
# "Direct search solution of numerical and statistical problems", JACM 8, 1961.
FIRST_STEP, LAST_STEP = 1.0, 0.25
# More neighbours than this are drawn from, so that many dimensions do not cost many trials.
NEIGHBOURS = 9
# Rounds beyond those asked for, while a winner lies at the edge of its range.
ROUNDS_AT_EDGES = 6

SEARCH = "search"


@dataclass(frozen=True)
class SearchBudget:
    """How much is tried: settings at first, rounds around winners; then seeds of verification."""

    settings: int = 27
    rounds: int = 2
    verify: int = 8

    def rungs(self) -> list[tuple[int, int]]:
        """Return (settings, seeds) of each rung: 27 settings at 1 seed, 9 at 3, 3 at 9."""
        rungs, count, seeds = [(self.settings, 1)], self.settings, 1
        while count > ETA and seeds < MAX_SEEDS:
            count, seeds = -(-count // ETA), min(seeds * ETA, MAX_SEEDS)
            rungs.append((count, seeds))
        return rungs


# Runs what is asked for and not known yet, and adds its figures; told the name of the stage.
Measure = Callable[[str, Sequence[TrialKey]], None]


def first_seeds(count: int, purpose: str = SEARCH) -> list[Seed]:
    """Return the first seeds of a stream."""
    return [Seed(purpose, number) for number in range(1, count + 1)]


# Settings, and the conditions in which they are tried.
_Candidates = tuple[list[Setting], tuple[int, ...]]


class Halving:
    """One search over a group of conditions. Deterministic: its draws follow `seed` alone.

    Afterwards `space` has the ranges as they ended up, `notes` what a reader should know of edges.
    """

    def __init__(
        self,
        space: Space,
        conditions: Sequence[int],
        effort: SearchBudget,
        metric_values: MetricValues,
        measure: Measure,
        seed: int,
    ) -> None:
        self.space = space
        self.notes: list[str] = []
        self._conditions = list(conditions)
        self._effort = effort
        self._metric_values = metric_values
        self._measure = measure
        self._seed = seed
        self._seeds = first_seeds(effort.rungs()[-1][1])

    def run(self) -> None:
        """Search; the figures then have what `best` and `best_in` choose from."""
        self._halve()
        self._refine()

    def best(self, count: int) -> list[Setting]:
        """Return the best single settings of those that got the most seeds everywhere."""
        everywhere = [
            set(self._metric_values.measured(one, self._seeds)) for one in self._conditions
        ]
        common = set.intersection(*everywhere)
        regrets = self._metric_values.mean_regret(common, self._conditions, self._seeds)
        return best_of(regrets, count)

    def best_in(self, condition: int, count: int) -> list[Setting]:
        """Return the best settings of a condition, of those that got the most seeds there."""
        known = self._metric_values.measured(condition, self._seeds)
        return best_of(self._metric_values.regret(known, condition, self._seeds), count)

    def _halve(self) -> None:
        rungs = self._effort.rungs()
        alive = self.space.first(rungs[0][0], self._seed)
        own = dict.fromkeys(self._conditions, alive)
        for number, (_, count) in enumerate(rungs, start=1):
            seeds = first_seeds(count)
            keys = [
                TrialKey(setting, one, seed)
                for one in self._conditions
                for setting in dict.fromkeys([*alive, *own[one]])
                for seed in seeds
            ]
            self._measure(f"rung {number} of {len(rungs)}", keys)
            if number == len(rungs):
                break
            stay = rungs[number][0]
            regrets = self._metric_values.mean_regret(alive, self._conditions, seeds)
            for one in self._conditions:
                here = dict.fromkeys([*alive, *own[one]])
                own[one] = best_of(self._metric_values.regret(list(here), one, seeds), stay)
            alive = best_of(regrets, stay)

    def _refine(self) -> None:
        effort, number, widened = self._effort, 0, False
        octaves: dict[tuple[int, ...], float] = {}
        while number < effort.rounds or (widened and number < effort.rounds + ROUNDS_AT_EDGES):
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
        """Return the winners, by the conditions for which each is one."""
        found = {tuple(self._conditions): self.best(1)[0]}
        for one in self._conditions if len(self._conditions) > 1 else ():
            found[(one,)] = self.best_in(one, 1)[0]
        return found

    def _round(
        self,
        number: int,
        targets: Mapping[tuple[int, ...], Setting],
        octaves: Mapping[tuple[int, ...], float],
    ) -> None:
        """Try what is around the winners with few seeds; then the better ones with all.

        With them goes the setting that takes all steps at once that were better by themselves.
        """
        few = self._seeds[: max(1, len(self._seeds) // ETA)]
        rng = np.random.default_rng([self._seed, number])
        around: list[_Candidates] = []
        for conditions, winner in targets.items():
            steps = self.space.neighbours(winner, octaves.get(conditions, FIRST_STEP))
            if len(steps) > NEIGHBOURS:
                drawn = rng.permutation(len(steps))[:NEIGHBOURS]
                steps = [steps[place] for place in sorted(drawn.tolist())]
            around.append((steps, conditions))
        self._measure(f"step {number}, few seeds", _trial_keys(around, few))
        better: list[_Candidates] = []
        for (steps, conditions), winner in zip(around, targets.values(), strict=True):
            regrets = self._metric_values.mean_regret([winner, *steps], conditions, few)
            improving = [one for one in steps if regrets[one] < regrets[winner]]
            stay = best_of({one: regrets[one] for one in steps}, -(-len(steps) // ETA))
            together = self.space.together(
                winner, best_of({one: regrets[one] for one in improving}, len(improving))
            )
            better.append(([*stay, together], conditions))
        self._measure(f"step {number}, all seeds", _trial_keys(better, self._seeds))

    def _widen(self, winners: Iterable[Setting]) -> bool:
        """Widen the ranges at whose edges winners lie; return whether there was one."""
        wider = {
            (dimension.name, side): dimension
            for winner in winners
            for dimension, side in self.space.edges(winner)
            if not dimension.is_at_limit(side)
        }
        for (name, side), dimension in wider.items():
            edge = dimension.minimum if side < 0 else dimension.maximum
            self.space = self.space.widened(name, side)
            now = next(one for one in self.space.dimensions if one.name == name)
            self.notes.append(
                f"a winner lies at the edge of the range of {short_name(name)}, "
                f"{value_text(name, edge)}: the search went on to "
                f"{value_text(name, now.minimum if side < 0 else now.maximum)}"
            )
        return bool(wider)

    def _note_limits(self) -> None:
        """Note the winners that lie at a physical limit."""
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
        TrialKey(setting, one, seed)
        for settings, conditions in around
        for setting in settings
        for one in conditions
        for seed in seeds
    )
    return list(dict.fromkeys(keys))


def stage_costs(effort: SearchBudget, conditions: int, neighbours: int) -> list[tuple[str, int]]:
    """Return the stages of a search and the most trials that each can have.

    `neighbours` are those of a setting; ranges that must be widened cost further rounds.
    """
    stages, before = [], 0
    rungs = effort.rungs()
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
    stages.append((f"{effort.rounds} rounds around the winners", effort.rounds * each))
    return stages
