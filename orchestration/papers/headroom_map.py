"""The map: headroom of each group of conditions, by condition and objective, and who was chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestration.papers.cross_fit import (
    Group,
    Scene,
    check_metrics,
    choose,
    cross_fit,
    scene_of,
    seeds_of,
)
from orchestration.papers.headroom import UNKNOWN, Interval, rows_of, verdict_on
from orchestration.papers.results import measure_campaign

FOLDS = 2
# Headroom that is worth a tuner's training.
WORTH = 0.10
ALL = "all together"


@dataclass(frozen=True)
class Place:
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
    places: tuple[Place, ...]

    def at(self, group: str, place: str, metric: str) -> Place | None:
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


def _places(group: Group, metric: str, folds: int, settings: Sequence[str]) -> Iterator[Place]:
    usable = []
    for place, condition in group.conditions:
        seeds = seeds_of([condition], metric)
        if not seeds:
            yield Place(group.label, place, metric, 0, few=False, headroom=UNKNOWN)
        elif condition.too_few(tuple(settings), metric):
            yield Place(group.label, place, metric, len(seeds), few=True, headroom=UNKNOWN)
        else:
            usable.append((place, condition))
    conditions = [condition for _, condition in usable]
    every = choose(conditions, metric, seeds_of(conditions, metric), settings) if usable else None
    fitted = cross_fit(conditions, metric, folds, settings) if usable else None
    if every is None or fitted is None:
        for place, condition in usable:
            seeds = seeds_of([condition], metric)
            yield Place(group.label, place, metric, len(seeds), few=False, headroom=UNKNOWN)
        return
    judged = list(zip((place for place, _ in usable), fitted.conditions, strict=True))
    order = {place: number for number, (place, _) in enumerate(usable)}
    for row in rows_of("", judged, metric):
        whole = not row.place
        number = order.get(row.place, 0)
        yield Place(
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
