"""Writes a rack, or a skeleton to be edited, as a YAML inventory that `inventory.ansible` reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from inventory.addressing import DEFAULT_PREFIX
from inventory.ansible_links import ListedLinks, link_specs
from inventory.ansible_schema import ACCESS, COLLECTOR, GROUPS, LinkVariable
from inventory.files import known_testbeds, load_testbed
from inventory.rack import Access, Rack, Safety
from inventory.strictyaml import Document
from inventory.yamltree import flow
from orchestration.core.errors import InputError
from orchestration.core.topology import ETHERNET_FRAMING_BYTES, Testbed
from orchestration.core.units import format_duration, format_rate, format_size

# Enough digits for any whole number of the base unit.
_DIGITS = 12
# Variables that are written once if all devices share them.
_SHARED = (
    "ansible_user",
    "ansible_port",
    "ansible_ssh_private_key_file",
    "ansible_become",
    "closloop_shape",
    "closloop_lacks",
)


# Networks reserved for documentation, which no device has (RFC 5737).
_EXAMPLES = tuple(map(ip_network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")))
_PER_NETWORK = 254

_HEAD = """\
An Ansible inventory of a rack wired as testbed {name}. Before you use it:
  1. Replace every ansible_host: 192.0.2.x, 198.51.100.x and 203.0.113.x are placeholders.
  2. Replace the names of interfaces, eth0 and so on, by those of the devices' operating systems,
     at both ends of each link. Keep the order of each device's links: it is the testbed's.
  3. Say who logs in (ansible_user) and with which key. Do not write passwords here: --ask-pass and
     --ask-become-pass ask for them. Host keys must be known: ssh to each device once.
  4. closloop inventory check FILE
All variables: docs/inventory.md. Any other variable is left to your own playbooks."""

_COMMENTS = {
    "closloop_testbed": "A testbed of `closloop inventory list`, or the path of a testbed file.",
    "ansible_user": """\
For all devices; a device or group may have its own. With sudo instead of root:
  ansible_user: admin
  ansible_become: true
  ansible_ssh_private_key_file: ~/.ssh/rack""",
    "hosts": """\
Hosts with RoCE NICs, which must have RDMA devices (`rdma link`), also say:
  closloop_nic: roce
  closloop_rdma_device: mlx5_0     # with several NICs, `rdma_device` at each link instead""",
    "leaves": """\
Switches. One that runs SONiC also says:
  closloop_platform: sonic
  closloop_queues: [3]     # the queue of each traffic class
One whose links have no rate of their own (virtual ones) is shaped with closloop_shape: true.""",
    COLLECTOR: "The machine for InfluxDB and Grafana. Remove the group if there is none.",
}


def write_rack(rack: Rack, path: Path, testbed: str = "") -> None:
    """Write a rack's inventory, from which `load_rack` returns an equal rack.

    `testbed` names the rack's testbed as `closloop_testbed` does: a path is relative to the
    inventory's folder. Without it, a testbed of the package is named, and any other one is written
    as its links. Raises InputError if the links alone do not define the same testbed.
    """
    Path(path).write_text(inventory_text(rack, testbed), encoding="utf-8")


def inventory_text(rack: Rack, testbed: str = "", comments: Mapping[str, str] | None = None) -> str:
    """Return a rack's inventory; see `write_rack`.

    `comments` are written above the variable or group of that name, the one for "" at the top.
    """
    comments_by_name = comments or {}
    named, own = testbed, rack.testbed
    if not named and own.name in known_testbeds() and load_testbed(own.name) == own:
        named = own.name
    if not named:
        _check_links(rack)
    shared = _shared(rack.access.values())
    lines = [*_comment(comments_by_name, "", 0), "all:", "  vars:"]
    for name, value in {**_rack_variables(rack, named), **shared}.items():
        lines += [*_comment(comments_by_name, name, 4), f"    {name}: {flow(value)}"]
    lines.append("  children:")
    for tier, group in enumerate(GROUPS):
        members = [device.name for device in rack.testbed.devices if device.tier == tier]
        if members:
            lines += [*_comment(comments_by_name, group, 4), f"    {group}:", "      hosts:"]
        for name in members:
            lines += _device_lines(rack.access[name], shared, [*_links(rack, name)])
    if rack.collector is not None:
        name = rack.collector.device
        lines += [*_comment(comments_by_name, COLLECTOR, 4), f"    {COLLECTOR}:", "      hosts:"]
        if name in rack.access:
            lines.append(f"        {name}:")
        else:
            lines += _device_lines(rack.collector, shared, [])
    return "\n".join(lines) + "\n"


def _comment(comments: Mapping[str, str], name: str, indent: int) -> list[str]:
    return [f"{' ' * indent}# {line}".rstrip() for line in comments.get(name, "").splitlines()]


def _rack_variables(rack: Rack, named: str) -> dict[str, Any]:
    testbed = rack.testbed
    own_framing = testbed.framing_bytes != ETHERNET_FRAMING_BYTES
    own_prefix = rack.fabric_prefix != DEFAULT_PREFIX
    fabric: dict[str, Any] = {
        "closloop_description": testbed.description,
        "closloop_source": testbed.source,
        "closloop_mtu": f"{testbed.mtu_bytes}B",
        "closloop_buffer": format_size(_buffer_bytes(testbed), _DIGITS),
        "closloop_framing": f"{testbed.framing_bytes}B" if own_framing else "",
        "closloop_classes": [
            {name: value for name, value in dataclasses.asdict(item).items() if value}
            for item in testbed.classes
        ],
    }
    result = {
        "closloop_name": rack.name,
        **({"closloop_testbed": named} if named else fabric),
        "closloop_fabric_prefix": rack.fabric_prefix if own_prefix else "",
        "closloop_known_hosts": rack.known_hosts_file,
        "closloop_scale": rack.scale if rack.scale != 1 else 0,
        "closloop_safety": _safety(rack.safety) if rack.safety != Safety() else {},
    }
    return {name: value for name, value in result.items() if value}


