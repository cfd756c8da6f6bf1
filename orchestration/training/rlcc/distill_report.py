"""What a distillation came to: a page in Markdown, and a picture of its budget."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from orchestration.core.errors import InputError
from orchestration.render.heat_map import HeatCell, HeatMap
from orchestration.render.markdown import rows_table
from orchestration.training.rlcc.distill import CONDITIONS, Distilled, Teacher
from orchestration.training.rlcc.trees import operations
from tuners.learning import checkpoint as files
from tuners.nic.networks import Architecture

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
