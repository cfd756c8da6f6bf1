"""The picture of a training: reward, loss and exploration over episodes."""

from __future__ import annotations

import csv
from pathlib import Path

_PANELS = (("reward", "mean reward"), ("loss", "loss"), ("explore", "exploration"))


def write_curve(table: Path, title: str) -> Path:
    """Write `curve.html` beside a training's `curve.csv`, and return its path."""
    from plotly.graph_objects import Figure, Scatter
    from plotly.subplots import make_subplots

    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    episodes = [int(row["episodes"]) for row in rows]
    figure: Figure = make_subplots(
        rows=len(_PANELS), cols=1, shared_xaxes=True, vertical_spacing=0.04
    )
    for place, (name, label) in enumerate(_PANELS, start=1):
        values = [float(row[name]) for row in rows]
        figure.add_trace(
            Scatter(x=episodes, y=values, mode="lines", line={"color": "#0072b2"}), place, 1
        )
        figure.update_yaxes(title_text=label, row=place, col=1)
    figure.update_xaxes(title_text="episodes", row=len(_PANELS), col=1)
    figure.update_layout(
        title=f"Training of {title}", showlegend=False, template="plotly_white", height=720
    )
    page = table.with_suffix(".html")
    figure.write_html(page, include_plotlyjs=True)
    return page
