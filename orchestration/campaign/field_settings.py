"""How fields take the levels of factors: by a reference `$name`, or because of their paths.

A factor that is called by the path of a field, such as `host.congestion_control`, sets it to each
of its levels; an arm sets several fields. `factors` reads both; here their paths are checked
against the file, and against each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from inventory.strictyaml import Document, Loc, suggest
from orchestration.campaign.schema import CampaignFile
from orchestration.core.condition import ARM
from orchestration.core.errors import Problem
from orchestration.core.trial import Scalar

# These fields have one value for the whole campaign; a factor cannot vary them.
FIXED_FIELDS = (
    "campaign", "backend", "repeats", "seed", "protocol", "parent", "compare", "judge",
)  # fmt: skip
# The fields that declare what varies.
DECLARING = ("factors", "arms")
# Fields that may be a single text, and the name that this text has when they are a mapping.
_SHORT_FORMS = {"testbed": "like", "load_balancing": "kind", "fabric": "kind", "driver": "name"}


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


def is_field(name: str) -> bool:
    """Return whether a factor of this name may set a field without a reference to it."""
    return "." in name or name in CampaignFile.model_fields


def target_of(path: str) -> Loc:
    """Return the location of the field with this path, such as `host.congestion_control`."""
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))


def arm_settings(document: Document) -> tuple[list[Setting], list[Problem]]:
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
            settings.append(Setting(ARM, name, target_of(str(path)), (*loc, path)))
    return settings, problems


def checked_settings(
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
    fields = [name for name in CampaignFile.model_fields if name not in DECLARING]
    field, path = str(setting.target[0]), _path(setting.target)
    if field in FIXED_FIELDS or field in DECLARING:
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


def never_used(document: Document, settings: Sequence[Setting]) -> Iterator[Problem]:
    """Yield a problem for each value of a field that a factor sets, and that is none of its levels.

    Such a value is never used, and a reader of the file believes that it is.
    """
    levels: dict[tuple[str, Loc], list[Any]] = {}
    for setting in settings:
        if setting.name != ARM:  # other arms keep the file's own value
            value = value_at(document.data, setting.source)
            levels.setdefault((setting.name, setting.target), []).append(value)
    for (name, target), values in levels.items():
        with suppress(KeyError, IndexError, TypeError):
            own = value_at(document.data, target)
            written = isinstance(own, (str, int, float)) and not str(own).startswith("$")
            if written and own not in values:
                what = f"{_path(target)} is {own!r}, which is no level of the factor {name!r}"
                yield document.problem(target, what, "leave it out here, or make it a level")


def set_twice(
    document: Document, settings: list[Setting], references: Sequence[Reference]
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
        if ref.loc[0] not in DECLARING and _replaced(document, setting, ref):
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
        value_at(value, loc)
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


def value_at(data: Any, loc: Loc) -> Any:
    """Return the value at a location. Raises KeyError, IndexError or TypeError without one."""
    for part in loc:
        data = data[part]
    return data


def with_value(data: Any, loc: Loc, value: Any) -> Any:
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
    copy[loc[0]] = with_value(inner, loc[1:], value)
    return copy
