"""Distils RL-CC's MLP into boosted trees: Fuhrer et al., HPSR 2023, section V-C.

The teacher drives first. Then the student drives, in ns-3, and the teacher says what it would have
done where the student came to (DAgger: Ross et al., AISTATS 2011), round by round, until the closed
loop agrees or the rounds are over. What was seen in all rounds is learned from: by CatBoost, by
RMSE, at most 10 trees of depth 4 and 150 operations. `report` is what it came to, in Markdown.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.backends.simulated.program import Program, require_program
from orchestration.core.errors import InputError, needs
from orchestration.core.files import whole_file
from orchestration.core.topology import Testbed
from orchestration.policies.catboost_model import read_model
from orchestration.policies.render_c import render_policy
from orchestration.policies.trees import IntegerTrees, feature_names
from orchestration.render.heat_map import HeatCell, HeatMap
from orchestration.render.markdown import rows_table
from orchestration.training.rlcc.rollout import (
    Rollout,
    Steady,
    compile_library,
    play,
    steady_states,
)
from orchestration.training.rlcc.scenarios import DISTILLING, testbed
from tuners.learning import checkpoint as files
from tuners.nic import fixed_point
from tuners.nic.networks import BETA, MIN_DELTA, ONE, SPAN, TARGET, Architecture, windows
from tuners.nic.sources import network_source

MAX_OPERATIONS = 150


@dataclass(frozen=True)
class Budget:
    """How many trees of which depth, and the operations of one decision."""

    trees: int = 10
    depth: int = 4
    operations: int = MAX_OPERATIONS

    def check(self) -> None:
        """Raise InputError for trees that take more operations."""
        needed = operations(self.trees, self.depth)
        if needed > self.operations:
            raise InputError.single(
                "--trees",
                f"{self.trees} trees of depth {self.depth} take {needed} operations, more than "
                f"{self.operations}",
                "take fewer or flatter trees, or --operations",
            )


def operations(trees: int, depth: int) -> int:
    """Return the operations of a decision: a comparison, a shift and an or for each level but the
    first's shift and or, a load and a sum for each tree."""
    return trees * (depth + 2 * (depth - 1) + 2)


def fit(windows: NDArray[np.int32], actions: NDArray[np.int32], budget: Budget, seed: int) -> Any:
    """Return a CatBoost regressor of actions, windows and actions in 2^-16.

    Raises NotReadyError without catboost.
    """
    with needs("distillation", "learn"):
        from catboost import CatBoostRegressor
    model = CatBoostRegressor(
        iterations=budget.trees,
        depth=budget.depth,
        loss_function="RMSE",
        learning_rate=0.5,
        l2_leaf_reg=0.0,
        border_count=1024,
        random_seed=seed,
        bootstrap_type="No",
        thread_count=1,
        allow_writing_files=False,
        verbose=False,
    )
    return model.fit(windows / ONE, actions / ONE)


def save(model: Any, architecture: Architecture, path: Path) -> None:
    """Write the model, with what a NIC must know beside it, as `closloop compile` reads it."""
    model.get_metadata()["closloop"] = json.dumps(
        {
            "history": architecture.history,
            "least_action": 1 - SPAN,
            "most_action": 1 + SPAN,
            "target": TARGET,
            "beta": BETA,
            "features": feature_names(architecture.history),
        }
    )
    with whole_file(path) as partial:
        model.save_model(str(partial), format="json")


def rmse(student: IntegerTrees, windows: NDArray[np.int32], actions: NDArray[np.int32]) -> float:
    """Return the root mean squared difference of the student's actions, as fractions."""
    return float(np.sqrt(np.mean(np.square((student.act(windows) - actions) / ONE))))


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
    ).clip(min=MIN_DELTA)
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
            model = compile_library(source, Path(folder))
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
            model = compile_library(source, Path(folder))
            return steady_states(self._program, model, self._testbed, _JUDGE_SEED)


