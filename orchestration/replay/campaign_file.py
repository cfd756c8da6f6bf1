"""Write a replay as a campaign file, and its testbed as a testbed file."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inventory.files import load_testbed
from inventory.strictyaml import parse, suggest
from inventory.testbed_json import testbed_to_json
from orchestration.campaign.controls import format_parameter
from orchestration.core.capabilities import capabilities
from orchestration.core.congestion import PROGRAM, congestion_control
from orchestration.core.errors import InputError, unreadable
from orchestration.core.load_balancing import ECMP, LoadBalancingSpec
from orchestration.core.parts import SwitchSpec
from orchestration.core.problems import of_value
from orchestration.core.roce import (
    BDP_WINDOW,
    DCQCN,
    FORMER_HPCC,
    RoceSpec,
    is_former_hpcc,
)
from orchestration.core.topology import Testbed
from orchestration.core.trial import LINUX, ClockName, FabricSpec, FaultSpec, HostSpec
from orchestration.core.units import UnitError, parse_rate_bps, whole_duration, whole_rate
from orchestration.datapath.policy_dcqcn import DCQCN_SETS, RATE_PARAMETERS
from tuners.registry import RECORDED

_OPTION = "--tuner"


@dataclass(frozen=True)
class ReplayCampaign:
    """The content of a replay's campaign file.

    `patterns` and `parent_trials` are the entries of `traffic` and `parent.trials`, by field.
    `times_ns` are the settings that are times, such as `drain`; `judge` has the metrics that decide
    which tuner is best, as the replayed campaign names them. `arms` has a campaign for each arm of
    the replayed run, if its arms are not its tuners; they differ in some settings only.
    """

    name: str
    backend: str
    tuners: tuple[TunerEntry, ...]
    patterns: tuple[dict[str, Any], ...]
    repeats: int
    duration_ns: int
    parent_run: str
    parent_sha256: str = ""
    parent_trials: tuple[dict[str, Any], ...] = ()
    times_ns: Mapping[str, int] = field(default_factory=dict)
    host: HostSpec | None = None
    fabric: FabricSpec = LINUX
    faults: Sequence[FaultSpec] = ()
    load_balancing: LoadBalancingSpec = ECMP
    clock: ClockName = ""
    judge: tuple[str, ...] = ()
    arms: Mapping[str, ReplayCampaign] = field(default_factory=dict)


def campaign_lines(campaign: ReplayCampaign, testbed_file: str) -> Iterator[str]:
    """Yield the campaign file's lines."""
    yield "# Written by closloop replay; docs/replay.md says what is in it."
    yield f"campaign: {campaign.name}"
    yield f"testbed: {testbed_file}"
    yield f"backend: {campaign.backend}"
    if campaign.clock:
        yield f"clock: {campaign.clock}"
    arms = {name: _settings(arm) for name, arm in campaign.arms.items()}
    # recorded actions are those of an arm
    shared = {
        name: value
        for name, value in _settings(campaign).items()
        if all(name != "tuners" and arm.get(name) == value for arm in arms.values())
    }
    shared_names = tuple(shared)
    yield from _lines({name: shared.pop(name) for name in ("tuners", "traffic") if name in shared})
    if campaign.judge:
        yield f"judge: {json.dumps(campaign.judge, ensure_ascii=False)}"
    yield f"repeats: {campaign.repeats}"
    yield f"duration: {whole_duration(campaign.duration_ns)}"
    for key, value in campaign.times_ns.items():
        yield f"{key}: {whole_duration(value)}"
    yield from _lines(shared)
    if arms:
        yield "arms:"
    for name, arm in arms.items():
        own = {key: value for key, value in arm.items() if key not in shared_names}
        yield f"  {yaml_string(name)}: {yaml_mapping(own)}"
    yield "parent:"
    yield f"  run: {yaml_string(campaign.parent_run)}"
    if campaign.parent_sha256:
        yield f"  sha256: {yaml_string(campaign.parent_sha256)}"
    if campaign.parent_trials:
        yield "  trials:"
    for item in campaign.parent_trials:
        yield f"    - {yaml_mapping(item)}"


