"""The page's picture: how far the best static setting and each arm are above the oracle.

A heat map as SVG: a block a transport, a row a condition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestration.analysis.metrics import HEADROOM
from orchestration.papers.condition import in_order
from orchestration.papers.headroom import Headroom
from orchestration.papers.map_picture import STEPS, headroom_cell
from orchestration.render.heat_map import HeatCell, HeatMap


def picture(rows: Sequence[Headroom]) -> str:
    """Return the picture of the headroom in the first metric; "" if none is known."""
    shown = [row for row in rows if row.metric == HEADROOM[0] and math.isfinite(row.headroom[0])]
    if not shown:
        return ""
    # each paper's own conditions, then all of them together
    keys = dict.fromkeys((row.paper, row.place) for row in shown)
    papers = list(dict.fromkeys(paper for paper, _ in keys))
    places = sorted(keys, key=lambda key: (papers.index(key[0]), not key[1]))
    names = [place or f"{paper}, all together" for paper, place in places]
    arms = list(dict.fromkeys(placed.arm for row in shown for placed in row.arms))
    blocks = {}
    for transport in in_order({row.transport for row in shown}):
        mine = {(row.paper, row.place): row for row in shown if row.transport == transport}
        found = [mine.get(place) for place in places]
        columns = {"best-static": [_headroom(row) for row in found]}
        columns |= {arm: [_regret(row, arm) for row in found] for arm in arms}
        blocks[transport.upper()] = columns
    title = "Mean slowdown above the oracle’s; that of best-static is the headroom"
    about = "Grey: the interval includes 0. An empty cell was not run."
    whole = [name for name, (_, place) in zip(names, places, strict=True) if not place]
    return HeatMap(title, about, names, blocks, STEPS, whole).svg()


def _headroom(row: Headroom | None) -> HeatCell:
    return headroom_cell(row.headroom) if row else HeatCell("")


def _regret(row: Headroom | None, arm: str) -> HeatCell:
    found = [placed.regret for placed in row.arms if placed.arm == arm] if row else []
    return headroom_cell(found[0]) if found else HeatCell("")
