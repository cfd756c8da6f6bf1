"""Distils RL-CC's MLP, the teacher, into boosted trees, the student.

Fuhrer et al., HPSR 2023, section V-C. In the first round the teacher controls the flows in ns-3.
Then the student does, and the teacher says what it would have done in the situations that the
student came to (DAgger: Ross et al., AISTATS 2011). Rounds go on until both agree in closed loop,
or until there are no more rounds. CatBoost fits the student to the windows of all rounds by RMSE:
by default at most 10 trees of depth 4, and 150 operations. `report` writes a page about the result.
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
    """The number and depth of the trees, and the largest number of operations per decision."""

    trees: int = 10
    depth: int = 4
    operations: int = MAX_OPERATIONS

    def check(self) -> None:
        """Raise InputError if the trees take more operations than `operations`."""
        needed = operations(self.trees, self.depth)
        if needed > self.operations:
            raise InputError.single(
                "--trees",
                f"{self.trees} trees of depth {self.depth} take {needed} operations, more than "
                f"{self.operations}",
                "use fewer trees, a smaller --depth, or more --operations",
            )


def operations(trees: int, depth: int) -> int:
    """Return the number of operations of a decision.

    Each level of a tree takes a comparison, and each but the first a shift and an `or`. Each tree
    takes a load and a sum.
    """
    return trees * (depth + 2 * (depth - 1) + 2)


def fit(windows: NDArray[np.int32], actions: NDArray[np.int32], budget: Budget, seed: int) -> Any:
    """Return a CatBoost regressor of the actions for windows, both given in 2^-16.

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
    """Write the model, with its settings as metadata, as `closloop compile` reads it."""
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
    """Return the root mean square difference of the student's actions from `actions`, as floats."""
    return float(np.sqrt(np.mean(np.square((student.act(windows) - actions) / ONE))))


_LASTING_FLOWS, _LEVELS, _STEPS_PER_LEVEL = 30, 8, 10
# The seeds of rollouts for learning, and for judging. Both differ from those of training.
_ROLLOUT_SEEDS, _JUDGE_SEED = 1 << 39, 7
# The number of windows from which the error by number and depth of trees is estimated.
_ERROR_WINDOWS = 50_000
# In closed loop, the student's figures may differ from the teacher's by these shares.
GOODPUT_WITHIN, LATENCY_WITHIN = 0.01, 0.05
# Deltas for the conditions of table VI. The paper does not define them.
CONDITIONS = {"under-utilised": TARGET, "on target": 0.0, "congested": -TARGET}


