"""Checks a rack against what its devices report about themselves. Pure.

A cable is proven by LLDP at both ends: at each interface, a device must receive the announcement of
the interface that the inventory lists as its peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inventory.rack import Access, Rack
from orchestration.core.problems import Code, Problem
from orchestration.core.topology import Port
from orchestration.core.units import format_rate

Severity = Literal["wrong", "unproven"]
_MAX_NAMED = 12
_PING_REMEDY = (
    "see the routes of both and of the switches in between (`closloop provision` sets them), and "
    "whether a firewall drops pings"
)


@dataclass(frozen=True)
class Reach:
    """Which other hosts a host reaches over the fabric.

    `own` are those of its fabric addresses that are set on it. `unreached` has tuples of an own
    address, another host's address that did not answer from there, and the reason. `problem` says
    why pings were not sent at all.
    """

    own: tuple[str, ...] = ()
    unreached: tuple[tuple[str, str, str], ...] = ()
    problem: str = ""


def fabric_addresses(rack: Rack) -> dict[str, list[str]]:
    """Return every host's addresses in the fabric, by host."""
    of_port = rack.addresses.nics
    return {
        host: [of_port[port.index] for port in rack.testbed.ports_of[host]]
        for host in rack.testbed.hosts
    }


def is_provisioned(reached: Iterable[Reach | None]) -> bool:
    """Return whether any host has a fabric address, which `closloop provision` sets."""
    return any(reach is not None and reach.own for reach in reached)


# In the order in which checks are made and shown: after a failed one, later ones may be unknown.
CHECKS = ("reachable", "login", "cabling", "rates", "MTU", "tools", "rights", "fabric")

# Programs that a device needs, and their Debian packages.
_PACKAGES = {**dict.fromkeys(("tc", "ip", "rdma"), "iproute2"), "ib_write_bw": "perftest"}
_NO_MAC = "00:00:00:00:00:00"
# A veth has no rate; the one that its driver reports means nothing.
_DRIVERS_WITHOUT_RATE = frozenset(("veth",))
_LLDP_REMEDY = "install and start lldpd there (apt-get install lldpd), and allow LLDP on the port"


@dataclass(frozen=True)
class Neighbour:
    """A neighbour at an interface, as it announces itself over LLDP.

    `port` identifies the neighbour's port; `port_type` says by what (ifname, mac, local, ifalias,
    …). `description` is the port's description.
    """

    interface: str
    system: str = ""
    chassis: str = ""
    port_type: str = ""
    port: str = ""
    description: str = ""


@dataclass(frozen=True)
class InterfaceState:
    """One interface's state.

    `speed_bps` and `mtu_bytes` are -1, and `offloads` is None, if the device does not report them.
    """

    exists: bool
    operstate: str = ""
    speed_bps: int = -1
    mtu_bytes: int = -1
    mac: str = ""
    driver: str = ""
    offloads: tuple[str, ...] | None = None


@dataclass(frozen=True)
class DeviceFacts:
    """What one device reports about itself.

    `neighbours` is None if LLDP cannot be read; `lldp_problem` then says why. `macs` has MAC
    addresses by interface. `programs` has versions by name, "" if unknown. `reach` is None for a
    switch, and empty for a host without fabric addresses. `system` is shown and recorded; only what
    makes a device unfit is checked in it.
    """

    device: str
    hostname: str
    interfaces: Mapping[str, InterfaceState]
    macs: Mapping[str, str] = field(default_factory=dict)
    neighbours: tuple[Neighbour, ...] | None = None
    lldp_problem: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    rdma_devices: tuple[str, ...] = ()
    is_root: bool = False
    may_change_qdiscs: bool = False
    system: Mapping[str, Any] = field(default_factory=dict)
    reach: Reach | None = None


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a device, or that its report does not prove, and what to do."""

    device: str
    check: str
    severity: Severity
    what: str
    remedy: str = ""

    @classmethod
    def of(cls, check: str, severity: Severity, problem: Problem) -> Finding:
        """Return a device's problem as a finding of the check named `check`."""
        return cls(problem.where, check, severity, *problem.relocated("").parts[:2])

    @property
    def problem(self) -> Problem:
        """What is wrong, and the remedy."""
        return Problem(self.device, self.what, self.remedy, Code.NOT_READY)


