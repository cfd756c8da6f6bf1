"""The held-out trials: what is played there, and what a network gains over others there.

A trial's figure is the logarithm of its mean slowdown over all flows. A flow that has not ended
counts with the time that it has had, so that a network that starves flows does not look better.
Lasting flows, which are never to end, do not count.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inventory.files import load_testbed
from inventory.routing import ideal_times_ns
from orchestration.analysis.statistics import Estimate, t_interval
from orchestration.campaign.expand import load_campaign, trial_seed
from orchestration.core.condition import TUNER, factors_of
from orchestration.core.errors import InputError
from orchestration.core.records import DONE, LASTING, Floats, Schedule, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.run.worker import Job
from orchestration.training.episodes import Trace, episode_job
from orchestration.training.protocol import Rule
from orchestration.training.request import TrainRequest

_FIGURE = "log_slowdown"
# The seed of the stream `held-out`. The same for all trainings, which are compared.
_SEED = 1


def figure_of(job: Job, schedule: Schedule, record: TrialRecord) -> Trace:
    """Return the logarithm of a trial's mean slowdown, an array of shape (1,)."""
    trial, flows = job.trial, record.flows
    ideal_ns = ideal_times_ns(job.testbed, schedule, trial)
    ended = flows.status == DONE
    until_ns = np.where(ended, flows.end_ns, trial.duration_ns + trial.drain_ns)
    slowdown = np.maximum((until_ns - schedule.start_ns) / ideal_ns, 1.0)
    counted = flows.status != LASTING
    if not counted.any():
        raise InputError.single(
            trial.campaign, f"condition {factors_of(trial.cell)} has no flows", "make it longer"
        )
    return {_FIGURE: np.log(slowdown[counted].mean()).reshape(1)}


@dataclass(frozen=True)
class Gain:
    """A relative gain with its 95 % interval over seeds; the bounds are NaN for a single seed."""

    mean: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(ours: Floats, theirs: Floats) -> Gain:
        """Return the gain of log figures (seeds, conditions) over those of another tuner.

        Seeds are the observations: the mean over conditions of each, with Student's t.
        """
        return Gain.over((ours - theirs).mean(axis=1))

    @staticmethod
    def over(differences: Sequence[float] | Floats) -> Gain:
        """Return the gain from differences of log figures, one per observation."""
        found: Estimate = t_interval(differences)
        # less is better, so the bounds change places
        mean, low, high = (float(-np.expm1(v)) for v in (found.mean, found.high, found.low))
        return Gain(mean, low, high, found.n)


Play = Callable[[list[Job]], list[Trace] | None]


class HeldOut:
    """The cells of a held-out scenario at the seeds of the held-out stream."""

    def __init__(self, request: TrainRequest, rule: Rule) -> None:
        """Read the scenario that the rule of a request names. Raises InputError."""
        campaign = load_campaign(rule.held_out, backend=request.backend or None)
        first = [trial for trial in campaign.trials if trial.repeat == 1]
        self.request, self.rule = request, rule
        cells = {json.dumps(factors_of(trial.cell)): trial for trial in first}
        order = [json.dumps(factors_of(cell)) for cell in campaign.cells]
        self._cells = [cells[key] for key in dict.fromkeys(order)]
        self.conditions = [" ".join(map(str, factors_of(c.cell).values())) for c in self._cells]
        self.statics: dict[str, TunerSpec] = {
            str(cell[TUNER]): next(t.tuner for t in first if t.cell[TUNER] == cell[TUNER])
            for cell in campaign.cells
        }
        testbeds = {trial.testbed for trial in first}
        if len(testbeds) > 1:
            raise InputError.single(
                rule.held_out, f"has {len(testbeds)} testbeds", "make the testbed no factor"
            )
        self.source = campaign.source
        self.backend = first[0].backend
        self.testbed: Testbed = load_testbed(testbeds.pop())

    @property
    def choosing(self) -> range:
        """The numbers of the seeds that choose."""
        return range(1, self.rule.choosing_seeds + 1)

    @property
    def judging(self) -> range:
        """The numbers of the seeds that judge what was chosen."""
        return range(self.choosing.stop, self.choosing.stop + self.rule.judging_seeds)

    def network(self, checkpoint: Path) -> TunerSpec:
        """Return the tuner that acts greedily by a network."""
        return TunerSpec(
            self.request.tuner,
            {**self.request.params, "checkpoint": str(checkpoint.absolute())},
        )

    def trials(self, tuner: TunerSpec, seeds: range) -> list[TrialSpec]:
        """Return the trials of a tuner, seed by seed, in the order of the conditions."""
        return [
            dataclasses.replace(
                cell, tuner=tuner, repeat=number, seed=trial_seed(_SEED, number, "held-out")
            )
            for number in seeds
            for cell in self._cells
        ]

    def figures(self, tuner: TunerSpec, seeds: range, work: Path, play: Play) -> Floats | None:
        """Play a tuner and return its log figures (seeds, conditions); None if interrupted."""
        jobs = [
            episode_job(trial, self.testbed, work / f"h{number}")
            for number, trial in enumerate(self.trials(tuner, seeds))
        ]
        traces = play(jobs)
        if traces is None:
            return None
        values = np.array([float(trace[_FIGURE][0]) for trace in traces])
        return values.reshape(len(seeds), len(self._cells))
