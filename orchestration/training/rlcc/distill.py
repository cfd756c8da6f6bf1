"""Distils RL-CC's MLP into boosted trees: Fuhrer et al., HPSR 2023, section V-C.

The teacher drives first. Then the student drives, in ns-3, and the teacher says what it would have
done where the student came to (DAgger: Ross et al., AISTATS 2011), round by round, until the closed
loop agrees or the rounds are over. What was seen in all rounds is learned from.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.backends.simulated.program import Program, require_program
from orchestration.core.topology import Testbed
from orchestration.policies.catboost_model import read_model
from orchestration.policies.render_c import render_policy
from orchestration.policies.trees import IntegerTrees
from orchestration.training.rlcc.evaluate import Steady, steady_states
from orchestration.training.rlcc.rollout import Rollout, library, play
from orchestration.training.rlcc.scenarios import DISTILLING, testbed
from orchestration.training.rlcc.trees import Budget, fit, rmse, save
from tuners.nic import fixed_point
from tuners.nic.networks import Architecture, windows
from tuners.nic.observation import LEAST_DELTA, ONE, TARGET
from tuners.nic.sources import network_source

# Seeds of rollouts here, and of judging them: apart from training's.
_LASTING_FLOWS, _LEVELS, _STEPS_OF_A_LEVEL = 30, 8, 10
_ROLLOUT_SEEDS, _JUDGE_SEED = 1 << 39, 7
# As many windows tell how loss falls with trees and depth.
_TRADE_WINDOWS = 50_000
# How near the student must be in closed loop, as shares of the teacher's.
GOODPUT_WITHIN, LATENCY_WITHIN = 0.01, 0.05
# Of a delta in targets: what table VI may mean by under-utilised, on target and congested.
CONDITIONS = {"under-utilised": TARGET, "on target": 0.0, "congested": -TARGET}


@dataclass(frozen=True)
class Teacher:
    """A trained MLP; its actions are those of its integers."""

    architecture: Architecture
    arrays: Mapping[str, NDArray[Any]]

    def act(self, seen: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return its actions for windows (N, 2 * history), all in 2^-16."""
        weights = fixed_point.quantised(self.architecture, self.arrays)
        return fixed_point.mlp(weights, seen.astype(np.int64)).astype(np.int32)


@dataclass(frozen=True)
class Round:
    """A student: its loss on all windows so far, and both in closed loop."""

    samples: int
    rmse: float
    within: float
    student: Sequence[Steady]
    teacher: Sequence[Steady]

    @property
    def agrees(self) -> bool:
        """Whether goodput and latency agree in every scenario."""
        return all(
            abs(own.goodput / other.goodput - 1) <= GOODPUT_WITHIN
            and abs(own.latency_us / other.latency_us - 1) <= LATENCY_WITHIN
            for own, other in zip(self.student, self.teacher, strict=True)
        )


@dataclass(frozen=True)
class Distilled:
    """The last student, its rounds, what it learned from, and how loss falls with its budget."""

    trees: IntegerTrees
    rounds: Sequence[Round]
    trade: Mapping[tuple[int, int], float]
    table: Mapping[str, NDArray[np.float64]]


def distill(
    teacher: Teacher,
    budget: Budget,
    model: Path,
    rounds: int,
    seed: int,
    listener: Callable[[int, Round], None],
) -> Distilled:
    """Distil, and write the student's CatBoost model to `model`.

    Raises NotReadyError without catboost, ns-3 or a compiler, InputError for a budget that its
    trees do not keep to.
    """
    budget.check()
    work = _Loop(require_program(), testbed(), teacher.architecture)
    source = network_source(teacher.architecture, teacher.arrays, "teacher", "The teacher.")
    reference = work.judge(source)
    seen = np.concatenate([work.drive(source, seed), lasting_congestion(teacher, seed)])
    done: list[Round] = []
    for number in range(1, rounds + 1):
        actions = teacher.act(seen)
        fitted = fit(seen, actions, budget, seed)
        save(fitted, teacher.architecture, model)
        trees = read_model(model)
        source = render_policy(trees, "student")
        near = np.abs(trees.act(seen) - actions) <= 0.01 * ONE
        own = work.judge(source)
        done.append(Round(len(seen), rmse(trees, seen, actions), near.mean(), own, reference))
        listener(number, done[-1])
        if done[-1].agrees or number == rounds:
            break
        seen = np.concatenate([seen, work.drive(source, seed + number)])
    some = np.random.default_rng(seed).permutation(len(seen))[:_TRADE_WINDOWS]
    trade = {
        (count, depth): _loss_of(teacher, seen[some], Budget(count, depth, 10**6), seed, model)
        for depth in (1, 2, 3, 4, 5, 6)
        for count in (1, 2, 5, 10, 20)
    }
    table = {"network": table_vi(teacher.act, teacher.architecture)}
    table["tree"] = table_vi(trees.act, teacher.architecture)
    return Distilled(trees, done, trade, table)


