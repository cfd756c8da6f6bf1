"""Trains a tuner: rounds of episodes, learning in between, a checkpoint after each round.

    FOLDER/training.json            the request, and versions
    FOLDER/checkpoint.safetensors   the network so far, with its card checkpoint.json
    FOLDER/state.safetensors        for resuming: optimiser, replay memories, counters
    FOLDER/curve.csv                one row per round

Everything follows from the request: with a deterministic backend, the same request gives the same
network, bit for bit, whether or not it was interrupted and resumed.
"""

from __future__ import annotations

import csv
import json
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestration.artifacts.provenance import versions
from orchestration.model.errors import InputError, Interrupted, TrialError
from orchestration.model.files import whole_file
from orchestration.model.ports import Backend
from orchestration.model.trial import TrialSpec
from orchestration.runner.signals import noted_signals
from orchestration.runner.worker import Job
from orchestration.training.episodes import Players, Trace
from orchestration.training.learners import make_learner
from orchestration.training.request import Episodes, TrainRequest, digest, with_tuner
from tuners import checkpoint as files
from tuners.learning import Learner, NotANumberError
from tuners.nets import finite

_STATE_EVERY_S = 5.0
_ROUND = ("episodes", "reward", "loss", "explore", "act_s", "learn_s")


@dataclass(frozen=True)
class Round:
    """The results of a round: means over its episodes, and the wall time of its two parts."""

    episodes: int
    reward: float
    loss: float
    explore: float
    act_s: float
    learn_s: float


Listener = Callable[[Round, int], None]


def train(
    request: TrainRequest,
    backend: Backend,
    folder: Path,
    jobs: int,
    listener: Listener,
    *,
    fresh: bool = False,
) -> Path:
    """Train until `request.episodes` are played, and return the checkpoint's path.

    A folder with the same request is resumed. Call it from the main thread.

    Raises:
        InputError: the scenario is wrong, or the folder holds another training.
        TrialError: an episode failed, or a loss or an observation is not a number; the last good
            checkpoint is kept.
        Interrupted: SIGINT or SIGTERM came; the same request goes on from the last round saved.
    """
    episodes = Episodes(request)
    backend.check(episodes.testbed, jobs)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    training = _Training(request, episodes, folder)
    backend.check(episodes.testbed, jobs, [training.episode(0)])
    players = Players(backend, jobs)
    with noted_signals(players.kill) as signals:
        try:
            training.run(players, listener, lambda: not signals)
        finally:
            players.close()
            shutil.rmtree(folder / "work", ignore_errors=True)
    if signals:
        raise Interrupted(
            f"interrupted after {training.done} of {request.episodes} episodes",
            "the same command goes on from here",
        )
    return training.checkpoint


