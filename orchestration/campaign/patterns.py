"""Traffic patterns in a campaign file: the schema of each kind, which is made from its class.

A pattern's class (`orchestration.core.pattern`) declares its fields with units in their names; in
the file they have values with units, and names without: `size` is the field `size_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, replace
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, ConfigDict, create_model
from pydantic import Field as InFile

from inventory.strictyaml import (
    NOTHING,
    CongestionControlName,
    Duration,
    Rate,
    Size,
    StrictModel,
    suggest,
)
from orchestration.campaign.fields import (
    NOT_EMPTY,
    POSITIVE,
    Load,
    is_path,
    name_as_mapping,
    read_param,
    resolve_file,
    resolve_path,
    resolve_reference,
)
from orchestration.core import plugins
from orchestration.core.pattern import (
    GROUP,
    REQUIRED,
    DriverSpec,
    Given,
    PatternSpec,
    given_fields,
    pattern_class,
)
from orchestration.core.trial import Scalar
from traffic.drivers.programs import driver_names, is_driver, option_units
from traffic.workloads import load_workload

_CLASS = "the testbed's traffic class, whose queues and TCP the flows use; without it the first"
# A name that may be left out: a traffic class, or a host.
_NAME: Any = Annotated[str, NOTHING]
_UNITS = {"_ns": Duration, "_bytes": Size, "_bps": Rate}


def _driver(name: str) -> str:
    if not is_driver(name):
        names = driver_names()
        raise ValueError(f"unknown driver {name!r}: {suggest(name, names)}use {', '.join(names)}")
    return name


class Driver(StrictModel):
    """What sends a pattern's flows: sockets or a program. A program's options are beside `name`."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, AfterValidator(_driver)] = InFile(
        description="the driver's name, like perftest"
    )

    @property
    def options(self) -> dict[str, Scalar]:
        """The options in base units. Raises ValueError for one that cannot be read."""
        return {key: self.option(key) for key in self.model_extra or {}}

    def option(self, key: str) -> Scalar:
        """Return one option in its base unit. Raises ValueError if it cannot be read."""
        # options of a user's class have the units that end their names
        units = {} if plugins.is_file(self.name) else option_units(self.name)
        return read_param(key, (self.model_extra or {})[key], units.get(key, ""))


class Pattern(StrictModel):
    """The fields that patterns of every kind have; each kind's schema derives from this.

    `spec` is the kind's class. Without a `congestion_control`, flows have that of their traffic
    class or host.
    """

    spec: ClassVar[type[PatternSpec]] = PatternSpec  # type: ignore[type-abstract]

    driver: Annotated[Driver, BeforeValidator(name_as_mapping)] = InFile(
        default=Driver(name="sockets"),
        description="what sends the flows: a name, or a mapping with the driver's own options; "
        "programs run on racks only",
    )
    congestion_control: CongestionControlName | None = InFile(
        default=None,
        description="of these flows; without it that of their traffic class or of `host`",
    )

    def of_field(self, name: str) -> Any:
        """Return the value of the field that the pattern's class calls `name`."""
        return getattr(self, attribute(name))


def any_pattern(kinds: Iterable[str], folder: str) -> Any:
    """Return the type of a pattern of any kind that is installed, or of `kinds` in users' files.

    Paths of such files start at `folder`.
    """
    every = [*sorted(plugins.offered(GROUP)), *kinds]
    models = [_model(kind, resolve_reference(folder, kind)) for kind in every]
    return Annotated[reduce(or_, models), InFile(discriminator="kind")]


def pattern_model(kind: object, folder: str) -> type[Pattern] | None:
    """Return the schema of a kind of pattern; None for an unknown kind or a broken class."""
    if not isinstance(kind, str) or not (plugins.is_file(kind) or kind in plugins.offered(GROUP)):
        return None
    model = _model(kind, resolve_reference(folder, kind))
    return None if model.spec is PatternSpec else model


def attribute(name: str) -> str:
    """Return what the campaign file calls a field of a pattern's class: its name without unit."""
    return name.removesuffix(_unit(name))


