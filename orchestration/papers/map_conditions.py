"""A run folder whose tuners are static settings, as groups of conditions with an arm a setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestration.analysis.metrics import METRICS
from orchestration.core.condition import TUNER, factors_of
from orchestration.core.errors import InputError, check_known
from orchestration.papers.claims import Section, When
from orchestration.papers.condition import Condition
from orchestration.papers.results import Measured, evaluate_section

# Tuners that set their parameters once and leave them.
STATIC = ("static", "secn1", "secn2", "timeout")


@dataclass(frozen=True)
class Group:
    """Conditions that shall share a best static setting: those of one level of each factor `by`."""

    when: When
    conditions: tuple[tuple[str, Condition], ...]

    @property
    def label(self) -> str:
        """The levels in words; "" for the only group."""
        return Condition(self.when, {}).label if self.when else ""


@dataclass(frozen=True)
class Scene:
    """Groups of conditions, and the settings that were tried, in the order of their names.

    `left_out` names arms that are no static settings. `invalid` trials are in no condition.
    """

    groups: tuple[Group, ...]
    settings: tuple[str, ...]
    left_out: tuple[str, ...]
    trials: int
    invalid: int


def check_metrics(metrics: Sequence[str]) -> None:
    """Raise InputError for a metric that is unknown, high if good, or may be 0."""
    usable = [
        key
        for key, metric in METRICS.papers.items()
        if metric.better == "lower" and not metric.may_be_zero
    ]
    check_known("--metric", "no headroom is told by {!r}", metrics, usable)


def scene_of(
    place: str, trials: Sequence[Measured], by: Sequence[str], joined: Sequence[str]
) -> Scene:
    """Return the scene of a run folder's trials; `place` names the folder in errors.

    `by` are factors whose levels are groups, `joined` those whose levels are part of the setting.
    Raises InputError for factors that no trial has, and for less than two settings or seeds.
    """
    _check_factors(trials, by, joined)
    left_out = _not_static(trials)
    mine = [_joined(one, joined) for one in trials if str(one.cell.get(TUNER, "")) not in left_out]
    settings = tuple(sorted({str(one.cell[TUNER]) for one in mine}))
    if len(settings) < 2:
        what = f"has {len(settings)} static setting{'s' * (len(settings) != 1)}, and headroom"
        remedy = "run a campaign with several tuners `static`, like examples/headroom.yml"
        raise InputError.single(place, f"{what} needs several", remedy)
    if len({one.seed for one in mine if one.valid}) < 2:
        remedy = "run it with more --repeats: no seed may both choose and judge"
        raise InputError.single(place, "has valid trials of less than two seeds", remedy)
    section = Section(
        id="headroom",
        paper="",
        title="",
        campaign="",
        setting="",
        reference="",
        learned=(),
        placebos={},
        metrics=(),
        only={},
    )
    found = evaluate_section(section, tuple(mine))
    groups: dict[str, tuple[When, list[tuple[str, Condition]]]] = {}
    for condition in found.conditions:
        when = {name: condition.factors[name] for name in by}
        rest = {name: level for name, level in condition.factors.items() if name not in by}
        _, members = groups.setdefault(repr(when), (when, []))
        members.append((replace(condition, factors=rest).label, condition))
    return Scene(
        groups=tuple(Group(when, tuple(members)) for when, members in groups.values()),
        settings=settings,
        left_out=left_out,
        trials=found.trials,
        invalid=found.invalid,
    )


def _check_factors(trials: Iterable[Measured], by: Sequence[str], joined: Sequence[str]) -> None:
    known = list(dict.fromkeys(name for one in trials for name in factors_of(one.cell)))
    for option, names in (("--by", by), ("--setting", joined)):
        check_known(option, "no factor is called {!r}", names, known, "its factors are ")
    for name in by:
        if name in joined:
            what = f"{name!r} is also part of the setting"
            raise InputError.single("--by", what, "give it to one of --by and --setting")


def _not_static(trials: Iterable[Measured]) -> tuple[str, ...]:
    """Return the arms that act, and those that are another setting under another condition."""
    params: dict[str, set[str]] = {}
    out: set[str] = set()
    for one in trials:
        arm = str(one.cell.get(TUNER, ""))
        params.setdefault(arm, set()).add(one.params)
        if one.tuner not in STATIC:
            out.add(arm)
    return tuple(sorted(out | {arm for arm, several in params.items() if len(several) > 1}))


def _joined(trial: Measured, factors: Sequence[str]) -> Measured:
    """Return the trial as that of a setting that has these factors' levels too."""
    if not factors:
        return trial
    name = ", ".join(str(trial.cell[one]) for one in (TUNER, *factors))
    rest = {key: level for key, level in trial.cell.items() if key not in factors}
    return replace(trial, cell={**rest, TUNER: name})
