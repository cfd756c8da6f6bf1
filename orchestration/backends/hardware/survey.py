"""Asks all devices of a rack for their facts in parallel, and checks these answers strictly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inventory.cabling import (
    DeviceFacts,
    Finding,
    InterfaceState,
    Neighbour,
    Reach,
    check_rack,
    fabric_addresses,
)
from inventory.rack import Access, Rack
from orchestration.device.client import AgentClient, in_parallel
from orchestration.device.errors import DeviceError, DeviceGone, LoginRefused, printable, unreadable
from orchestration.device.ssh import Secrets

_SURVEY_TIMEOUT_S = 60.0
_MAX_ITEMS = 4096


def survey_rack(
    rack: Rack,
    secrets: Secrets | None = None,
    on_done: Callable[[str], None] = lambda device: None,
) -> dict[str, DeviceFacts | DeviceError]:
    """Return the facts of every device of a rack, or the error of the device.

    `on_done` is called with each device's name when that device is done.
    """
    addresses = fabric_addresses(rack)

    def survey(access: Access) -> DeviceFacts:
        try:
            return survey_device(access, rack.known_hosts_file, secrets, addresses)
        finally:
            on_done(access.device)

    return in_parallel(rack.access.values(), survey)


def survey_device(
    access: Access,
    known_hosts_file: str = "",
    secrets: Secrets | None = None,
    addresses: Mapping[str, Sequence[str]] | None = None,
) -> DeviceFacts:
    """Log in to a device and return its facts. Raises DeviceError.

    `addresses` has the addresses of the fabric's hosts: such a host pings those of all others.
    """
    own = (addresses or {}).get(access.device, ())
    agent = AgentClient(access, known_hosts_file, ["survey", "reach"], secrets)
    try:
        facts = agent.call("survey", _SURVEY_TIMEOUT_S, interfaces=list(access.interfaces))
        if addresses and own:
            others = [a for host in addresses if host != access.device for a in addresses[host]]
            facts["reach"] = agent.call("reach", own=list(own), others=others)
    finally:
        agent.close()
    return checked_facts(access.device, facts)


def judge_rack(rack: Rack, answers: Mapping[str, DeviceFacts | DeviceError]) -> list[Finding]:
    """Return what is wrong or unproven about a rack.

    `answers` has the facts or the error of each device. Devices with errors come first.
    """
    errors = {name: item for name, item in answers.items() if isinstance(item, DeviceError)}
    facts = {name: item for name, item in answers.items() if isinstance(item, DeviceFacts)}
    return [_failure(name, error) for name, error in errors.items()] + check_rack(rack, facts)


def _failure(device: str, error: DeviceError) -> Finding:
    check = "tools"
    if isinstance(error, DeviceGone):
        check = "reachable"
    elif isinstance(error, LoginRefused):
        check = "login"
    elif "sudo" in error.what:
        check = "rights"
    return Finding.of(check, "wrong", error.alone.relocated(device))


def checked_facts(device: str, facts: Any) -> DeviceFacts:
    """Check a device's answer and return its facts. Raises DeviceError if it is malformed."""
    try:
        system = {key: _scalar(value) for key, value in _dict(facts["system"]).items()}
        clock = {f"clock_{key}": _int(value) for key, value in _dict(facts["clock"]).items()}
        lldp, rights = _dict(facts["lldp"]), _dict(facts["rights"])
        return DeviceFacts(
            device=device,
            hostname=_word(system["hostname"]),
            interfaces={
                _word(name): _interface(_dict(state))
                for name, state in _dict(facts["interfaces"]).items()
            },
            macs=_words(facts["macs"]),
            neighbours=_neighbours(lldp),
            lldp_problem=_word(lldp["problem"]),
            programs=_words(facts["programs"]),
            rdma_devices=tuple(map(_word, _list(facts["rdma_devices"]))),
            is_root=rights["uid"] == 0,
            may_change_qdiscs=rights["qdisc"] is True,
            system={**system, **clock, "debugfs": rights["debugfs"] is True},
            reach=_reach(facts["reach"]) if "reach" in facts else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(device, "its survey", error) from error


def _interface(state: Mapping[str, Any]) -> InterfaceState:
    if state["exists"] is not True:
        return InterfaceState(False)
    offloads = state["offloads"]
    return InterfaceState(
        True,
        operstate=_word(state["operstate"]),
        speed_bps=_int(state["speed_bps"]),
        mtu_bytes=_int(state["mtu_bytes"]),
        mac=_word(state["mac"]),
        driver=_word(state["driver"]),
        offloads=None if offloads is None else tuple(map(_word, _list(offloads))),
    )


def _reach(answer: Mapping[str, Any]) -> Reach:
    return Reach(
        tuple(map(_word, _list(answer["own"]))),
        tuple((_word(a), _word(b), _word(why)) for a, b, why in _list(answer["unreached"])),
        _word(answer["problem"]),
    )


def _neighbours(lldp: Mapping[str, Any]) -> tuple[Neighbour, ...] | None:
    if lldp["source"] == "lldpctl":
        return neighbours_of_lldpctl(str(lldp["text"]))
    if lldp["source"] == "redis":
        return tuple(
            Neighbour(
                _word(interface),
                system=_word(row[0]),
                chassis=_word(row[1]),
                port_type="mac" if re.fullmatch(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", row[2]) else "",
                port=_word(row[2]),
                description=_word(row[3]),
            )
            for interface, row in _dict(lldp["rows"]).items()
        )
    return None


def neighbours_of_lldpctl(text: str) -> tuple[Neighbour, ...]:
    """Return the neighbours in the output of `lldpctl -f json`. Raises ValueError or TypeError.

    lldpd 1.0 prints a list if there are several objects of a kind, the object itself if there is
    one, and nothing if there is none. For a neighbour without a name, the level with the name is
    left out. Names are printed as they were announced, even with characters that JSON does not
    allow in a string.
    """
    data = _dict(json.loads(text, strict=False))
    neighbours = []
    for item in _as_list(_dict(data["lldp"]).get("interface")):
        for interface, entries in _dict(item).items():
            neighbours += [_neighbour(interface, _dict(entry)) for entry in _as_list(entries)]
    return tuple(neighbours)


def _neighbour(interface: str, entry: Mapping[str, Any]) -> Neighbour:
    chassis = _dict(entry.get("chassis", {}))
    system = ""
    if "id" not in chassis and len(chassis) == 1:
        ((system, chassis),) = chassis.items()
        chassis = _dict(chassis)
    port = _dict(entry.get("port", {}))
    port_id = _dict(port.get("id", {}))
    return Neighbour(
        interface=_word(interface),
        system=_word(system),
        chassis=_word(_dict(chassis.get("id", {})).get("value", "")),
        port_type=_word(port_id.get("type", "")),
        port=_word(port_id.get("value", "")),
        description=_word(port.get("descr", "")),
    )


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _scalar(value: Any) -> str | int | float | bool:
    return value if isinstance(value, (bool, int, float)) else _word(value)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return printable(value)


def _words(value: Any) -> dict[str, str]:
    return {_word(key): _word(item) for key, item in _dict(value).items()}


def _int(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > _MAX_ITEMS:
        raise TypeError("a table is not a table, or too long")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MAX_ITEMS:
        raise TypeError("a list is not a list, or too long")
    return value
