"""Conditions in which no flow responds to CE packets, so that ECN thresholds change nothing.

There, arms that differ in ECN thresholds only are the same experiment. A campaign that compares
them in all of its conditions is refused. Which congestion control responds to CE packets on which
backend is declared in `orchestration.core.congestion`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from inventory.routing import flow_controls, ignores_marks
from orchestration.core.condition import (
    campaign_tuner_name,
    factor_labels,
    factors_of,
)
from orchestration.core.congestion import roce_controls
from orchestration.core.errors import Problem
from orchestration.core.knobs import ECN
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec, TunerSpec
from tuners.registry import create

# How many tuners a message names before it counts the rest.
_MAX_NAMED = 4


@dataclass(frozen=True)
class Unresponsive:
    """A condition in which no flow responds to CE packets.

    `name` has its levels of factors in words. `arms` has a trial for each tuner that sets ECN
    thresholds and nothing else; `adaptive` are the names of those that change them while the trial
    runs. `replays` says that recorded trials are repeated.
    """

    name: str
    controls: tuple[str, ...]
    arms: tuple[TrialSpec, ...]
    adaptive: tuple[str, ...]
    replays: bool

    @property
    def tuners(self) -> tuple[str, ...]:
        """The tuners' names, with the levels of their factors where several arms have one name."""
        names = [campaign_tuner_name(trial) for trial in self.arms]
        if len(set(names)) == len(names):
            return tuple(names)
        return tuple(
            f"{name} ({', '.join(factor_labels(trial.cell))})" if factors_of(trial.cell) else name
            for name, trial in zip(names, self.arms, strict=True)
        )

    @property
    def under(self) -> str:
        """The names of the flows' congestion controls, as text: `cubic`."""
        return _listed(self.controls)

    @property
    def instead(self) -> str:
        """A congestion control of the same transport that responds to CE packets."""
        of_roce = not set(roce_controls()).isdisjoint(self.controls)
        return "dcqcn" if of_roce else "dctcp"


@dataclass(frozen=True)
class UnresponsiveConditions:
    """A campaign's conditions in which no flow responds to CE packets, with tuners of thresholds.

    `everywhere` says that no condition of the campaign has responsive flows.
    """

    conditions: tuple[Unresponsive, ...]
    everywhere: bool

    @property
    def refused(self) -> list[Unresponsive]:
        """The conditions because of which the campaign is refused: they compare such tuners.

        It is not refused if other conditions have responsive flows, or if it is a replay.
        """
        compared = [item for item in self.conditions if len(item.arms) > 1 and not item.replays]
        return compared if self.everywhere else []

    def problems(self, location_of_tuner: Callable[[TrialSpec], str]) -> list[Problem]:
        """Return a problem for each condition because of which the campaign is refused.

        `location_of_tuner` gives the `file:line` of a trial's tuner in its campaign's file.
        """
        return [
            Problem(
                location_of_tuner(item.arms[0]),
                f"tuners {_listed(item.tuners)} set ECN thresholds only, and no flow responds to "
                f"CE packets: all are under {item.under}",
                f"use `congestion_control: {item.instead}`, which responds to them, or keep one of "
                "these tuners",
            )
            for item in self.refused
        ]

    @property
    def sentences(self) -> list[str]:
        """What a plan says: in which conditions which tuners are the same, or have no effect."""
        groups: dict[tuple[str, ...], list[Unresponsive]] = {}
        for item in () if self.refused else self.conditions:
            names = item.tuners if len(item.arms) > 1 else item.adaptive
            if names:
                groups.setdefault((item.under, *names), []).append(item)
        return [_sentence(names, group) for (_, *names), group in groups.items()]


def unresponsive_conditions(
    trials: Iterable[TrialSpec], testbeds: Mapping[str, Testbed]
) -> UnresponsiveConditions:
    """Return the conditions of trials in which no flow responds to CE packets."""
    cells: dict[object, TrialSpec] = {}
    for trial in trials:
        cells.setdefault(tuple(trial.cell.items()) or trial.tuner.name, trial)
    conditions: dict[str, list[TrialSpec]] = {}
    for trial in sorted(cells.values(), key=lambda trial: list(map(str, trial.cell.values()))):
        conditions.setdefault(_all_but_tuner(trial), []).append(trial)
    ignored = [
        group
        for group in conditions.values()
        if ignores_marks(testbeds[group[0].testbed], group[0])
    ]
    found = [_unresponsive(group, testbeds[group[0].testbed]) for group in ignored]
    return UnresponsiveConditions(
        tuple(item for item in found if item.arms), everywhere=len(ignored) == len(conditions)
    )


def _all_but_tuner(trial: TrialSpec) -> str:
    """Return everything that determines a trial except tuner, seed and repeat, as JSON text.

    Whatever a campaign compares, only trials that agree in it can differ in thresholds alone.
    """
    common = replace(
        trial,
        campaign="",
        tuner=TunerSpec(""),
        seed=0,
        repeat=0,
        action_period_ns=0,
        cell={},
        files=trial.traffic_files,
        parent="",
    )
    return json.dumps(common.to_json(), sort_keys=True)


def _unresponsive(group: Sequence[TrialSpec], testbed: Testbed) -> Unresponsive:
    arms, adaptive = [], []
    distinct = {repr(trial.tuner): trial for trial in reversed(group)}
    for trial in reversed(distinct.values()):
        tuner = create(trial.tuner)
        if set(tuner.knobs) == {ECN.name} and not getattr(tuner, "programs", ()):
            arms.append(trial)
            if getattr(tuner, "decides", True):
                adaptive.append(campaign_tuner_name(trial))
    first = group[0]
    return Unresponsive(
        ", ".join(factor_labels(first.cell)) or "all trials",
        tuple(dict.fromkeys(flow_controls(testbed, first))),
        tuple(arms),
        tuple(adaptive),
        bool(first.parent),
    )


def _sentence(names: Sequence[str], conditions: Sequence[Unresponsive]) -> str:
    where = conditions[0].name
    if len(conditions) > 1:
        where += f" and {len(conditions) - 1} more conditions"
    fact = f"{where}: no flow responds to CE packets under {conditions[0].under}"
    if len(names) > 1:
        return f"{fact}, so tuners {_listed(names)} are the same experiment there"
    return f"{fact}, so what tuner {names[0]} sets has no effect"


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MAX_NAMED:
        return f"{', '.join(names[:_MAX_NAMED])} and {len(names) - _MAX_NAMED} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
