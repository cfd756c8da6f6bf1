"""The headroom map of a run folder: its cells, its page and its heat map.

Headroom of a condition (tuning headroom, not PFC's buffer) is how much slower the best single
setting for a group of conditions is than the best setting for that condition.
"""

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
    ChosenSettings,
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
# Headroom above this share is worth training a tuner for.
WORTH_TRAINING = 0.10
ALL_CONDITIONS = "all together"


@dataclass(frozen=True)
class MapCell:
    """The headroom by one metric under a condition of a group; "" for all its conditions together.

    `in_sample` is the regret of the best static setting by the same seeds that chose it, which is
    too large where settings perform alike. `best_static` and `oracle` are the settings that all
    seeds together choose; `oracle` is "" for all conditions together. `agreed` says whether each
    fold chose these, too. The rest is unknown with `too_few_flows` beyond a tail, and without any
    flow of the metric's kind, where `seeds` is 0.
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
        """Whether the estimate of the headroom is above `WORTH_TRAINING`."""
        return self.headroom[0] > WORTH_TRAINING

    @property
    def surely_worth_training(self) -> bool:
        """Whether the whole interval of the headroom is above `WORTH_TRAINING`."""
        return self.headroom[1] > WORTH_TRAINING


@dataclass(frozen=True)
class HeadroomMap:
    """The map of a run folder. `cells` are sorted by metric, group and condition."""

    metrics: tuple[str, ...]
    folds: int
    static_trials: StaticTrials
    cells: tuple[MapCell, ...]

    def at(self, group: str, condition_label: str, metric: str) -> MapCell | None:
        """Return the cell of a group's condition by a metric; None if there is none."""
        key = (group, condition_label, metric)
        cells = (c for c in self.cells if (c.group, c.condition_label, c.metric) == key)
        return next(cells, None)

    @property
    def groups(self) -> tuple[str, ...]:
        """The labels of the groups."""
        return tuple(group.label for group in self.static_trials.groups)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The labels of the conditions within their groups, each once."""
        groups = self.static_trials.groups
        return tuple(dict.fromkeys(label for group in groups for label, _ in group.conditions))


def map_of_run(
    run: Path,
    metrics: Sequence[str],
    by: Sequence[str],
    setting: Sequence[str],
    folds: int,
    phase: Callable[[str], None],
    step: Callable[[int, int], None],
) -> tuple[HeadroomMap, tuple[str, ...]]:
    """Return the map of a run folder, and the arms that it leaves out because they are not static.

    Each level of the factors `by` gets a best setting of its own. The levels of the factors
    `setting` are part of the setting. Raises InputError for metrics and factors that cannot be
    used, and for a folder with less than two settings or seeds.
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
    """Return the map. Each metric chooses its own settings, as if it were the tuner's objective."""
    cells = (
        cell
        for metric in metrics
        for group in static_trials.groups
        for cell in _group_cells(group, metric, folds, static_trials.settings)
    )
    return HeadroomMap(tuple(metrics), folds, static_trials, tuple(cells))


def _group_cells(
    group: ConditionGroup, metric: str, folds: int, settings: Sequence[str]
) -> Iterator[MapCell]:
    usable = []
    for label, condition in group.conditions:
        seeds = seeds_of([condition], metric)
        if not seeds:
            yield MapCell(group.label, label, metric, 0, too_few_flows=False, headroom=UNKNOWN)
        elif condition.has_too_few_flows(tuple(settings), metric):
            yield MapCell(
                group.label, label, metric, len(seeds), too_few_flows=True, headroom=UNKNOWN
            )
        else:
            usable.append((label, condition))
    conditions = [condition for _, condition in usable]
    chosen = fitted = None
    if usable:
        chosen = choose_settings(conditions, metric, seeds_of(conditions, metric), settings)
        fitted = cross_fit(conditions, metric, folds, settings)
    if chosen is None or fitted is None:
        for label, condition in usable:
            count = len(seeds_of([condition], metric))
            yield MapCell(group.label, label, metric, count, too_few_flows=False, headroom=UNKNOWN)
        return
    labels = [label for label, _ in usable]
    rows = headroom_rows("", list(zip(labels, fitted.conditions, strict=True)), metric)
    for row in rows:
        number = labels.index(row.condition_label) if row.condition_label else None
        yield _judged_cell(group.label, row, chosen, fitted.choices, number)


