"""Checks a rack against what its devices report about themselves. Pure.

A cable is proven by LLDP at both ends: each device must hear the right interface of the right
device at the right interface of its own.
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
_NAMED = 12
_REMEDY = (
    "see the routes of both and of the switches in between (`closloop provision` sets them), and "
    "whether a firewall drops pings"
)


@dataclass(frozen=True)
class Reach:
    """What a host reaches over the fabric: `own` are those of its fabric addresses that it has.

    `unreached` are pairs of its and another host's address without an answer, with the reason.
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
    """Return whether any host has a fabric address: `closloop provision` sets them."""
    return any(reach is not None and reach.own for reach in reached)


# In the order in which they are made and shown: a failed one may leave later ones unknown.
CHECKS = ("reachable", "login", "cabling", "rates", "MTU", "tools", "rights", "fabric")

# Programs that a device needs, and their Debian packages.
_PACKAGES = {**dict.fromkeys(("tc", "ip", "rdma"), "iproute2"), "ib_write_bw": "perftest"}
_NO_MAC = "00:00:00:00:00:00"
# A veth has no rate: the one that its driver reports means nothing.
_RATELESS = frozenset(("veth",))
_LLDP_REMEDY = "install and start lldpd there (apt-get install lldpd), and allow LLDP on the port"


@dataclass(frozen=True)
class Neighbour:
    """A neighbour at an interface, as it announces itself over LLDP.

    `port` identifies its port as `port_type` says (ifname, mac, local, ifalias, …); `description`
    is that of the port.
    """

    interface: str
    system: str = ""
    chassis: str = ""
    port_type: str = ""
    port: str = ""
    description: str = ""


@dataclass(frozen=True)
class InterfaceState:
    """One interface. `speed_bps` is -1, and `offloads` None, if the device does not report them."""

    exists: bool
    operstate: str = ""
    speed_bps: int = -1
    mtu_bytes: int = -1
    mac: str = ""
    driver: str = ""
    offloads: tuple[str, ...] | None = None


@dataclass(frozen=True)
class DeviceFacts:
    """One device's report. `neighbours` is None if LLDP cannot be read; see `lldp_problem`.

    `reach` is None for a switch, and empty for a host without fabric addresses. `system` is shown
    and kept; of it, only what makes a device unfit is checked. `programs` has versions by name, ""
    if unknown.
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
    """Something that is wrong with a device, or not proven by its survey, and what to do."""

    device: str
    check: str
    severity: Severity
    what: str
    remedy: str = ""

    @classmethod
    def of(cls, check: str, severity: Severity, problem: Problem) -> Finding:
        """Return the finding of a check that a device's problem is."""
        return cls(problem.where, check, severity, *problem.relocated("").parts[:2])

    @property
    def problem(self) -> Problem:
        """What is wrong, and the remedy."""
        return Problem(self.device, self.what, self.remedy, Code.NOT_READY)


# Severity, what is wrong, and the remedy.
_Found = tuple[Severity, str, str]


def check_rack(rack: Rack, surveys: Mapping[str, DeviceFacts]) -> list[Finding]:
    """Return what is wrong with the rack, or not proven, device by device.

    A device without a survey is not checked, but its neighbours are.
    """
    heard = _Heard(rack, surveys)
    findings: list[Finding] = []
    for name, access in rack.access.items():
        if name not in surveys:
            continue
        survey = surveys[name]
        made = {
            "cabling": _cabling(rack, survey, heard),
            "rates": _rates(rack, access, survey),
            "MTU": _mtus(rack, survey),
            "tools": _tools(rack, access, survey),
            "rights": _rights(access, survey),
        }
        findings += [Finding(name, check, *one) for check, found in made.items() for one in found]
    reached = {name: item.reach for name, item in surveys.items() if item.reach is not None}
    return [*findings, *_unreached(rack, reached)]


@dataclass(frozen=True)
class _Seen:
    """A neighbour by the rack's names; `interfaces` are the possible names of its port."""

    device: str
    interfaces: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.device or 'an unknown device'}:{self.interfaces[0] or '?'}"


