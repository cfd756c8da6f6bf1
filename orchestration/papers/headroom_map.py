"""The map: headroom of each group of conditions, who was chosen, and its page and heat map."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestration.analysis.metrics import METRICS, TUNING_HEADROOM_METRICS
from orchestration.papers.condition import order_transports
from orchestration.papers.cross_fit import (
    ConditionGroup,
    StaticTrials,
    check_metrics,
    choose_settings,
    cross_fit,
    seeds_of,
    static_trials_of,
)
from orchestration.papers.results import read_measured_trials
from orchestration.papers.tuning_headroom import (
    MIN_HEADROOM,
    UNKNOWN,
    Interval,
    TuningHeadroom,
    headroom_rows,
    headroom_verdict,
)
from orchestration.render.heat_map import HeatCell, HeatMap
from orchestration.render.json import json_text
from orchestration.render.markdown import markdown_table
from orchestration.render.numbers import NOTHING, percent, percent_span
from orchestration.render.table import Span, Table, Text, table

FOLDS = 2
# Headroom that is worth a tuner's training.
WORTH_TRAINING = 0.10
ALL_CONDITIONS = "all together"


@dataclass(frozen=True)
class MapCell:
    """Headroom at one place of the map: a condition of a group, or "" for all of them together.

    `in_sample` is the regret by the seeds that also chose, which is too large where settings are
    alike. `best_static` and `oracle` are what all seeds choose; `oracle` is "" for all together.
    `agreed` says whether all folds chose the same as they. With `too_few_flows` flows beyond a tail, or no
    flows of the metric's kind (`seeds` is 0), the rest is unknown.
    """

    group: str
    condition_label: str
    metric: str
    seeds: int
    too_few_flows: bool
    headroom: Interval
    in_sample: float = math.nan
    best_static: str = ""
    oracle: str = ""
    agreed: bool = False

    @property
    def worth_training(self) -> bool:
        """Whether the estimate is above what is worth a training."""
        return self.headroom[0] > WORTH_TRAINING

    @property
    def surely_worth_training(self) -> bool:
        """Whether the whole interval is."""
        return self.headroom[1] > WORTH_TRAINING


@dataclass(frozen=True)
class HeadroomMap:
    """The map of a run folder. `cells` are by metric, group and condition."""

    metrics: tuple[str, ...]
    folds: int
    static_trials: StaticTrials
    cells: tuple[MapCell, ...]

    def at(self, group: str, condition_label: str, metric: str) -> MapCell | None:
        """Return one place; None where nothing is known."""
        wanted = (group, condition_label, metric)
        found = (p for p in self.cells if (p.group, p.condition_label, p.metric) == wanted)
        return next(found, None)

    @property
    def groups(self) -> tuple[str, ...]:
        """The labels of the groups."""
        return tuple(group.label for group in self.static_trials.groups)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The labels of the conditions within groups."""
        labels = (
            condition_label
            for group in self.static_trials.groups
            for condition_label, _ in group.conditions
        )
        return tuple(dict.fromkeys(labels))


