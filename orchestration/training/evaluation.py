"""The held-out trials: networks are judged on them, and the rule says when that is due."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from inventory.files import load_testbed
from inventory.routing import ideal_times_ns
from orchestration.campaign.expand import load_campaign, trial_seed
from orchestration.core.condition import TUNER, factors_of
from orchestration.core.errors import InputError
from orchestration.core.files import write_whole
from orchestration.core.provenance import versions
from orchestration.core.records import DONE, LONG_LIVED, Floats, Schedule, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.run.worker import Job
from orchestration.training.episodes import EpisodePool, Trace, episode_job
from orchestration.training.files import Round
from orchestration.training.outcome import Evaluation, Gain, Result, Selection
from orchestration.training.protocol import Rule
from orchestration.training.request import TrainRequest

_FIGURE = "log_slowdown"
# The seed of the stream `held-out`. The same for all trainings, which are compared.
_SEED = 1


def log_slowdown_of(job: Job, schedule: Schedule, record: TrialRecord) -> Trace:
    """Return the logarithm of a trial's mean slowdown, an array of shape (1,)."""
    trial, flows = job.trial, record.flows
    ideal_ns = ideal_times_ns(job.testbed, schedule, trial)
    ended = flows.status == DONE
    until_ns = np.where(ended, flows.end_ns, trial.duration_ns + trial.drain_ns)
    slowdown = np.maximum((until_ns - schedule.start_ns) / ideal_ns, 1.0)
    counted = flows.status != LONG_LIVED
    if not counted.any():
        raise InputError.single(
            trial.campaign, f"condition {factors_of(trial.cell)} has no flows", "make it longer"
        )
    return {_FIGURE: np.log(slowdown[counted].mean()).reshape(1)}


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


FILE = "references.json"
_PLACEBO = "placebo"


class Evaluator:
    """Plays networks on the held-out trials and compares them with placebo and static settings.

    What is compared with is played once and kept in a `file`, which trainings share.
    """

    def __init__(
        self,
        held_out: HeldOut,
        file: Path,
        work: Path,
        players: EpisodePool,
        go_on: Callable[[], bool],
    ) -> None:
        """`players` keep `held_out.log_slowdown_of`; `go_on` returns False to interrupt."""
        self._held_out, self._rule = held_out, held_out.rule
        self._file, self._work = file, work
        self._players, self._go_on = players, go_on
        self._references: dict[str, Floats] = {}

    def prepare(self, note: Callable[[str], None]) -> bool:
        """Play the references that the file does not have yet; return whether all is known."""
        tuners = {_PLACEBO: self._rule.placebo, **self._held_out.statics}
        seeds = range(1, self._held_out.judging.stop)
        known: dict[str, list[list[float]]] = {}
        if self._file.exists():
            known = json.loads(self._file.read_text(encoding="utf-8"))
        for place, (label, tuner) in enumerate(tuners.items(), start=1):
            key = self._key(tuner, seeds)
            if key not in known:
                note(f"held-out: {label}, {place} of {len(tuners)}")
                found = self._figures(tuner, seeds)
                if found is None:
                    return False
                known[key] = found.tolist()
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._file, json.dumps(known))
            self._references[label] = np.array(known[key])
        return True

    def due(self, decisions: int, selection: Selection) -> bool:
        """Return whether an evaluation comes before the next round."""
        last = selection.evaluations[-1].decisions if selection.evaluations else 0
        return self._rule.due(decisions) > self._rule.due(last)

    def over(self, decisions: int, selection: Selection) -> bool:
        """Return whether the training is at its end."""
        return decisions >= self._rule.decisions or selection.exhausted

    def evaluate(self, checkpoint: Path, decisions: int, episodes: int) -> Evaluation | None:
        """Play a network on the choosing seeds; None if interrupted."""
        seeds = self._held_out.choosing
        ours = self._figures(self._held_out.network(checkpoint), seeds)
        if ours is None:
            return None
        gains = (Gain.of(ours, self._of(name, seeds)).mean for name in (_PLACEBO, self._best))
        return Evaluation(decisions, episodes, float(ours.mean()), *gains)

    def result(
        self, checkpoint: Path, last: Round, selection: Selection, begin_s: float
    ) -> Result | None:
        """Play the network that is kept on the judging seeds; None if interrupted."""
        seeds = self._held_out.judging
        ours = self._figures(self._held_out.network(checkpoint), seeds)
        if ours is None or selection.best is None:
            return None
        placebo, static = self._of(_PLACEBO, seeds), self._of(self._best, seeds)
        way = float((placebo - static).mean())
        return Result(
            seed=self._held_out.request.seed,
            decisions=last.decisions,
            episodes=last.episodes,
            stopped="budget" if last.decisions >= self._rule.decisions else "patience",
            kept_at=selection.best.decisions,
            over_placebo=Gain.of(ours, placebo),
            over_static=Gain.of(ours, static),
            best_static=self._best,
            share=float((placebo - ours).mean()) / way if way > 0 else math.nan,
            wall_s=round(time.monotonic() - begin_s, 1),
        )

    @property
    def _best(self) -> str:
        """The label of the static setting with the best figure on the choosing seeds."""
        seeds = self._held_out.choosing
        return min(self._held_out.statics, key=lambda label: float(self._of(label, seeds).mean()))

    def _of(self, label: str, seeds: range) -> Floats:
        """Return a reference's figures (seeds, conditions) at some seeds."""
        return self._references[label][seeds.start - 1 : seeds.stop - 1]

    def _figures(self, tuner: TunerSpec, seeds: range) -> Floats | None:
        return self._held_out.figures(tuner, seeds, self._work, self._play)

    def _play(self, jobs: list[Job]) -> list[Trace] | None:
        traces = self._players.play(jobs, self._go_on)
        return traces if len(traces) == len(jobs) else None

    def _key(self, tuner: TunerSpec, seeds: range) -> str:
        """Return what the figures of a tuner follow from: its trials, and the versions."""
        said = [[trial.id for trial in self._held_out.trials(tuner, seeds)], versions()]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
