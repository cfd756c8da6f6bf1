"""The strict loader of all user-written YAML files. Every error has a line and a remedy.

A file is read into a `Document`, then checked against a `StrictModel`. The caller adds the problems
that its own checks find, and raises one error with all of them:

    document = read("campaign.yml")
    campaign, problems = document.check(Campaign)
    problems.append(document.problem(("traffic", 0, "load"), "too much", "lower it"))
    if problems:
        raise InputError(in_order(problems))

A validator raises `WrongValue`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import pydantic_core
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    RootModel,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo

from inventory import yamltree
from orchestration.core.congestion import all_controls
from orchestration.core.errors import (
    Code,
    InputError,
    Problem,
    no_such_file,
    unknown,
    unreadable,
)
from orchestration.core.errors import suggest as suggest
from orchestration.core.problems import WrongValue, of_value
from orchestration.core.units import parse_duration_ns, parse_rate_bps, parse_size_bytes

Rate = Annotated[int, BeforeValidator(parse_rate_bps)]
Size = Annotated[int, BeforeValidator(parse_size_bytes)]
Duration = Annotated[int, BeforeValidator(parse_duration_ns)]

Loc = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


def must(
    test: Callable[[Any], object],
    what: str,
    remedy: str,
    shown: Callable[[Any], object] = lambda value: value,
) -> AfterValidator:
    """Return a validator that refuses values which fail `test`.

    In `what`, `{}` is the value, as `shown` returns it, and `{field!r}` the field's name.
    """

    def check(value: Any, info: ValidationInfo) -> Any:
        if not test(value):
            raise WrongValue(what.format(shown(value), field=info.field_name), remedy)
        return value

    return AfterValidator(check)


def one_of(what: str, known: Iterable[str]) -> AfterValidator:
    """Return a validator that refuses names which are none of the `known` ones."""
    names = tuple(known)

    def check(name: str) -> str:
        if name not in names:
            raise WrongValue(f"{what} {name!r}", f"{suggest(name, names)}use {', '.join(names)}")
        return name

    return AfterValidator(check)


def name_in(known: Callable[[], Iterable[str]]) -> BeforeValidator:
    """Return a validator that refuses, as a Literal does, a value that is not a `known` name.

    `known` is called when a value is checked, since installed packages may offer more names.
    """

    def check(value: object) -> object:
        names = list(known())
        if value not in names:
            expected = ", ".join(f"'{name}'" for name in names)
            raise pydantic_core.PydanticKnownError("literal_error", {"expected": expected})
        return value

    return BeforeValidator(check)


CongestionControlName = Annotated[str, name_in(all_controls)]


def matching(pattern: str, what: str, remedy: str) -> AfterValidator:
    """Return a validator that refuses texts which do not fully match `pattern`."""
    return must(re.compile(pattern).fullmatch, what, remedy)


class StrictModel(BaseModel):
    """Base of every file's schema: no unknown fields, no conversion of types, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# What a file writes for a default that is nothing, such as no limit or no probes.
NONE = "none"
# Mark a text whose default, "", is nothing, and a field whose default is empty but means something.
NOTHING, SOMETHING = object(), object()


def none_is_default(field: FieldInfo) -> bool:
    """Return whether `none` says a field's default: no value, no items, or 0 of a quantity."""
    default = field.default
    empty = default is None or default == () or (type(default) is int and default == 0)
    return NOTHING in field.metadata or (empty and SOMETHING not in field.metadata)


def without_nones(data: Any, model: type[BaseModel], loc: Loc = ()) -> Any:
    """Return a file's data without the fields that say their default by `none`.

    `data` is at `loc` in a file of the schema `model`.
    """
    if isinstance(data, list):
        return [without_nones(item, model, (*loc, index)) for index, item in enumerate(data)]
    if not isinstance(data, dict):
        return data
    left_out = _left_out(data, _models_at(model, loc)) if NONE in data.values() else ()
    return {
        key: without_nones(value, model, (*loc, key))
        for key, value in data.items()
        if key not in left_out
    }


def _left_out(data: dict[str, Any], owners: list[type[BaseModel]]) -> set[str]:
    """Return the fields in `data` that say their default by `none`, as one of `owners` has it."""
    of_kind = [owner for owner in owners if data.get("kind") in _kinds(owner)]
    fields = {
        field.alias or name: field
        for owner in of_kind or owners
        for name, field in owner.model_fields.items()
    }
    return {
        key
        for key, value in data.items()
        if value == NONE and key in fields and none_is_default(fields[key])
    }


