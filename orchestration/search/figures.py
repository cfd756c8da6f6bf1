"""The figures that trials gave, and what a setting loses by them: regret.

The regret of a setting in a condition is its mean figure over that of the best setting with the
same seeds, less 1 (for figures that should be high, the other way round). Over conditions it is the
mean. So every condition counts alike, whatever the size of its figures.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from orchestration.core.errors import ClosloopError
from orchestration.core.records import Floats
from orchestration.search.space import Setting


class Seed(NamedTuple):
    """The nth seed of one of the streams that come from the campaign's seed."""

    purpose: str
    number: int


class Ask(NamedTuple):
    """A trial that a search wants: a setting in a condition (by its number) at a seed."""

    setting: Setting
    condition: int
    seed: Seed


class Figures:
    """Figures by setting, condition and seed; NaN for a trial that gave none.

    `higher` says that high figures are good.
    """

    def __init__(self, *, higher: bool = False) -> None:
        self.higher = higher
        self._of: dict[Ask, float] = {}

    def __contains__(self, ask: Ask) -> bool:
        return ask in self._of

    def __len__(self) -> int:
        return len(self._of)

    def add(self, ask: Ask, figure: float) -> None:
        """Take a figure down."""
        self._of[ask] = figure

    def at(self, ask: Ask) -> float:
        """Return the figure of a trial that was asked for; NaN if it gave none."""
        return self._of[ask]

    def measured(self, condition: int, seeds: Sequence[Seed]) -> list[Setting]:
        """Return the settings that were tried in a condition at all of these seeds, in order."""
        found: dict[Setting, int] = {}
        wanted = set(seeds)
        for ask in self._of:
            if ask.condition == condition and ask.seed in wanted:
                found[ask.setting] = found.get(ask.setting, 0) + 1
        return sorted(setting for setting, count in found.items() if count == len(wanted))

    def table(self, settings: Sequence[Setting], condition: int, seeds: Sequence[Seed]) -> Floats:
        """Return figures as (settings, seeds), without the seeds at which no setting has one."""
        rows = np.array(
            [[self._of[Ask(one, condition, seed)] for seed in seeds] for one in settings],
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
