"""Heat maps of headroom: of the papers' conditions, and of a map of conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestration.analysis.metrics import HEADROOM
from orchestration.papers.condition import in_order
from orchestration.papers.headroom import LEAST, Headroom
from orchestration.papers.headroom_map import ALL, WORTH, HeadroomMap, Place, metric_label
from orchestration.render.heat_map import HeatCell, HeatMap
from orchestration.render.numbers import NOTHING, percent

# Upper ends of headroom and their colours: Brewer's Blues, a single hue that varies in lightness.
# The first two are the limits of "nothing to learn" and of what is worth a training.
STEPS = (
    (LEAST, "#F7FAFD", "nothing to learn"),
    (WORTH, "#DCE9F5", f"{100 * LEAST:.0f} %"),
    (0.2, "#B4D2E8", f"{100 * WORTH:.0f} %"),
    (0.4, "#6BAED6", "20 %"),
    (0.8, "#2171B5", "40 %"),
    (math.inf, "#08306B", "80 %"),
)


def map_picture(found: HeadroomMap) -> str:
    """Return the map as SVG."""
    several = any(one.place == "" for one in found.places)
    places = [*found.conditions, *([""] if several else [])]
    about = (
        f"Bold: above {100 * WORTH:.0f} % beyond chance. Grey: the interval includes 0. "
        "few: too few flows for the tail."
    )
    blocks = {
        metric_label(metric): {
            group: [_map_cell(found.at(group, place, metric)) for place in places]
            for group in found.groups
        }
        for metric in found.metrics
    }
    title = "What the best static setting loses to the best of each condition"
    return HeatMap(title, about, [place or ALL for place in places], blocks, STEPS, [ALL]).svg()


def _map_cell(one: Place | None) -> HeatCell:
    if one is not None and one.few:
        return HeatCell("few")
    return headroom_cell(one.headroom, sure=one.sure) if one is not None else HeatCell(NOTHING)


def headroom_cell(share: tuple[float, float, float], *, sure: bool = False) -> HeatCell:
    """Return the cell of a share with its interval, grey if the interval includes 0."""
    value, low, high = share
    if not math.isfinite(value):
        return HeatCell(NOTHING)
    doubtful = not (math.isfinite(low) and (low > 0 or high < 0))
    return HeatCell(percent(value, 0), value, sure, doubtful)


def headroom_picture(rows: Sequence[Headroom]) -> str:
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
