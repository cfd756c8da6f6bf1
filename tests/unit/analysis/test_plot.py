"""Our figures: plotly.py, which checks every attribute, takes them, and makes the same."""

import json
import math
import re

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest
from plotly.subplots import make_subplots

from orchestration.analysis.learning_curve import write_curve
from orchestration.analysis.report.report_page import build_page
from orchestration.render.figure import Figure, heatmap, scatter

THIN = {"color": "red", "width": 1}


def pictures_of(page):
    """Return the pictures of a page; plotly.py raises for an attribute that it does not know."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return [go.Figure(json.loads(text)) for text in found]


def same(ours, theirs):
    """Compare but for plotly.py's template, and the place of a panel that is alone."""
    mine, other = json.loads(ours.to_json()), json.loads(theirs.to_json())
    other["layout"].pop("template", None)
    if "xaxis2" not in mine["layout"]:
        for layout in (mine["layout"], other["layout"]):
            for axis in ("xaxis", "yaxis"):
                for key in ("anchor", "domain"):
                    layout.get(axis, {}).pop(key, None)
    assert mine == other


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    monkeypatch.setattr(pio.templates, "default", "none")


def test_plotly_py_takes_every_picture_of_a_report(summary):
    figures = pictures_of(build_page(summary))
    assert len(figures) > 10
    assert all(figure.layout.height and figure.data for figure in figures)


def test_plotly_py_takes_the_picture_of_a_training(tmp_path):
    table = tmp_path / "curve.csv"
    table.write_text("episodes,reward,loss,explore\n1,0.5,2,1\n2,0.75,1,0.5\n")
    (figure,) = pictures_of(write_curve(table, "acc").read_text())
    assert [list(trace.y) for trace in figure.data] == [[0.5, 0.75], [2, 1], [1, 0.5]]
    assert figure.layout.yaxis3.title.text == "exploration"


def test_a_training_by_the_protocol_shows_its_held_out_gains(tmp_path):
    table = tmp_path / "curve.csv"
    table.write_text("episodes,decisions,reward,loss,explore\n1,90,0.5,2,1\n2,180,0.75,1,0.5\n")
    rows = "1,90,0.5,-0.1,-0.2\n2,180,0.3,0.2,0.05\n"
    held_out = "episodes,decisions,log_slowdown,over_placebo,over_static\n" + rows
    (tmp_path / "held-out.csv").write_text(held_out)
    page = write_curve(table, "acc-1").read_text()
    (figure,) = pictures_of(page)
    assert [list(trace.y) for trace in figure.data[3:]] == [[-10, 20], [-20, 5]]
    assert figure.layout.yaxis4.title.text == "held-out gain, %"
    assert "20.0% below the placebo" in page


def test_a_figure_is_plotlys():
    ours, theirs = Figure(), go.Figure(layout={"xaxis": {"title": {"standoff": 8}}, "yaxis": {}})
    ours.update_xaxes(title={"standoff": 8})
    for figure, make in ((ours, scatter), (theirs, go.Scatter)):
        figure.add_trace(make(x=np.arange(3), y=[1.0, math.nan, math.inf], mode="lines"))
        figure.add_trace(make(x=np.array([1e12, 2e12]).astype(np.int64), y=np.array([0.5, 1])))
        figure.add_trace(make(x=["a", "b"], y=np.array([True, False]), customdata=np.array([])))
        figure.update_layout({"height": 300, "margin": {"l": 5}})
        figure.update_layout({"margin": {"r": 6}})
        figure.update_yaxes(title="bytes", range=[0, 1], tickvals=np.array([0.0, 0.5]))
        figure.add_vline(x=1, line=THIN)
        figure.add_hline(y=0, line=THIN)
        figure.add_shape(type="rect", x0=0, x1=1, y0=0, y1=1, layer="below")
        figure.add_annotation(x=0, y=1, xref="paper", text="</script>", showarrow=False)
    same(ours, theirs)
    assert (ours.layout["height"], ours.top(1)) == (300, 1)


@pytest.mark.parametrize(
    ("rows", "heights", "gap", "same_y"),
    [(1, (), 0, False), (2, (0.75, 0.25), 0.5, False), (4, (), 0.125, True)],
)
def test_panels_are_plotlys_subplots(rows, heights, gap, same_y):
    ours = Figure(rows, heights=heights, gap=gap, same_y=same_y)
    theirs = make_subplots(
        rows=rows,
        cols=1,
        shared_xaxes=True,
        shared_yaxes="all" if same_y else False,
        row_heights=list(heights) or None,
        vertical_spacing=gap,
    )
    for figure, place, make in ((ours, {}, heatmap), (theirs, {"col": 1}, go.Heatmap)):
        for row in range(1, rows + 1):
            figure.add_trace(make(z=[[0.0, math.nan]], y=["a"]), row=row, **place)
            refs = {"xref": "x domain", "yref": "y domain"}
            figure.add_annotation(x=0, y=1, text="here", **refs, row=row, **place)
        figure.update_yaxes(ticks="")
        figure.update_yaxes(title="last", row=rows, **place)
        figure.add_vline(x=1, line=THIN)
        figure.add_hline(y=1, line=THIN)
    same(ours, theirs)
    assert ours.top(rows) == theirs.layout[f"yaxis{rows if rows > 1 else ''}"].domain[1]