def map_of_run(
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
    trials = read_measured_trials(run, step)
    phase("Choosing and judging")
    static_trials = static_trials_of(str(run), trials, by, setting)
    return make_map(static_trials, list(dict.fromkeys(metrics)), folds), static_trials.left_out


def make_map(
    static_trials: StaticTrials, metrics: Sequence[str], folds: int = FOLDS
) -> HeadroomMap:
    """Return the map: each metric chooses its own settings, as a tuner would have it as its aim."""
    cells = (
        condition_label
        for metric in metrics
        for group in static_trials.groups
        for condition_label in _group_cells(group, metric, folds, static_trials.settings)
    )
    return HeadroomMap(tuple(metrics), folds, static_trials, tuple(cells))


def _group_cells(
    group: ConditionGroup, metric: str, folds: int, settings: Sequence[str]
) -> Iterator[MapCell]:
    usable = []
    for condition_label, condition in group.conditions:
        seeds = seeds_of([condition], metric)
        if not seeds:
            yield MapCell(
                group.label, condition_label, metric, 0, too_few_flows=False, headroom=UNKNOWN
            )
        elif condition.has_too_few_flows(tuple(settings), metric):
            yield MapCell(
                group.label,
                condition_label,
                metric,
                len(seeds),
                too_few_flows=True,
                headroom=UNKNOWN,
            )
        else:
            usable.append((condition_label, condition))
    conditions = [condition for _, condition in usable]
    every = (
        choose_settings(conditions, metric, seeds_of(conditions, metric), settings)
        if usable
        else None
    )
    fitted = cross_fit(conditions, metric, folds, settings) if usable else None
    if every is None or fitted is None:
        for condition_label, condition in usable:
            seeds = seeds_of([condition], metric)
            yield MapCell(
                group.label,
                condition_label,
                metric,
                len(seeds),
                too_few_flows=False,
                headroom=UNKNOWN,
            )
        return
    judged = list(
        zip((condition_label for condition_label, _ in usable), fitted.conditions, strict=True)
    )
    order = {condition_label: number for number, (condition_label, _) in enumerate(usable)}
    for row in headroom_rows("", judged, metric):
        whole = not row.condition_label
        number = order.get(row.condition_label, 0)
        yield MapCell(
            group=group.label,
            condition_label=row.condition_label,
            metric=metric,
            seeds=row.seeds,
            too_few_flows=row.too_few_flows,
            headroom=row.headroom,
            in_sample=float(np.mean(every.in_sample_regrets))
            if whole
            else every.in_sample_regrets[number],
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
        "settings": list(found.static_trials.settings),
        "left_out": list(found.static_trials.left_out),
        "trials": found.static_trials.trials,
        "invalid": found.static_trials.invalid,
        "places": [
            {
                "group": one.group,
                "condition": one.condition_label or None,
                "metric": one.metric,
                "seeds": one.seeds,
                "too_few_flows": one.too_few_flows,
                "headroom": _known(one.headroom[0]),
                "low": _known(one.headroom[1]),
                "high": _known(one.headroom[2]),
                "in_sample": _known(one.in_sample),
                "best_static": one.best_static or None,
                "oracle": one.oracle or None,
                "agreed": one.agreed,
                "verdict": headroom_verdict(one.headroom),
            }
            for one in found.cells
        ],
    }


def _known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


# Upper ends of headroom and their colours: Brewer's Blues, a single hue that varies in lightness.
# The first two are the limits of "nothing to learn" and of what is worth a training.
COLOUR_STEPS = (
    (MIN_HEADROOM, "#F7FAFD", "nothing to learn"),
    (WORTH_TRAINING, "#DCE9F5", f"{100 * MIN_HEADROOM:.0f} %"),
    (0.2, "#B4D2E8", f"{100 * WORTH_TRAINING:.0f} %"),
    (0.4, "#6BAED6", "20 %"),
    (0.8, "#2171B5", "40 %"),
    (math.inf, "#08306B", "80 %"),
)


def map_svg(found: HeadroomMap) -> str:
    """Return the map as SVG."""
    several = any(one.condition_label == "" for one in found.cells)
    cells = [*found.conditions, *([""] if several else [])]
    about = (
        f"Bold: above {100 * WORTH_TRAINING:.0f} % beyond chance. Grey: the interval includes 0. "
        "few: too few flows for the tail."
    )
    blocks = {
        METRICS[metric].label: {
            group: [
                _map_cell(found.at(group, condition_label, metric)) for condition_label in cells
            ]
            for group in found.groups
        }
        for metric in found.metrics
    }
    title = "What the best static setting loses to the best of each condition"
    return HeatMap(
        title,
        about,
        [condition_label or ALL_CONDITIONS for condition_label in cells],
        blocks,
        COLOUR_STEPS,
        [ALL_CONDITIONS],
    ).svg()


def _map_cell(one: MapCell | None) -> HeatCell:
    if one is not None and one.too_few_flows:
        return HeatCell("few")
    return (
        headroom_cell(one.headroom, surely_worth_training=one.surely_worth_training)
        if one is not None
        else HeatCell(NOTHING)
    )


def headroom_cell(
    share: tuple[float, float, float], *, surely_worth_training: bool = False
) -> HeatCell:
    """Return the cell of a share with its interval, grey if the interval includes 0."""
    value, low, high = share
    if not math.isfinite(value):
        return HeatCell(NOTHING)
    doubtful = not (math.isfinite(low) and (low > 0 or high < 0))
    return HeatCell(percent(value, 0), value, surely_worth_training, doubtful)


def headroom_svg(rows: Sequence[TuningHeadroom]) -> str:
    """Return the picture of the headroom in the first metric; "" if none is known."""
    shown = [
        row
        for row in rows
        if row.metric == TUNING_HEADROOM_METRICS[0] and math.isfinite(row.headroom[0])
    ]
    if not shown:
        return ""
    # each paper's own conditions, then all of them together
    keys = dict.fromkeys((row.paper, row.condition_label) for row in shown)
    papers = list(dict.fromkeys(paper for paper, _ in keys))
    cells = sorted(keys, key=lambda key: (papers.index(key[0]), not key[1]))
    names = [condition_label or f"{paper}, all together" for paper, condition_label in cells]
    arms = list(dict.fromkeys(placed.arm for row in shown for placed in row.arms))
    blocks = {}
    for transport in order_transports({row.transport for row in shown}):
        mine = {
            (row.paper, row.condition_label): row for row in shown if row.transport == transport
        }
        found = [mine.get(condition_label) for condition_label in cells]
        columns = {"best-static": [_headroom_cell(row) for row in found]}
        columns |= {arm: [_regret_cell(row, arm) for row in found] for arm in arms}
        blocks[transport.upper()] = columns
    title = "Mean slowdown above the oracle’s; that of best-static is the headroom"
    about = "Grey: the interval includes 0. An empty cell was not run."
    whole = [
        name for name, (_, condition_label) in zip(names, cells, strict=True) if not condition_label
    ]
    return HeatMap(title, about, names, blocks, COLOUR_STEPS, whole).svg()


def _headroom_cell(row: TuningHeadroom | None) -> HeatCell:
    return headroom_cell(row.headroom) if row else HeatCell("")


def _regret_cell(row: TuningHeadroom | None, arm: str) -> HeatCell:
    found = [placed.regret for placed in row.arms if placed.arm == arm] if row else []
    return headroom_cell(found[0]) if found else HeatCell("")


# All of a page above this line is its author's, and is kept; below it, it is written anew.
GENERATED_BELOW = "<!-- Below: written by closloop headroom -->"


def keep_text_above(text: str, former: str) -> str:
    """Return the page: what a former one has above the mark, then the map."""
    above, mark, _ = former.partition(GENERATED_BELOW)
    return f"{above if mark else ''}{GENERATED_BELOW}\n\n{text}"


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
                for one in found.cells
                if (one.metric, one.group) == (metric, group)
                and one.condition_label
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
            worth_training, surely_worth_training = (
                sum(one.worth_training for one in known),
                sum(one.surely_worth_training for one in known),
            )
            text += f"above {100 * WORTH_TRAINING:.0f}% under {worth_training} of {len(known)} conditions"
            text += f" (beyond chance under {surely_worth_training})" if worth_training else ""
            maximum = max(known, key=lambda one: one.headroom[0])
            said.append(
                f"{text}; most {percent_span(*maximum.headroom)} ({maximum.condition_label})"
            )
    return said


def group_table(found: HeadroomMap, group: str) -> Table:
    """Return a group's headroom, a row a condition; bold where it is worth a training for sure."""
    rows = []
    for condition_label in ("", *found.conditions):
        row = [found.at(group, condition_label, metric) for metric in found.metrics]
        if any(one is not None for one in row):
            rows.append([condition_label or ALL_CONDITIONS, *map(_cell, row)])
    return table(("condition",), [METRICS[metric].label for metric in found.metrics], rows, group)


def _cell(one: MapCell | None) -> Text:
    if one is None or not one.seeds:
        return NOTHING
    return Span(
        "too few flows" if one.too_few_flows else percent_span(*one.headroom),
        "strong" if one.surely_worth_training else "",
    )


def _lines(found: HeadroomMap, picture: str) -> Iterator[str]:
    static_trials = found.static_trials
    seeds = max((one.seeds for one in found.cells), default=0)
    groups = f" in {len(found.groups)} groups" if len(found.groups) > 1 else ""
    yield (
        f"{static_trials.trials} trials, {static_trials.invalid} invalid; {len(static_trials.settings)} settings, "
        f"{len(found.conditions)} conditions{groups}, {seeds} seeds in {found.folds} "
        "folds: each seed is judged under the settings that the other folds choose. Headroom is "
        "what the best setting for a row of conditions loses to the best of each, with its 95 % "
        "interval over seeds; below 0, the choice by condition was no better. Tails need 100 flows "
        f"beyond them. Bold: above {100 * WORTH_TRAINING:.0f} % beyond chance.\n"
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
        for condition_label in ("", *found.conditions):
            row = [found.at(group, condition_label, metric) for metric in found.metrics]
            if any(one is not None and one.best_static for one in row):
                rows.append(
                    [group or NOTHING, condition_label or "the best for all", *map(_chosen, row)]
                )
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
        output: ("page", keep_text_above(page(found, drawn.name), former)),
        data: ("data", json_text(to_json(found)) + "\n"),
        drawn: ("picture", map_svg(found)),
    }
