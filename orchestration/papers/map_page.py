"""The map: headroom of each group of conditions, who was chosen, and its page and heat map."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestration.analysis.metrics import HEADROOM, METRICS
from orchestration.papers.condition import in_order
from orchestration.papers.cross_fit import (
    Group,
    Scene,
    check_metrics,
    choose,
    cross_fit,
    scene_of,
    seeds_of,
)
from orchestration.papers.headroom import MIN, UNKNOWN, Headroom, Interval, rows_of, verdict_on
from orchestration.papers.results import measure_campaign
from orchestration.render.heat_map import HeatCell, HeatMap
from orchestration.render.json import json_text
from orchestration.render.markdown import markdown_table
from orchestration.render.numbers import NOTHING, percent, percent_span
from orchestration.render.table import Span, Table, Text, table

FOLDS = 2
# Headroom that is worth a tuner's training.
WORTH = 0.10
ALL = "all together"


@dataclass(frozen=True)
class MapCell:
    """Headroom at one place of the map: a condition of a group, or "" for all of them together.

    `in_sample` is the regret by the seeds that also chose, which is too large where settings are
    alike. `best_static` and `oracle` are what all seeds choose; `oracle` is "" for all together.
    `agreed` says whether all folds chose the same as they. With `few` flows beyond a tail, or no
    flows of the metric's kind (`seeds` is 0), the rest is unknown.
    """

    group: str
    place: str
    metric: str
    seeds: int
    few: bool
    headroom: Interval
    in_sample: float = math.nan
    best_static: str = ""
    oracle: str = ""
    agreed: bool = False

    @property
    def worth(self) -> bool:
        """Whether the estimate is above what is worth a training."""
        return self.headroom[0] > WORTH

    @property
    def sure(self) -> bool:
        """Whether the whole interval is."""
        return self.headroom[1] > WORTH


@dataclass(frozen=True)
class HeadroomMap:
    """The map of a run folder. `places` are by metric, group and condition."""

    metrics: tuple[str, ...]
    folds: int
    scene: Scene
    places: tuple[MapCell, ...]

    def at(self, group: str, place: str, metric: str) -> MapCell | None:
        """Return one place; None where nothing is known."""
        wanted = (group, place, metric)
        found = (p for p in self.places if (p.group, p.place, p.metric) == wanted)
        return next(found, None)

    @property
    def groups(self) -> tuple[str, ...]:
        """The labels of the groups."""
        return tuple(group.label for group in self.scene.groups)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The labels of the conditions within groups."""
        labels = (place for group in self.scene.groups for place, _ in group.conditions)
        return tuple(dict.fromkeys(labels))


def made_of(
    run: Path,
    metrics: Sequence[str],
    by: Sequence[str],
    setting: Sequence[str],
    folds: int,
    phase: Callable[[str], None],
    step: Callable[[int, int], None],
) -> tuple[HeadroomMap, tuple[str, ...]]:
    """Return the map of a run folder, and the arms that are left out: no static settings.

    `by` are factors whose levels get a best setting each, `setting` those that are part of the
    setting. Raises InputError for metrics, factors or a folder that do not serve.
    """
    check_metrics(metrics)
    phase("Reading trials")
    trials = measure_campaign(run, step)
    phase("Choosing and judging")
    scene = scene_of(str(run), trials, by, setting)
    return make_map(scene, list(dict.fromkeys(metrics)), folds), scene.left_out


def make_map(scene: Scene, metrics: Sequence[str], folds: int = FOLDS) -> HeadroomMap:
    """Return the map: each metric chooses its own settings, as a tuner would have it as its aim."""
    places = (
        place
        for metric in metrics
        for group in scene.groups
        for place in _places(group, metric, folds, scene.settings)
    )
    return HeadroomMap(tuple(metrics), folds, scene, tuple(places))