# Severity, what is wrong, and the remedy.
_FindingParts = tuple[Severity, str, str]


def check_rack(rack: Rack, facts_by_device: Mapping[str, DeviceFacts]) -> list[Finding]:
    """Return what is wrong with the rack, or not proven, device by device.

    A device that is not in `facts_by_device` is not checked, but its neighbours are.
    """
    lldp = _LldpNeighbours(rack, facts_by_device)
    findings: list[Finding] = []
    for name, access in rack.access.items():
        if name not in facts_by_device:
            continue
        facts = facts_by_device[name]
        checks = {
            "cabling": _cabling(rack, facts, lldp),
            "rates": _rates(rack, access, facts),
            "MTU": _mtus(rack, facts),
            "tools": _tools(rack, access, facts),
            "rights": _rights(access, facts),
        }
        findings += [
            Finding(name, check, *parts) for check, found in checks.items() for parts in found
        ]
    reached = {name: item.reach for name, item in facts_by_device.items() if item.reach is not None}
    return [*findings, *_unreached(rack, reached)]


@dataclass(frozen=True)
class _HeardPort:
    """The port that an LLDP announcement came from, by the rack's names.

    `interfaces` are the possible names of the port, the likeliest first.
    """

    device: str
    interfaces: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.device or 'an unknown device'}:{self.interfaces[0] or '?'}"


class _LldpNeighbours:
    """Translates what devices receive over LLDP into the rack's names."""

    def __init__(self, rack: Rack, facts_by_device: Mapping[str, DeviceFacts]) -> None:
        self._facts = facts_by_device
        self._ports_by_mac: dict[str, set[tuple[str, str]]] = {}
        self._devices_by_name: dict[str, set[str]] = {}
        for name in rack.access:
            facts = facts_by_device.get(name)
            for hostname in (name, facts.hostname if facts else ""):
                for form in (hostname, hostname.partition(".")[0]):
                    self._devices_by_name.setdefault(form.lower(), set()).add(name)
            for interface, mac in facts.macs.items() if facts else ():
                if mac and mac != _NO_MAC:
                    self._ports_by_mac.setdefault(mac.lower(), set()).add((name, interface))
        self._devices_by_name.pop("", None)

    def at(self, device: str, interface: str) -> list[_HeardPort]:
        neighbours = self._facts[device].neighbours or ()
        return [self._heard_port(item) for item in neighbours if item.interface == interface]

    def _heard_port(self, neighbour: Neighbour) -> _HeardPort:
        port = self._ports_by_mac.get(neighbour.port.lower(), set())
        if len(port) == 1:
            ((device, interface),) = port
            return _HeardPort(device, (interface,))
        names = (neighbour.port, neighbour.description)
        if neighbour.port_type == "mac":
            # lldpd then announces the interface's name as the description.
            names = (neighbour.description, neighbour.port)
        return _HeardPort(
            self._device(neighbour) or neighbour.system,
            tuple(dict.fromkeys(filter(None, names))) or ("",),
        )

    def _device(self, neighbour: Neighbour) -> str:
        """Return the device that sent an announcement, by its chassis or by a unique name."""
        owners = {device for device, _ in self._ports_by_mac.get(neighbour.chassis.lower(), ())}
        if len(owners) == 1:
            return owners.pop()
        hostname = neighbour.system.lower()
        for form in (hostname, hostname.partition(".")[0]):
            named = self._devices_by_name.get(form, set())
            if len(named) == 1:
                return next(iter(named))
        return ""


