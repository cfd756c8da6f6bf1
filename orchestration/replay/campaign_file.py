"""Write a replay as a campaign file, with recorded settings, flows and actions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inventory.strictyaml import parse
from orchestration.campaign.controls import written
from orchestration.core.capabilities import capabilities
from orchestration.core.congestion import CONTROLS
from orchestration.core.errors import InputError, unreadable
from orchestration.core.load_balancing import ECMP, LoadBalancingSpec
from orchestration.core.roce import (
    BDP_WINDOW,
    DCQCN_SETS,
    FORMER_HPCC,
    RATE_PARAMETERS,
    RoceSpec,
    is_former_hpcc,
)
from orchestration.core.trial import LINUX, ClockName, FabricSpec, FaultSpec, HostSpec
from orchestration.core.units import whole_duration
from tuners.registry import RECORDED

_OPTION = "--tuner"


@dataclass(frozen=True)
class ReplayCampaign:
    """The content of the campaign file; `times_ns` are settings in ns such as `drain`.

    `patterns` and `parent_trials` are the fields of each entry of `traffic` and `parent.trials`.
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


def campaign_text(campaign: ReplayCampaign, testbed_file: str) -> str:
    """Return the campaign file's text."""
    return "\n".join([*_lines(campaign, testbed_file), ""])


def _lines(campaign: ReplayCampaign, testbed_file: str) -> Iterator[str]:
    yield "# Written by closloop replay; docs/replay.md says what is in it."
    yield f"campaign: {campaign.name}"
    yield f"testbed: {testbed_file}"
    yield f"backend: {campaign.backend}"
    if campaign.clock:
        yield f"clock: {campaign.clock}"
    yield "tuners:"
    for tuner in campaign.tuners:
        yield f"  - {mapping(tuner.fields)}"
    yield "traffic:"
    for pattern in campaign.patterns:
        yield f"  - {mapping(pattern)}"
    yield f"repeats: {campaign.repeats}"
    yield f"duration: {whole_duration(campaign.duration_ns)}"
    for key, value in campaign.times_ns.items():
        yield f"{key}: {whole_duration(value)}"
    modes = capabilities(campaign.backend).modes
    control = (campaign.host or HostSpec()).congestion_control
    several = sum(control in mode.controls for mode in modes) > 1
    if several or campaign.fabric != LINUX:
        yield f"fabric: {mapping(vars(campaign.fabric))}"
    if campaign.load_balancing != ECMP:
        yield f"load_balancing: {mapping(_load_balancing(campaign.load_balancing))}"
    if campaign.host is not None:
        settings: dict[str, Any] = {"min_rto": whole_duration(campaign.host.min_rto_ns)}
        if campaign.host.loss_detection != HostSpec().loss_detection:
            settings["loss_detection"] = campaign.host.loss_detection
        # the default is left out: it would be refused where traffic classes have their own
        if campaign.host.congestion_control != HostSpec().congestion_control:
            settings["congestion_control"] = campaign.host.congestion_control
        if campaign.host.roce is not None and campaign.host.roce.program:
            numbers = [value for _, value in campaign.host.roce.values]
            own = {"program": campaign.host.roce.program, "parameters": numbers}
            settings["congestion_control"] = own
        if campaign.host.roce is not None:
            settings["roce"] = _roce(campaign.host.roce)
        yield f"host: {mapping(settings)}"
    if campaign.faults:
        yield "faults:"
    for fault in campaign.faults:
        yield f"  - {mapping(_fault(fault))}"
    yield "parent:"
    yield f"  run: {quoted(campaign.parent_run)}"
    if campaign.parent_sha256:
        yield f"  sha256: {quoted(campaign.parent_sha256)}"
    if campaign.parent_trials:
        yield "  trials:"
    for item in campaign.parent_trials:
        yield f"    - {mapping(item)}"


def _load_balancing(spec: LoadBalancingSpec) -> dict[str, Any]:
    common: dict[str, Any] = {"kind": spec.kind, "route_by": spec.route_by}
    # what a setting does not use, a campaign file may not have
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
    given, known = roce.parameters, CONTROLS.get(roce.control, {})
    own = {name: written(known[name], value) for name, value in roce.values if name in known}
    # a set that goes by the NICs' rate would say something else for NICs of another one
    sets = [name for name in DCQCN_SETS if name not in RATE_PARAMETERS]
    if not is_former_hpcc(given):
        sets.remove(FORMER_HPCC)
    nearest = min(sets, key=lambda name: len(_others(given, name)))
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
        "dcqcn": {"set": nearest, **{name: given[name] for name in _others(given, nearest)}},
    }


def _others(given: Mapping[str, int], name: str) -> list[str]:
    """Return the parameters that differ from those of a set."""
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


def other_tuners(wanted: Sequence[str]) -> tuple[TunerEntry, ...]:
    """Return the entries of the wanted tuners except the recording.

    Each is a name, or a mapping such as `{name: static, kmin_bytes: 5KB, kmax_bytes: 50KB}`.
    Raises InputError for text that is neither.
    """
    entries = []
    for text in wanted:
        if text == RECORDED:
            continue
        fields: dict[str, Any] = {"name": text}
        if text.lstrip().startswith("{"):
            fields = parse(text, _OPTION).data
        name = fields.get("name")
        if not isinstance(name, str) or not name or name == RECORDED:
            raise InputError.single(
                _OPTION,
                f"{text!r} names no tuner",
                "like amt, or '{name: static, kmin_bytes: 5KB, kmax_bytes: 50KB}'; "
                f"{RECORDED} alone repeats the recorded actions",
            )
        entries.append(TunerEntry(fields, str(fields.get("label") or name)))
    return tuple(entries)


def recorded_tuner(label: str, files: Mapping[str, str], taken: Sequence[str]) -> TunerEntry:
    """Return an entry that repeats a tuner's actions, under its own label unless that is taken.

    `files` are the recordings by the tables of their knobs.
    """
    called = f"{RECORDED}-{label}" if label in taken else label
    return TunerEntry({"name": RECORDED, "label": called, **files}, called)


def with_checkpoint(entry: TunerEntry, folder: Path) -> TunerEntry:
    """Return the entry with its checkpoint copied into `folder`, if it names a user's file.

    Raises InputError if that cannot be read.
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


def quoted(text: str) -> str:
    """Return text as a double-quoted YAML scalar."""
    return json.dumps(text, ensure_ascii=False)


def mapping(values: Mapping[str, object]) -> str:
    """Return a mapping of strings, numbers and lists on one line: `{name: "secn1", weight: 70}`."""
    pairs = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return "{" + ", ".join(pairs) + "}"
