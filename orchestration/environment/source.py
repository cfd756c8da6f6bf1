"""The source of episodes: a campaign's cells, or one trial, with traffic from training seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inventory.files import load_testbed
from orchestration.campaign.expand import load_campaign, trial_seed
from orchestration.core.capabilities import capabilities, mode_of
from orchestration.core.condition import factors_of
from orchestration.core.errors import InputError
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar, TrialSpec


class EpisodeSource:
    """Trials to learn on, in an order that follows from a seed.

    A campaign's cells are taken in turn; its tuners are ignored. An episode ends with the trial's
    duration: there is no drain time.
    """

    def __init__(self, source: str | Path | TrialSpec, backend: str | None, seed: int) -> None:
        """Read `source`. Raises InputError if it is faulty, or if its cells' fabrics differ."""
        where = source.campaign if isinstance(source, TrialSpec) else str(source)
        trials = _trials(source, backend)
        self._trials = [replace(trial, drain_ns=0) for trial in trials]
        first = self._trials[0]
        self.backend: str = first.backend
        self.mode = mode_of(first)
        self.deterministic = self.mode.deterministic
        self.testbed: Testbed = load_testbed(first.testbed)
        if any(trial.testbed != first.testbed for trial in trials):
            raise InputError.single(
                where,
                "the cells have different testbeds, an environment has one",
                "name one testbed, and make an environment for each other",
            )
        for trial in trials:
            if trial.duration_ns < 2 * trial.action_period_ns:
                raise InputError.single(
                    where,
                    f"{trial.duration_ns} ns have no room for two decisions that are "
                    f"{trial.action_period_ns} ns apart",
                    "make `duration` longer or `action_period` shorter",
                )
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Start the sequence of episodes that belongs to `seed`."""
        self._seed = seed
        self._episode = 0

    def next(self) -> TrialSpec:
        """Return the next episode's trial. Its seed comes from the training stream."""
        trial = self._trials[self._episode % len(self._trials)]
        self._episode += 1
        seed = trial_seed(self._seed, self._episode, purpose="training")
        return replace(trial, seed=seed, repeat=self._episode)


def _trials(source: str | Path | TrialSpec, backend: str | None) -> list[TrialSpec]:
    """Return one trial for each cell, whatever its tuner."""
    if isinstance(source, TrialSpec):
        on = backend or source.backend
        clock = source.clock if capabilities(on).on(source.clock) else ""
        return [replace(source, backend=on, clock=clock)]
    campaign = load_campaign(source, backend=backend)
    chosen: list[TrialSpec] = []
    seen: list[dict[str, Scalar]] = []
    for cell in map(factors_of, campaign.cells):
        if cell not in seen:
            seen.append(cell)
            chosen.append(next(t for t in campaign.trials if factors_of(t.cell) == cell))
    return chosen
