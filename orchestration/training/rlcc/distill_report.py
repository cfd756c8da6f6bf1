"""What a distillation came to: a page in Markdown, and a picture of its budget."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from orchestration.model.errors import InputError
from orchestration.training.rlcc.distill import CONDITIONS, Distilled, Teacher
from orchestration.training.rlcc.trees import operations
from tuners import checkpoint as files
from tuners.nic.networks import Architecture

_TICK = 0.01
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
    lines = [
        f"# RL-CC's network {checkpoint} as trees",
        "",
        f"{len(made.trees.trees)} trees, "
        f"{operations(len(made.trees.trees), _depth(made))} operations. "
        + (
            "In closed loop both agree: goodput within 1 %, latency within 5 %."
            if last.agrees
            else "In closed loop they do not agree within 1 % of goodput and 5 % of latency."
        ),
        "",
        "| round | windows | RMSE | actions within 0.01 | agrees |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {number} | {one.samples:,} | {one.rmse:.4f} | {100 * one.within:.1f} % "
            f"| {'yes' if one.agrees else 'no'} |"
            for number, one in enumerate(made.rounds, start=1)
        ),
        "",
        "| scenario | goodput: network | trees | latency, us: network | trees "
        "| drops: network | trees |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {other.scenario.name} | {other.goodput:.4f} | {own.goodput:.4f} "
            f"| {other.latency_us:.2f} | {own.latency_us:.2f} | {other.drops:,} | {own.drops:,} |"
            for own, other in zip(last.student, last.teacher, strict=True)
        ),
        "",
        "Actions by the previous condition (rows) and the present one, as in the paper's table VI:",
        "",
        "| previous | "
        + " | ".join(f"{name}: network, trees, paper" for name in CONDITIONS)
        + " |",
        "| --- |" + " --- |" * len(CONDITIONS),
        *(_row(made, place, name) for place, name in enumerate(CONDITIONS)),
        "",
        "A condition is a delta of +target, 0 and -target; all actions before are 1.",
        "",
    ]
    return "\n".join(lines)


def _depth(made: Distilled) -> int:
    return max(len(tree.features) for tree in made.trees.trees)


def _row(made: Distilled, row: int, name: str) -> str:
    cells = [
        f"{made.table['network'][row, column]:.3f}, {made.table['tree'][row, column]:.3f}, "
        f"{PUBLISHED[row, column]:g}"
        for column in range(3)
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def trade_picture(trade: Mapping[tuple[int, int], float]) -> str:
    """Return an SVG: RMSE on windows that were not fitted, a line for each depth, by trees."""
    counts = sorted({count for count, _ in trade})
    depths = sorted({depth for _, depth in trade})
    top = max(trade.values()) * 1.05
    x = dict(zip(counts, np.linspace(70, 470, len(counts)), strict=True))

    def y(value: float) -> float:
        return 260 - 230 * value / top

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 310" font-family="sans-serif" '
        'font-size="12">',
        '<path d="M70 30V260H470" fill="none" stroke="black"/>',
        '<text x="270" y="300" text-anchor="middle">trees</text>',
        '<text x="20" y="20">RMSE of actions</text>',
    ]
    for count in counts:
        parts.append(f'<text x="{x[count]:.0f}" y="278" text-anchor="middle">{count}</text>')
    for tick in np.arange(0.0, top, _TICK):
        parts.append(f'<text x="64" y="{y(tick) + 4:.0f}" text-anchor="end">{tick:.2f}</text>')
        parts.append(f'<path d="M70 {y(tick):.1f}H470" stroke="#ddd"/>')
    ends: list[float] = []
    for place, depth in enumerate(depths):
        points = " ".join(f"{x[count]:.1f},{y(trade[count, depth]):.1f}" for count in counts)
        shade = f"hsl({place * 50},70%,40%)"
        end = y(trade[counts[-1], depth])
        while any(abs(end - other) < 12 for other in ends):
            end += 3
        ends.append(end)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{shade}" stroke-width="2"/>')
        parts.append(f'<text x="478" y="{end + 4:.0f}" fill="{shade}">depth {depth}</text>')
    return "\n".join([*parts, "</svg>", ""])
