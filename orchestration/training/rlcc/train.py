"""Trains RL-CC. Each update plays rollouts in ns-3, with the network in its NICs, and learns.

    FOLDER/training.json            the request, and versions
    FOLDER/checkpoint.safetensors   the network so far, with its card checkpoint.json
    FOLDER/state.safetensors        for resuming: weights and the optimiser's state
    FOLDER/curve.csv                one row per update

Everything follows from the request: the same request gives the same network, whether or not the
training was interrupted and resumed.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orchestration.backends.simulated.program import require_program
from orchestration.core.errors import InputError, Interrupted, TrialError
from orchestration.core.files import whole_file
from orchestration.core.machine import deferred_signals
from orchestration.core.provenance import versions
from orchestration.render.csv import write_rows
from orchestration.training.files import check_folder
from orchestration.training.rlcc import scenarios
from orchestration.training.rlcc.learner import Figures, RlccLearner
from orchestration.training.rlcc.rollout import Rollout, compile_library, play
from orchestration.training.rlcc.scenarios import testbed, training_scenarios
from tuners.learning import checkpoint as files
from tuners.learning.learner import NotANumberError, load_torch
from tuners.nic.networks import ARCHITECTURES
from tuners.nic.sources import network_source, weights_bytes

# The seeds of campaigns' trials are below this. Rollouts have seeds above it, one per update.
_TRAINING_SEEDS = 1 << 40
_UPDATES_OF_A_SEED = 1 << 20
_STATE_EVERY = 10
_CURVE = ("update", "reward", "delta", "inflation", "act_s", "learn_s")


@dataclass(frozen=True)
class RlccRequest:
    """Everything that determines the result of a training."""

    architecture: Literal["mlp", "lstm"] = "mlp"
    seed: int = 1
    updates: int = 250
    learning_rate: float = 0.01

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON-ready data."""
        return dataclasses.asdict(self)


Listener = Callable[[int, Figures], None]


def train(request: RlccRequest, folder: Path, listener: Listener, *, fresh: bool = False) -> Path:
    """Train until all updates are made, and return the checkpoint's path.

    A training of the same request in `folder` is resumed. Call it from the main thread.

    Raises:
        InputError: the folder holds another training.
        NotReadyError: there is no ns-3, or no compiler.
        TrialError: a rollout failed, or the objective is not a number.
        Interrupted: SIGINT or SIGTERM came. The same request resumes from the last state.
    """
    check_folder(folder, (), fresh=fresh)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    training = _Training(request, folder)
    with deferred_signals(lambda: None) as signals:
        training.run(listener, lambda: not signals)
    if signals:
        raise Interrupted(
            f"interrupted after {training.done} of {request.updates} updates",
            "the same command resumes it",
        )
    return training.checkpoint


class _Training:
    """The state of one call of `train`."""

    def __init__(self, request: RlccRequest, folder: Path) -> None:
        self._request, self._folder = request, folder
        self._architecture = ARCHITECTURES[request.architecture]
        self._learner = RlccLearner(self._architecture, request.seed, request.learning_rate)
        self._program, self._testbed = require_program(), testbed()
        self._rows: list[list[float]] = []
        self.checkpoint = folder / "checkpoint.safetensors"
        self._open_folder()

    @property
    def done(self) -> int:
        """The number of updates that were made."""
        return len(self._rows)

    def _open_folder(self) -> None:
        """Create the folder, or resume the training in it."""
        about = self._folder / "training.json"
        if not about.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            data = {"request": self._request.to_json(), "versions": versions()}
            about.write_text(json.dumps(data, indent=1) + "\n")
            self._save()
            return
        if json.loads(about.read_text())["request"] != self._request.to_json():
            raise InputError.single(
                str(self._folder),
                "holds a training of another request",
                "choose another folder with --out, or remove it with --fresh",
            )
        from safetensors.numpy import load_file

        state = load_file(self._folder / "state.safetensors")
        self._rows = state.pop("rows").tolist()
        self._learner.load(state)

    def run(self, listener: Listener, should_continue: Callable[[], bool]) -> None:
        """Make the updates that are left, as long as `should_continue` says so."""
        arrays = self._learner.arrays()
        source = network_source(self._architecture, arrays, "rlcc_training", "In training.")
        with tempfile.TemporaryDirectory(prefix="closloop-train-") as folder:
            model = compile_library(source, Path(folder))
            try:
                while self.done < self._request.updates and should_continue():
                    listener(self.done + 1, self._update(model))
                    if self.done % _STATE_EVERY == 0:
                        self._save()
            finally:
                self._save()

    def _update(self, model: Path) -> Figures:
        begin = time.monotonic()
        rollouts = self._play(model)
        played = time.monotonic()
        try:
            figures = self._learner.learn(rollouts, self.done / self._request.updates)
        except NotANumberError as error:
            raise TrialError(
                f"training stopped after {self.done} updates: {error}",
                f"the last good checkpoint is kept in {self.checkpoint}",
            ) from error
        times = played - begin, time.monotonic() - played
        self._rows.append([self.done + 1, *dataclasses.astuple(figures), *times])
        return figures

    def _play(self, model: Path) -> list[Rollout]:
        seed = _TRAINING_SEEDS + self._request.seed * _UPDATES_OF_A_SEED + self.done
        weights = weights_bytes(self._architecture, self._learner.arrays())
        return [
            play(self._program, model, scenario, self._testbed, seed, weights)
            for scenario in training_scenarios(self.done + 1)
        ]

    def _save(self) -> None:
        from safetensors.numpy import save_file

        files.save(self.checkpoint, self._learner.arrays(), self._card())
        rows = np.array(self._rows, dtype=np.float64).reshape(self.done, len(_CURVE))
        state = {**self._learner.state(), "rows": rows}
        with whole_file(self._folder / "state.safetensors") as part:
            save_file({name: np.ascontiguousarray(values) for name, values in state.items()}, part)
        with (
            whole_file(self._folder / "curve.csv") as part,
            part.open("w", newline="") as file,
        ):
            write_rows(file, [_CURVE, *self._rows])

    def _card(self) -> dict[str, Any]:
        return {
            "tuner": "rl-cc",
            "architecture": dataclasses.asdict(self._architecture),
            "request": self._request.to_json(),
            "scenarios": scenarios.card(),
            "seeds": "2^40 + seed * 2^20 + update",
            "versions": {**versions(), "torch": load_torch().__version__},
            "curve": [[row[0], *(round(value, 5) for value in row[1:4])] for row in self._rows],
        }