def _settings(campaign: ReplayCampaign) -> dict[str, Any]:
    """Return the fields in which the arms of a run may differ, each with its value."""
    settings: dict[str, Any] = {
        "tuners": [tuner.fields for tuner in campaign.tuners],
        "traffic": list(campaign.patterns),
    }
    control = (campaign.host or HostSpec()).congestion_control
    several = sum(control in mode.controls for mode in capabilities(campaign.backend).modes) > 1
    if several or campaign.fabric != LINUX:
        settings["fabric"] = dict(vars(campaign.fabric))
    if campaign.load_balancing != ECMP:
        settings["load_balancing"] = _load_balancing(campaign.load_balancing)
    if campaign.host is not None:
        settings["host"] = _host(campaign.host)
    if campaign.faults:
        settings["faults"] = [_fault(fault) for fault in campaign.faults]
    return settings


def _lines(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of fields: a mapping on one line, a list with a line for each entry."""
    for name, value in fields.items():
        if isinstance(value, list):
            yield f"{name}:"
            yield from (f"  - {yaml_mapping(entry)}" for entry in value)
        else:
            yield f"{name}: {yaml_mapping(value)}"


def _host(host: HostSpec) -> dict[str, Any]:
    settings: dict[str, Any] = {"min_rto": whole_duration(host.min_rto_ns)}
    # defaults are left out: they are refused where traffic classes have their own
    for name in ("loss_detection", "congestion_control"):
        if getattr(host, name) != getattr(HostSpec(), name):
            settings[name] = getattr(host, name)
    if host.roce is not None:
        if host.roce.control == PROGRAM:
            numbers = [value for _, value in host.roce.values]
            own = {"program": host.roce.program, "parameters": numbers}
            settings["congestion_control"] = own
        settings["roce"] = _roce(host.roce)
    return settings


def _load_balancing(spec: LoadBalancingSpec) -> dict[str, Any]:
    common: dict[str, Any] = {"kind": spec.kind, "route_by": spec.route_by}
    # a campaign file may not have fields that its kind of load balancing does not use
    if spec.route_by == "conga":
        common["dre_time"] = whole_duration(spec.dre_time_ns)
        common["metric_age"] = whole_duration(spec.metric_age_ns)
    if spec.kind == "spray":
        return common
    timeouts = {
        "edge": whole_duration(spec.edge_timeout_ns),
        "aggregation": whole_duration(spec.aggregation_timeout_ns),
    }
    return {**common, "timeout": timeouts, "entries": spec.entries}


def _roce(roce: RoceSpec) -> dict[str, Any]:
    given, own = roce.parameters, {}
    if roce.control not in (DCQCN, PROGRAM):
        known = congestion_control(roce.control).parameters
        own = {
            name: format_parameter(known[name], value)
            for name, value in roce.values
            if name in known
        }
    # sets that follow the NICs' rate are left out: they differ on NICs of another rate
    sets = [name for name in DCQCN_SETS if name not in RATE_PARAMETERS]
    if not is_former_hpcc(given):
        sets.remove(FORMER_HPCC)
    nearest = min(sets, key=lambda name: len(_differing_parameters(given, name)))
    return {
        "payload": f"{roce.payload_bytes}B",
        "ack_every": roce.ack_every,
        "window": "bdp" if roce.window_bytes == BDP_WINDOW else f"{roce.window_bytes}B",
        "timeout": whole_duration(roce.timeout_ns),
        "recovery": roce.recovery,
        "rtt_probe_interval": whole_duration(roce.rtt_probe_interval_ns),
        "decision_latency": whole_duration(roce.decision_latency_ns),
        "decisions": roce.decisions,
        **({roce.control: own} if own else {}),
        "dcqcn": {
            "set": nearest,
            **{name: given[name] for name in _differing_parameters(given, nearest)},
        },
    }


def _differing_parameters(given: Mapping[str, int], name: str) -> list[str]:
    """Return the names of the parameters that differ from those of the set `name`."""
    return [key for key, value in given.items() if value != DCQCN_SETS[name][key]]


def _fault(fault: FaultSpec) -> dict[str, Any]:
    which: dict[str, Any] = {"share": fault.share} if fault.share else {"links": fault.links}
    up = {} if fault.up_ns is None else {"up": whole_duration(fault.up_ns)}
    return {
        **which,
        "down": whole_duration(fault.down_ns),
        **up,
        "convergence": whole_duration(fault.convergence_ns),
    }


@dataclass(frozen=True)
class TunerEntry:
    """A tuner's entry in a campaign file: its fields, and its name in reports."""

    fields: dict[str, Any]
    label: str


def parse_tuners(texts: Sequence[str]) -> tuple[TunerEntry, ...]:
    """Return the entries of the tuners that the user names, without `recorded`.

    Each text is a name, or a mapping such as `{name: static, kmin_bytes: 5KB, kmax_bytes: 50KB}`.
    Raises InputError for text that is neither.
    """
    entries = []
    for text in texts:
        if text == RECORDED:
            continue
        fields: dict[str, Any] = {"name": text}
        if text.lstrip().startswith("{"):
            fields = parse(text, _OPTION).data
        name = fields.get("name")
        if not isinstance(name, str) or not name or name == RECORDED:
            remedy = (
                "like amt, or '{name: static, kmin_bytes: 5KB, kmax_bytes: 50KB}'; "
                f"{RECORDED} alone repeats the recorded actions"
            )
            raise InputError.single(_OPTION, f"{text!r} names no tuner", remedy)
        entries.append(TunerEntry(fields, str(fields.get("label") or name)))
    return tuple(entries)


def recorded_tuner(label: str, files: Mapping[str, str], taken: Sequence[str]) -> TunerEntry:
    """Return an entry that repeats a tuner's actions, with its own label unless that is taken.

    `files` are the files of recorded actions by the tables of their knobs.
    """
    own = f"{RECORDED}-{label}" if label in taken else label
    return TunerEntry({"name": RECORDED, "label": own, **files}, own)


def with_checkpoint(entry: TunerEntry, folder: Path) -> TunerEntry:
    """Return the entry with its checkpoint copied into `folder`, if that is a user's own file.

    Raises InputError if the file cannot be read.
    """
    name = entry.fields.get("checkpoint")
    if not isinstance(name, str) or not name.endswith(".safetensors"):
        return entry
    source = Path(name)
    try:
        shutil.copyfile(source, folder / source.name)
        card = source.with_suffix(".json")
        if card.is_file():
            shutil.copyfile(card, folder / card.name)
    except OSError as error:
        raise unreadable(name, error) from error
    return TunerEntry({**entry.fields, "checkpoint": source.name}, entry.label)


def yaml_string(text: str) -> str:
    """Return text as a double-quoted YAML scalar."""
    return json.dumps(text, ensure_ascii=False)


def yaml_mapping(values: Mapping[str, object]) -> str:
    """Return a mapping of strings, numbers and lists on one line: `{name: "secn1", weight: 70}`."""
    pairs = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return "{" + ", ".join(pairs) + "}"


_REMEDY = "name a testbed file of your own with --testbed"


def with_rates(testbed: Testbed, scale: float, changed: Mapping[str, int]) -> Testbed:
    """Return the testbed with every rate multiplied by `scale`, and then the rates `changed`.

    `changed` maps names of links such as `leaf1-spine2` to rates in bit/s. A testbed with changed
    rates gets another name. Raises InputError for an unknown link, and for rates below 1 bit/s.
    """
    if not (math.isfinite(scale) and scale > 0):
        what = f"{scale:g} is not a factor for rates"
        raise InputError.single("--scale-rates", what, "use a number above 0: 0.5 halves them")
    unknown = [name for name in changed if name not in testbed.links_by_name]
    if unknown:
        known = testbed.links_by_name
        remedy = suggest(unknown[0], known) or f"its first is {next(iter(known), 'none')}: "
        what = f"testbed {testbed.name} has no link {unknown[0]!r}"
        raise InputError.single("--rate", what, f"{remedy}a link is named by its two devices")
    rates = [round(link.rate_bps * scale) for link in testbed.links]
    for name, rate_bps in changed.items():
        for index in testbed.links_by_name[name]:
            rates[index] = rate_bps
    if min(rates, default=1) < 1:
        what = f"{scale:g} leaves a link without a rate"
        raise InputError.single("--scale-rates", what, "use a larger factor")
    if rates == [link.rate_bps for link in testbed.links]:
        return testbed
    links = tuple(dataclasses.replace(link, rate_bps=rates[link.index]) for link in testbed.links)
    ports = tuple(dataclasses.replace(port, rate_bps=rates[port.link]) for port in testbed.ports)
    ending = "-rates" if changed else f"-x{scale:g}"
    return dataclasses.replace(testbed, name=testbed.name[:48] + ending, links=links, ports=ports)


def parse_rate(text: str) -> tuple[str, int]:
    """Return a link's name and its rate in bit/s from `leaf1-spine2=50G`, or `...=50Gbps`.

    Raises InputError.
    """
    name, equals, value = text.partition("=")
    unit = "bps" if value[-1:] in ("K", "M", "G", "T") else ""
    try:
        rate_bps = parse_rate_bps(value + unit)
    except UnitError as error:
        raise InputError([of_value(error, repr(text)).at("--rate")]) from error
    if not equals or not name or rate_bps < 1:
        raise InputError.single(
            "--rate", f"{text!r} is not a link's rate", "write it like leaf1-spine2=50G"
        )
    return name, rate_bps


def write_testbed(path: Path, testbed: Testbed) -> None:
    """Write the testbed as a file from which `load_testbed` reads an equal testbed.

    Raises InputError if a testbed file cannot describe it, because ports have names of their own or
    buffers of different sizes.
    """
    path.write_text(_text(testbed), encoding="utf-8")
    try:
        again = load_testbed(str(path))
    except InputError as error:
        what = f"testbed {testbed.name} cannot be written as a file: {error.problems[0].what}"
        raise InputError.single("testbed.json", what, _REMEDY) from error
    before, after = _content(testbed), _content(again)
    different = [key for key in before if before[key] != after.get(key)]
    if different:
        what = (
            f"testbed {testbed.name} cannot be written as a file: its {different[0]} would differ"
        )
        raise InputError.single("testbed.json", what, _REMEDY)


def _content(testbed: Testbed) -> dict[str, Any]:
    """Return what testbeds are compared by; the order of hosts among switches does not count."""
    tiers = {device.name: device.tier for device in testbed.devices}
    return {**testbed_to_json(testbed), "devices": (testbed.hosts, testbed.switches, tiers)}


def _text(testbed: Testbed) -> str:
    tiers = {device.name: device.tier for device in testbed.devices}
    buffer_bytes = max((port.buffer_bytes for port in testbed.switch_ports), default=0)
    lines = [
        "# Written by closloop replay, from the testbed.json of a trial.",
        "kind: custom",
        f"name: {yaml_string(testbed.name)}",
        f"source: {yaml_string(testbed.source)}",
        f"mtu: {testbed.mtu_bytes}B",
        f"framing: {testbed.framing_bytes}B",
        _switch(testbed, testbed.switch) if testbed.switch else f"buffer: {buffer_bytes}B",
    ]
    if testbed.classes:
        lines.append("classes:")
    for klass in testbed.classes:
        own = {"congestion_control": klass.congestion_control} if klass.congestion_control else {}
        lines.append(f"  - {yaml_mapping({'name': klass.name, 'weight': klass.weight, **own})}")
    lines += [f"hosts: {json.dumps(testbed.hosts)}", "switches:"]
    lines += [
        f"  - {yaml_mapping({'name': name, 'tier': tiers[name]})}" for name in testbed.switches
    ]
    lines.append("links:")
    for link in testbed.links:
        ends = {"a": testbed.ports[link.a].device, "b": testbed.ports[link.b].device}
        figures = {"rate": whole_rate(link.rate_bps), "delay": whole_duration(link.delay_ns)}
        lines.append(f"  - {yaml_mapping({**ends, **figures})}")
    return "\n".join([*lines, ""])


def _switch(testbed: Testbed, spec: SwitchSpec) -> str:
    """Return the line of a shared buffer, with all of its optional settings."""
    names = [klass.name for klass in testbed.classes]
    alpha: object = dict(zip(names, spec.alpha, strict=True)) if names else spec.alpha[0]
    fields = {
        "buffer": f"{spec.buffer_bytes}B",
        "alpha": alpha,
        "pfc": [klass if names else spec.priorities[klass] for klass in spec.lossless],
        "headroom": f"{spec.headroom_bytes}B" if spec.headroom_bytes else "auto",
        "xoff": f"{spec.xoff_bytes}B",
        "xon_offset": f"{spec.xon_offset_bytes}B",
        "quanta": spec.quanta,
        "watchdog": {
            "detect": whole_duration(spec.detect_ns),
            "restore": whole_duration(spec.restore_ns),
            "action": spec.action,
        },
    }
    return f"switch: {json.dumps(fields)}"