class _Heard:
    """The neighbours that devices hear over LLDP, by the rack's names."""

    def __init__(self, rack: Rack, surveys: Mapping[str, DeviceFacts]) -> None:
        self._surveys = surveys
        self._of_mac: dict[str, set[tuple[str, str]]] = {}
        self._of_name: dict[str, set[str]] = {}
        for name in rack.access:
            survey = surveys.get(name)
            for said in (name, survey.hostname if survey else ""):
                for form in (said, said.partition(".")[0]):
                    self._of_name.setdefault(form.lower(), set()).add(name)
            for interface, mac in survey.macs.items() if survey else ():
                if mac and mac != _NO_MAC:
                    self._of_mac.setdefault(mac.lower(), set()).add((name, interface))
        self._of_name.pop("", None)

    def at(self, device: str, interface: str) -> list[_Seen]:
        neighbours = self._surveys[device].neighbours or ()
        return [self._seen(item) for item in neighbours if item.interface == interface]

    def _seen(self, neighbour: Neighbour) -> _Seen:
        port = self._of_mac.get(neighbour.port.lower(), set())
        if len(port) == 1:
            ((device, interface),) = port
            return _Seen(device, (interface,))
        names = (neighbour.port, neighbour.description)
        if neighbour.port_type == "mac":
            # lldpd then announces the interface's name as the description.
            names = (neighbour.description, neighbour.port)
        return _Seen(
            self._device(neighbour) or neighbour.system,
            tuple(dict.fromkeys(filter(None, names))) or ("",),
        )

    def _device(self, neighbour: Neighbour) -> str:
        """Return the device that sent an announcement, by its chassis or by a unique name."""
        owners = {device for device, _ in self._of_mac.get(neighbour.chassis.lower(), ())}
        if len(owners) == 1:
            return owners.pop()
        said = neighbour.system.lower()
        for form in (said, said.partition(".")[0]):
            named = self._of_name.get(form, set())
            if len(named) == 1:
                return next(iter(named))
        return ""


def _cabling(rack: Rack, survey: DeviceFacts, heard: _Heard) -> Iterator[_Found]:
    to_hear: list[Port] = []
    for port in rack.testbed.ports_of[survey.device]:
        name = rack.interface(port)
        state = survey.interfaces.get(name)
        if state is None or not state.exists:
            others = ", ".join(sorted(set(survey.macs) - {"lo"})) or "none"
            remedy = f"correct closloop_links; its interfaces are {others}"
            yield ("wrong", f"has no interface {name}", remedy)
        elif state.operstate not in ("up", "unknown"):
            what = f"the link at {name}, to {_end(rack, port)}, is {state.operstate or 'not up'}"
            remedy = f"check cable and modules, and: ip link set {name} up"
            yield "wrong", what, remedy
        else:
            to_hear.append(port)
    if survey.neighbours is None:
        what = f"its cables are not proven: no LLDP ({survey.lldp_problem or 'no reason given'})"
        yield "unproven", what, _LLDP_REMEDY
        return
    strays: dict[str, tuple[Port, _Seen]] = {}
    for port in to_hear:
        name = rack.interface(port)
        seen = heard.at(survey.device, name)
        if not seen:
            what = f"{name} hears nobody: that it is wired to {_end(rack, port)} is not proven"
            far = rack.testbed.ports[port.peer].device
            yield "unproven", what, f"see that {far} runs lldpd; check the cable"
        elif not any(_hears(rack, port, item) for item in seen):
            strays[name] = (port, seen[0])
    yield from _strays(rack, strays)


def _strays(rack: Rack, strays: Mapping[str, tuple[Port, _Seen]]) -> Iterator[_Found]:
    """Yield the ports that hear the wrong neighbour; two swapped ports make one finding."""
    told: set[str] = set()
    for name, (port, seen) in strays.items():
        if name in told:
            continue
        swapped = (
            other
            for other, (port_there, seen_there) in strays.items()
            if other != name and _hears(rack, port_there, seen) and _hears(rack, port, seen_there)
        )
        other = next(swapped, None)
        severity: Severity = "wrong"
        if seen.device not in rack.access:
            severity = "unproven"
            what = f"{name} hears {seen}, no device of the inventory, not {_end(rack, port)}"
            remedy = "give devices their names in the inventory (hostnamectl), or move the cable"
        elif other is not None:
            told.add(other)
            there = strays[other][1]
            what = f"{name} and {other} are swapped: {name} is wired to {seen}, {other} to {there}"
            remedy = "swap the two cables, or the interfaces in closloop_links"
        else:
            what = f"{name} is wired to {seen}, not to {_end(rack, port)}"
            remedy = "move the cable, or correct closloop_links at both ends"
        yield severity, what, remedy


def _hears(rack: Rack, port: Port, seen: _Seen) -> bool:
    far = rack.testbed.ports[port.peer]
    return seen.device == far.device and rack.interface(far) in seen.interfaces


