"""Factors: what a campaign varies. A field takes a factor's level through the reference `$name`.

    traffic:
      - {kind: poisson, workload: WebSearch, load: $load}
    faults: $faults
    factors:
      load: [0.3, 0.6]                    # levels that are single values
      faults:                             # levels that are more, each with a name
        none: []
        one-link: [{links: [leaf1-spine1], down: 3ms, convergence: 500us}]

A level may have parts that belong together and go to several places, by `$name.part`; by
`$name.$other` the part that the level of another factor names:

    testbed: $transport.testbed
    host: $transport.host
    factors:
      transport:
        dctcp: {testbed: graphcc, host: {congestion_control: dctcp}}
        dcqcn: {testbed: graphcc-pfc.yml, host: {congestion_control: dcqcn}}

A reference is a whole value, never a part of one. Every factor is crossed with every other factor
and with the tuners.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from inventory.strictyaml import Document, Loc, suggest
from orchestration.core.condition import TUNER
from orchestration.core.errors import Problem
from orchestration.core.trial import Scalar

# These have one value for the whole campaign; a factor cannot vary them.
FIXED_FIELDS = ("campaign", "backend", "repeats", "seed", "protocol", "parent")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Level:
    """One setting of a factor: its label in reports, and the place of its value in the file."""

    label: Scalar
    loc: Loc


@dataclass(frozen=True)
class Reference:
    """A `$name`, `$name.part` or `$name.$other` in place of a value."""

    name: str
    part: str
    loc: Loc

    def __str__(self) -> str:
        return f"${self.name}.{self.part}" if self.part else f"${self.name}"

    @property
    def other(self) -> str:
        """The factor whose level names the part, or ""."""
        return self.part[1:] if self.part.startswith("$") else ""

    def parts(self, levels: Mapping[str, tuple[Level, ...]]) -> list[str]:
        """Return the parts that it may take of a level; none if it takes all of it."""
        if self.other:
            return [str(level.label) for level in levels.get(self.other, ())]
        return [self.part] if self.part else []

    def source(self, chosen: Mapping[str, Level]) -> Loc:
        """Return the place of the value that it has under these levels."""
        part = str(chosen[self.other].label) if self.other else self.part
        return (*chosen[self.name].loc, part) if part else chosen[self.name].loc


@dataclass(frozen=True)
class Factors:
    """The factors of a file, the references to them, and the faults of both.

    `levels` has usable levels only, `references` only those that can be resolved.
    """

    levels: dict[str, tuple[Level, ...]]
    references: tuple[Reference, ...]
    unresolved: tuple[Reference, ...]
    problems: tuple[Problem, ...]

    def combinations(self) -> Iterator[dict[str, Level]]:
        """Yield one level of each factor, in the file's order, the last factor fastest."""
        for levels in itertools.product(*self.levels.values()):
            yield dict(zip(self.levels, levels, strict=True))

    def used_outside(self, field: str) -> set[str]:
        """Return the factors that another field of the file than `field` refers to."""
        references = (*self.references, *self.unresolved)
        others = [ref for ref in references if ref.loc[0] != field]
        return {name for ref in others for name in (ref.name, ref.other) if name}

    def explains(self, problem: Problem) -> bool:
        """Return whether a problem only repeats that a reference could not be resolved."""
        return any(repr(str(ref)) in problem.what for ref in self.unresolved)


def read_factors(document: Document) -> Factors:
    """Find the factors of a campaign file and the references to them."""
    levels: dict[str, tuple[Level, ...]] = {}
    problems: list[Problem] = []
    declared = document.data.get("factors")
    declared = declared if isinstance(declared, dict) else {}
    for name, value in declared.items():
        found, faults = _levels(document, name, value)
        problems += faults
        if found:
            levels[name] = found
    resolved: list[Reference] = []
    unresolved: list[Reference] = []
    for ref in _references(document.data, ()):
        fault = _check_reference(document, ref, declared) or _check_part(document, ref, levels)
        problems += [fault] if fault else []
        (unresolved if fault or ref.name not in levels else resolved).append(ref)
    used = {name for ref in (*resolved, *unresolved) for name in (ref.name, ref.other)}
    problems += [
        document.problem(("factors", name), f"factor {name!r} is not used", f"{_USE} ${name}")
        for name in levels
        if name not in used
    ]
    problems += _idle(document, levels, resolved)
    problems += _unused_parts(document, levels, [*resolved, *unresolved])
    return Factors(levels, tuple(resolved), tuple(unresolved), tuple(problems))


