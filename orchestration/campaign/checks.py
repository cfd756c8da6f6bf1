"""Checks of a campaign beyond its schema: fields in combination, and against the testbed.

Each check uses the fields that are valid on their own, so that one wrong field does not hide the
faults of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import BaseModel, TypeAdapter, ValidationError

from inventory.strictyaml import Loc, suggest
from orchestration.campaign import rotation, schema, traces
from orchestration.campaign.backend_checks import (
    check_capabilities,
    driver_requirement,
    mode_of_campaign,
)
from orchestration.campaign.fields import (
    read_param,
    resolve_params,
    resolve_path,
    resolve_reference,
)
from orchestration.campaign.host_checks import check_host, check_roce
from orchestration.campaign.load_balancing import check_load_balancing
from orchestration.campaign.located_problem import Fields, LocatedProblem
from orchestration.campaign.patterns import Driver, Pattern, attribute, pattern_model
from orchestration.campaign.roce_flow_checks import check_flow_samples, check_long_lived
from orchestration.core import plugins
from orchestration.core.errors import InputError
from orchestration.core.pattern import DriverSpec, Role, Surroundings, given_fields
from orchestration.core.problems import of_text, of_value
from orchestration.core.topology import Testbed
from orchestration.core.trial import CHECKPOINT_PARAM
from orchestration.core.units import format_duration
from traffic.drivers import programs
from traffic.workloads import load_workload


def check(data: Fields, testbed: Testbed | None, folder: str) -> Iterator[LocatedProblem]:
    """Yield the faults of a cell's file beyond its schema.

    `data` is the file with every reference resolved. `testbed` is the one that it names, None if
    that does not exist. `folder` is where its workloads' paths start.
    """
    whole = _right_fields(schema.campaign_file(data, folder), data)
    yield from _check_periods(whole)
    yield from _check_tuners(_items(data, "tuners"), whole, testbed, folder)
    if testbed is not None:
        yield from check_host(data.get("host"), testbed)
    yield from check_capabilities(whole, testbed)
    yield from check_roce(whole, testbed, Path(folder))
    yield from check_load_balancing(whole, testbed)
    yield from check_flow_samples(whole, testbed)
    around = traces.surroundings(whole, testbed, folder)
    for index, item in enumerate(_items(data, "traffic")):
        model = pattern_model(item.get("kind"), folder) if isinstance(item, dict) else None
        if model is not None:
            loc: Loc = ("traffic", index)
            pattern = _right_fields(model, item)
            yield from _check_window(loc, pattern, whole)
            yield from _check_driver((*loc, "driver"), pattern, whole, testbed, folder)
            yield from check_long_lived(loc, pattern, whole, testbed)
            yield from _check_kind(loc, model, pattern, around, folder)
            if testbed is not None:
                yield from _check_class(loc, model, pattern, testbed)
    for index, item in enumerate(_items(data, "faults")):
        if isinstance(item, dict):
            yield from _check_fault(("faults", index), item, whole, testbed)


def _right_fields(model: type[BaseModel], data: Fields) -> dict[str, Any]:
    """Return the fields that are valid on their own, and the defaults of those left out."""
    result: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        called = field.alias or name
        if called not in data:
            if not field.is_required():
                result[name] = field.get_default()
            continue
        try:
            text = pydantic_core.to_json(data[called], inf_nan_mode="constants")
            result[name] = _adapter(model, name).validate_json(text, strict=True)
        except ValidationError:
            continue
    return result


@cache
def _adapter(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    field = model.model_fields[name]
    annotated: Any = field.rebuild_annotation()
    return TypeAdapter(annotated)


def _check_driver(
    loc: Loc, pattern: Fields, whole: Fields, testbed: Testbed | None, folder: str
) -> Iterator[LocatedProblem]:
    driver: Driver | None = pattern.get("driver")
    if driver is None:
        return
    if driver.name != "sockets":
        yield from mode_of_campaign(whole).lacks(driver_requirement(loc, driver.name))
    options = []
    for key in driver.model_extra or {}:
        try:
            options.append((key, driver.option(key)))
        except ValueError as error:
            yield LocatedProblem.of((*loc, key), of_value(error))
    name = resolve_reference(folder, driver.name)
    try:
        spec, queue_class = DriverSpec(name, tuple(options)), pattern.get("queue_class")
        problems = programs.check(spec, testbed, queue_class or "")
    except plugins.PluginError as error:
        yield LocatedProblem.of(loc, of_value(error))
        return
    for problem in problems:
        yield LocatedProblem.of((*loc, *filter(None, [problem.where])), problem.relocated(""))


def _items(data: Fields, name: str) -> list[Any]:
    value = data.get(name)
    return value if isinstance(value, list) else []


def _check_periods(whole: Fields) -> Iterator[LocatedProblem]:
    sample, action = whole.get("sample_period"), whole.get("action_period")
    if sample and action and action % sample:
        yield LocatedProblem(
            ("action_period",),
            f"action_period {_time(action)} is not a multiple of sample_period {_time(sample)}",
            "the tuner acts on samples: make it 1, 2, 3 … sample periods",
        )
    latency = whole.get("decision_latency")
    if latency and sample and latency >= sample:
        yield LocatedProblem(
            ("decision_latency",),
            f"decision_latency {_time(latency)} is not below sample_period {_time(sample)}",
            "a decision takes effect before the next reading: shorten it, or sample less often",
        )
    duration = whole.get("duration")
    if sample and duration and sample > duration:
        yield LocatedProblem(
            ("sample_period",),
            f"sample_period {_time(sample)} is beyond the duration {_time(duration)}",
            "sample more often, or make the trial longer",
        )
    warm_up = whole.get("warm_up")
    if warm_up and duration and sample and warm_up + sample > duration:
        yield LocatedProblem(
            ("warm_up",),
            f"warm_up {_time(warm_up)} leaves less than a sample_period of the duration "
            f"{_time(duration)} to be measured",
            "shorten it, or make the trial longer",
        )


def _check_tuners(
    items: Iterable[Any], whole: Fields, testbed: Testbed | None, folder: str
) -> Iterator[LocatedProblem]:
    called: dict[str, int] = {}
    for index, item in enumerate(items):
        fields = {"name": item} if isinstance(item, str) else item
        if not isinstance(fields, dict) or not isinstance(fields.get("name"), str):
            continue
        label = str(fields.get("label") or plugins.short_name(fields["name"]))
        yield from _check_tuner(("tuners", index), fields, label, whole, testbed, folder)
        if label in called:
            yield LocatedProblem(
                ("tuners", index),
                f"tuner {index + 1} is called {label!r}, as tuner {called[label]} is",
                "remove one of them, or give it a 'label' of its own",
            )
        called.setdefault(label, index + 1)
    yield from traces.check_parent(whole, list(called))


def _check_tuner(
    loc: Loc, fields: Fields, label: str, whole: Fields, testbed: Testbed | None, folder: str
) -> Iterator[LocatedProblem]:
    name = resolve_reference(folder, fields["name"])
    given = {key: value for key, value in fields.items() if key not in schema.Tuner.model_fields}
    if rotation.rotates_checkpoints(given):
        faults = list(rotation.faults(given[CHECKPOINT_PARAM]))
        yield from (LocatedProblem.of((*loc, CHECKPOINT_PARAM), of_text(fault)) for fault in faults)
        if faults:
            return
    told: dict[LocatedProblem, None] = {}
    for variant in rotation.variants(given):
        told |= dict.fromkeys(_of_params(loc, name, variant, label, whole, testbed, folder))
    yield from told


def _of_params(
    loc: Loc,
    name: str,
    given: Fields,
    label: str,
    whole: Fields,
    testbed: Testbed | None,
    folder: str,
) -> Iterator[LocatedProblem]:
    """Yield the faults of a tuner with one value for each of its parameters."""
    params = {}
    unread = []
    for key, value in given.items():
        try:
            params[key] = read_param(key, value)
        except ValueError as error:
            unread.append(key)
            yield LocatedProblem.of((*loc, key), of_value(error))
    params = resolve_params(folder, params)
    for fault in traces.check_tuner(name, params, label, whole, testbed):
        # A parameter that is present but cannot be read is not missing.
        if not any(f"needs {key!r}" in fault.what for key in unread):
            yield LocatedProblem.of(loc, fault)


def _check_window(loc: Loc, pattern: Fields, whole: Fields) -> Iterator[LocatedProblem]:
    start, stop, duration = pattern.get("start"), pattern.get("stop"), whole.get("duration")
    if start is not None and stop is not None and stop <= start:
        yield LocatedProblem(
            (*loc, "stop"),
            f"stop {_time(stop)} is not after start {_time(start)}",
            "swap or correct them",
        )
    for name, time_ns, latest in (("start", start, "before"), ("stop", stop, "at most")):
        if time_ns is None or duration is None:
            continue
        if time_ns > duration or (name == "start" and time_ns == duration):
            yield LocatedProblem(
                (*loc, name),
                f"{name} {_time(time_ns)} is beyond the duration {_time(duration)}",
                f"use {latest} {_time(duration)}, or make the trial longer",
            )


def _check_kind(
    loc: Loc, model: type[Pattern], pattern: Fields, around: Surroundings, folder: str
) -> Iterator[LocatedProblem]:
    """Yield the faults of a pattern's fields by their roles, and those that its kind finds."""
    fields = {}
    for name, one in given_fields(model.spec).items():
        key = attribute(name)
        if key not in pattern:
            continue
        fields[name] = value = pattern[key]
        where = (*loc, one.name or key)
        if one.role == "workload":
            yield from _check_workload(where, value, folder)
        if around.testbed is not None and value:
            yield from _check_places(where, one.role, value, around.testbed)
    for problem in model.spec.faults(fields, around):
        yield LocatedProblem.of((*loc, *filter(None, [problem.where])), problem.relocated(""))


