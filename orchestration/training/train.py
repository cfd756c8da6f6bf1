"""Trains a tuner: rounds of episodes, learning in between, a checkpoint after each round.

By a rule (see `protocol`), the network also plays a held-out scenario now and then, which decides
when to stop and which network is kept. `files` says what a training leaves behind.

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

from orchestration.core.errors import InputError, Interrupted, TrialError
from orchestration.core.machine import deferred_signals
from orchestration.core.ports import Backend
from orchestration.core.trial import TrialSpec
from orchestration.run.executors import THIS_MACHINE, Executor
from orchestration.run.worker import Job
from orchestration.training.episodes import Players, Trace, episode_job
from orchestration.training.evaluation import FILE, Evaluator, HeldOut, figure_of
from orchestration.training.files import Folder, Round, card, check_folder
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
from tuners.learning.networks import finite

# Replay memories are up to a hundred megabytes.
_STATE_EVERY_S = 20.0

Listener = Callable[[Round, int], None]
GoOn = Callable[[], bool]


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
    place: Executor = THIS_MACHINE,
) -> Path:
    """Train as long as the request says, and return the checkpoint's path.

    A folder with the same request is resumed. Call it from the main thread. `listener` gets each
    round with the training's length, in queue decisions if the request has a rule, else in
    episodes; `note` gets what else happens. `references` is the file that keeps the held-out
    figures of placebo and static settings, by default in the folder; trainings share one. Episodes
    are played at a `place`; learning is here.

    Raises:
        InputError: a scenario is wrong, or the folder holds another training.
        TrialError: an episode failed, or a loss or an observation is not a number; the last good
            checkpoint is kept.
        Interrupted: SIGINT or SIGTERM came; the same request goes on from the last round saved.
    """
    episodes = Episodes(request)
    held_out = _held_out(request, episodes.backend)
    place.check(backend, episodes.testbed, jobs, [])
    check_folder(folder, request.reads, fresh=fresh)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    training = _Training(request, episodes, Folder(folder, by_rule=held_out is not None), held_out)
    if training.finished:
        return training.folder.checkpoint
    place.check(backend, episodes.testbed, jobs, [training.episode(0)])
    players = Players(backend, jobs, place=place)
    judges = Players(backend, jobs, figure_of, place)

    def kill() -> None:
        players.kill()
        judges.kill()

    with deferred_signals(kill) as signals:

        def go_on() -> bool:
            return not signals

        try:
            judge = None
            if held_out is not None:
                file = references or folder / FILE
                judge = Evaluator(held_out, file, folder / "work", judges, go_on)
                judge.prepare(note)
            training.run(players, judge, listener, note, go_on)
        finally:
            players.close()
            judges.close()
            shutil.rmtree(folder / "work", ignore_errors=True)
    if signals:
        raise Interrupted(
            f"interrupted after {training.done} episodes", "the same command goes on from here"
        )
    return training.folder.checkpoint


def _held_out(request: TrainRequest, backend: str) -> HeldOut | None:
    if request.rule is None:
        return None
    found = HeldOut(request, request.rule)
    if found.backend != backend:
        raise InputError.single(
            request.rule.held_out,
            f"runs on {found.backend}, and the training on {backend}",
            "name one backend with --on",
        )
    return found


class _Training:
    """One call of `train`."""

    def __init__(
        self, request: TrainRequest, episodes: Episodes, folder: Folder, held_out: HeldOut | None
    ) -> None:
        self._request = request
        self._episodes = episodes
        self.folder = folder
        self._held_out = held_out
        self._selection = Selection(request.rule.patience) if request.rule else None
        self._rounds: list[Round] = []
        self._saved_s = 0.0
        self._parent: dict[str, Any] = {}
        self._learner = self._make()
        begun = folder.open(request, episodes.source, held_out.source if held_out else "")
        self.finished = (folder.path / RESULT).exists()
        if begun and not self.finished:
            self._resume()
        elif not begun:
            self._save()

    @property
    def done(self) -> int:
        """How many episodes were played."""
        return self._rounds[-1].episodes if self._rounds else 0

    @property
    def _decisions(self) -> int:
        return self._rounds[-1].decisions if self._rounds else 0

    def _make(self) -> Learner:
        request, testbed = self._request, self._episodes.testbed
        parent = files.load(request.init) if request.init else None
        self._parent = parent.card if parent else {}
        settings = request.settings
        if request.rule is not None:
            readings = request.rule.decisions / len(testbed.queues)
            decay = request.rule.explore_decay * readings
            settings = with_exploration(request.of_learner, settings, decay)

        def made(parameters: Any) -> Learner:
            return make_learner(request.of_learner, request.seed, testbed, settings, parameters)

        learner = made(parent.arrays if parent else None)
        if request.per_switch:
            count = len(testbed.switches)
            own = {
                name: values if len(values) == count else np.repeat(values, count, axis=0)
                for name, values in learner.parameters().items()
            }
            learner = made(own)
        return learner

    def _resume(self) -> None:
        self._rounds, state = self.folder.load_state()
        if self._selection is not None:
            self._selection.load(state)
        self._learner.load(state)
        self._save_networks()

    def run(
        self,
        players: Players,
        judge: Evaluator | None,
        listener: Listener,
        note: Callable[[str], None],
        go_on: GoOn,
    ) -> None:
        """Play and learn, round by round, and judge now and then if there is a judge."""
        begin_s = time.monotonic()
        rule = self._request.rule
        total = rule.decisions if rule else self._request.episodes
        try:
            while go_on():
                if judge is not None and self._selection is not None:
                    if judge.due(self._decisions, self._selection):
                        self._evaluate(judge, self._selection, note)
                        continue
                    if judge.over(self._decisions, self._selection):
                        self._conclude(judge, self._selection, begin_s)
                        break
                elif self.done >= total:
                    break
                round_ = self._round(players, go_on)
                if round_ is not None:
                    listener(round_, total)
        finally:
            self._save_state()

    def _evaluate(
        self, judge: Evaluator, selection: Selection, note: Callable[[str], None]
    ) -> None:
        found = judge.evaluate(self.folder.latest, self._decisions, self.done)
        if found is None:
            return
        kept = selection.add(found, self._learner.parameters())
        note(
            f"held-out: {found.over_placebo:+.1%} over the placebo, {found.over_static:+.1%} over "
            f"the best static setting{': kept' if kept else ''}"
        )
        self._save()
        self._save_state()

    def _conclude(self, judge: Evaluator, selection: Selection, begin_s: float) -> None:
        """Judge the network that is kept, and write down what the training came to."""
        result = judge.result(self.folder.checkpoint, self._rounds[-1], selection, begin_s)
        if result is None:
            return
        said = self._card() | {"judged": result.to_json()}
        del said["judged"]["wall_s"]
        files.save(self.folder.checkpoint, selection.kept, said)
        write_result(self.folder.path, result)

    def _round(self, players: Players, go_on: GoOn) -> Round | None:
        begin = time.monotonic()
        count = self._request.actors
        if self._request.rule is None:
            count = min(count, self._request.episodes - self.done)
        numbers = range(self.done, self.done + count)
        traces = players.play([self._job(number) for number in numbers], go_on)
        if len(traces) < count:
            return None
        played = time.monotonic()
        figures = self._learn(traces)
        learned = time.monotonic()
        readings = sum(len(next(iter(trace.values()))) for trace in traces if trace)
        decisions = self._decisions + readings * len(self._episodes.testbed.queues)
        times = {"act_s": played - begin, "learn_s": learned - played}
        round_ = Round(self.done + count, decisions, *figures, **times)
        self._rounds.append(round_)
        self._save()
        return round_

    def episode(self, number: int) -> TrialSpec:
        """Return an episode to be played with the network so far."""
        acting = self._learner.acting()
        return with_tuner(self._episodes[number], self._request, self.folder.latest, acting)

    def _job(self, number: int) -> Job:
        work = self.folder.work / str(number)
        shutil.rmtree(work, ignore_errors=True)
        return episode_job(self.episode(number), self._episodes.testbed, work)

    def _learn(self, traces: list[Trace]) -> tuple[float, float, float]:
        rows = []
        try:
            for trace in traces:
                if not all(np.isfinite(values).all() for values in trace.values()):
                    raise NotANumberError("an observation or a reward is no number")
                rows.append(self._learner.learn(trace))
            if not finite(self._learner.parameters()):
                raise NotANumberError("a parameter is no number")
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
                "make them longer, or send more",
            )
        mean = [float(np.mean([row[key] for row in rows])) for key in ("reward", "loss", "explore")]
        return mean[0], mean[1], mean[2]

    def _save(self) -> None:
        self._save_networks()
        self.folder.write_tables(self._rounds, self._selection)
        if time.monotonic() - self._saved_s > _STATE_EVERY_S:
            self._save_state()

    def _save_networks(self) -> None:
        """Save the network that plays, and by a rule the one that is kept."""
        files.save(self.folder.latest, self._learner.parameters(), self._card())
        if self._selection is not None and self._selection.kept:
            files.save(self.folder.checkpoint, self._selection.kept, self._card())

    def _save_state(self) -> None:
        state = dict(self._learner.state())
        if self._selection is not None:
            state |= self._selection.state()
        self.folder.save_state(self._rounds, state)
        self._saved_s = time.monotonic()

    def _card(self) -> dict[str, Any]:
        request, selection = self._request, self._selection
        said = card(
            request, self._episodes, self._learner.architecture(), self._parent, self._rounds
        )
        if request.rule is None or selection is None or self._held_out is None:
            return said
        return said | {
            "protocol": request.rule.protocol,
            "rule": request.rule.in_words(),
            "kept_at": selection.best.decisions if selection.best else 0,
            "held_out": self._held_out.source,
            "held_out_curve": [
                [
                    one.decisions,
                    round(one.log_slowdown, 6),
                    round(one.over_placebo, 4),
                    round(one.over_static, 4),
                ]
                for one in selection.evaluations
            ],
        }