def _places(group: Group, metric: str, folds: int, settings: Sequence[str]) -> Iterator[MapCell]:
    usable = []
    for place, condition in group.conditions:
        seeds = seeds_of([condition], metric)
        if not seeds:
            yield MapCell(group.label, place, metric, 0, few=False, headroom=UNKNOWN)
        elif condition.too_few(tuple(settings), metric):
            yield MapCell(group.label, place, metric, len(seeds), few=True, headroom=UNKNOWN)
        else:
            usable.append((place, condition))
    conditions = [condition for _, condition in usable]
    every = choose(conditions, metric, seeds_of(conditions, metric), settings) if usable else None
    fitted = cross_fit(conditions, metric, folds, settings) if usable else None
    if every is None or fitted is None:
        for place, condition in usable:
            seeds = seeds_of([condition], metric)
            yield MapCell(group.label, place, metric, len(seeds), few=False, headroom=UNKNOWN)
        return
    judged = list(zip((place for place, _ in usable), fitted.conditions, strict=True))
    order = {place: number for number, (place, _) in enumerate(usable)}
    for row in rows_of("", judged, metric):
        whole = not row.place
        number = order.get(row.place, 0)
        yield MapCell(
            group=group.label,
            place=row.place,
            metric=metric,
            seeds=row.seeds,
            few=row.few,
            headroom=row.headroom,
            in_sample=float(np.mean(every.in_sample)) if whole else every.in_sample[number],
            best_static=every.best_static,
            oracle="" if whole else every.oracle[number],
            agreed=all(
                one.best_static == every.best_static
                and (whole or one.oracle[number] == every.oracle[number])
                for one in fitted.choices
            ),
        )


def to_json(found: HeadroomMap) -> dict[str, Any]:
    """Return the map as JSON: shares, `null` where unknown."""
    return {
        "metrics": list(found.metrics),
        "folds": found.folds,
        "settings": list(found.scene.settings),
        "left_out": list(found.scene.left_out),
        "trials": found.scene.trials,
        "invalid": found.scene.invalid,
        "places": [
            {
                "group": one.group,
                "condition": one.place or None,
                "metric": one.metric,
                "seeds": one.seeds,
                "too_few_flows": one.few,
                "headroom": _known(one.headroom[0]),
                "low": _known(one.headroom[1]),
                "high": _known(one.headroom[2]),
                "in_sample": _known(one.in_sample),
                "best_static": one.best_static or None,
                "oracle": one.oracle or None,
                "agreed": one.agreed,
                "verdict": verdict_on(one.headroom),
            }
            for one in found.places
        ],
    }


def _known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


# Upper ends of headroom and their colours: Brewer's Blues, a single hue that varies in lightness.
# The first two are the limits of "nothing to learn" and of what is worth a training.
STEPS = (
    (MIN, "#F7FAFD", "nothing to learn"),
    (WORTH, "#DCE9F5", f"{100 * MIN:.0f} %"),
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
        METRICS[metric].label: {
            group: [_map_cell(found.at(group, place, metric)) for place in places]
            for group in found.groups
        }
        for metric in found.metrics
    }
    title = "What the best static setting loses to the best of each condition"
    return HeatMap(title, about, [place or ALL for place in places], blocks, STEPS, [ALL]).svg()


def _map_cell(one: MapCell | None) -> HeatCell:
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


# All of a page above this line is its author's, and is kept; below it, it is written anew.
MARK = "<!-- Below: written by closloop headroom -->"


def with_former(text: str, former: str) -> str:
    """Return the page: what a former one has above the mark, then the map."""
    above, mark, _ = former.partition(MARK)
    return f"{above if mark else ''}{MARK}\n\n{text}"


def page(found: HeadroomMap, picture: str) -> str:
    """Return the map's part of a page; `picture` is the name of its file, beside the page."""
    return "\n".join(_lines(found, picture)) + "\n"