_SCENARIO_HEADS = (
    "scenario",
    "goodput: network",
    "trees",
    "latency, us: network",
    "trees",
    "drops: network",
    "trees",
)
# Upper ends of the error of actions, their colours, and where each begins.
_STEPS = (
    (0.01, "#F7FAFD", "RMSE below 0.01"),
    (0.02, "#DCE9F5", "0.01"),
    (0.04, "#B4D2E8", "0.02"),
    (0.08, "#6BAED6", "0.04"),
    (math.inf, "#2171B5", "0.08"),
)
# Fuhrer et al., HPSR 2023, table VI.
PUBLISHED = np.array([[1.05, 0.92, 0.89], [1.1, 1.0, 0.9], [1.15, 1.07, 0.94]])


def teacher_of(name: str) -> Teacher:
    """Return a checkpoint's network. Raises InputError if there is none, or if it is no MLP."""
    try:
        found = files.load(name)
    except files.CheckpointError as error:
        raise InputError.single(name, str(error), "see closloop train rl-cc") from error
    if found.card.get("tuner") != "rl-cc" or found.card["architecture"]["kind"] != "mlp":
        raise InputError.single(
            name, "is no MLP of rl-cc's", "train one: closloop train rl-cc --architecture mlp"
        )
    return Teacher(Architecture(**found.card["architecture"]), found.arrays)


def report(made: Distilled, checkpoint: str) -> str:
    """Return the page."""
    last = made.rounds[-1]
    rounds = [
        [number, f"{one.samples:,}", f"{one.rmse:.4f}", f"{100 * one.within:.1f} %", one.agrees]
        for number, one in enumerate(made.rounds, start=1)
    ]
    scenarios = [
        [
            other.scenario.name,
            f"{other.goodput:.4f}",
            f"{own.goodput:.4f}",
            f"{other.latency_us:.2f}",
            f"{own.latency_us:.2f}",
            f"{other.drops:,}",
            f"{own.drops:,}",
        ]
        for own, other in zip(last.student, last.teacher, strict=True)
    ]
    actions = [
        [
            name,
            *(
                f"{made.table['network'][row, column]:.3f}, {made.table['tree'][row, column]:.3f}, "
                f"{PUBLISHED[row, column]:g}"
                for column in range(3)
            ),
        ]
        for row, name in enumerate(CONDITIONS)
    ]
    depth = max(len(tree.features) for tree in made.trees.trees)
    lines = [
        f"# RL-CC's network {checkpoint} as trees",
        "",
        f"{len(made.trees.trees)} trees, {operations(len(made.trees.trees), depth)} operations. "
        + (
            "In closed loop both agree: goodput within 1 %, latency within 5 %."
            if last.agrees
            else "In closed loop they do not agree within 1 % of goodput and 5 % of latency."
        ),
        "",
        rows_table(("round", "windows", "RMSE", "actions within 0.01", "agrees"), rounds),
        rows_table(_SCENARIO_HEADS, scenarios),
        "Actions by the previous condition (rows) and the present one, as in the paper's table VI:",
        "",
        rows_table(
            ["previous", *(f"{name}: network, trees, paper" for name in CONDITIONS)], actions
        ),
        "A condition is a delta of +target, 0 and -target; all actions before are 1.",
        "",
    ]
    return "\n".join(lines)


def trade_picture(trade: Mapping[tuple[int, int], float]) -> str:
    """Return an SVG: RMSE on windows that were not fitted, by depth (rows) and trees."""
    counts = sorted({count for count, _ in trade})
    depths = sorted({depth for _, depth in trade})
    columns = {
        str(count): [HeatCell(f"{trade[count, d]:.4f}", trade[count, d]) for d in depths]
        for count in counts
    }
    rows = [f"depth {depth}" for depth in depths]
    about = "Root mean square error of actions on windows that were not fitted."
    return HeatMap("RMSE by trees and depth", about, rows, {"trees": columns}, _STEPS).svg()