def _judged_cell(
    group: str,
    row: TuningHeadroom,
    chosen: ChosenSettings,
    by_fold: Sequence[ChosenSettings],
    number: int | None,
) -> MapCell:
    """Return the cell of a row of headroom.

    `number` is that of its condition, None for all conditions together. `chosen` are the settings
    that all seeds choose, and `by_fold` those that judged each fold.
    """
    regrets = chosen.in_sample_regrets
    agreed = all(choice.best_static == chosen.best_static for choice in by_fold)
    if number is not None:
        agreed &= all(choice.oracle[number] == chosen.oracle[number] for choice in by_fold)
    return MapCell(
        group=group,
        condition_label=row.condition_label,
        metric=row.metric,
        seeds=row.seeds,
        too_few_flows=row.too_few_flows,
        headroom=row.headroom,
        in_sample=float(np.mean(regrets)) if number is None else regrets[number],
        best_static=chosen.best_static,
        oracle="" if number is None else chosen.oracle[number],
        agreed=agreed,
    )


def to_json(headroom_map: HeadroomMap) -> dict[str, Any]:
    """Return the map as JSON: shares, `null` where unknown."""
    return {
        "metrics": list(headroom_map.metrics),
        "folds": headroom_map.folds,
        "settings": list(headroom_map.static_trials.settings),
        "left_out": list(headroom_map.static_trials.left_out),
        "trials": headroom_map.static_trials.trials,
        "invalid": headroom_map.static_trials.invalid,
        "places": [
            {
                "group": cell.group,
                "condition": cell.condition_label or None,
                "metric": cell.metric,
                "seeds": cell.seeds,
                "too_few_flows": cell.too_few_flows,
                "headroom": _number_or_none(cell.headroom[0]),
                "low": _number_or_none(cell.headroom[1]),
                "high": _number_or_none(cell.headroom[2]),
                "in_sample": _number_or_none(cell.in_sample),
                "best_static": cell.best_static or None,
                "oracle": cell.oracle or None,
                "agreed": cell.agreed,
                "verdict": headroom_verdict(cell.headroom),
            }
            for cell in headroom_map.cells
        ],
    }