def read(path: str | Path) -> Document:
    """Read a YAML file. Raises InputError if it cannot be read or is not YAML."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            # At most one character more than is accepted, so that a huge file is not read whole.
            text = file.read(yamltree.MAX_CHARS + 1)
    except FileNotFoundError:
        raise no_such_file(path) from None
    except UnicodeDecodeError as error:
        what, code = "not UTF-8 text", Code.UNREADABLE_FILE
        raise InputError.single(str(path), what, "save the file as UTF-8", code) from error
    except OSError as error:
        raise unreadable(path, error) from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Document:
    """Read YAML text; `name` stands for the file in errors. Raises InputError if it is not YAML."""
    data, lines, faults = yamltree.parse(text, name)
    return Document(name, data, lines, tuple(faults))


def field_names(model: type[BaseModel]) -> list[str]:
    """Return the names of a model's fields in a file, such as `class`, a keyword in Python."""
    return [field.alias or name for name, field in model.model_fields.items()]


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems of one file in the order of its lines, each once."""
    return sorted(dict.fromkeys(problems), key=lambda problem: _line(problem.where))


@dataclass(frozen=True)
class Document:
    """A file's plain data. `faults` are problems of the YAML itself, such as duplicate keys."""

    name: str
    data: dict[str, Any]
    lines: Mapping[yamltree.Path, int]
    faults: tuple[Problem, ...] = ()

    def where(self, loc: Loc) -> str:
        """Return `file:line` of the key or item at `loc`, or of its nearest ancestor.

        `loc` is a path into `data` or a pydantic location; the tags of unions in it are skipped.
        """
        path = self._resolve(loc)
        while path not in self.lines:  # a value from the command line has no line of its own
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}"

    def problem(
        self, loc: Loc, what: str, remedy: str = "", code: Code = Code.BAD_INPUT
    ) -> Problem:
        """Return a problem with the value at `loc`."""
        return Problem(self.where(loc), what, remedy, code)

    def at(self, loc: Loc, problem: Problem) -> Problem:
        """Return a problem as one of the value at `loc`; its former position goes into its text."""
        return Problem(self.where(loc), *problem.parts)

    def inside(self, loc: yamltree.Path) -> Document:
        """Return the mapping at `loc` as a document, whose problems have the lines of this one."""
        data: Any = self.data
        for part in loc:
            data = data[part]
        lines = {path[len(loc) :]: n for path, n in self.lines.items() if path[: len(loc)] == loc}
        own_line = int(self.where(loc).rpartition(":")[2])
        return Document(self.name, data, {**lines, (): own_line})

    def check(self, model: type[Model]) -> tuple[Model | None, list[Problem]]:
        """Return the validated model, None if the file does not fit it, and the problems.

        At most `yamltree.MAX_FAULTS` problems are returned.
        """
        problems = list(self.faults)
        faulty = {problem.where for problem in self.faults}
        try:
            # Through JSON, a strict model still accepts a list for a tuple and 1 for 1.0.
            text = pydantic_core.to_json(self.data, inf_nan_mode="constants")
            result = model.model_validate_json(text)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                if len(problems) >= yamltree.MAX_FAULTS:
                    what = f"more than {yamltree.MAX_FAULTS} problems, the first of them are here"
                    remedy = "correct these first"
                    problems.append(Problem(self.name, what, remedy, Code.TOO_MANY))
                    break
                loc: Loc = details["loc"]
                problem = _explain(dict(details), self.where(loc), self._name_of(loc), model)
                # A refused alias was read as None; the fault about the alias is the better message.
                aliased = details["input"] is None and problem.where in faulty
                if not aliased and not _only_seems_short(dict(details)):
                    problems.append(problem)
            return None, problems
        return result, problems

    def _resolve(self, loc: Loc) -> yamltree.Path:
        path: yamltree.Path = ()
        here: Any = self.data
        for number, part in enumerate(loc):
            if isinstance(here, dict):
                is_tag = here.get("kind") == part and number + 1 < len(loc)
                if is_tag or part not in here:
                    continue
            elif not (isinstance(here, list) and part in range(len(here))):
                continue
            path = (*path, part)
            here = here[part]
        return path

    def _name_of(self, loc: Loc) -> str:
        path = self._resolve(loc)
        if not path:
            return "the file"
        if isinstance(path[-1], int):
            return f"item {path[-1] + 1} of {self._name_of(path[:-1])}"
        return repr(path[-1])


