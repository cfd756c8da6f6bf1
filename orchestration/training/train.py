"""Trains a tuner in rounds: play episodes, learn from them, save a checkpoint.

With a rule of the protocol (`orchestration.training.protocol`), the network also plays a held-out
scenario several times, which decides when to stop and which network is kept. The files of a
training are described in `orchestration.training.files`.

Everything follows from the request: with a deterministic backend, the same request gives the same
network, bit for bit, whether or not it was interrupted and resumed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from orchestration.core.engines import engine_of
from orchestration.core.errors import InputError, Interrupted, TrialError
from orchestration.core.machine import deferred_signals
from orchestration.core.ports import Backend, HasEngines
from orchestration.core.trial import TrialSpec
from orchestration.run.executors import THIS_MACHINE, Executor
from orchestration.run.worker import Job
from orchestration.training.episodes import EpisodePool, Trace, episode_job
from orchestration.training.evaluation import FILE, Evaluator, HeldOut, log_slowdown_of
from orchestration.training.files import Round, TrainingFolder, check_folder, checkpoint_card
from orchestration.training.outcome import FILE as RESULT
from orchestration.training.outcome import Selection, write_result
from orchestration.training.request import (
    Episodes,
    TrainRequest,
    make_learner,
    with_exploration,
    with_tuner,
)
from tuners.learning import checkpoint as files
from tuners.learning.learner import Learner, NotANumberError
from tuners.learning.networks import all_finite

# The state has replay memories of up to a hundred megabytes, so it is not saved at every round.
_STATE_EVERY_S = 20.0

Listener = Callable[[Round, int], None]
ShouldContinue = Callable[[], bool]


def train(
    request: TrainRequest,
    backend: Backend,
    folder: Path,
    jobs: int,
    listener: Listener,
    *,
    fresh: bool = False,
    references: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
    executor: Executor = THIS_MACHINE,
) -> Path:
    """Train as long as the request says, and return the checkpoint's path.

    A training of the same request in `folder` is resumed. Call it from the main thread. `listener`
    gets each round, and the training's length: in queue decisions if the request has a rule, else
    in episodes. `note` gets texts about everything else. `references` is the file with the held-out
    figures of placebo and static settings, by default in `folder`; several trainings can share it.
    Episodes are played on `executor`; learning is on this machine.

    Raises:
        InputError: a scenario is wrong, or the folder holds another training.
        TrialError: an episode failed, or a loss or an observation is not a number. The last good
            checkpoint is kept.
        Interrupted: SIGINT or SIGTERM came. The same request resumes from the last saved round.
    """
    episodes = Episodes(request)
    held_out = _held_out(request, episodes.backend)
    executor.check(backend, episodes.testbed, jobs, [])
    check_folder(folder, request.input_files, fresh=fresh)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    training = _Training(
        request,
        episodes,
        TrainingFolder(folder, by_rule=held_out is not None),
        held_out,
        engine_of(backend.engine_facts([]))[0] if isinstance(backend, HasEngines) else "",
    )
    if training.finished:
        return training.folder.checkpoint
    executor.check(backend, episodes.testbed, jobs, [training.episode(0)])
    pool = EpisodePool(backend, jobs, executor=executor)
    evaluation_pool = EpisodePool(backend, jobs, log_slowdown_of, executor)

    def kill() -> None:
        pool.kill()
        evaluation_pool.kill()

    with deferred_signals(kill) as signals:

        def should_continue() -> bool:
            return not signals

        try:
            evaluator = None
            if held_out is not None:
                file = references or folder / FILE
                work = folder / "work"
                evaluator = Evaluator(held_out, file, work, evaluation_pool, should_continue)
                evaluator.prepare(note)
            training.run(pool, evaluator, listener, note, should_continue)
        finally:
            pool.close()
            evaluation_pool.close()
            shutil.rmtree(folder / "work", ignore_errors=True)
    if signals:
        raise Interrupted(
            f"interrupted after {training.done} episodes", "the same command resumes it"
        )
    return training.folder.checkpoint


def _held_out(request: TrainRequest, backend: str) -> HeldOut | None:
    """Return the held-out trials of a request with a rule. They need the training's backend."""
    if request.rule is None:
        return None
    held_out = HeldOut(request, request.rule)
    if held_out.backend != backend:
        raise InputError.single(
            request.rule.held_out,
            f"runs on {held_out.backend}, and the training on {backend}",
            "name one backend with --on",
        )
    return held_out


