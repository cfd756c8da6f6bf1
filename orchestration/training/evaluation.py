"""The evaluation of networks on held-out trials, which no training uses.

Some seeds of these trials choose: they say when a training stops and which of its networks is kept
(a validation set). Other seeds judge the network that is kept (a test set). A rule of the protocol
says how many there are of each, and when an evaluation is due.
"""

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
from orchestration.core.engines import PROCESS
from orchestration.core.errors import InputError
from orchestration.core.files import write_whole
from orchestration.core.ports import Backend
from orchestration.core.provenance import versions
from orchestration.core.records import DONE, LONG_LIVED, Floats, Schedule, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.run.backend_factory import backend, engine_for
from orchestration.run.worker import Job
from orchestration.training.episodes import EpisodePool, Trace, episode_job
from orchestration.training.files import Round
from orchestration.training.outcome import Evaluation, Gain, Result, Selection
from orchestration.training.protocol import Rule
from orchestration.training.request import Episodes, TrainRequest
from tuners.registry import create

_LOG_SLOWDOWN = "log_slowdown"
# The seed of the random stream `held-out`. It is the same for all trainings, so that they compare.
_SEED = 1


def log_slowdown_of(job: Job, schedule: Schedule, record: TrialRecord) -> Trace:
    """Return the logarithm of a trial's mean slowdown, as an array of shape (1,).

    A flow that did not end counts with the time that it had taken when the trial ended.
    """
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
    return {_LOG_SLOWDOWN: np.log(slowdown[counted].mean()).reshape(1)}


def backend_for(request: TrainRequest) -> Backend:
    """Return a new backend for a training: all its trials, held-out ones too, run in one engine.

    Raises InputError for a scenario that is wrong.
    """
    episodes = Episodes(request)
    trials, testbeds = episodes.cells, {episodes.cells[0].testbed: episodes.testbed}
    if request.rule is not None:
        held_out = HeldOut(request, request.rule)
        trials = (*trials, *held_out.cells)
        testbeds[held_out.cells[0].testbed] = held_out.testbed
    try:
        tuner = create(TunerSpec(request.tuner, request.params))
    except ValueError as error:
        # what it observes may depend on a network, which there is none of yet: the kernel has all
        if request.engine == PROCESS:
            raise InputError.single(f"--in {PROCESS}", str(error), "leave it out") from error
        return backend(episodes.backend)
    engine = engine_for(trials, testbeds, request.engine, tuner)
    return backend(episodes.backend, engine=engine.engine)


Play = Callable[[list[Job]], list[Trace] | None]


class HeldOut:
    """The trials of a held-out scenario: its cells, at seeds of the random stream `held-out`."""

    def __init__(self, request: TrainRequest, rule: Rule) -> None:
        """Read the scenario that `rule` names. Raises InputError if it is wrong."""
        campaign = load_campaign(rule.held_out, backend=request.backend or None)
        first = [trial for trial in campaign.trials if trial.repeat == 1]
        self.request, self.rule = request, rule
        cells = {json.dumps(factors_of(trial.cell)): trial for trial in first}
        order = [json.dumps(factors_of(cell)) for cell in campaign.cells]
        self.cells = [cells[key] for key in dict.fromkeys(order)]
        self.conditions = [
            " ".join(map(str, factors_of(trial.cell).values())) for trial in self.cells
        ]
        self.statics: dict[str, TunerSpec] = {
            str(cell[TUNER]): next(
                trial.tuner for trial in first if trial.cell[TUNER] == cell[TUNER]
            )
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
        """The numbers of the seeds that choose when to stop and which network to keep."""
        return range(1, self.rule.choosing_seeds + 1)

    @property
    def judging(self) -> range:
        """The numbers of the seeds that judge the network that was chosen."""
        return range(self.choosing.stop, self.choosing.stop + self.rule.judging_seeds)

    def network(self, checkpoint: Path) -> TunerSpec:
        """Return the tuner that acts by a checkpoint's network, without exploring."""
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
            for cell in self.cells
        ]

    def log_slowdowns(
        self, tuner: TunerSpec, seeds: range, work: Path, play: Play
    ) -> Floats | None:
        """Play a tuner; return its log slowdowns (seeds, conditions), or None if interrupted."""
        jobs = [
            episode_job(trial, self.testbed, work / f"h{number}")
            for number, trial in enumerate(self.trials(tuner, seeds))
        ]
        traces = play(jobs)
        if traces is None:
            return None
        values = np.array([float(trace[_LOG_SLOWDOWN][0]) for trace in traces])
        return values.reshape(len(seeds), len(self.cells))