def substitute_levels(
    document: Document, references: tuple[Reference, ...], chosen: Mapping[str, Level]
) -> Document:
    """Return the document with each reference replaced by the chosen level of its factor.

    A fault of the value is then reported at the line of the level.
    """
    data = document.data
    lines = dict(document.lines)
    for ref in references:
        source = ref.source(chosen)
        data = _put(data, ref.loc, _get(document.data, source))
        for path, line in document.lines.items():
            if path[: len(source)] == source:
                lines[(*ref.loc, *path[len(source) :])] = line
    return replace(document, data=data, lines=lines)


_USE = "remove it, or refer to it where it applies with"


def _levels(document: Document, name: str, value: Any) -> tuple[tuple[Level, ...], list[Problem]]:
    loc: Loc = ("factors", name)
    if name == TUNER:
        what = f"{TUNER!r} cannot be the name of a factor"
        return (), [document.problem(loc, what, "list the tuners under 'tuners'")]
    if not _NAME.fullmatch(name):
        remedy = "use letters, digits and _, a letter first"
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
        if level is None or isinstance(level, (list, dict)):
            what = f"level {index + 1} of factor {name!r} is not a single value"
            remedy = f"name the levels: {name}: {{some-name: value, other-name: value}}"
            problems.append(document.problem((*loc, index), what, remedy))
        elif level in seen:
            what = f"level {level!r} of factor {name!r} is there twice"
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
    if ref.loc[0] == "factors":
        what = f"a factor's level refers to ${ref.name}"
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
        parts = _get(document.data, level.loc)
        if not isinstance(parts, dict) or part not in parts:
            what = f"level {str(level.label)!r} of factor {ref.name!r} has no part {part!r}"
            hint = suggest(part, parts) if isinstance(parts, dict) else ""
            remedy = f"{hint}write it there, as {str(ref)!r} takes it from every level"
            return document.problem(level.loc, what, remedy)
    return None


def _unused_parts(
    document: Document, levels: Mapping[str, tuple[Level, ...]], references: list[Reference]
) -> Iterator[Problem]:
    """Yield a problem for each part of a level that no reference takes, where parts are taken."""
    for name, known in levels.items():
        mine = [ref for ref in references if ref.name == name]
        if not mine or not all(ref.part for ref in mine):
            continue
        taken = {part for ref in mine for part in ref.parts(levels)}
        for level in known:
            parts = _get(document.data, level.loc)
            for part in parts if isinstance(parts, dict) else ():
                if part not in taken:
                    what = f"part {part!r} of factor {name!r} is not used"
                    remedy = f"{_USE} ${name}.{part}"
                    yield document.problem((*level.loc, part), what, remedy)


def _idle(
    document: Document, levels: Mapping[str, Any], references: list[Reference]
) -> list[Problem]:
    """Return a problem for each factor that changes nothing for some of the tuners."""
    tuners = document.data.get("tuners")
    count = len(tuners) if isinstance(tuners, list) else 0
    problems = []
    for name in levels:
        places = [ref.loc for ref in references if name in (ref.name, ref.other)]
        numbers = {loc[1] for loc in places if loc[0] == "tuners"}
        idle = sorted(set(range(count)) - numbers)
        if places and idle and all(loc[0] == "tuners" for loc in places):
            what = f"factor {name!r} changes nothing for tuner {idle[0] + 1} of the list"
            remedy = "list the variants of a tuner under 'tuners', each with a 'label'"
            problems.append(document.problem(("factors", name), what, remedy))
    return problems


def _get(data: Any, loc: Loc) -> Any:
    for part in loc:
        data = data[part]
    return data


def _put(data: Any, loc: Loc, value: Any) -> Any:
    """Return a copy of `data` with `value` at `loc`; all other parts are shared."""
    if not loc:
        return value
    copy = data.copy()
    copy[loc[0]] = _put(data[loc[0]], loc[1:], value)
    return copy
