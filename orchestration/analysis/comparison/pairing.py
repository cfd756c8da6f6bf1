"""Which trial of one run belongs to which trial of another.

A cell is what varies within a campaign: its factors and the tuner. Backends, and what the run is
called, are not part of it: they are what is compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestration.analysis.summary import tuner_label
from orchestration.artifacts.reader import TrialResult
from orchestration.model.condition import TUNER, factors_of
from orchestration.model.trial import TrialSpec

_Trials = dict[str, list[TrialResult]]


@dataclass(frozen=True)
class Pair:
    """Two trials that are compared with each other."""

    a: TrialResult
    b: TrialResult


@dataclass(frozen=True)
class PairedCell:
    """The pairs of one cell, and `how` they were made, in words. `shared` if all have one `a`."""

    label: str
    pairs: tuple[Pair, ...]
    how: str
    shared: bool = False


@dataclass(frozen=True)
class Pairing:
    """The cells that both runs have, and what was left over, in words."""

    cells: tuple[PairedCell, ...]
    left_over: tuple[str, ...]


def pair_trials(a: Sequence[TrialResult], b: Sequence[TrialResult]) -> Pairing:
    """Return the pairs of the valid trials of two runs.

    A replay pairs with its parent. Other trials meet in the cell that both have: the same factors
    and tuner; failing that the same factors where each has one tuner, failing that the one cell
    that each has. Within a cell the same seeds pair, or if there are none, the repeats in order.
    """
    notes: list[str] = []
    children = _with_parents(a, b)
    cells = [_of_parents(pairs) for pairs in _by_cell(children)]
    ours = _grouped([t for t in a if not any(t is pair.a for pair in children)])
    theirs = _grouped([t for t in b if not any(t is pair.b for pair in children)])
    for key in (_cell_key, _factor_key, lambda spec: ""):
        for first, second in _common(ours, theirs, key):
            cells.append(_within(ours.pop(first), theirs.pop(second), notes))
    if not children:
        notes += [f"{_label(group[0].spec)}: only in A" for group in ours.values()]
    notes += [f"{_label(group[0].spec)}: only in B" for group in theirs.values()]
    return Pairing(tuple(cells), tuple(notes))


def _with_parents(a: Sequence[TrialResult], b: Sequence[TrialResult]) -> list[Pair]:
    """Pair each replay with the trial that its `parent` names, whichever of the two it is."""
    return [
        Pair(first, second)
        for second in b
        for first in a
        if _is_parent(first, second) or _is_parent(second, first)
    ]


def _is_parent(trial: TrialResult, replay: TrialResult) -> bool:
    """Look for the trial's name at the end of `run/trial sha256:...`."""
    named = replay.spec.parent.partition(" sha256:")[0].rstrip("/").rpartition("/")[2]
    return bool(named) and named in (trial.spec.id, trial.folder.resolve().name)


def _by_cell(pairs: Sequence[Pair]) -> list[list[Pair]]:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        key = _cell_key(pair.a.spec) + tuner_label(pair.b.spec.tuner)
        groups.setdefault(key, []).append(pair)
    return list(groups.values())


def _of_parents(pairs: Sequence[Pair]) -> PairedCell:
    a, b = pairs[0].a.spec, pairs[0].b.spec
    one = len({pair.a.spec.id for pair in pairs}) == 1 and len(pairs) > 1
    return PairedCell(_labels(a, b), tuple(pairs), "each replay with its parent", one)


def _grouped(trials: Sequence[TrialResult]) -> _Trials:
    groups: _Trials = {}
    for trial in trials:
        groups.setdefault(_cell_key(trial.spec), []).append(trial)
    return groups


def _common(
    ours: _Trials, theirs: _Trials, key: Callable[[TrialSpec], str]
) -> list[tuple[str, str]]:
    """Return the groups that are alone with their key on both sides."""
    sides: list[dict[str, list[str]]] = []
    for groups in (ours, theirs):
        side: dict[str, list[str]] = {}
        for name, trials in groups.items():
            side.setdefault(key(trials[0].spec), []).append(name)
        sides.append(side)
    first, second = sides
    return [
        (names[0], second[at][0])
        for at, names in first.items()
        if len(names) == 1 and len(second.get(at, ())) == 1
    ]


def _within(a: list[TrialResult], b: list[TrialResult], notes: list[str]) -> PairedCell:
    label = _labels(a[0].spec, b[0].spec)
    seeds = {trial.spec.seed: trial for trial in b}
    common = [Pair(trial, seeds[trial.spec.seed]) for trial in a if trial.spec.seed in seeds]
    if common:
        pairs, how = common, "the same seeds"
    else:
        ordered = (sorted(group, key=lambda trial: trial.spec.repeat) for group in (a, b))
        pairs = [Pair(first, second) for first, second in zip(*ordered, strict=False)]
        how = "in the order of the repeats: no seed is in both"
    for side, group in (("A", a), ("B", b)):
        alone = len(group) - len(pairs)
        if alone:
            word = "trial has" if alone == 1 else "trials have"
            notes.append(f"{label}: {alone} {word} no partner, only in {side}")
    return PairedCell(label, tuple(pairs), how)


def _cell_key(spec: TrialSpec) -> str:
    return json.dumps([_factors(spec), spec.cell.get(TUNER, tuner_label(spec.tuner))])


def _factor_key(spec: TrialSpec) -> str:
    return json.dumps(_factors(spec))


def _factors(spec: TrialSpec) -> list[tuple[str, str]]:
    return sorted((name, str(level)) for name, level in factors_of(spec.cell).items())


def _label(spec: TrialSpec) -> str:
    factors = [f"{key} {value}" for key, value in _factors(spec)]
    return ", ".join([str(spec.cell.get(TUNER, tuner_label(spec.tuner))), *factors])


def _labels(a: TrialSpec, b: TrialSpec) -> str:
    first, second = _label(a), _label(b)
    return first if first == second else f"{first} against {second}"