FILE = "references.json"
_PLACEBO = "placebo"


class Evaluator:
    """Plays networks on the held-out trials, and compares them with the references.

    References are the placebo and the static settings of the held-out scenario. Each is played once
    and its figures are kept in `file`, which several trainings can share.
    """

    def __init__(
        self,
        held_out: HeldOut,
        file: Path,
        work: Path,
        pool: EpisodePool,
        should_continue: Callable[[], bool],
    ) -> None:
        """The pool extracts `log_slowdown_of`; `should_continue` returns False to interrupt."""
        self._held_out, self._rule = held_out, held_out.rule
        self._file, self._work = file, work
        self._pool, self._should_continue = pool, should_continue
        self._references: dict[str, Floats] = {}

    def prepare(self, note: Callable[[str], None]) -> bool:
        """Play the references that the file does not have yet; return False if interrupted."""
        tuners = {_PLACEBO: self._rule.placebo, **self._held_out.statics}
        seeds = range(1, self._held_out.judging.stop)
        stored: dict[str, list[list[float]]] = {}
        if self._file.exists():
            stored = json.loads(self._file.read_text(encoding="utf-8"))
        for number, (label, tuner) in enumerate(tuners.items(), start=1):
            key = self._key(tuner, seeds)
            if key not in stored:
                note(f"held-out: {label}, {number} of {len(tuners)}")
                values = self._log_slowdowns(tuner, seeds)
                if values is None:
                    return False
                stored[key] = values.tolist()
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._file, json.dumps(stored))
            self._references[label] = np.array(stored[key])
        return True

    def due(self, decisions: int, selection: Selection) -> bool:
        """Return whether an evaluation is due before the next round."""
        last = selection.evaluations[-1].decisions if selection.evaluations else 0
        return self._rule.due(decisions) > self._rule.due(last)

    def over(self, decisions: int, selection: Selection) -> bool:
        """Return whether the training ends: its budget or its patience is used up."""
        return decisions >= self._rule.decisions or selection.exhausted

    def evaluate(self, checkpoint: Path, decisions: int, episodes: int) -> Evaluation | None:
        """Play a network on the choosing seeds, and compare it; None if interrupted."""
        seeds = self._held_out.choosing
        network = self._log_slowdowns(self._held_out.network(checkpoint), seeds)
        if network is None:
            return None
        references = (_PLACEBO, self._best_static)
        gains = (Gain.of(network, self._reference(name, seeds)).mean for name in references)
        return Evaluation(decisions, episodes, float(network.mean()), *gains)

    def result(
        self, checkpoint: Path, last: Round, selection: Selection, begin_s: float
    ) -> Result | None:
        """Play the kept network on the judging seeds; return the result, None if interrupted."""
        seeds = self._held_out.judging
        network = self._log_slowdowns(self._held_out.network(checkpoint), seeds)
        if network is None or selection.best is None:
            return None
        placebo = self._reference(_PLACEBO, seeds)
        static = self._reference(self._best_static, seeds)
        distance = float((placebo - static).mean())
        return Result(
            seed=self._held_out.request.seed,
            decisions=last.decisions,
            episodes=last.episodes,
            stopped="budget" if last.decisions >= self._rule.decisions else "patience",
            kept_at=selection.best.decisions,
            over_placebo=Gain.of(network, placebo),
            over_static=Gain.of(network, static),
            best_static=self._best_static,
            share=float((placebo - network).mean()) / distance if distance > 0 else math.nan,
            wall_s=round(time.monotonic() - begin_s, 1),
        )

    @property
    def _best_static(self) -> str:
        """The label of the static setting with the lowest slowdown on the choosing seeds."""
        seeds = self._held_out.choosing
        labels = self._held_out.statics
        return min(labels, key=lambda label: float(self._reference(label, seeds).mean()))

    def _reference(self, label: str, seeds: range) -> Floats:
        """Return a reference's log slowdowns (seeds, conditions) at some seeds."""
        return self._references[label][seeds.start - 1 : seeds.stop - 1]

    def _log_slowdowns(self, tuner: TunerSpec, seeds: range) -> Floats | None:
        return self._held_out.log_slowdowns(tuner, seeds, self._work, self._play)

    def _play(self, jobs: list[Job]) -> list[Trace] | None:
        traces = self._pool.play(jobs, self._should_continue)
        return traces if len(traces) == len(jobs) else None

    def _key(self, tuner: TunerSpec, seeds: range) -> str:
        """Return a hash of what a tuner's figures follow from: its trials, and the versions."""
        content = [[trial.id for trial in self._held_out.trials(tuner, seeds)], versions()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
