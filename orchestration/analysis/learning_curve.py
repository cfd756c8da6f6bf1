"""The figure of a training run: reward, loss, exploration and held-out gains over episodes."""

from __future__ import annotations

import csv
from pathlib import Path

_PANELS = (("reward", "mean reward"), ("loss", "loss"), ("explore", "exploration"))
# The share of the training over which first and last rewards are averaged.
_ENDS = 0.1
# The columns of `held-out.csv` that are drawn: gains over something else, and their colours.
_GAINS = (("over_placebo", "placebo", "#0072B2"), ("over_static", "best static", "#D55E00"))
HELD_OUT = "held-out.csv"


def write_curve(table: Path, title: str) -> Path:
    """Write `curve.html` beside a training's `curve.csv`, and return its path.

    A `held-out.csv` beside it is drawn too.
    """
    from orchestration.render.figure import Figure
    from orchestration.render.figure_style import base_figure, line
    from orchestration.render.html import page_html, replace_file
    from orchestration.render.page import CaptionedFigure, FigureGrid, Page

    rows, judged = _rows(table), _rows(table.with_name(HELD_OUT))
    episodes = [int(row["episodes"]) for row in rows]
    panels = len(_PANELS) + bool(judged)
    figure = Figure(panels, gap=0.04)
    base_figure(height=240 * panels, figure=figure)
    for number, (name, label) in enumerate(_PANELS, start=1):
        trace = line(episodes, [float(row[name]) for row in rows], "#0072B2", 2)
        trace["hovertemplate"] = f"{label} %{{y:.4g}} after %{{x:,}} episodes<extra></extra>"
        figure.add_trace(trace, number)
        figure.update_yaxes(title={"text": label}, row=number)
    for name, other, colour in _GAINS if judged else ():
        gains = [100 * float(row[name]) for row in judged]
        trace = line([int(row["episodes"]) for row in judged], gains, colour, 2)
        trace |= {"name": f"over the {other}", "mode": "lines+markers"}
        trace["hovertemplate"] = (
            f"%{{y:.2f}} % over the {other} after %{{x:,}} episodes<extra></extra>"
        )
        figure.add_trace(trace, panels)
        figure.update_yaxes(title={"text": "held-out gain, %"}, row=panels)
    figure.update_xaxes(title={"text": "episodes"}, row=panels)
    data = {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
    title_text = _change([float(row["reward"]) for row in rows]) + _held_out(judged)
    drawn = FigureGrid([CaptionedFigure(title_text, "", figure, "curve", data)])
    page = table.with_suffix(".html")
    replace_file(page, page_html(Page(f"Training of {title}", blocks=[drawn])))
    return page


def _rows(table: Path) -> list[dict[str, str]]:
    if not table.exists():
        return []
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def _held_out(judged: list[dict[str, str]]) -> str:
    """Return how much lower the best network's slowdown is than those of its baselines."""
    if not judged:
        return ""
    best = min(judged, key=lambda row: float(row["log_slowdown"]))
    placebo, static = (float(best[name]) for name, _, _ in _GAINS)
    return (
        f"; on held-out trials, the best network's slowdown is {placebo:.1%} below the placebo's "
        f"and {static:.1%} below the best static setting's"
    )


def _change(rewards: list[float]) -> str:
    """Return the change of the reward: mean of the first tenth to mean of the last tenth."""
    if not rewards:
        return "No episode was trained"
    count = max(1, int(_ENDS * len(rewards)))
    first, last = sum(rewards[:count]) / count, sum(rewards[-count:]) / count
    return f"Mean reward: {first:.3g} in the first tenth of the training, {last:.3g} in the last"