def _check_workload(loc: Loc, name: str, folder: str) -> Iterator[LocatedProblem]:
    try:
        load_workload(resolve_path(folder, name))
    except InputError as error:
        yield from (LocatedProblem.of(loc, problem) for problem in error.problems)


def _check_class(
    loc: Loc, model: type[Pattern], pattern: Fields, testbed: Testbed
) -> Iterator[LocatedProblem]:
    name = pattern.get("queue_class")
    known = [klass.name for klass in testbed.classes]
    if not name or name in known:
        return
    key = model.model_fields["queue_class"].alias or "queue_class"
    if known:
        what = f"testbed {testbed.name} has no traffic class {name!r}"
        remedy = f"{suggest(name, known)}its classes are {', '.join(known)}"
    else:
        what = f"testbed {testbed.name} has no traffic classes"
        remedy = f"remove {key!r}, or use a testbed that lists 'classes', like acc-fig8"
    yield LocatedProblem((*loc, key), what, remedy)


def _check_places(loc: Loc, role: Role, value: Any, testbed: Testbed) -> Iterator[LocatedProblem]:
    maximum = len(testbed.hosts) - 1
    if role == "senders" and value > maximum:
        yield LocatedProblem(
            loc,
            f"{loc[-1]} {value} is wider than testbed {testbed.name}: "
            f"of its {maximum + 1} hosts, {maximum} can send to one",
            f"use 1 to {maximum}, or a larger testbed",
        )
    if role == "host" and value not in testbed.hosts:
        first, last = testbed.hosts[0], testbed.hosts[-1]
        yield LocatedProblem(
            loc,
            f"testbed {testbed.name} has no host {value!r}",
            f"{suggest(value, testbed.hosts)}its hosts are {first} to {last}",
        )