class _Training:
    """One call of `train`."""

    def __init__(self, request: TrainRequest, episodes: Episodes, folder: Path) -> None:
        self._request = request
        self._episodes = episodes
        self._folder = folder
        self._rounds: list[Round] = []
        self._saved_s = 0.0
        self._parent: dict[str, Any] = {}
        self.done = 0
        self.checkpoint = folder / "checkpoint.safetensors"
        self._learner = self._make()
        self._open()

    def _make(self) -> Learner:
        request, testbed = self._request, self._episodes.testbed
        parent = files.load(request.init) if request.init else None
        parameters = parent.arrays if parent else None
        self._parent = parent.card if parent else {}
        learner = make_learner(request.tuner, request.seed, testbed, request.settings, parameters)
        if request.per_switch:
            count = len(testbed.switches)
            own = {
                name: values if len(values) == count else np.repeat(values, count, axis=0)
                for name, values in learner.parameters().items()
            }
            learner = make_learner(request.tuner, request.seed, testbed, request.settings, own)
        return learner

    def _open(self) -> None:
        """Resume from the folder's files, or create the folder."""
        about = self._folder / "training.json"
        mark = digest(self._request, self._episodes.source)
        if about.exists():
            found = json.loads(about.read_text())
            if found["digest"] != mark:
                raise InputError.single(
                    str(self._folder),
                    "holds a training of another request",
                    "choose another folder with --out, or --fresh to throw it away",
                )
            self._resume()
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        data = {"digest": mark, "request": self._request.to_json(), "versions": versions()}
        about.write_text(json.dumps(data, indent=1) + "\n")
        self._save()

    def _resume(self) -> None:
        from safetensors.numpy import load_file

        state = load_file(self._folder / "state.safetensors")
        rounds = state.pop("rounds")
        self._rounds = [Round(int(row[0]), *map(float, row[1:])) for row in rounds]
        self.done = self._rounds[-1].episodes if self._rounds else 0
        self._learner.load(state)
        self._save_checkpoint()

    def run(self, players: Players, listener: Listener, go_on: Callable[[], bool]) -> None:
        """Play and learn, round by round."""
        try:
            while self.done < self._request.episodes and go_on():
                round_ = self._round(players, go_on)
                if round_ is not None:
                    listener(round_, self._request.episodes)
        finally:
            self._save_state()

    def _round(self, players: Players, go_on: Callable[[], bool]) -> Round | None:
        begin = time.monotonic()
        count = min(self._request.actors, self._request.episodes - self.done)
        numbers = range(self.done, self.done + count)
        traces = players.play([self._job(number) for number in numbers], go_on)
        if len(traces) < count:
            return None
        played = time.monotonic()
        figures = self._learn(traces)
        learned = time.monotonic()
        self.done += count
        round_ = Round(self.done, *figures, act_s=played - begin, learn_s=learned - played)
        self._rounds.append(round_)
        self._save()
        return round_

    def episode(self, number: int) -> TrialSpec:
        """Return an episode to be played with the network so far."""
        acting = self._learner.acting()
        return with_tuner(self._episodes[number], self._request, self.checkpoint, acting)

    def _job(self, number: int) -> Job:
        work = self._folder / "work" / str(number)
        shutil.rmtree(work, ignore_errors=True)
        return Job(self.episode(number), self._episodes.testbed, work, work)

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
                f"the last good checkpoint is kept in {self.checkpoint}; "
                "a smaller --set learning_rate may help",
            ) from error
        rows = [row for row in rows if row]
        mean = [float(np.mean([row[key] for row in rows])) for key in ("reward", "loss", "explore")]
        return mean[0], mean[1], mean[2]

    def _save(self) -> None:
        self._save_checkpoint()
        with (self._folder / "curve.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(_ROUND)
            table.writerows([getattr(item, name) for name in _ROUND] for item in self._rounds)
        if time.monotonic() - self._saved_s > _STATE_EVERY_S:
            self._save_state()

    def _save_checkpoint(self) -> None:
        files.save(self.checkpoint, self._learner.parameters(), self._card())

    def _save_state(self) -> None:
        from safetensors.numpy import save_file

        rows = [[float(getattr(item, name)) for name in _ROUND] for item in self._rounds]
        state = dict(self._learner.state())
        state["rounds"] = np.array(rows, dtype=np.float64).reshape(len(rows), len(_ROUND))
        with whole_file(self._folder / "state.safetensors") as part:
            save_file({name: np.ascontiguousarray(values) for name, values in state.items()}, part)
        self._saved_s = time.monotonic()

    def _card(self) -> dict[str, Any]:
        import torch

        request = self._request
        return {
            "tuner": request.tuner,
            "architecture": self._learner.architecture(),
            "switches": list(self._episodes.testbed.switches) if request.per_switch else [],
            "request": {**request.to_json(), "scenario": Path(request.scenario).name},
            "parent": {key: value for key, value in self._parent.items() if key != "curve"},
            "scenario": self._episodes.source,
            "backend": self._episodes.backend,
            "seeds": "stream 'training' of the request's seed, one an episode from 0 on",
            "episodes": self.done,
            "versions": {
                **{name: str(value) for name, value in versions().items()},
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "curve": [
                [item.episodes, round(item.reward, 6), round(item.loss, 6), round(item.explore, 4)]
                for item in self._rounds
            ],
        }
