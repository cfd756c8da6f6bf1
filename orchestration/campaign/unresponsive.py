"""Tuners of ECN thresholds where no flow answers ECN marks: their arms are one experiment.

What answers marks on which backend is declared in `orchestration.core.congestion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from inventory.routing import flow_controls, ignores_marks
from orchestration.core.condition import factors_of, in_words, settings, tuner_called
from orchestration.core.congestion import roce_controls
from orchestration.core.errors import Problem
from orchestration.core.knobs import ECN
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from tuners.registry import create

# Names to list before the rest is counted.
_MAX_NAMED = 4


@dataclass(frozen=True)
class Unresponsive:
    """A condition in which no flow answers marks. `arms` has a trial for each tuner of marks.

    These turn ECN thresholds and nothing else. `adaptive` are the names of those that change them
    while the trial runs; `replays` says that recorded trials are repeated.
    """

    condition: str
    controls: tuple[str, ...]
    arms: tuple[TrialSpec, ...]
    adaptive: tuple[str, ...]
    replays: bool

    @property
    def tuners(self) -> tuple[str, ...]:
        """The tuners' names, with the levels of factors where one name is of several arms."""
        names = [tuner_called(trial) for trial in self.arms]
        if len(set(names)) == len(names):
            return tuple(names)
        return tuple(
            f"{name} ({', '.join(in_words(trial.cell))})" if factors_of(trial.cell) else name
            for name, trial in zip(names, self.arms, strict=True)
        )

    @property
    def under(self) -> str:
        """Which congestion controls the flows are under: `cubic`."""
        return _listed(self.controls)

    @property
    def instead(self) -> str:
        """A congestion control of the same transport that answers marks."""
        of_roce = not set(roce_controls()).isdisjoint(self.controls)
        return "dcqcn" if of_roce else "dctcp"


@dataclass(frozen=True)
class UnresponsiveConditions:
    """The conditions of a campaign in which no flow answers marks, and whether all are such."""

    conditions: tuple[Unresponsive, ...]
    everywhere: bool

    @property
    def refused(self) -> list[Unresponsive]:
        """The conditions for which a campaign does not run: they compare tuners of marks.

        It runs if other conditions answer marks, or if it repeats recorded trials.
        """
        several = [one for one in self.conditions if len(one.arms) > 1 and not one.replays]
        return several if self.everywhere else []

    def problems(self, location_of_tuner: Callable[[TrialSpec], str]) -> list[Problem]:
        """Return the problems of those that are refused.

        `location_of_tuner` gives the place of a trial's tuner in its campaign's file.
        """
        return [
            Problem(
                location_of_tuner(one.arms[0]),
                f"tuners {_listed(one.tuners)} turn ECN thresholds only, and no flow answers ECN "
                f"marks: all are under {one.under}",
                f"use `congestion_control: {one.instead}`, which answers them, or keep one of "
                "these tuners",
            )
            for one in self.refused
        ]

    @property
    def sentences(self) -> list[str]:
        """What a plan says: which tuners are the same where, and which work for nothing."""
        groups: dict[tuple[str, ...], list[Unresponsive]] = {}
        for one in () if self.refused else self.conditions:
            names = one.tuners if len(one.arms) > 1 else one.adaptive
            if names:
                groups.setdefault((one.under, *names), []).append(one)
        return [_sentence(names, found) for (_, *names), found in groups.items()]


def unresponsive_conditions(
    trials: Iterable[TrialSpec], testbeds: Mapping[str, Testbed]
) -> UnresponsiveConditions:
    """Return the conditions of trials in which no flow answers ECN marks."""
    cells: dict[object, TrialSpec] = {}
    for trial in trials:
        cells.setdefault(tuple(trial.cell.items()) or trial.tuner.name, trial)
    conditions: dict[str, list[TrialSpec]] = {}
    for trial in sorted(cells.values(), key=lambda trial: list(map(str, trial.cell.values()))):
        conditions.setdefault(settings(trial), []).append(trial)
    ignored = [
        group
        for group in conditions.values()
        if ignores_marks(testbeds[group[0].testbed], group[0])
    ]
    found = [_unanswered(group, testbeds[group[0].testbed]) for group in ignored]
    return UnresponsiveConditions(
        tuple(one for one in found if one.arms), everywhere=len(ignored) == len(conditions)
    )


def _unanswered(group: Sequence[TrialSpec], testbed: Testbed) -> Unresponsive:
    arms, adaptive = [], []
    for trial in group:
        tuner = create(trial.tuner)
        if set(tuner.knobs) == {ECN.name} and not getattr(tuner, "programs", ()):
            arms.append(trial)
            if getattr(tuner, "decides", True):
                adaptive.append(tuner_called(trial))
    first = group[0]
    return Unresponsive(
        ", ".join(in_words(first.cell)) or "all trials",
        tuple(dict.fromkeys(flow_controls(testbed, first))),
        tuple(arms),
        tuple(adaptive),
        bool(first.parent),
    )


def _sentence(names: Sequence[str], found: Sequence[Unresponsive]) -> str:
    where = found[0].condition
    if len(found) > 1:
        where += f" and {len(found) - 1} more conditions"
    said = f"{where}: no flow answers ECN marks under {found[0].under}"
    if len(names) > 1:
        return f"{said}, so tuners {_listed(names)} are one experiment there"
    return f"{said}, so what tuner {names[0]} sets reaches nothing"


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MAX_NAMED:
        return f"{', '.join(names[:_MAX_NAMED])} and {len(names) - _MAX_NAMED} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