def _check_fault(
    loc: Loc, item: Fields, whole: Fields, testbed: Testbed | None
) -> Iterator[LocatedProblem]:
    fault = _right_fields(schema.Fault, item)
    if "links" in item and "share" in item:
        yield LocatedProblem(loc, "a fault with both 'links' and 'share'", "keep one of the two")
    if not item.get("links") and "share" not in item:
        remedy = "add links: [leaf1-spine1], or share: 0.1 for a tenth of the links"
        yield LocatedProblem(loc, "a fault of no links", remedy)
    if testbed is not None:
        for index, name in enumerate(fault.get("links", ())):
            if name not in testbed.links_by_name:
                known = testbed.links_by_name
                remedy = suggest(name, known) or f"its first is {next(iter(known), 'none')}: "
                yield LocatedProblem(
                    (*loc, "links", index),
                    f"testbed {testbed.name} has no link {name!r}",
                    f"{remedy}a link is named by its two devices",
                )
    down, up, duration = fault.get("down"), fault.get("up"), whole.get("duration")
    if down is not None and up is not None and up <= down:
        yield LocatedProblem(
            (*loc, "up"),
            f"up {_time(up)} is not after down {_time(down)}",
            "swap or correct them, or leave 'up' out for links that stay down",
        )
    if down is not None and duration is not None and down >= duration:
        yield LocatedProblem(
            (*loc, "down"),
            f"down {_time(down)} is beyond the duration {_time(duration)}",
            f"use before {_time(duration)}, or make the trial longer",
        )
    drain = whole.get("drain")
    if up is not None and duration is not None and drain is not None and up > duration + drain:
        end = _time(duration + drain)
        yield LocatedProblem(
            (*loc, "up"),
            f"up {_time(up)} is beyond duration and drain, which end at {end}",
            "come up earlier, or leave 'up' out for links that stay down",
        )


def _time(ns: int) -> str:
    return format_duration(ns, 6)