class _Training:
    """The state of one call of `train`."""

    def __init__(
        self,
        request: TrainRequest,
        episodes: Episodes,
        folder: TrainingFolder,
        held_out: HeldOut | None,
        engine: str,
    ) -> None:
        self._request = request
        self._episodes = episodes
        self.folder = folder
        self._held_out = held_out
        self._selection = Selection(request.rule.patience) if request.rule else None
        self._rounds: list[Round] = []
        self._saved_s = 0.0
        self._parent: dict[str, Any] = {}
        self._learner = self._make_learner()
        can_resume = folder.open(
            request, episodes.source, held_out.source if held_out else "", engine
        )
        self.finished = (folder.path / RESULT).exists()
        if can_resume and not self.finished:
            self._resume()
        elif not can_resume:
            self._save()

    @property
    def done(self) -> int:
        """The number of episodes that were played."""
        return self._rounds[-1].episodes if self._rounds else 0

    @property
    def _decisions(self) -> int:
        return self._rounds[-1].decisions if self._rounds else 0

    def _make_learner(self) -> Learner:
        """Return the learner, with the network of `init` if the request names one."""
        request, testbed = self._request, self._episodes.testbed
        parent = files.load(request.init) if request.init else None
        self._parent = parent.card if parent else {}
        settings = request.settings
        if request.rule is not None:
            # the time constant is in readings of the fabric, the budget in decisions of its queues
            readings = request.rule.decisions / len(testbed.queues)
            decay = request.rule.explore_decay * readings
            settings = with_exploration(request.learner_reference, settings, decay)

        def new_learner(parameters: Any) -> Learner:
            return make_learner(
                request.learner_reference, request.seed, testbed, settings, parameters
            )

        learner = new_learner(parent.arrays if parent else None)
        if request.per_switch:
            count = len(testbed.switches)
            copies = {
                name: values if len(values) == count else np.repeat(values, count, axis=0)
                for name, values in learner.parameters().items()
            }
            learner = new_learner(copies)
        return learner

    def _resume(self) -> None:
        self._rounds, state = self.folder.load_state()
        if self._selection is not None:
            self._selection.load(state)
        self._learner.load(state)
        self._save_networks()

    def run(
        self,
        pool: EpisodePool,
        evaluator: Evaluator | None,
        listener: Listener,
        note: Callable[[str], None],
        should_continue: ShouldContinue,
    ) -> None:
        """Play and learn, round by round; with an evaluator, evaluate whenever it is due."""
        begin_s = time.monotonic()
        rule = self._request.rule
        total = rule.decisions if rule else self._request.episodes
        try:
            while should_continue():
                if evaluator is not None and self._selection is not None:
                    if evaluator.due(self._decisions, self._selection):
                        self._evaluate(evaluator, self._selection, note)
                        continue
                    if evaluator.over(self._decisions, self._selection):
                        self._conclude(evaluator, self._selection, begin_s)
                        break
                elif self.done >= total:
                    break
                done_round = self._round(pool, should_continue)
                if done_round is not None:
                    listener(done_round, total)
        finally:
            self._save_state()

    def _evaluate(
        self, evaluator: Evaluator, selection: Selection, note: Callable[[str], None]
    ) -> None:
        """Play the network on the held-out trials, and keep it if it is the best so far."""
        evaluation = evaluator.evaluate(self.folder.latest, self._decisions, self.done)
        if evaluation is None:
            return
        kept = selection.add(evaluation, self._learner.parameters())
        note(
            f"held-out: {evaluation.over_placebo:+.1%} over the placebo, "
            f"{evaluation.over_static:+.1%} over the best static setting{': kept' if kept else ''}"
        )
        self._save()
        self._save_state()

    def _conclude(self, evaluator: Evaluator, selection: Selection, begin_s: float) -> None:
        """Judge the kept network on the judging seeds, and write the training's result."""
        result = evaluator.result(self.folder.checkpoint, self._rounds[-1], selection, begin_s)
        if result is None:
            return
        card = self._card() | {"judged": result.to_json()}
        del card["judged"]["wall_s"]
        files.save(self.folder.checkpoint, selection.best_parameters, card)
        write_result(self.folder.path, result)

    def _round(self, pool: EpisodePool, should_continue: ShouldContinue) -> Round | None:
        """Play the next episodes and learn from them; None if interrupted."""
        begin = time.monotonic()
        count = self._request.actors
        if self._request.rule is None:
            count = min(count, self._request.episodes - self.done)
        numbers = range(self.done, self.done + count)
        traces = pool.play([self._job(number) for number in numbers], should_continue)
        if len(traces) < count:
            return None
        played = time.monotonic()
        figures = self._learn(traces)
        learned = time.monotonic()
        readings = sum(len(next(iter(trace.values()))) for trace in traces if trace)
        decisions = self._decisions + readings * len(self._episodes.testbed.queues)
        times = {"act_s": played - begin, "learn_s": learned - played}
        done_round = Round(self.done + count, decisions, *figures, **times)
        self._rounds.append(done_round)
        self._save()
        return done_round

    def episode(self, number: int) -> TrialSpec:
        """Return an episode that is played by the network as it is now."""
        acting = self._learner.acting()
        return with_tuner(self._episodes[number], self._request, self.folder.latest, acting)

    def _job(self, number: int) -> Job:
        work = self.folder.work / str(number)
        shutil.rmtree(work, ignore_errors=True)
        return episode_job(self.episode(number), self._episodes.testbed, work)

    def _learn(self, traces: list[Trace]) -> tuple[float, float, float]:
        """Learn from the traces; return the means of reward, loss and exploration."""
        rows = []
        try:
            for trace in traces:
                if not all(np.isfinite(values).all() for values in trace.values()):
                    raise NotANumberError("an observation or a reward is not a number")
                rows.append(self._learner.learn(trace))
            if not all_finite(self._learner.parameters()):
                raise NotANumberError("a parameter is not a number")
        except NotANumberError as error:
            raise TrialError(
                f"training stopped after {self.done} episodes: {error}",
                f"the last good checkpoint is kept in {self.folder.checkpoint}; "
                "a smaller --set learning_rate may help",
            ) from error
        rows = [row for row in rows if row]
        if not rows:
            raise InputError.single(
                self._request.scenario,
                "its episodes have nothing to learn from",
                "make them longer, or send more traffic",
            )
        mean = [float(np.mean([row[key] for row in rows])) for key in ("reward", "loss", "explore")]
        return mean[0], mean[1], mean[2]

    def _save(self) -> None:
        self._save_networks()
        self.folder.write_tables(self._rounds, self._selection)
        if time.monotonic() - self._saved_s > _STATE_EVERY_S:
            self._save_state()

    def _save_networks(self) -> None:
        """Save the network that plays next, and with a rule the best one so far."""
        files.save(self.folder.latest, self._learner.parameters(), self._card())
        if self._selection is not None and self._selection.best_parameters:
            files.save(self.folder.checkpoint, self._selection.best_parameters, self._card())

    def _save_state(self) -> None:
        state = dict(self._learner.state())
        if self._selection is not None:
            state |= self._selection.state()
        self.folder.save_state(self._rounds, state)
        self._saved_s = time.monotonic()

    def _card(self) -> dict[str, Any]:
        request, selection = self._request, self._selection
        card = checkpoint_card(
            request, self._episodes, self._learner.architecture(), self._parent, self._rounds
        )
        if request.rule is None or selection is None or self._held_out is None:
            return card
        return card | {
            "protocol": request.rule.protocol,
            "rule": request.rule.in_words(),
            "kept_at": selection.best.decisions if selection.best else 0,
            "held_out": self._held_out.source,
            "held_out_curve": [
                [
                    evaluation.decisions,
                    round(evaluation.log_slowdown, 6),
                    round(evaluation.over_placebo, 4),
                    round(evaluation.over_static, 4),
                ]
                for evaluation in selection.evaluations
            ],
        }