def _cabling(rack: Rack, facts: DeviceFacts, lldp: _LldpNeighbours) -> Iterator[_FindingParts]:
    connected: list[Port] = []
    for port in rack.testbed.ports_of[facts.device]:
        name, peer = rack.interface(port), _expected_peer(rack, port)
        state = facts.interfaces.get(name)
        if state is None or not state.exists:
            others = ", ".join(sorted(set(facts.macs) - {"lo"})) or "none"
            remedy = f"correct closloop_links; its interfaces are {others}"
            yield ("wrong", f"has no interface {name}", remedy)
        elif state.operstate not in ("up", "unknown"):
            what = f"the link at {name}, to {peer}, is {state.operstate or 'not up'}"
            remedy = f"check cable and modules, and: ip link set {name} up"
            yield "wrong", what, remedy
        else:
            connected.append(port)
    if facts.neighbours is None:
        what = f"its cables are not proven: no LLDP ({facts.lldp_problem or 'no reason given'})"
        yield "unproven", what, _LLDP_REMEDY
        return
    miswired: dict[str, tuple[Port, _HeardPort]] = {}
    for port in connected:
        name = rack.interface(port)
        heard = lldp.at(facts.device, name)
        if not heard:
            peer = _expected_peer(rack, port)
            what = f"{name} receives no LLDP: that it is wired to {peer} is not proven"
            far = rack.testbed.ports[port.peer].device
            yield "unproven", what, f"make sure that {far} runs lldpd; check the cable"
        elif not any(_is_wired_as_listed(rack, port, item) for item in heard):
            miswired[name] = (port, heard[0])
    yield from _miswired(rack, miswired)


def _miswired(
    rack: Rack, miswired: Mapping[str, tuple[Port, _HeardPort]]
) -> Iterator[_FindingParts]:
    """Yield the ports that are wired to the wrong neighbour; two swapped ports make one finding."""
    reported: set[str] = set()
    for name, (port, heard) in miswired.items():
        if name in reported:
            continue
        swapped = (
            other
            for other, (port_there, heard_there) in miswired.items()
            if other != name
            and _is_wired_as_listed(rack, port_there, heard)
            and _is_wired_as_listed(rack, port, heard_there)
        )
        other = next(swapped, None)
        severity: Severity = "wrong"
        if heard.device not in rack.access:
            severity = "unproven"
            expected = _expected_peer(rack, port)
            what = f"{name} hears {heard}, which is not in the inventory, instead of {expected}"
            remedy = "give devices their names in the inventory (hostnamectl), or move the cable"
        elif other is not None:
            reported.add(other)
            there = miswired[other][1]
            what = f"{name} and {other} are swapped: {name} is wired to {heard}, {other} to {there}"
            remedy = "swap the two cables, or the interfaces in closloop_links"
        else:
            what = f"{name} is wired to {heard}, not to {_expected_peer(rack, port)}"
            remedy = "move the cable, or correct closloop_links at both ends"
        yield severity, what, remedy


def _is_wired_as_listed(rack: Rack, port: Port, heard: _HeardPort) -> bool:
    far = rack.testbed.ports[port.peer]
    return heard.device == far.device and rack.interface(far) in heard.interfaces


def _expected_peer(rack: Rack, port: Port) -> str:
    """Return the port that a port should be wired to, by its operating system's name."""
    far = rack.testbed.ports[port.peer]
    return f"{far.device}:{rack.interface(far)}"


def _present_ports(rack: Rack, facts: DeviceFacts) -> Iterator[tuple[Port, str, InterfaceState]]:
    for port in rack.testbed.ports_of[facts.device]:
        name = rack.interface(port)
        state = facts.interfaces.get(name)
        if state is not None and state.exists:
            yield port, name, state


def _rates(rack: Rack, access: Access, facts: DeviceFacts) -> Iterator[_FindingParts]:
    for port, name, state in _present_ports(rack, facts):
        if state.operstate == "down":
            continue
        expected = format_rate(port.rate_bps)
        if state.speed_bps < 0 or state.driver in _DRIVERS_WITHOUT_RATE:
            # A shaped link has the rate that it is shaped to.
            if not access.shape:
                what = f"that {name} runs at {expected} is not proven: it reports no rate"
                remedy = "compare with `ethtool`; closloop_shape: true shapes links without a rate"
                yield "unproven", what, remedy
        elif state.speed_bps < port.rate_bps or (
            state.speed_bps != port.rate_bps and not access.shape
        ):
            what = f"{name} runs at {format_rate(state.speed_bps)}, not at {expected}"
            remedy = "set the rate at both ends, or correct closloop_links"
            if state.speed_bps > port.rate_bps:
                remedy += "; closloop_shape: true shapes it down"
            yield "wrong", what, remedy


