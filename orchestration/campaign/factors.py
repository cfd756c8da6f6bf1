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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from inventory.strictyaml import Document, Loc, suggest
from orchestration.campaign.schema import CampaignFile
from orchestration.core.condition import ARM, TUNER
from orchestration.core.errors import Problem
from orchestration.core.trial import Scalar
from orchestration.results.question import compare_problem

# These fields have one value for the whole campaign; a factor cannot vary them.
FIXED_FIELDS = (
    "campaign", "backend", "repeats", "seed", "protocol", "parent", "compare", "judge",
)  # fmt: skip
# The fields that declare what varies.
_DECLARING = ("factors", "arms")
# Fields that may be a single text, and the name that this text has when they are a mapping.
_SHORT_FORMS = {"testbed": "like", "load_balancing": "kind", "fabric": "kind", "driver": "name"}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PATH = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class Level:
    """One level of a factor: its label in reports, and the location of its value in the file."""

    label: Scalar
    loc: Loc


@dataclass(frozen=True)
class Reference:
    """A reference `$name`, `$name.part` or `$name.$other`, at the location `loc`."""

    name: str
    part: str
    loc: Loc

    def __str__(self) -> str:
        return f"${self.name}.{self.part}" if self.part else f"${self.name}"

    @property
    def other(self) -> str:
        """The other factor, whose level names the part; "" if there is none."""
        return self.part[1:] if self.part.startswith("$") else ""

    def parts(self, levels: Mapping[str, tuple[Level, ...]]) -> list[str]:
        """Return the parts of a level that this may refer to; [] if it refers to a whole level."""
        if self.other:
            return [str(level.label) for level in levels.get(self.other, ())]
        return [self.part] if self.part else []

    def source(self, chosen: Mapping[str, Level]) -> Loc:
        """Return the location of the value that this refers to under these levels."""
        part = str(chosen[self.other].label) if self.other else self.part
        return (*chosen[self.name].loc, part) if part else chosen[self.name].loc


@dataclass(frozen=True)
class Setting:
    """A field at `target` that takes the value at `source` under a level of the factor `name`."""

    name: str
    label: Scalar
    target: Loc
    source: Loc


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
        Setting(name, level.label, _target(name), level.loc)
        for name in levels
        if name not in referred and _is_field(name)
        for level in levels[name]
    ]
    arms, of_arms = _arms(document)
    problems += of_arms
    if arms:
        levels[ARM] = tuple(dict.fromkeys(Level(it.label, it.source[:2]) for it in arms))
    settings += arms
    used = referred | {setting.name for setting in settings}
    settings, refused = _checked_settings(document, settings)
    problems += [*refused, *_set_twice(document, settings, references)]
    problems += _never_used(document, settings)
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
        data = _put(data, target, _get(document.data, source))
        for path, line in document.lines.items():
            if path[: len(source)] == source:
                lines[(*target, *path[len(source) :])] = line
    return replace(document, data=data, lines=lines)


def _is_field(name: str) -> bool:
    return "." in name or name in CampaignFile.model_fields


def _target(path: str) -> Loc:
    """Return the location of the field with this path, such as `host.congestion_control`."""
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))


def _arms(document: Document) -> tuple[list[Setting], list[Problem]]:
    """Return the fields that each arm sets, and the problems of the arms."""
    declared = document.data.get("arms")
    settings: list[Setting] = []
    problems: list[Problem] = []
    for name, fields in declared.items() if isinstance(declared, dict) else ():
        loc: Loc = ("arms", name)
        if not isinstance(fields, dict) or not fields:
            remedy = f"write them like {name}: {{host.congestion_control: swift}}"
            problems.append(document.problem(loc, f"arm {name!r} sets no fields", remedy))
            continue
        for path in fields:
            settings.append(Setting(ARM, name, _target(str(path)), (*loc, path)))
    return settings, problems


def _checked_settings(
    document: Document, settings: list[Setting]
) -> tuple[list[Setting], list[Problem]]:
    """Return the settings whose paths name fields that can vary, and the others' problems."""
    usable: list[Setting] = []
    problems: dict[Problem, None] = {}
    for setting in settings:
        fault = _fault(document.data, setting)
        if fault is None:
            usable.append(setting)
            continue
        problems[document.problem(_declared(setting), *fault)] = None
    return usable, list(problems)


def _fault(data: Any, setting: Setting) -> tuple[str, str] | None:
    """Return what is wrong with the path of a setting, and the remedy; None if it is right."""
    fields = [name for name in CampaignFile.model_fields if name not in _DECLARING]
    field, path = str(setting.target[0]), _path(setting.target)
    if field in FIXED_FIELDS or field in _DECLARING:
        return f"{field!r} has one value in a campaign", "leave it out"
    if field == "tuners" and setting.name != ARM:
        return f"{path!r} cannot be a factor", "list the variants of a tuner under 'tuners'"
    if field not in fields:
        return (
            f"{path!r} is no field of a campaign",
            f"{suggest(field, fields)}a path starts with a field of the campaign",
        )
    if (outer := _not_a_mapping(data, setting.target)) is not None:
        what = f"{path!r} cannot be set: {_path(outer)} has no such part"
        return what, "name a field that is there, or set the whole of it"
    return None


def _not_a_mapping(data: Any, target: Loc) -> Loc | None:
    """Return the part of a path that can have no fields, because it is a list or a value."""
    for index, part in enumerate(target):
        if data is None:
            return None
        if isinstance(data, list):
            if not isinstance(part, int) or not part < len(data):
                return target[:index]
            data = data[part]
        elif isinstance(data, dict):
            data = data.get(part)
        elif target[index - 1] in _SHORT_FORMS or str(data).startswith("$"):
            return None
        else:
            return target[:index]
    return None


