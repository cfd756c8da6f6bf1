"""The picture of a training run: reward, loss and exploration over episodes."""

from __future__ import annotations

import csv
from html import escape
from pathlib import Path

_PANELS = (("reward", "mean reward"), ("loss", "loss"), ("explore", "exploration"))
# The share of the training over which first and last rewards are averaged.
_ENDS = 0.1


def write_curve(table: Path, title: str) -> Path:
    """Write `curve.html` beside a training's `curve.csv`, and return its path."""
    from orchestration.analysis.document import Pictures, html_document, replace_file
    from orchestration.analysis.figure_style import Picture, base_figure, line
    from orchestration.analysis.plot import Figure

    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    episodes = [int(row["episodes"]) for row in rows]
    figure = Figure(len(_PANELS), gap=0.04)
    base_figure(height=720, figure=figure)
    for place, (name, label) in enumerate(_PANELS, start=1):
        trace = line(episodes, [float(row[name]) for row in rows], "#0072B2", 2)
        trace["hovertemplate"] = f"{label} %{{y:.4g}} after %{{x:,}} episodes<extra></extra>"
        figure.add_trace(trace, place)
        figure.update_yaxes(title={"text": label}, row=place)
    figure.update_xaxes(title={"text": "episodes"}, row=len(_PANELS))
    data = {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
    said = _change([float(row["reward"]) for row in rows])
    pictures = Pictures()
    drawn = pictures.grid([Picture(said, "", figure, "curve", data)], wide=True)
    body = f"<header><h1>Training of {escape(title)}</h1></header>{drawn}{pictures.script()}"
    page = table.with_suffix(".html")
    replace_file(page, html_document(f"Training of {title}", body))
    return page


def _change(rewards: list[float]) -> str:
    """Return the change of the reward: mean of the first tenth to mean of the last tenth."""
    if not rewards:
        return "No episode was trained"
    count = max(1, int(_ENDS * len(rewards)))
    first, last = sum(rewards[:count]) / count, sum(rewards[-count:]) / count
    return f"Mean reward: {first:.3g} in the first tenth of the training, {last:.3g} in the last"