def _line(where: str) -> int:
    """Return the line number at the end of `file:line`, 0 if there is none."""
    number = where.rpartition(":")[2]
    return int(number) if number.isdigit() else 0


# The expected kind of value, by pydantic's error type.
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of fields to values",
    "model_type": "a mapping of fields to values",
    "model_attributes_type": "a mapping of fields to values",
}

_BOUNDS = {
    "ge": "at least",
    "gt": "more than",
    "le": "at most",
    "lt": "less than",
    "min_length": "more items or characters, at least",
    "max_length": "fewer items or characters, at most",
}


def _only_seems_short(details: dict[str, Any]) -> bool:
    """Return whether a list is too short only because pydantic left out its faulty items."""
    if details["type"] != "too_short":
        return False
    return bool(len(details["input"]) >= details["ctx"]["min_length"])


def _explain(details: dict[str, Any], where: str, name: str, model: type[BaseModel]) -> Problem:
    """Return the problem, in plain words, of one pydantic error about `name`."""
    error, loc, value = details["type"], details["loc"], details["input"]
    context = details.get("ctx", {})
    if error == "extra_forbidden":
        owners = _models_at(model, loc[:-1])
        known = list(dict.fromkeys(name for owner in owners for name in field_names(owner)))
        problem = unknown(
            where, f"unknown field {loc[-1]!r}", str(loc[-1]), known, "remove it or use one of "
        )
        return replace(problem, code=Code.UNKNOWN_FIELD)
    if error == "missing":
        remedy = f"add it{_described(model, loc)}"
        return Problem(where, f"missing field {loc[-1]!r}", remedy, Code.MISSING_FIELD)
    if error == "union_tag_not_found":
        known = [kind for owner in _models_at(model, loc) for kind in _kinds(owner)]
        what = f"missing field {context['discriminator']}"
        return Problem(where, what, f"use one of {', '.join(known)}", Code.MISSING_FIELD)
    if error == "union_tag_invalid":
        discriminator = context["discriminator"].strip("'")
        known = [word.strip("' ") for word in context["expected_tags"].split(",")]
        what = f"unknown {discriminator} {context['tag']!r}"
        return unknown(where, what, context["tag"], known)
    what, remedy = f"{name} is {_shown(value)}", "correct the value"
    if error == "value_error":
        return of_value(context["error"], where, otherwise=remedy)
    if value is None:
        what, remedy = f"{name} has no value", "write one after the colon, or remove the field"
    elif error == "literal_error":
        known = [word.strip("' ") for word in context["expected"].replace(" or ", ",").split(",")]
        return unknown(where, what, str(value), known, "use ")
    elif error in _EXPECTED:
        what, remedy = f"{what}, not {_EXPECTED[error]}", f"write {_EXPECTED[error]}"
    elif bound := next((bound for bound in _BOUNDS if bound in context), None):
        remedy = f"use {_BOUNDS[bound]} {context[bound]}"
    else:
        what = f"{name} is refused: {details['msg']}"
    return Problem(where, what, remedy, Code.WRONG_VALUE)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _described(model: type[BaseModel], loc: Loc) -> str:
    for owner in _models_at(model, loc[:-1]):
        field = owner.model_fields.get(str(loc[-1]))
        if field is not None and field.description:
            return f": {field.description}"
    return ""


def _models_at(model: type[BaseModel], loc: Loc) -> list[type[BaseModel]]:
    """Return the models that may be at `loc`, starting from `model`."""
    here = _alternatives(model)
    for part in loc:
        inner: list[Any] = []
        for kind in here:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                if part in kind.model_fields:
                    inner += _alternatives(kind.model_fields[str(part)].annotation)
            elif get_origin(kind) in (dict, Mapping):
                inner += _alternatives(get_args(kind)[1])
            elif isinstance(part, int) and get_args(kind):
                inner += _alternatives(get_args(kind)[0])
        # A part that is not a field or an item is the tag of a union: it selects a model.
        here = inner or [kind for kind in here if part in _kinds(kind)] or here
    return [kind for kind in here if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _alternatives(annotation: Any) -> list[Any]:
    """Return the members of a union or of a root model, without Annotated around them."""
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        return _alternatives(annotation.model_fields["root"].annotation)
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for member in get_args(annotation) for kind in _alternatives(member)]
    return [annotation]


def _kinds(model: Any) -> list[str]:
    """Return the values of a model's `kind`, the discriminator of its union."""
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    field = model.model_fields.get("kind")
    return [str(kind) for kind in get_args(field.annotation)] if field else []