def _safety(safety: Safety) -> dict[str, Any]:
    guardrails = dataclasses.asdict(safety.guardrails)
    return {
        "deadman": _seconds(safety.deadman_s),
        "lease": _seconds(safety.lease_s),
        "min_change_interval": format_duration(safety.min_change_interval_ns, _DIGITS),
        "corridor": {"window": _seconds(guardrails.pop("window_s")), **guardrails},
    }


def _seconds(value: float) -> str:
    return format_duration(round(value * 1e9), _DIGITS)


def _variables(access: Access) -> dict[str, Any]:
    """Return a device's variables except its address and links."""
    settings = {variable: getattr(access, field) for variable, field in ACCESS.items()}
    interval = format_duration(access.telemetry_ns, _DIGITS) if access.telemetry_ns else 0
    rdma = set(access.rdma_devices)
    return {
        **settings,
        "closloop_queues": list(access.queues),
        "closloop_telemetry": interval,
        "closloop_lacks": list(access.lacks),
        "closloop_rdma_device": rdma.pop() if len(rdma) == 1 else "",
    }


# Defaults, which are not written; `ansible_user` always is.
_DEFAULTS = {**_variables(Access("", "")), "ansible_user": ""}


def _shared(accesses: Collection[Access]) -> dict[str, Any]:
    """Return the variables that are the same on all of the fabric's devices."""
    shared = {}
    for name in _SHARED:
        first, *others = (_variables(access)[name] for access in accesses)
        if others.count(first) == len(others) and first != _DEFAULTS[name]:
            shared[name] = first
    return shared


def _links(rack: Rack, name: str) -> Iterator[dict[str, Any]]:
    access = rack.access[name]
    several = len(set(access.rdma_devices)) > 1
    for link in _listed_links(rack, name):
        device = access.rdma_device(link.interface) if several else ""
        yield {
            **link.model_dump(exclude={"rdma_device"}),
            "rate": format_rate(link.rate or 0, _DIGITS),
            "delay": format_duration(link.delay or 0, _DIGITS),
            **({"rdma_device": device} if device else {}),
        }


def _device_lines(
    access: Access, shared: Mapping[str, Any], links: Sequence[Mapping[str, Any]]
) -> list[str]:
    lines = [f"        {access.device}:", f"          ansible_host: {flow(access.address)}"]
    for name, value in _variables(access).items():
        if value != shared.get(name, _DEFAULTS[name]):
            lines.append(f"          {name}: {flow(value)}")
    if links:
        lines.append("          closloop_links:")
        lines += [f"            - {flow(link)}" for link in links]
    return lines


def _buffer_bytes(testbed: Testbed) -> int:
    return next(port.buffer_bytes for port in testbed.switch_ports)


def _check_links(rack: Rack) -> None:
    """Raise InputError unless the links alone define the rack's testbed."""
    testbed = rack.testbed
    nowhere = Document("", {}, {(): 0})
    devices = sorted(testbed.devices, key=lambda device: device.tier)
    listed = {
        device.name: ListedLinks(
            device.name, device.tier, tuple(_listed_links(rack, device.name)), nowhere
        )
        for device in devices
    }
    rebuilt = Testbed.build(
        rack.name,
        devices,
        link_specs(listed)[0],
        mtu_bytes=testbed.mtu_bytes,
        buffer_bytes=_buffer_bytes(testbed),
        framing_bytes=testbed.framing_bytes,
        description=testbed.description,
        source=testbed.source,
        classes=testbed.classes,
    )
    if rebuilt != testbed:
        raise InputError.single(
            f"testbed {testbed.name}",
            "an inventory alone cannot express its name or the order of its links",
            "write it to a file, and name that with closloop_testbed",
        )


def _listed_links(rack: Rack, name: str) -> Iterable[LinkVariable]:
    for port in rack.testbed.ports_of[name]:
        far = rack.testbed.ports[port.peer]
        yield LinkVariable.model_construct(
            interface=rack.interface(port),
            peer=far.device,
            peer_interface=rack.interface(far),
            rate=port.rate_bps,
            delay=port.delay_ns,
        )


def skeleton(testbed: Testbed, named: str = "") -> str:
    """Return an inventory for `testbed` with placeholder addresses, to be edited.

    `named` is written as its closloop_testbed.
    """
    access = {}
    for number, device in enumerate(testbed.devices):
        ports = testbed.ports_of[device.name]
        access[device.name] = Access(
            device.name, _example(number), interfaces=tuple(port.name for port in ports)
        )
    collector = Access("collector1", _example(len(access)))
    lowest = next((GROUPS[d.tier] for d in testbed.devices if d.kind == "switch"), "leaves")
    own = {"": _HEAD.format(name=testbed.name), lowest: _COMMENTS["leaves"]}
    comments = {**_COMMENTS, **own}
    return inventory_text(Rack(testbed.name, testbed, access, collector), named, comments)


def is_example(address: str) -> bool:
    """Return whether an address is one of a skeleton's placeholders."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in _EXAMPLES)


def _example(number: int) -> str:
    network = _EXAMPLES[number // _PER_NETWORK % len(_EXAMPLES)]
    return str(network[number % _PER_NETWORK + 1])
