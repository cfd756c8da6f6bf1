"""Factors: what a campaign varies. A field gets a factor's level by the reference `$name`.

    traffic:
      - {kind: poisson, workload: WebSearch, load: $load}
    faults: $faults
    factors:
      load: [0.3, 0.6]                    # levels that are single values
      faults:                             # levels of any kind, each with a name
        none: []
        one-link: [{links: [leaf1-spine1], down: 3ms, convergence: 500us}]

A level may have parts that belong together and are used in several fields, as `$name.part`;
`$name.$other` is the part that is named by the level of another factor:

    testbed: $transport.testbed
    host: $transport.host
    factors:
      transport:
        dctcp: {testbed: graphcc, host: {congestion_control: dctcp}}
        dcqcn: {testbed: graphcc-pfc.yml, host: {congestion_control: dcqcn}}

A reference replaces a whole value, never a part of a text. A factor that nothing refers to and that
is called by the path of a field sets that field; arms are levels that set several fields each:

    factors:
      host.congestion_control: [dcqcn, swift, hpcc]
    arms:
      as-published: {host.congestion_control: dcqcn, load_balancing: ecmp}
      sprayed: {host.congestion_control: swift, load_balancing: spray}

Every factor is crossed with every other factor, with the arms, and with the tuners.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from inventory.strictyaml import Document, Loc, suggest
from orchestration.campaign.field_settings import (
    DECLARING,
    FIXED_FIELDS,
    Level,
    Reference,
    Setting,
    arm_settings,
    checked_settings,
    is_field,
    never_used,
    set_twice,
    target_of,
    value_at,
    with_value,
)
from orchestration.core.condition import ARM, TUNER
from orchestration.core.errors import Problem
from orchestration.core.trial import Scalar
from orchestration.results.question import compare_problem

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PATH = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class Factors:
    """The factors of a file, how fields take their levels, and the problems of both.

    `levels` has only usable levels, those of arms by the name `ARM`; `references` has only those
    that can be resolved; `settings` has the fields that factors and arms set without a reference.
    """

    levels: dict[str, tuple[Level, ...]]
    references: tuple[Reference, ...]
    unresolved: tuple[Reference, ...]
    problems: tuple[Problem, ...]
    settings: tuple[Setting, ...] = ()

    def combinations(self) -> Iterator[dict[str, Level]]:
        """Yield one level of each factor, in the file's order, the last factor fastest."""
        for levels in itertools.product(*self.levels.values()):
            yield dict(zip(self.levels, levels, strict=True))

    def used_outside(self, field: str) -> set[str]:
        """Return the factors that are referred to outside of the file's field `field`."""
        references = (*self.references, *self.unresolved)
        outside = [ref for ref in references if ref.loc[0] != field]
        used = {name for ref in outside for name in (ref.name, ref.other) if name}
        return used | {it.name for it in self.settings if it.target[0] != field}

    def explains(self, problem: Problem) -> bool:
        """Return whether a problem only follows from a reference that could not be resolved."""
        return any(repr(str(ref)) in problem.what for ref in self.unresolved)


def read_factors(document: Document) -> Factors:
    """Return the factors of a campaign file, its arms, and the fields that these vary."""
    levels: dict[str, tuple[Level, ...]] = {}
    problems: list[Problem] = []
    declared = document.data.get("factors")
    declared = declared if isinstance(declared, dict) else {}
    references = list(_references(document.data, ()))
    referred = {name for ref in references for name in (ref.name, ref.other)}
    for name, value in declared.items():
        usable, of_levels = _levels(document, name, value)
        problems += of_levels
        if usable:
            levels[name] = usable
    settings = [
        Setting(name, level.label, target_of(name), level.loc)
        for name in levels
        if name not in referred and is_field(name)
        for level in levels[name]
    ]
    arms, of_arms = arm_settings(document)
    problems += of_arms
    if arms:
        levels[ARM] = tuple(dict.fromkeys(Level(it.label, it.source[:2]) for it in arms))
    settings += arms
    used = referred | {setting.name for setting in settings}
    settings, refused = checked_settings(document, settings)
    problems += [*refused, *set_twice(document, settings, references)]
    problems += never_used(document, settings)
    resolved: list[Reference] = []
    unresolved: list[Reference] = []
    for ref in references:
        problem = _check_reference(document, ref, declared) or _check_part(document, ref, levels)
        problems += [problem] if problem else []
        (unresolved if problem or ref.name not in levels else resolved).append(ref)
    problems += [
        document.problem(
            ("factors", name),
            f"factor {name!r} is not used",
            f"{_USE} ${name}; or call it by the field that it sets, like host.congestion_control",
        )
        for name in levels
        if name not in used
    ]
    problems += filter(None, [compare_problem(document, levels)])
    problems += _without_effect(document, levels, resolved)
    problems += _unused_parts(document, levels, [*resolved, *unresolved])
    return Factors(levels, tuple(resolved), tuple(unresolved), tuple(problems), tuple(settings))


def substitute_levels(
    document: Document, factors: Factors, chosen: Mapping[str, Level]
) -> Document:
    """Return the document with the chosen level of each factor in the fields that take it.

    Problems of such a value are then reported at the line of the level.
    """
    data = document.data
    lines = dict(document.lines)
    pairs = [(ref.loc, ref.source(chosen)) for ref in factors.references]
    pairs += [
        (it.target, it.source)
        for it in factors.settings
        if it.name in chosen and chosen[it.name].label == it.label
    ]
    for target, source in pairs:
        data = with_value(data, target, value_at(document.data, source))
        for path, line in document.lines.items():
            if path[: len(source)] == source:
                lines[(*target, *path[len(source) :])] = line
    return replace(document, data=data, lines=lines)