def _mtus(rack: Rack, facts: DeviceFacts) -> Iterator[_FindingParts]:
    """Yield wrong MTUs: a switch must accept the testbed's packets, a host must send that size."""
    expected = rack.testbed.mtu_bytes
    is_switch = rack.testbed.device[facts.device].kind == "switch"
    for _, name, state in _present_ports(rack, facts):
        if state.mtu_bytes < expected or (state.mtu_bytes != expected and not is_switch):
            what = f"{name} has an MTU of {state.mtu_bytes}B, not {expected}B"
            remedy = f"`closloop provision` sets it; or: ip link set {name} mtu {expected}"
            yield "wrong", what, remedy


def _tools(rack: Rack, access: Access, facts: DeviceFacts) -> Iterator[_FindingParts]:
    is_switch = rack.testbed.device[facts.device].kind == "switch"
    if is_switch:
        for what, remedy in access.system.survey_faults(facts):
            yield "wrong", what, remedy
    if not access.is_linux:
        return
    needed = ["ip", "tc"] if is_switch else ["ip"]
    if access.nic == "roce":
        needed += ["rdma", "ib_write_bw"]
        for device in dict.fromkeys(access.rdma_devices):
            if device not in facts.rdma_devices:
                present = ", ".join(facts.rdma_devices) or "none"
                what = f"has no RDMA device {device}"
                remedy = (
                    f"correct closloop_rdma_device (found: {present}), or load the NIC's driver"
                )
                yield "wrong", what, remedy
    for name in needed:
        if name not in facts.programs:
            yield "wrong", f"has no {name}", f"install {_PACKAGES[name]} there"


def _rights(access: Access, facts: DeviceFacts) -> Iterator[_FindingParts]:
    enough = facts.may_change_qdiscs if access.is_linux else facts.is_root
    if not enough:
        who = f"{access.user} with sudo" if access.become else access.user
        what = f"{who} may not change its settings there"
        remedy = "log in as root, or set ansible_become: true for a user with sudo"
        yield "wrong", what, remedy
    if vrf := facts.system.get("vrf"):
        what = f"its sshd runs in the VRF {vrf}, so what is started there does not reach the fabric"
        remedy = "log in as root, or set ansible_become: true: the agent then leaves the VRF"
        yield "wrong", what, remedy


def _unreached(rack: Rack, reached: Mapping[str, Reach]) -> Iterator[Finding]:
    """Yield the hosts that do not reach others over the fabric; nothing before provisioning."""
    if not is_provisioned(reached.values()):
        return
    addresses = fabric_addresses(rack)
    owners = {address: host for host, own in addresses.items() for address in own}
    absent = {a for host, reach in reached.items() for a in {*addresses[host]} - {*reach.own}}
    for host, reach in reached.items():
        if reach.problem:
            what = f"that it reaches the other hosts is not proven: {reach.problem}"
            yield Finding(host, "fabric", "unproven", what, "log in as root, or with sudo")
            continue
        if missing := [address for address in addresses[host] if address in absent]:
            what = f"lacks its fabric address {', '.join(missing)}"
            yield Finding(host, "fabric", "wrong", what, "`closloop provision` sets it")
        for address in reach.own:
            silent = [
                (f"{owners.get(other, '?')} at {other}", why)
                for source, other, why in reach.unreached
                if source == address and other not in absent
            ]
            if silent:
                named = ", ".join(name for name, _ in silent[:_MAX_NAMED])
                more = f" and {len(silent) - _MAX_NAMED} more" if len(silent) > _MAX_NAMED else ""
                what = f"from {address} it does not reach {named}{more} ({silent[0][1]})"
                yield Finding(host, "fabric", "wrong", what, _PING_REMEDY)
