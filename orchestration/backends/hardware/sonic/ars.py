"""Adaptive routing on a rack's SONiC switches: which ports take part, and whether a trial has it.

The rows themselves are made on the switch, where its own schema is (`device/agent/ars.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inventory.rack import Rack
from inventory.routing import next_hops
from orchestration.device.fleet import Fleet
from orchestration.model.errors import NotReadyError
from orchestration.model.knobs import FLOWLET_TIMEOUT
from orchestration.model.load_balancing import QUALITY, LoadBalancingSpec
from orchestration.model.ports import Tuner
from orchestration.model.units import format_duration

_SET = "closloop_flowlet_idle_time"


def choices(rack: Rack) -> dict[str, list[str]]:
    """Return the interfaces among which each switch has a choice towards some hosts, in order."""
    hops, found = next_hops(rack.testbed), {}
    for name in rack.testbed.switches:
        several = {port.index for ports in hops[name].values() if len(ports) > 1 for port in ports}
        ports = rack.testbed.ports_of[name]
        found[name] = [rack.interface(port) for port in ports if port.index in several]
    return found


def balanced_interfaces(rack: Rack) -> dict[str, list[str]]:
    """Return the interfaces that adaptive routing chooses among, by switch, where it is asked for.

    Switches without a choice are left out.
    """
    asked = [name for name in rack.testbed.switches if rack.access[name].flowlet_idle_ns]
    if not asked:
        return {}
    ways = choices(rack)
    return {name: ways[name] for name in asked if ways[name]}


def check_configured(rack: Rack, specs: Iterable[LoadBalancingSpec]) -> None:
    """Raise NotReadyError, naming each switch, unless the inventory has what trials ask for.

    A trial that asks for `quality` needs SONiC switches that are provisioned with its timeouts, and
    one that does not needs switches without adaptive routing.
    """
    problems = [text for spec in dict.fromkeys(specs) for text in _differences(rack, spec)]
    if problems:
        raise NotReadyError(
            "the switches do not choose paths as the campaign says:\n  " + "\n  ".join(problems),
            f"give the campaign and {_SET} in the inventory one time, and run `closloop provision`",
        )


def check_knobs(rack: Rack, tuners: Mapping[str, Tuner]) -> None:
    """Raise NotReadyError, naming each switch, if a tuner turns timeouts that SONiC switches have.

    Provisioning sets them. Whether an object takes another one later is a capability of its ASIC,
    and how soon flows follow nobody says.
    """
    turning = [called for called, tuner in tuners.items() if FLOWLET_TIMEOUT.name in tuner.knobs]
    fixed = [
        name
        for name, ways in (choices(rack) if turning else {}).items()
        if ways and rack.access[name].platform == "sonic"
    ]
    if fixed:
        raise NotReadyError(
            f"tuner {turning[0]} turns the flowlet timeout of {', '.join(fixed)}, which SONiC "
            f"has from provisioning ({_SET}) and no trial changes",
            "run a tuner that leaves timeouts alone, or one on Linux switches",
        )


def _differences(rack: Rack, spec: LoadBalancingSpec) -> Iterator[str]:
    by_quality = spec.kind == "flowlets" and spec.route_by == QUALITY
    for name, ways in choices(rack).items():
        access = rack.access[name]
        if not ways:
            continue
        if access.platform != "sonic":
            if by_quality:
                yield (
                    f"{name} is no SONiC switch: `route_by: {QUALITY}` is SONiC's adaptive routing"
                )
            continue
        has_ns = access.flowlet_idle_ns
        if not by_quality:
            if spec.kind != "ecmp":
                yield (
                    f"{name} runs SONiC, which chooses by the ports' load: use `kind: flowlets` "
                    f"with `route_by: {QUALITY}`, not {spec.kind} by {spec.route_by}"
                )
            elif has_ns:
                yield f"{name} has {_SET} {format_duration(has_ns, 6)}, the campaign ecmp"
            continue
        wants_ns = spec.timeout_ns(rack.testbed.device[name].tier)
        if not has_ns:
            yield f"{name} has no {_SET}, the campaign a timeout of {format_duration(wants_ns, 6)}"
        elif has_ns != wants_ns:
            yield (
                f"{name} has {_SET} {format_duration(has_ns, 6)}, the campaign a timeout of "
                f"{format_duration(wants_ns, 6)}"
            )


def check_in_effect(rack: Rack, fleet: Fleet) -> dict[str, Any]:
    """Raise NotReadyError, naming each SONiC switch whose ASIC is not as the inventory says.

    Returns what each switch with adaptive routing has, as `device.agent.ars.state` does. Raises
    DeviceError.
    """
    ports = {
        name: ways
        for name, ways in choices(rack).items()
        if ways and rack.access[name].platform == "sonic"
    }
    asked = {name: {"ports": ways} for name, ways in ports.items()}
    answers = fleet.ask("sonic.adaptive", asked) if asked else {}
    problems = []
    for name, found in answers.items():
        idle_us = rack.access[name].flowlet_idle_ns // 1000
        problems += [f"{name}: {what}" for what in _lacks(idle_us, found, len(ports[name]))]
    if problems:
        raise NotReadyError(
            "adaptive routing is not as the inventory says:\n  " + "\n  ".join(problems),
            "run `closloop provision`, and then have the routes installed again: restart the "
            "switch's routing daemon (`systemctl restart bgp`)",
        )
    return {name: found for name, found in answers.items() if rack.access[name].flowlet_idle_ns}


def _lacks(idle_us: int, found: Mapping[str, Any], ports: int) -> Iterator[str]:
    """Yield what is amiss with a switch whose idle time should be `idle_us`, 0 for none."""
    groups, bound = found["groups"], found["bound"].get(str(idle_us), 0)
    if not idle_us:
        if some := sum(found["bound"].values()):
            yield f"{some} of {groups} groups of next hops choose by flowlets, and none should"
    elif idle_us not in found["idle_us"]:
        yield f"its ASIC has no flowlets with an idle time of {idle_us} us"
    elif not groups:
        yield f"its ASIC has no group of next hops by {ports} ports that take part"
    elif bound < groups:
        yield f"{groups - bound} of {groups} groups of next hops choose by the flow"