def _end(rack: Rack, port: Port) -> str:
    """Return the port that a port should be wired to, by its operating system's name."""
    far = rack.testbed.ports[port.peer]
    return f"{far.device}:{rack.interface(far)}"


def _present(rack: Rack, survey: DeviceFacts) -> Iterator[tuple[Port, str, InterfaceState]]:
    for port in rack.testbed.ports_of[survey.device]:
        name = rack.interface(port)
        state = survey.interfaces.get(name)
        if state is not None and state.exists:
            yield port, name, state


def _rates(rack: Rack, access: Access, survey: DeviceFacts) -> Iterator[_Found]:
    for port, name, state in _present(rack, survey):
        if state.operstate == "down":
            continue
        wanted = format_rate(port.rate_bps)
        if state.speed_bps < 0 or state.driver in _RATELESS:
            # A shaped link has the rate that it is shaped to.
            if not access.shape:
                what = f"that {name} runs at {wanted} is not proven: it tells no rate"
                remedy = "compare with `ethtool`; closloop_shape: true shapes links without a rate"
                yield "unproven", what, remedy
        elif state.speed_bps < port.rate_bps or (
            state.speed_bps != port.rate_bps and not access.shape
        ):
            what = f"{name} runs at {format_rate(state.speed_bps)}, not at {wanted}"
            remedy = "set the rate at both ends, or correct closloop_links"
            if state.speed_bps > port.rate_bps:
                remedy += "; closloop_shape: true shapes it down"
            yield "wrong", what, remedy


def _mtus(rack: Rack, survey: DeviceFacts) -> Iterator[_Found]:
    """Check MTUs: a switch must accept the testbed's packets, a host must send that size."""
    wanted = rack.testbed.mtu_bytes
    is_switch = rack.testbed.device[survey.device].kind == "switch"
    for _, name, state in _present(rack, survey):
        if state.mtu_bytes < wanted or (state.mtu_bytes != wanted and not is_switch):
            what = f"{name} has an MTU of {state.mtu_bytes}B, not {wanted}B"
            remedy = f"`closloop provision` sets it; or: ip link set {name} mtu {wanted}"
            yield "wrong", what, remedy


def _tools(rack: Rack, access: Access, survey: DeviceFacts) -> Iterator[_Found]:
    is_switch = rack.testbed.device[survey.device].kind == "switch"
    if is_switch:
        for what, remedy in access.system.survey_faults(survey):
            yield "wrong", what, remedy
    if not access.is_linux:
        return
    wanted = ["ip", "tc"] if is_switch else ["ip"]
    if access.nic == "roce":
        wanted += ["rdma", "ib_write_bw"]
        for device in dict.fromkeys(access.rdma_devices):
            if device not in survey.rdma_devices:
                found = ", ".join(survey.rdma_devices) or "none"
                what = f"has no RDMA device {device}"
                remedy = f"correct closloop_rdma_device (found: {found}), or load the NIC's driver"
                yield "wrong", what, remedy
    for name in wanted:
        if name not in survey.programs:
            yield "wrong", f"has no {name}", f"install {_PACKAGES[name]} there"


def _rights(access: Access, survey: DeviceFacts) -> Iterator[_Found]:
    enough = survey.may_change_qdiscs if access.is_linux else survey.is_root
    if not enough:
        who = f"{access.user} with sudo" if access.become else access.user
        what = f"{who} may not change its settings there"
        remedy = "log in as root, or set ansible_become: true for a user with sudo"
        yield "wrong", what, remedy
    if vrf := survey.system.get("vrf"):
        what = (
            f"its sshd runs in the VRF {vrf}, and keeps all that is started there from the fabric"
        )
        remedy = "log in as root, or set ansible_become: true: the agent then leaves the VRF"
        yield "wrong", what, remedy


def _unreached(rack: Rack, reached: Mapping[str, Reach]) -> Iterator[Finding]:
    """Yield what hosts do not reach; nothing before provisioning."""
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
            what = f"has not its fabric address {', '.join(missing)}"
            yield Finding(host, "fabric", "wrong", what, "`closloop provision` sets it")
        for address in reach.own:
            silent = [
                (f"{owners.get(other, '?')} at {other}", why)
                for source, other, why in reach.unreached
                if source == address and other not in absent
            ]
            if silent:
                named = ", ".join(name for name, _ in silent[:_NAMED])
                more = f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else ""
                what = f"from {address} it does not reach {named}{more} ({silent[0][1]})"
                yield Finding(host, "fabric", "wrong", what, _REMEDY)
