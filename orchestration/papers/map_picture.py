"""The map's picture: a heat map of headroom, a row a condition, a block of columns an objective."""

from __future__ import annotations

import math

from orchestration.papers.headroom import LEAST
from orchestration.papers.headroom_map import WORTH, HeadroomMap, Place
from orchestration.papers.map_page import ALL, metric_label
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


def picture(found: HeadroomMap) -> str:
    """Return the map as SVG."""
    several = any(one.place == "" for one in found.places)
    places = [*found.conditions, *([""] if several else [])]
    about = (
        f"Bold: above {100 * WORTH:.0f} % beyond chance. Grey: the interval includes 0. "
        "few: too few flows for the tail."
    )
    blocks = {
        metric_label(metric): {
            group: [_cell(found.at(group, place, metric)) for place in places]
            for group in found.groups
        }
        for metric in found.metrics
    }
    title = "What the best static setting loses to the best of each condition"
    return HeatMap(title, about, [place or ALL for place in places], blocks, STEPS, [ALL]).svg()


def _cell(one: Place | None) -> HeatCell:
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