def lasting_congestion(teacher: Teacher, seed: int) -> NDArray[np.int32]:
    """Return windows of flows whose deltas stay for a while, from the target to the least there is.

    Rollouts that begin near the fair share hardly have any: without them trees answer a full
    buffer, which many flows at line rate fill, with a tenth of what the network does.
    """
    rng = np.random.default_rng([seed, _LASTING_FLOWS])
    history = teacher.architecture.history
    levels = np.where(
        rng.random((_LASTING_FLOWS, _LEVELS)) < 0.5,
        TARGET * rng.uniform(-1, 1, (_LASTING_FLOWS, _LEVELS)),
        -TARGET * 2.0 ** rng.uniform(0, 9, (_LASTING_FLOWS, _LEVELS)),
    ).clip(min=LEAST_DELTA)
    deltas = np.rint(np.repeat(levels, _STEPS_OF_A_LEVEL, axis=1) * ONE).astype(np.int32)
    window = np.tile(np.array([0, ONE], dtype=np.int32), (_LASTING_FLOWS, history))
    action, seen = np.full(_LASTING_FLOWS, ONE, dtype=np.int32), []
    for delta in deltas.T:
        window = np.concatenate([delta[:, None], action[:, None], window[:, :-2]], axis=1)
        action = teacher.act(window).astype(np.int32)
        seen.append(window)
    return np.concatenate(seen)


def table_vi(
    act: Callable[[NDArray[np.int32]], NDArray[np.int32]], architecture: Architecture
) -> NDArray[np.float64]:
    """Return the actions by condition, rows the previous and columns the present one.

    All earlier ones are as the previous one, and all actions before were 1.
    """
    deltas = list(CONDITIONS.values())
    made = np.full((3, 3, architecture.history, 2), 1.0)
    for row, previous in enumerate(deltas):
        for column, present in enumerate(deltas):
            made[row, column, :, 0] = previous
            made[row, column, 0, 0] = present
    given = np.rint(made.reshape(9, -1) * ONE).astype(np.int32)
    return act(given).reshape(3, 3) / ONE


def _loss_of(
    teacher: Teacher, seen: NDArray[np.int32], budget: Budget, seed: int, beside: Path
) -> float:
    """Return the RMSE on every fifth window of a model fitted to the others."""
    kept = np.arange(len(seen)) % 5 != 0
    actions = teacher.act(seen)
    fitted = fit(seen[kept], actions[kept], budget, seed)
    with tempfile.TemporaryDirectory(dir=beside.parent) as folder:
        save(fitted, teacher.architecture, Path(folder, "model.json"))
        trees = read_model(Path(folder, "model.json"))
    return rmse(trees, seen[~kept], actions[~kept])


class _Loop:
    """ns-3, with whoever drives."""

    def __init__(self, program: Program, fabric: Testbed, architecture: Architecture) -> None:
        self._program, self._testbed, self._architecture = program, fabric, architecture

    def drive(self, source: str, seed: int) -> NDArray[np.int32]:
        """Return the windows (N, 2 * history) that a model comes to, in 2^-16."""
        with tempfile.TemporaryDirectory(prefix="closloop-distill-") as folder:
            model = library(source, Path(folder))
            place = _ROLLOUT_SEEDS + seed
            parts = [
                self._windows(play(self._program, model, scenario, self._testbed, place))
                for scenario in DISTILLING
            ]
        return np.concatenate(parts)

    def _windows(self, rollout: Rollout) -> NDArray[np.int32]:
        seen = np.stack([rollout.delta, rollout.before - 1.0], axis=-1)
        made = windows(np.where(rollout.valid[..., None], seen, 0.0), self._architecture.history)
        made[..., 1::2] += 1.0
        seen_there: NDArray[np.int32] = np.rint(made[rollout.valid] * ONE).astype(np.int32)
        return seen_there

    def judge(self, source: str) -> list[Steady]:
        """Return a model's steady states."""
        with tempfile.TemporaryDirectory(prefix="closloop-distill-") as folder:
            model = library(source, Path(folder))
            return steady_states(self._program, model, self._testbed, _JUDGE_SEED)