@cache
def _model(kind: str, reference: str) -> type[Pattern]:
    """Return the schema of a kind, whose class is at `reference`.

    For a class that cannot be loaded it is a schema that accepts nothing.
    """
    try:
        spec = pattern_class(reference)
    except plugins.PluginError as error:
        return _broken(kind, error)
    own = given_fields(spec)
    by_name = {field.name: field for field in fields(spec) if field.name in own}
    hints = get_type_hints(spec)
    described = {attribute(name): _field(by_name[name], hints[name], own[name]) for name in own}
    # a kind may have a field of its own that the file calls `class`
    uses_class = any(declared.name == "class" for declared in own.values())
    window = [name for name in ("start", "stop") if {"start", "stop"} <= set(described)]
    content: dict[str, Any] = {
        **(
            {}
            if uses_class
            else {"queue_class": (_NAME, InFile("", alias="class", description=_CLASS))}
        ),
        **{name: described[name] for name in window},
        "kind": (Literal[kind], ...),
        **{name: field for name, field in described.items() if name not in window},
        **({"queue_class": (_NAME, InFile("", description=_CLASS))} if uses_class else {}),
    }
    model: type[Pattern] = create_model(
        spec.__name__, __base__=Pattern, __doc__=spec.__doc__, **content
    )
    model.spec = spec
    return model


class _Broken(Pattern):
    """A kind whose class cannot be loaded: its other fields are not checked."""

    model_config = ConfigDict(extra="ignore")


def _broken(kind: str, error: plugins.PluginError) -> type[Pattern]:
    def refuse(_: str) -> str:
        raise error

    of_kind: Any = Annotated[Literal[kind], AfterValidator(refuse)]
    return create_model("Broken", __base__=_Broken, kind=(of_kind, ...))


def _unit(name: str) -> str:
    return next((unit for unit in _UNITS if name.endswith(unit)), "")


def _field(field: Field[Any], hint: Any, declared: Given) -> tuple[Any, Any]:
    """Return the type of a field in the campaign file, and its default with its description.

    `hint` is the type of the class's field; `declared` is what the class says about it.
    """
    is_list = get_origin(hint) is tuple
    kind: Any = _UNITS.get(_unit(field.name), get_args(hint)[0] if is_list else hint)
    if declared.role in ("positive", "senders"):
        kind = Annotated[kind, POSITIVE]
    elif declared.role == "share":
        kind = Load
    if is_list:
        kind = Annotated[tuple[kind, ...], NOT_EMPTY]
    default = declared.default
    if default is REQUIRED:
        default = ... if field.default is MISSING else field.default
    if declared.role == "host" and default == "":
        kind = _NAME
    info = InFile(default, description=declared.about or None, alias=declared.name or None)
    return (kind | None if default is None else kind), info


def pattern_spec(item: Pattern, duration_ns: int, folder: str) -> PatternSpec:
    """Return a trial's pattern; relative paths start at `folder`."""
    name = resolve_reference(folder, item.driver.name)
    driver = DriverSpec(name, tuple(item.driver.options.items()))
    return replace(
        flows_spec(item, duration_ns, folder),
        driver=driver,
        congestion_control=item.congestion_control or "",
    )


def flows_spec(item: Pattern, duration_ns: int, folder: str) -> PatternSpec:
    """Return a trial's pattern without its driver and congestion control.

    A field that the file leaves open is the trial's duration for `stop`, else 0.
    """
    kind = item.spec
    values: dict[str, Any] = {"queue_class": item.of_field("queue_class")}
    for name, declared in given_fields(kind).items():
        value = item.of_field(name)
        if value is None:
            value = duration_ns if name == "stop_ns" else 0
        if declared.role == "workload":
            workload = resolve_path(folder, value)
            # the canonical name: `websearch` and `WebSearch` make the same trial id
            value = workload if is_path(workload) else load_workload(workload).name
        elif declared.role == "file":
            value = resolve_file(folder, value)
        values[name] = value
    return kind(**values)


def file_kinds(traffic: object) -> Iterator[str]:
    """Yield the kinds in a campaign's `traffic` that are of the form `file.py:Class`."""
    for item in traffic if isinstance(traffic, list) else ():
        kind = item.get("kind") if isinstance(item, dict) else None
        if isinstance(kind, str) and plugins.is_file(kind):
            yield kind