def _never_used(document: Document, settings: Sequence[Setting]) -> Iterator[Problem]:
    """Yield a problem for each value of a field that a factor sets, and that is none of its levels.

    Such a value is never used, and a reader of the file believes that it is.
    """
    levels: dict[tuple[str, Loc], list[Any]] = {}
    for setting in settings:
        if setting.name != ARM:  # other arms keep the file's own value
            value = _get(document.data, setting.source)
            levels.setdefault((setting.name, setting.target), []).append(value)
    for (name, target), values in levels.items():
        with suppress(KeyError, IndexError, TypeError):
            own = _get(document.data, target)
            written = isinstance(own, (str, int, float)) and not str(own).startswith("$")
            if written and own not in values:
                what = f"{_path(target)} is {own!r}, which is no level of the factor {name!r}"
                yield document.problem(target, what, "leave it out here, or make it a level")


def _set_twice(
    document: Document, settings: list[Setting], references: list[Reference]
) -> Iterator[Problem]:
    """Yield a problem for each field that two factors set, or one inside the other's field.

    Only one of the two values would have an effect, so that levels would not be what they are
    called. The arms are one factor, of which each arm may set a field once.
    """
    setters: dict[tuple[str, Loc], Setting] = {}
    for setting in settings:
        setters.setdefault((setting.name, setting.target), setting)
    for first, second in itertools.combinations(setters.values(), 2):
        if first.name != second.name and _overlap(first.target, second.target):
            what = f"{_setter(first)} and {_setter(second)} both set {_inner(first, second)}"
            remedy = "let one of them set it, and leave it out of the other"
            yield document.problem(_declared(second), what, remedy)
    by_arm: dict[Scalar, list[Setting]] = {}
    for setting in settings:
        if setting.name == ARM:
            by_arm.setdefault(setting.label, []).append(setting)
    for arm in by_arm.values():
        for first, second in itertools.combinations(arm, 2):
            if _overlap(first.target, second.target):
                what = f"{_setter(first)} sets {_inner(first, second)} twice"
                remedy = "write it once: inside the value of the outer field, or by its path alone"
                yield document.problem(second.source, what, remedy)
    for setting, ref in itertools.product(setters.values(), references):
        if ref.loc[0] not in _DECLARING and _replaced(document, setting, ref):
            what = f"{_setter(setting)} and factor {ref.name!r} both set {_path(setting.target)}"
            remedy = f"write a value in place of {ref}, or do without the other"
            yield document.problem(_declared(setting), what, remedy)


def _replaced(document: Document, setting: Setting, ref: Reference) -> bool:
    """Return whether a setting replaces what a reference, in the file's fields, stands for."""
    if setting.target == ref.loc[: len(setting.target)]:
        return True
    if ref.loc != setting.target[: len(ref.loc)]:
        return False
    inner = setting.target[len(ref.loc) :]
    levels = document.data.get("factors", {}).get(ref.name, {})
    values = list(levels.values() if isinstance(levels, dict) else levels)
    if ref.part:
        values = [value for level in values for value in _parts(level, ref.part)]
    return any(_has(value, inner) for value in values)


def _parts(level: Any, part: str) -> list[Any]:
    """Return what a level has as a part; all of its parts if another factor chooses one."""
    if not isinstance(level, dict):
        return []
    return list(level.values()) if part.startswith("$") else [level.get(part)]


def _has(value: Any, loc: Loc) -> bool:
    with suppress(KeyError, IndexError, TypeError):
        _get(value, loc)
        return True
    return False


def _overlap(first: Loc, second: Loc) -> bool:
    shorter = min(len(first), len(second))
    return first[:shorter] == second[:shorter]


def _inner(first: Setting, second: Setting) -> str:
    return _path(max(first.target, second.target, key=len))


def _path(target: Loc) -> str:
    return ".".join(map(str, target))


def _setter(setting: Setting) -> str:
    return f"arm {setting.label!r}" if setting.name == ARM else f"factor {setting.name!r}"


def _declared(setting: Setting) -> Loc:
    return setting.source if setting.name == ARM else ("factors", setting.name)


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
    if ref.loc[0] in _DECLARING:
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
    """Yield a problem for each part that no reference uses, of factors that are used by parts."""
    for name, known in levels.items():
        to_factor = [ref for ref in references if ref.name == name]
        if not to_factor or not all(ref.part for ref in to_factor):
            continue
        used = {part for ref in to_factor for part in ref.parts(levels)}
        for level in known:
            parts = _get(document.data, level.loc)
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


def _get(data: Any, loc: Loc) -> Any:
    for part in loc:
        data = data[part]
    return data


def _put(data: Any, loc: Loc, value: Any) -> Any:
    """Return a copy of `data` with `value` at `loc`; all other parts are shared.

    Mappings that are missing are made, and a field's short form becomes the mapping it stands for.
    """
    if not loc:
        return value
    copy = data.copy()
    inner: Any = None
    with suppress(KeyError, IndexError):
        inner = data[loc[0]]
    if len(loc) > 1 and not isinstance(inner, (dict, list)):
        short = _SHORT_FORMS.get(str(loc[0]))
        inner = {short: inner} if short and inner is not None else {}
    copy[loc[0]] = _put(inner, loc[1:], value)
    return copy