_USE = "remove it, or refer to it where it applies with"


def _levels(document: Document, name: str, value: Any) -> tuple[tuple[Level, ...], list[Problem]]:
    loc: Loc = ("factors", name)
    if name == TUNER:
        what = f"{TUNER!r} cannot be the name of a factor"
        return (), [document.problem(loc, what, "list the tuners under 'tuners'")]
    if name == ARM:
        what = f"{ARM!r} cannot be the name of a factor"
        return (), [document.problem(loc, what, "list the arms under 'arms'")]
    if not (_PATH if "." in name else _NAME).fullmatch(name):
        remedy = "use letters, digits and _, a letter first; or the path of a field"
        return (), [document.problem(loc, f"{name!r} cannot be the name of a factor", remedy)]
    if isinstance(value, dict) and value:
        return tuple(Level(label, (*loc, label)) for label in value), []
    if not isinstance(value, list) or not value:
        remedy = "write them like [0.3, 0.6], or as a mapping of names to values"
        return (), [document.problem(loc, f"factor {name!r} has no levels", remedy)]
    levels: list[Level] = []
    problems: list[Problem] = []
    seen: set[Scalar] = set()
    for index, level in enumerate(value):
        if level is None:
            what = f"level {index + 1} of factor {name!r} has no value"
            remedy = "write `none` where the default of a field is none, or else a value"
            problems.append(document.problem((*loc, index), what, remedy))
        elif isinstance(level, (list, dict)):
            what = f"level {index + 1} of factor {name!r} is not a single value"
            remedy = f"name the levels: {name}: {{some-name: value, other-name: value}}"
            problems.append(document.problem((*loc, index), what, remedy))
        elif level in seen:
            what = f"level {level!r} of factor {name!r} is listed twice"
            remedy = "remove one; for more repeats raise 'repeats'"
            problems.append(document.problem((*loc, index), what, remedy))
        else:
            seen.add(level)
            levels.append(Level(level, (*loc, index)))
    return tuple(levels), problems


def _references(value: Any, loc: Loc) -> Iterator[Reference]:
    if isinstance(value, str) and value.startswith("$"):
        name, _, part = value[1:].partition(".")
        yield Reference(name, part, loc)
    items = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else items:
        yield from _references(inner, (*loc, key))


def _check_reference(
    document: Document, ref: Reference, declared: Mapping[str, Any]
) -> Problem | None:
    if ref.loc[0] in DECLARING:
        what = (
            f"{'an arm' if ref.loc[0] == 'arms' else 'a level of a factor'} refers to ${ref.name}"
        )
        return document.problem(ref.loc, what, "write the value out")
    if ref.loc[0] in FIXED_FIELDS or ref.loc == ("tuners",):
        remedy = "use one value, or a campaign for each"
        if ref.loc == ("tuners",):
            remedy = "write the list: its tuners are crossed with the factors"
        return document.problem(ref.loc, f"{ref.loc[0]!r} cannot be ${ref.name}", remedy)
    if ref.name not in declared:
        remedy = f"{suggest(ref.name, declared)}declare it: factors: {{{ref.name}: [..., ...]}}"
        return document.problem(ref.loc, f"there is no factor {ref.name!r}", remedy)
    return None


def _check_part(
    document: Document, ref: Reference, levels: Mapping[str, tuple[Level, ...]]
) -> Problem | None:
    if ref.other and ref.other not in levels:
        remedy = f"{suggest(ref.other, levels)}declare it under factors"
        return document.problem(ref.loc, f"there is no factor {ref.other!r}", remedy)
    for level, part in itertools.product(levels.get(ref.name, ()), ref.parts(levels)):
        parts = value_at(document.data, level.loc)
        if not isinstance(parts, dict) or part not in parts:
            what = f"level {str(level.label)!r} of factor {ref.name!r} has no part {part!r}"
            hint = suggest(part, parts) if isinstance(parts, dict) else ""
            remedy = f"{hint}write it there, as {str(ref)!r} takes it from every level"
            return document.problem(level.loc, what, remedy)
    return None


def _unused_parts(
    document: Document, levels: Mapping[str, tuple[Level, ...]], references: list[Reference]
) -> Iterator[Problem]:
    """Yield a problem for each part that no reference uses, of factors that are used by parts."""
    for name, known in levels.items():
        to_factor = [ref for ref in references if ref.name == name]
        if not to_factor or not all(ref.part for ref in to_factor):
            continue
        used = {part for ref in to_factor for part in ref.parts(levels)}
        for level in known:
            parts = value_at(document.data, level.loc)
            for part in parts if isinstance(parts, dict) else ():
                if part not in used:
                    what = f"part {part!r} of factor {name!r} is not used"
                    remedy = f"{_USE} ${name}.{part}"
                    yield document.problem((*level.loc, part), what, remedy)


def _without_effect(
    document: Document, levels: Mapping[str, Any], references: list[Reference]
) -> list[Problem]:
    """Return a problem for each factor that only some of the tuners refer to."""
    tuners = document.data.get("tuners")
    count = len(tuners) if isinstance(tuners, list) else 0
    problems = []
    for name in levels:
        locations = [ref.loc for ref in references if name in (ref.name, ref.other)]
        referring = {loc[1] for loc in locations if loc[0] == "tuners"}
        others = sorted(set(range(count)) - referring)
        if locations and others and all(loc[0] == "tuners" for loc in locations):
            what = f"factor {name!r} changes nothing for tuner {others[0] + 1} of the list"
            remedy = "list the variants of a tuner under 'tuners', each with a 'label'"
            problems.append(document.problem(("factors", name), what, remedy))
    return problems
