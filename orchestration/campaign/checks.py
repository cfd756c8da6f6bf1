"""Checks of a campaign beyond its schema: of fields in combination, and against the testbed.

Checks get the fields that are valid on their own, so that one wrong field does not hide the
problems of others. Here `campaign` is a cell's fields, with every reference to a factor resolved.
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
from orchestration.core.pattern import CampaignContext, DriverSpec, Role, given_fields
from orchestration.core.problems import of_text, of_value
from orchestration.core.topology import Testbed
from orchestration.core.trial import CHECKPOINT_PARAM
from orchestration.core.units import format_duration
from traffic.drivers import programs
from traffic.workloads import load_workload


def check(data: Fields, testbed: Testbed | None, folder: str) -> Iterator[LocatedProblem]:
    """Yield the problems of a cell that its schema cannot see.

    `data` is the campaign file with every reference resolved. `testbed` is the one that it names,
    None if that does not exist. Relative paths start in `folder`.
    """
    campaign = _valid_fields(schema.campaign_file(data, folder), data)
    yield from _check_periods(campaign)
    yield from _check_tuners(_items(data, "tuners"), campaign, testbed, folder)
    if testbed is not None:
        yield from check_host(data.get("host"), testbed)
    yield from check_capabilities(campaign, testbed)
    yield from check_roce(campaign, testbed, Path(folder))
    yield from check_load_balancing(campaign, testbed)
    yield from check_flow_samples(campaign, testbed)
    around = traces.surroundings(campaign, testbed, folder)
    for index, item in enumerate(_items(data, "traffic")):
        model = pattern_model(item.get("kind"), folder) if isinstance(item, dict) else None
        if model is not None:
            loc: Loc = ("traffic", index)
            pattern = _valid_fields(model, item)
            yield from _check_window(loc, pattern, campaign)
            yield from _check_driver((*loc, "driver"), pattern, campaign, testbed, folder)
            yield from check_long_lived(loc, pattern, campaign, testbed)
            yield from _check_kind(loc, model, pattern, around, folder)
            if testbed is not None:
                yield from _check_class(loc, model, pattern, testbed)
    for index, item in enumerate(_items(data, "faults")):
        if isinstance(item, dict):
            yield from _check_fault(("faults", index), item, campaign, testbed)


def _valid_fields(model: type[BaseModel], data: Fields) -> dict[str, Any]:
    """Return the fields that are valid on their own, and the defaults of those left out.

    Fields that are present and wrong are missing.
    """
    result: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key not in data:
            if not field.is_required():
                result[name] = field.get_default()
            continue
        try:
            text = pydantic_core.to_json(data[key], inf_nan_mode="constants")
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
    loc: Loc, pattern: Fields, campaign: Fields, testbed: Testbed | None, folder: str
) -> Iterator[LocatedProblem]:
    driver: Driver | None = pattern.get("driver")
    if driver is None:
        return
    if driver.name != "sockets":
        yield from mode_of_campaign(campaign).check(driver_requirement(loc, driver.name))
    options = []
    for key in driver.model_extra or {}:
        try:
            options.append((key, driver.option(key)))
        except ValueError as error:
            yield LocatedProblem.of((*loc, key), of_value(error))
    name = resolve_reference(folder, driver.name)
    try:
        spec, queue_class = DriverSpec(name, tuple(options)), pattern.get("queue_class")
        problems = programs.check_driver(spec, testbed, queue_class or "")
    except plugins.PluginError as error:
        yield LocatedProblem.of(loc, of_value(error))
        return
    for problem in problems:
        yield LocatedProblem.of((*loc, *filter(None, [problem.where])), problem.relocated(""))


def _items(data: Fields, name: str) -> list[Any]:
    value = data.get(name)
    return value if isinstance(value, list) else []


def _check_periods(campaign: Fields) -> Iterator[LocatedProblem]:
    sample, action = campaign.get("sample_period"), campaign.get("action_period")
    if sample and action and action % sample:
        yield LocatedProblem(
            ("action_period",),
            f"action_period {_time(action)} is not a multiple of sample_period {_time(sample)}",
            "the tuner acts on samples: use 1, 2, 3 … sample periods",
        )
    latency = campaign.get("decision_latency")
    if latency and sample and latency >= sample:
        yield LocatedProblem(
            ("decision_latency",),
            f"decision_latency {_time(latency)} is not below sample_period {_time(sample)}",
            "a decision takes effect before the next reading: shorten it, or sample less often",
        )
    duration = campaign.get("duration")
    if sample and duration and sample > duration:
        yield LocatedProblem(
            ("sample_period",),
            f"sample_period {_time(sample)} is beyond the duration {_time(duration)}",
            "sample more often, or make the trial longer",
        )
    warm_up = campaign.get("warm_up")
    if warm_up and duration and sample and warm_up + sample > duration:
        yield LocatedProblem(
            ("warm_up",),
            f"warm_up {_time(warm_up)} leaves less than one sample_period of the duration "
            f"{_time(duration)} to measure",
            "shorten it, or make the trial longer",
        )


def _check_tuners(
    items: Iterable[Any], campaign: Fields, testbed: Testbed | None, folder: str
) -> Iterator[LocatedProblem]:
    numbers: dict[str, int] = {}  # by label, from 1
    for index, item in enumerate(items):
        fields = {"name": item} if isinstance(item, str) else item
        if not isinstance(fields, dict) or not isinstance(fields.get("name"), str):
            continue
        label = str(fields.get("label") or plugins.short_name(fields["name"]))
        yield from _check_tuner(("tuners", index), fields, label, campaign, testbed, folder)
        if label in numbers:
            yield LocatedProblem(
                ("tuners", index),
                f"tuners {numbers[label]} and {index + 1} are both called {label!r}",
                "remove one of them, or give it a 'label' of its own",
            )
        numbers.setdefault(label, index + 1)
    yield from traces.check_parent(campaign, list(numbers))


def _check_tuner(
    loc: Loc, fields: Fields, label: str, campaign: Fields, testbed: Testbed | None, folder: str
) -> Iterator[LocatedProblem]:
    name = resolve_reference(folder, fields["name"])
    given = {key: value for key, value in fields.items() if key not in schema.Tuner.model_fields}
    if rotation.rotates_checkpoints(given):
        faults = list(rotation.faults(given[CHECKPOINT_PARAM]))
        yield from (LocatedProblem.of((*loc, CHECKPOINT_PARAM), of_text(fault)) for fault in faults)
        if faults:
            return
    problems: dict[LocatedProblem, None] = {}
    for variant in rotation.variants(given):
        problems |= dict.fromkeys(
            _check_params(loc, name, variant, label, campaign, testbed, folder)
        )
    yield from problems


def _check_params(
    loc: Loc,
    name: str,
    given: Fields,
    label: str,
    campaign: Fields,
    testbed: Testbed | None,
    folder: str,
) -> Iterator[LocatedProblem]:
    """Yield the problems of a tuner that has one checkpoint, not a list of them."""
    params = {}
    unreadable = []
    for key, value in given.items():
        try:
            params[key] = read_param(key, value)
        except ValueError as error:
            unreadable.append(key)
            yield LocatedProblem.of((*loc, key), of_value(error))
    params = resolve_params(folder, params)
    for problem in traces.check_tuner(name, params, label, campaign, testbed):
        # A parameter that is present but cannot be read is not missing.
        if not any(f"needs {key!r}" in problem.what for key in unreadable):
            yield LocatedProblem.of(loc, problem)


def _check_window(loc: Loc, pattern: Fields, campaign: Fields) -> Iterator[LocatedProblem]:
    start, stop, duration = pattern.get("start"), pattern.get("stop"), campaign.get("duration")
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
    loc: Loc, model: type[Pattern], pattern: Fields, around: CampaignContext, folder: str
) -> Iterator[LocatedProblem]:
    """Yield the problems of a pattern's fields by their roles, and those that its kind finds.

    A field's role says what it names: a workload, a host, or a number of senders.
    """
    fields = {}
    for name, declared in given_fields(model.spec).items():
        key = attribute(name)
        if key not in pattern:
            continue
        fields[name] = value = pattern[key]
        field_loc = (*loc, declared.name or key)
        if declared.role == "workload":
            yield from _check_workload(field_loc, value, folder)
        if around.testbed is not None and value:
            yield from _check_hosts(field_loc, declared.role, value, around.testbed)
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


def _check_hosts(loc: Loc, role: Role, value: Any, testbed: Testbed) -> Iterator[LocatedProblem]:
    maximum = len(testbed.hosts) - 1
    if role == "senders" and value > maximum:
        yield LocatedProblem(
            loc,
            f"{loc[-1]} {value} is too many for testbed {testbed.name}: "
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
    loc: Loc, item: Fields, campaign: Fields, testbed: Testbed | None
) -> Iterator[LocatedProblem]:
    fault = _valid_fields(schema.Fault, item)
    if "links" in item and "share" in item:
        yield LocatedProblem(loc, "the fault has both 'links' and 'share'", "keep one of the two")
    if not item.get("links") and "share" not in item:
        remedy = "add links: [leaf1-spine1], or share: 0.1 for a tenth of the links"
        yield LocatedProblem(loc, "the fault names no links", remedy)
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
    down, up, duration = fault.get("down"), fault.get("up"), campaign.get("duration")
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
    drain = campaign.get("drain")
    if up is not None and duration is not None and drain is not None and up > duration + drain:
        end = _time(duration + drain)
        yield LocatedProblem(
            (*loc, "up"),
            f"up {_time(up)} is beyond duration and drain, which end at {end}",
            "come up earlier, or leave 'up' out for links that stay down",
        )


def _time(ns: int) -> str:
    return format_duration(ns, 6)
