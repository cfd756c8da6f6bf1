"""Write the recorded testbed as a testbed file, link by link, with changed rates if requested."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inventory.files import load_testbed
from inventory.strictyaml import suggest
from inventory.testbed_json import testbed_to_json
from orchestration.core.errors import InputError
from orchestration.core.problems import of_value
from orchestration.core.switch import SwitchSpec
from orchestration.core.topology import Link, Port, Testbed
from orchestration.core.units import UnitError, parse_rate_bps, whole_duration, whole_rate
from orchestration.replay.campaign_file import mapping, quoted

_REMEDY = "name a testbed file of your own with --testbed"


def with_rates(testbed: Testbed, scale: float, changed: Mapping[str, int]) -> Testbed:
    """Return the testbed with every rate multiplied by `scale` and the rates of `changed` set.

    `changed` maps names of links such as `leaf1-spine2` to rates in bit/s. A testbed with changed
    rates gets another name. Raises InputError for an unknown link, and for rates below 1 bit/s.
    """
    if not (math.isfinite(scale) and scale > 0):
        what = f"{scale:g} is no factor for rates"
        raise InputError.single("--scale-rates", what, "use more than 0: 0.5 halves them")
    unknown = [name for name in changed if name not in testbed.links_by_name]
    if unknown:
        known = testbed.links_by_name
        remedy = suggest(unknown[0], known) or f"its first is {next(iter(known), 'none')}: "
        raise InputError.single(
            "--rate",
            f"testbed {testbed.name} has no link {unknown[0]!r}",
            f"{remedy}a link is named by its two devices",
        )
    rates = [round(link.rate_bps * scale) for link in testbed.links]
    for name, rate_bps in changed.items():
        for index in testbed.links_by_name[name]:
            rates[index] = rate_bps
    if min(rates, default=1) < 1:
        raise InputError.single(
            "--scale-rates", f"{scale:g} leaves a link without a rate", "use a larger factor"
        )
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
        raise InputError.single("--rate", f"{text!r} is no link's rate", "like leaf1-spine2=50G")
    return name, rate_bps


def write_testbed(path: Path, testbed: Testbed) -> None:
    """Write the testbed as a file from which `load_testbed` reads an equal one.

    Raises InputError if a testbed file cannot describe this one: it has ports with names of their
    own, or buffers that differ between ports.
    """
    path.write_text(_text(testbed), encoding="utf-8")
    try:
        again = load_testbed(str(path))
    except InputError as error:
        what = f"testbed {testbed.name} cannot be a testbed file: {error.problems[0].what}"
        raise InputError.single("testbed.json", what, _REMEDY) from error
    before, after = _said(testbed), _said(again)
    different = [key for key in before if before[key] != after.get(key)]
    if different:
        what = f"testbed {testbed.name} cannot be a testbed file: its {different[0]} would differ"
        raise InputError.single("testbed.json", what, _REMEDY)


def _said(testbed: Testbed) -> dict[str, Any]:
    """Return the content of a testbed. Hosts and switches may be mixed or listed separately."""
    tiers = {device.name: device.tier for device in testbed.devices}
    return {**testbed_to_json(testbed), "devices": (testbed.hosts, testbed.switches, tiers)}


def _text(testbed: Testbed) -> str:
    tiers = {device.name: device.tier for device in testbed.devices}
    buffer_bytes = max((port.buffer_bytes for port in testbed.switch_ports), default=0)
    lines = [
        "# Written by closloop replay, from the testbed.json of a trial.",
        "kind: custom",
        f"name: {quoted(testbed.name)}",
        f"source: {quoted(testbed.source)}",
        f"mtu: {testbed.mtu_bytes}B",
        f"framing: {testbed.framing_bytes}B",
        _switch(testbed, testbed.switch) if testbed.switch else f"buffer: {buffer_bytes}B",
    ]
    if testbed.classes:
        lines.append("classes:")
    for klass in testbed.classes:
        own = {"congestion_control": klass.congestion_control} if klass.congestion_control else {}
        lines.append(f"  - {mapping({'name': klass.name, 'weight': klass.weight, **own})}")
    lines += [f"hosts: {json.dumps(testbed.hosts)}", "switches:"]
    lines += [f"  - {mapping({'name': name, 'tier': tiers[name]})}" for name in testbed.switches]
    lines += ["links:", *(f"  - {_link(link, testbed.ports)}" for link in testbed.links)]
    return "\n".join([*lines, ""])


def _switch(testbed: Testbed, spec: SwitchSpec) -> str:
    """Return the line of a shared buffer; all that a file may leave out is said."""
    names = [klass.name for klass in testbed.classes]
    alpha: object = dict(zip(names, spec.alpha, strict=True)) if names else spec.alpha[0]
    said = {
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
    return f"switch: {json.dumps(said)}"


def _link(link: Link, ports: tuple[Port, ...]) -> str:
    ends = {"a": ports[link.a].device, "b": ports[link.b].device}
    figures = {"rate": whole_rate(link.rate_bps), "delay": whole_duration(link.delay_ns)}
    return mapping({**ends, **figures})