@dataclass(frozen=True)
class Teacher:
    """A trained MLP. Its actions are computed in fixed point, as in a NIC."""

    architecture: Architecture
    arrays: Mapping[str, NDArray[Any]]

    def act(self, inputs: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the actions (N,) for windows (N, 2 * history), all in 2^-16."""
        weights = fixed_point.quantised(self.architecture, self.arrays)
        return fixed_point.mlp(weights, inputs.astype(np.int64)).astype(np.int32)


@dataclass(frozen=True)
class Round:
    """A round's student: its error on all windows so far, and both models in closed loop.

    `samples` is the number of windows, and `within` the share of actions within 0.01.
    """

    samples: int
    rmse: float
    within: float
    student: Sequence[Steady]
    teacher: Sequence[Steady]

    @property
    def agrees(self) -> bool:
        """Whether goodput and latency agree in every scenario."""
        return all(
            abs(student.goodput / teacher.goodput - 1) <= GOODPUT_WITHIN
            and abs(student.latency_us / teacher.latency_us - 1) <= LATENCY_WITHIN
            for student, teacher in zip(self.student, self.teacher, strict=True)
        )


@dataclass(frozen=True)
class Distilled:
    """The last student, all rounds, and two tables.

    `errors` has the RMSE by (number of trees, depth), `actions` what `table_vi` returns of the
    network and of the trees.
    """

    trees: IntegerTrees
    rounds: Sequence[Round]
    errors: Mapping[tuple[int, int], float]
    actions: Mapping[str, NDArray[np.float64]]


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
    loop = _ClosedLoop(require_program(), testbed(), teacher.architecture)
    source = network_source(teacher.architecture, teacher.arrays, "teacher", "The teacher.")
    teacher_states = loop.judge(source)
    samples = np.concatenate([loop.drive(source, seed), lasting_congestion(teacher, seed)])
    done: list[Round] = []
    for number in range(1, rounds + 1):
        actions = teacher.act(samples)
        fitted = fit(samples, actions, budget, seed)
        save(fitted, teacher.architecture, model)
        trees = read_model(model)
        source = render_policy(trees, "student")
        within = (np.abs(trees.act(samples) - actions) <= 0.01 * ONE).mean()
        error = rmse(trees, samples, actions)
        done.append(Round(len(samples), error, within, loop.judge(source), teacher_states))
        listener(number, done[-1])
        if done[-1].agrees or number == rounds:
            break
        samples = np.concatenate([samples, loop.drive(source, seed + number)])
    tables = {
        "network": table_vi(teacher.act, teacher.architecture),
        "tree": table_vi(trees.act, teacher.architecture),
    }
    return Distilled(trees, done, _errors(teacher, samples, seed, model), tables)


def _errors(
    teacher: Teacher, samples: NDArray[np.int32], seed: int, model: Path
) -> dict[tuple[int, int], float]:
    """Return the RMSE of models by (number of trees, depth), fitted to some of the windows."""
    some = np.random.default_rng(seed).permutation(len(samples))[:_ERROR_WINDOWS]
    return {
        (count, depth): _error(teacher, samples[some], Budget(count, depth, 10**6), seed, model)
        for depth in (1, 2, 3, 4, 5, 6)
        for count in (1, 2, 5, 10, 20)
    }


def lasting_congestion(teacher: Teacher, seed: int) -> NDArray[np.int32]:
    """Return windows of flows whose deltas stay the same for a while, at many levels.

    Levels lie between the target and `MIN_DELTA`. Rollouts begin near the fair share, so they
    hardly have any such windows. Without them, trees react to a full buffer, which many flows at
    line rate fill, a tenth as strongly as the network.
    """
    rng = np.random.default_rng([seed, _LASTING_FLOWS])
    history = teacher.architecture.history
    levels = np.where(
        rng.random((_LASTING_FLOWS, _LEVELS)) < 0.5,
        TARGET * rng.uniform(-1, 1, (_LASTING_FLOWS, _LEVELS)),
        -TARGET * 2.0 ** rng.uniform(0, 9, (_LASTING_FLOWS, _LEVELS)),
    ).clip(min=MIN_DELTA)
    deltas = np.rint(np.repeat(levels, _STEPS_PER_LEVEL, axis=1) * ONE).astype(np.int32)
    window = np.tile(np.array([0, ONE], dtype=np.int32), (_LASTING_FLOWS, history))
    action, samples = np.full(_LASTING_FLOWS, ONE, dtype=np.int32), []
    for delta in deltas.T:
        window = np.concatenate([delta[:, None], action[:, None], window[:, :-2]], axis=1)
        action = teacher.act(window).astype(np.int32)
        samples.append(window)
    return np.concatenate(samples)


def table_vi(
    act: Callable[[NDArray[np.int32]], NDArray[np.int32]], architecture: Architecture
) -> NDArray[np.float64]:
    """Return the actions by condition as in the paper's table VI, shape (3, 3).

    A row is the previous condition, a column the present one. All earlier conditions are as the
    previous one, and all earlier actions were 1.
    """
    deltas = list(CONDITIONS.values())
    inputs = np.full((3, 3, architecture.history, 2), 1.0)
    for row, previous in enumerate(deltas):
        for column, present in enumerate(deltas):
            inputs[row, column, :, 0] = previous
            inputs[row, column, 0, 0] = present
    integers = np.rint(inputs.reshape(9, -1) * ONE).astype(np.int32)
    return act(integers).reshape(3, 3) / ONE


def _error(
    teacher: Teacher, samples: NDArray[np.int32], budget: Budget, seed: int, model: Path
) -> float:
    """Return the RMSE of a model on every fifth window. It is fitted to the others."""
    fitted_to = np.arange(len(samples)) % 5 != 0
    actions = teacher.act(samples)
    fitted = fit(samples[fitted_to], actions[fitted_to], budget, seed)
    with tempfile.TemporaryDirectory(dir=model.parent) as folder:
        save(fitted, teacher.architecture, Path(folder, "model.json"))
        trees = read_model(Path(folder, "model.json"))
    return rmse(trees, samples[~fitted_to], actions[~fitted_to])


class _ClosedLoop:
    """ns-3 with a model that controls the flows."""

    def __init__(self, program: Program, fabric: Testbed, architecture: Architecture) -> None:
        self._program, self._testbed, self._architecture = program, fabric, architecture

    def drive(self, source: str, seed: int) -> NDArray[np.int32]:
        """Return the windows (N, 2 * history), in 2^-16, on which a model decides in rollouts."""
        with tempfile.TemporaryDirectory(prefix="closloop-distill-") as folder:
            model = compile_library(source, Path(folder))
            rollout_seed = _ROLLOUT_SEEDS + seed
            parts = [
                self._windows(play(self._program, model, scenario, self._testbed, rollout_seed))
                for scenario in DISTILLING
            ]
        return np.concatenate(parts)

    def _windows(self, rollout: Rollout) -> NDArray[np.int32]:
        steps = np.stack([rollout.delta, rollout.before - 1.0], axis=-1)
        steps = np.where(rollout.valid[..., None], steps, 0.0)
        floats = windows(steps, self._architecture.history)
        floats[..., 1::2] += 1.0
        integers: NDArray[np.int32] = np.rint(floats[rollout.valid] * ONE).astype(np.int32)
        return integers

    def judge(self, source: str) -> list[Steady]:
        """Return a model's steady states, by scenario."""
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
# Colours of the heat map: the upper end of each one's range, the colour, and its legend.
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
        checkpoint = files.load(name)
    except files.CheckpointError as error:
        raise InputError.single(name, str(error), "see closloop train rl-cc") from error
    card = checkpoint.card
    if card.get("tuner") != "rl-cc" or card["architecture"]["kind"] != "mlp":
        raise InputError.single(
            name, "is no MLP of rl-cc's", "train one: closloop train rl-cc --architecture mlp"
        )
    return Teacher(Architecture(**card["architecture"]), checkpoint.arrays)


def report(distilled: Distilled, checkpoint: str) -> str:
    """Return a Markdown page about a distillation."""
    trees, last = distilled.trees.trees, distilled.rounds[-1]
    rounds = [
        [
            number,
            f"{done.samples:,}",
            f"{done.rmse:.4f}",
            f"{100 * done.within:.1f} %",
            done.agrees,
        ]
        for number, done in enumerate(distilled.rounds, start=1)
    ]
    depth = max(len(tree.features) for tree in trees)
    lines = [
        f"# RL-CC's network {checkpoint} as trees",
        "",
        f"{len(trees)} trees, {operations(len(trees), depth)} operations per decision. "
        + (
            "In closed loop, network and trees agree: goodput within 1 %, latency within 5 %."
            if last.agrees
            else "In closed loop, network and trees differ by more than 1 % of goodput or 5 % of "
            "latency."
        ),
        "",
        rows_table(("round", "windows", "RMSE", "actions within 0.01", "agrees"), rounds),
        rows_table(_SCENARIO_HEADS, _scenario_rows(last)),
        "Actions by the previous condition (rows) and the present one, as in the paper's table VI:",
        "",
        rows_table(
            ["previous", *(f"{name}: network, trees, paper" for name in CONDITIONS)],
            _action_rows(distilled.actions),
        ),
        "The conditions are deltas of +target, 0 and -target. All earlier actions were 1.",
        "",
    ]
    return "\n".join(lines)


def _scenario_rows(last: Round) -> list[list[str]]:
    return [
        [
            teacher.scenario.name,
            f"{teacher.goodput:.4f}",
            f"{student.goodput:.4f}",
            f"{teacher.latency_us:.2f}",
            f"{student.latency_us:.2f}",
            f"{teacher.drops:,}",
            f"{student.drops:,}",
        ]
        for student, teacher in zip(last.student, last.teacher, strict=True)
    ]


def _action_rows(actions: Mapping[str, NDArray[np.float64]]) -> list[list[str]]:
    network, tree = actions["network"], actions["tree"]
    return [
        [
            name,
            *(
                f"{network[row, column]:.3f}, {tree[row, column]:.3f}, {PUBLISHED[row, column]:g}"
                for column in range(3)
            ),
        ]
        for row, name in enumerate(CONDITIONS)
    ]


def error_picture(errors: Mapping[tuple[int, int], float]) -> str:
    """Return an SVG: the RMSE on windows that were not fitted, by depth (rows) and trees."""
    counts = sorted({count for count, _ in errors})
    depths = sorted({depth for _, depth in errors})
    columns = {
        str(count): [HeatCell(f"{errors[count, d]:.4f}", errors[count, d]) for d in depths]
        for count in counts
    }
    rows = [f"depth {depth}" for depth in depths]
    about = "Root mean square error of actions, on windows to which the trees were not fitted."
    return HeatMap("RMSE by trees and depth", about, rows, {"trees": columns}, _STEPS).svg()