def summary(found: HeadroomMap) -> list[str]:
    """Return a sentence for each metric and group: how much there is, and where most."""
    said = []
    for metric in found.metrics:
        for group in found.groups:
            known = [
                one
                for one in found.places
                if (one.metric, one.group) == (metric, group)
                and one.place
                and math.isfinite(one.headroom[0])
            ]
            where = f"{METRICS[metric].label}{f', {group}' if group else ''}"
            if not known:
                said.append(f"{where}: not known")
                continue
            whole = found.at(group, "", metric)
            text = f"{where}: "
            if whole is not None:
                text += f"{percent_span(*whole.headroom)} in the mean; "
            worth, sure = sum(one.worth for one in known), sum(one.sure for one in known)
            text += f"above {100 * WORTH:.0f}% under {worth} of {len(known)} conditions"
            text += f" (beyond chance under {sure})" if worth else ""
            maximum = max(known, key=lambda one: one.headroom[0])
            said.append(f"{text}; most {percent_span(*maximum.headroom)} ({maximum.place})")
    return said


def group_table(found: HeadroomMap, group: str) -> Table:
    """Return a group's headroom, a row a condition; bold where it is worth a training for sure."""
    rows = []
    for place in ("", *found.conditions):
        row = [found.at(group, place, metric) for metric in found.metrics]
        if any(one is not None for one in row):
            rows.append([place or ALL, *map(_cell, row)])
    return table(("condition",), [METRICS[metric].label for metric in found.metrics], rows, group)


def _cell(one: MapCell | None) -> Text:
    if one is None or not one.seeds:
        return NOTHING
    return Span(
        "too few flows" if one.few else percent_span(*one.headroom), "strong" if one.sure else ""
    )


def _lines(found: HeadroomMap, picture: str) -> Iterator[str]:
    scene = found.scene
    seeds = max((one.seeds for one in found.places), default=0)
    groups = f" in {len(found.groups)} groups" if len(found.groups) > 1 else ""
    yield (
        f"{scene.trials} trials, {scene.invalid} invalid; {len(scene.settings)} settings, "
        f"{len(found.conditions)} conditions{groups}, {seeds} seeds in {found.folds} "
        "folds: each seed is judged under the settings that the other folds choose. Headroom is "
        "what the best setting for a row of conditions loses to the best of each, with its 95 % "
        "interval over seeds; below 0, the choice by condition was no better. Tails need 100 flows "
        f"beyond them. Bold: above {100 * WORTH:.0f} % beyond chance.\n"
    )
    yield from (f"- {sentence}" for sentence in summary(found))
    yield f"\n![Headroom by condition and objective]({picture})\n"
    for group in found.groups:
        if group:
            yield f"### {group}\n"
        yield markdown_table(replace(group_table(found, group), title="")) + "\n"
    yield "### The settings\n"
    yield (
        "Chosen by all seeds; a star where a fold chose otherwise. In brackets: the best static "
        "setting's loss by the same seeds that chose, too large where settings are alike.\n"
    )
    yield markdown_table(_settings(found))


def _settings(found: HeadroomMap) -> Table:
    rows = []
    for group in found.groups:
        for place in ("", *found.conditions):
            row = [found.at(group, place, metric) for metric in found.metrics]
            if any(one is not None and one.best_static for one in row):
                rows.append([group or NOTHING, place or "the best for all", *map(_chosen, row)])
    return table(
        ("group", "condition", *(METRICS[metric].label for metric in found.metrics)), (), rows
    )


def _chosen(one: MapCell | None) -> str:
    if one is None or not one.best_static:
        return NOTHING
    star = "" if one.agreed else " *"
    return f"{one.oracle or one.best_static}{star} ({100 * one.in_sample:.1f}%)"


def map_files(found: HeadroomMap, output: Path) -> dict[Path, tuple[str, str]]:
    """Return what is written of a map, with what it is: the page, its data, its picture."""
    data, drawn = output.with_suffix(".json"), output.with_suffix(".svg")
    former = output.read_text(encoding="utf-8") if output.exists() else ""
    return {
        output: ("page", with_former(page(found, drawn.name), former)),
        data: ("data", json_text(to_json(found)) + "\n"),
        drawn: ("picture", map_picture(found)),
    }