def _number_or_none(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


# Upper ends of headroom and their colours: Brewer's Blues, a single hue that varies in lightness.
# The first two are the limits of "nothing to learn" and of what is worth training a tuner for.
COLOUR_STEPS = (
    (MIN_HEADROOM, "#F7FAFD", "nothing to learn"),
    (WORTH_TRAINING, "#DCE9F5", f"{100 * MIN_HEADROOM:.0f} %"),
    (0.2, "#B4D2E8", f"{100 * WORTH_TRAINING:.0f} %"),
    (0.4, "#6BAED6", "20 %"),
    (0.8, "#2171B5", "40 %"),
    (math.inf, "#08306B", "80 %"),
)


def map_svg(headroom_map: HeadroomMap) -> str:
    """Return the map as a heat map in SVG."""
    labels = list(headroom_map.conditions)
    if any(cell.condition_label == "" for cell in headroom_map.cells):
        labels.append("")
    about = (
        f"Bold: above {100 * WORTH_TRAINING:.0f} % beyond chance. Grey: the interval includes 0. "
        "few: too few flows for the tail."
    )
    blocks = {
        METRICS[metric].label: {
            group: [_map_cell(headroom_map.at(group, label, metric)) for label in labels]
            for group in headroom_map.groups
        }
        for metric in headroom_map.metrics
    }
    title = "What the best static setting loses to the best of each condition"
    names = [label or ALL_CONDITIONS for label in labels]
    return HeatMap(title, about, names, blocks, COLOUR_STEPS, [ALL_CONDITIONS]).svg()


def _map_cell(cell: MapCell | None) -> HeatCell:
    if cell is None:
        return HeatCell(NOTHING)
    if cell.too_few_flows:
        return HeatCell("few")
    return interval_cell(cell.headroom, bold=cell.surely_worth_training)


def interval_cell(interval: Interval, *, bold: bool = False) -> HeatCell:
    """Return the cell of a share with its interval; it is grey if the interval includes 0."""
    value, low, high = interval
    if not math.isfinite(value):
        return HeatCell(NOTHING)
    includes_zero = not (math.isfinite(low) and (low > 0 or high < 0))
    return HeatCell(percent(value, 0), value, bold, includes_zero)


def headroom_svg(rows: Sequence[TuningHeadroom]) -> str:
    """Return a heat map in SVG of the papers' headroom in the first metric; "" if none is known.

    Beside the headroom, which is the regret of `best-static`, stand the regrets of the other arms.
    """
    metric = TUNING_HEADROOM_METRICS[0]
    shown = [row for row in rows if row.metric == metric and math.isfinite(row.headroom[0])]
    if not shown:
        return ""
    # each paper's own conditions, then all of them together
    keys = dict.fromkeys((row.paper, row.condition_label) for row in shown)
    papers = list(dict.fromkeys(paper for paper, _ in keys))
    ordered = sorted(keys, key=lambda key: (papers.index(key[0]), not key[1]))
    names = [label or f"{paper}, {ALL_CONDITIONS}" for paper, label in ordered]
    arms = list(dict.fromkeys(of_arm.arm for row in shown for of_arm in row.arms))
    blocks = {}
    for transport in order_transports({row.transport for row in shown}):
        by_key = {
            (row.paper, row.condition_label): row for row in shown if row.transport == transport
        }
        in_order = [by_key.get(key) for key in ordered]
        columns = {"best-static": [_headroom_cell(row) for row in in_order]}
        columns |= {arm: [_regret_cell(row, arm) for row in in_order] for arm in arms}
        blocks[transport.upper()] = columns
    title = "Mean slowdown above the oracle’s; that of best-static is the headroom"
    about = "Grey: the interval includes 0. An empty cell was not run."
    over_all = [name for name, (_, label) in zip(names, ordered, strict=True) if not label]
    return HeatMap(title, about, names, blocks, COLOUR_STEPS, over_all).svg()


def _headroom_cell(row: TuningHeadroom | None) -> HeatCell:
    return interval_cell(row.headroom) if row else HeatCell("")


def _regret_cell(row: TuningHeadroom | None, arm: str) -> HeatCell:
    regrets = [of_arm.regret for of_arm in row.arms if of_arm.arm == arm] if row else []
    return interval_cell(regrets[0]) if regrets else HeatCell("")


# The text of a page above this line is its author's, and is kept. What is below is generated.
GENERATED_BELOW = "<!-- Below: written by closloop headroom -->"


def keep_text_above(text: str, former: str) -> str:
    """Return a page with the generated `text`, below what the `former` page has above the line."""
    above, line, _ = former.partition(GENERATED_BELOW)
    return f"{above if line else ''}{GENERATED_BELOW}\n\n{text}"


def page(headroom_map: HeadroomMap, picture: str) -> str:
    """Return the generated part of a page; `picture` is the name of its SVG file, beside it."""
    return "\n".join(_lines(headroom_map, picture)) + "\n"


def summary(headroom_map: HeadroomMap) -> list[str]:
    """Return a sentence for each metric and group: how much headroom, and where the most."""
    return [
        _summary_sentence(headroom_map, metric, group)
        for metric in headroom_map.metrics
        for group in headroom_map.groups
    ]


def _summary_sentence(headroom_map: HeadroomMap, metric: str, group: str) -> str:
    known = [
        cell
        for cell in headroom_map.cells
        if (cell.metric, cell.group) == (metric, group)
        and cell.condition_label
        and math.isfinite(cell.headroom[0])
    ]
    text = f"{METRICS[metric].label}{f', {group}' if group else ''}: "
    if not known:
        return f"{text}not known"
    over_all = headroom_map.at(group, "", metric)
    if over_all is not None:
        text += f"{percent_span(*over_all.headroom)} on average; "
    worth = sum(cell.worth_training for cell in known)
    surely_worth = sum(cell.surely_worth_training for cell in known)
    text += f"above {100 * WORTH_TRAINING:.0f}% under {worth} of {len(known)} conditions"
    text += f" (beyond chance under {surely_worth})" if worth else ""
    maximum = max(known, key=lambda cell: cell.headroom[0])
    return f"{text}; the largest is {percent_span(*maximum.headroom)} ({maximum.condition_label})"


def group_table(headroom_map: HeadroomMap, group: str) -> Table:
    """Return a group's headroom, a row for each condition; bold where it is surely worth training.

    The first row is of all conditions together.
    """
    rows = []
    for label in ("", *headroom_map.conditions):
        cells = [headroom_map.at(group, label, metric) for metric in headroom_map.metrics]
        if any(cell is not None for cell in cells):
            rows.append([label or ALL_CONDITIONS, *map(_cell_text, cells)])
    heads = [METRICS[metric].label for metric in headroom_map.metrics]
    return table(("condition",), heads, rows, group)


def _cell_text(cell: MapCell | None) -> Text:
    if cell is None or not cell.seeds:
        return NOTHING
    text = "too few flows" if cell.too_few_flows else percent_span(*cell.headroom)
    return Span(text, "strong" if cell.surely_worth_training else "")


def _lines(headroom_map: HeadroomMap, picture: str) -> Iterator[str]:
    static_trials = headroom_map.static_trials
    seeds = max((cell.seeds for cell in headroom_map.cells), default=0)
    count = len(headroom_map.groups)
    groups = f" in {count} groups" if count > 1 else ""
    yield (
        f"{static_trials.trials} trials, {static_trials.invalid} of them invalid; "
        f"{len(static_trials.settings)} settings, {len(headroom_map.conditions)} conditions"
        f"{groups}, {seeds} seeds in {headroom_map.folds} folds. Each seed is judged under the "
        "settings that the other folds choose. Headroom of a condition is how much slower the best "
        "single setting of its group is there than the best setting for that condition, with its "
        "95 % interval over seeds. Where it is below 0, the setting chosen for the condition was "
        "no better. A tail needs 100 flows beyond it. "
        f"Bold: above {100 * WORTH_TRAINING:.0f} % beyond chance.\n"
    )
    yield from (f"- {sentence}" for sentence in summary(headroom_map))
    yield f"\n![Headroom by condition and metric]({picture})\n"
    for group in headroom_map.groups:
        if group:
            yield f"### {group}\n"
        yield markdown_table(replace(group_table(headroom_map, group), title="")) + "\n"
    yield "### The settings\n"
    yield (
        "The settings that all seeds together choose; a star marks those that some fold does not "
        "choose. In brackets: the best static setting's regret by the same seeds that chose it, "
        "which is too large where settings perform alike.\n"
    )
    yield markdown_table(_settings_table(headroom_map))


def _settings_table(headroom_map: HeadroomMap) -> Table:
    rows = []
    for group in headroom_map.groups:
        for label in ("", *headroom_map.conditions):
            cells = [headroom_map.at(group, label, metric) for metric in headroom_map.metrics]
            if any(cell is not None and cell.best_static for cell in cells):
                rows.append(
                    [group or NOTHING, label or "the best for all", *map(_chosen_text, cells)]
                )
    metrics = (METRICS[metric].label for metric in headroom_map.metrics)
    return table(("group", "condition", *metrics), (), rows)


def _chosen_text(cell: MapCell | None) -> str:
    if cell is None or not cell.best_static:
        return NOTHING
    star = "" if cell.agreed else " *"
    return f"{cell.oracle or cell.best_static}{star} ({100 * cell.in_sample:.1f}%)"


def map_files(headroom_map: HeadroomMap, output: Path) -> dict[Path, tuple[str, str]]:
    """Return the files to write, each with its kind and text: the page, its data, its picture."""
    data, picture = output.with_suffix(".json"), output.with_suffix(".svg")
    former = output.read_text(encoding="utf-8") if output.exists() else ""
    return {
        output: ("page", keep_text_above(page(headroom_map, picture.name), former)),
        data: ("data", json_text(to_json(headroom_map)) + "\n"),
        picture: ("picture", map_svg(headroom_map)),
    }
