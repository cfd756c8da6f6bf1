"""The links that an inventory lists, and checks of them.

Each link is listed at both of its devices, and the two ends must agree. With a testbed file, the
links must also be those of the testbed; without one they define it (`link_specs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from inventory.ansible_schema import GROUPS, LinkVariable
from inventory.strictyaml import Document, suggest
from orchestration.core.errors import Problem
from orchestration.core.topology import LinkSpec, Testbed, reachable
from orchestration.core.units import format_duration, format_rate

# The two ends of a link: device and interface.
_Cable = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class ListedLinks:
    """A device's links as listed, its tier, and the document to whose lines problems refer."""

    device: str
    tier: int
    links: tuple[LinkVariable, ...]
    document: Document

    def problem(self, number: int, field: str, what: str, remedy: str) -> Problem:
        """Return a problem with link number `number`, or with all of them if it is -1."""
        loc = ("closloop_links",) if number < 0 else ("closloop_links", number, field)
        return self.document.problem(loc, f"{self.device}: {what}", remedy)


def agreement_problems(listed: Mapping[str, ListedLinks], *, need_rates: bool) -> Iterator[Problem]:
    """Yield the problems of links by themselves, above all where the two ends of one differ.

    With `need_rates`, every link must state rate and delay, since there is no testbed file.
    """
    by_port = {
        (item.device, link.interface): link for item in listed.values() for link in item.links
    }
    for item in listed.values():
        if not item.links:
            remedy = "list its ports in closloop_links, each with what it is wired to"
            yield item.problem(-1, "", "no links", remedy)
        seen: set[str] = set()
        for number, link in enumerate(item.links):
            if link.interface in seen:
                what = f"a second link at {link.interface}"
                yield item.problem(number, "interface", what, "a port has one cable: correct one")
            seen.add(link.interface)
            for field in ("rate", "delay"):
                if need_rates and getattr(link, field) is None:
                    what = f"the link at {link.interface} has no {field}"
                    remedy = f"add `{field}`, or name the testbed that has it: closloop_testbed"
                    yield item.problem(number, field, what, remedy)
            peer, back = listed.get(link.peer), by_port.get((link.peer, link.peer_interface))
            if peer is None:
                near = suggest(link.peer, listed)
                remedy = f"{near}put the device in its group, or correct the name"
                yield item.problem(number, "peer", f"no device {link.peer!r} in the groups", remedy)
            elif peer.tier == item.tier:
                same = "itself" if peer is item else f"{link.peer}, of the same tier"
                what = f"{link.interface} is linked to {same}"
                yield item.problem(number, "peer", what, "link devices of two tiers")
            else:
                yield from _end_problems(item, number, link, back)


def _end_problems(
    item: ListedLinks, number: int, link: LinkVariable, back: LinkVariable | None
) -> Iterator[Problem]:
    """Yield where a link differs from `back`, the same link as listed at its other end."""
    at = f"{link.peer}:{link.peer_interface}"
    if back is None:
        remedy = (
            f"list the link at {link.peer} too, as {{interface: {link.peer_interface}, "
            f"peer: {item.device}, peer_interface: {link.interface}, …}}"
        )
        what = f"{link.interface} is linked to {at}, which {link.peer} does not list"
        yield item.problem(number, "peer_interface", what, remedy)
        return
    if (back.peer, back.peer_interface) != (item.device, link.interface):
        there = f"{back.peer}:{back.peer_interface}"
        what = f"{link.interface} is linked to {at}, but that port says it is linked to {there}"
        yield item.problem(number, "peer_interface", what, "correct the wrong one of the two")
        return
    for field, shown in (("rate", format_rate), ("delay", format_duration)):
        here, there = getattr(link, field), getattr(back, field)
        if here is not None and there is not None and here != there:
            ends = f"{shown(here)}, but {shown(there)} at {at}"
            what = f"the link at {link.interface} has a {field} of {ends}"
            yield item.problem(number, field, what, "write the same at both ends")


def testbed_problems(listed: Mapping[str, ListedLinks], testbed: Testbed) -> Iterator[Problem]:
    """Yield where the links differ from those of `testbed`, port by port.

    The two ends of each link must agree already.
    """
    for name, item in listed.items():
        ports = testbed.ports_of[name]
        if len(item.links) != len(ports):
            what = f"{len(item.links)} links, but {len(ports)} in testbed {testbed.name}"
            remedy = f"list them in the order of `closloop inventory show {testbed.name}`"
            yield item.problem(-1, "", what, remedy)
            continue
        for number, (link, port) in enumerate(zip(item.links, ports, strict=True)):
            far = testbed.ports[port.peer]
            says = f"{port.label} of testbed {testbed.name}"
            if link.peer != far.device:
                what = f"link {number + 1} goes to {link.peer}, but {says} to {far.device}"
                remedy = "list the links in the testbed's order of ports"
                yield item.problem(number, "peer", what, remedy)
                continue
            far_index = testbed.ports_of[far.device].index(far)
            there = listed[far.device].links
            if far_index < len(there) and there[far_index].interface != link.peer_interface:
                what = (
                    f"link {number + 1} goes to {link.peer}:{link.peer_interface}, but {says} to "
                    f"port {far_index + 1} of {far.device}, listed as {there[far_index].interface}"
                )
                remedy = "list parallel links in the same order at both ends"
                yield item.problem(number, "peer_interface", what, remedy)
            for field, value, shown in (
                ("rate", port.rate_bps, format_rate),
                ("delay", port.delay_ns, format_duration),
            ):
                stated = getattr(link, field)
                if stated is not None and stated != value:
                    what = f"a {field} of {shown(stated)}, but {says} has {shown(value)}"
                    remedy = f"correct it, or leave {field} out: the testbed has it"
                    yield item.problem(number, field, what, remedy)


def reach_problems(listed: Mapping[str, ListedLinks]) -> Iterator[Problem]:
    """Yield the devices that cannot be reached from the first switch through switches."""
    start = next((name for name, item in listed.items() if item.tier), None)
    if start is None:
        return
    reached = reachable(
        start, lambda name: [link.peer for link in listed[name].links if listed[name].tier]
    )
    for name, item in listed.items():
        if name not in reached:
            what = f"it is not connected to {start} (hosts do not forward)"
            yield item.problem(-1, "", what, "add the missing links")


def link_specs(
    listed: Mapping[str, ListedLinks],
) -> tuple[list[LinkSpec], dict[str, tuple[str, ...]]]:
    """Return each link once, from the hosts up, and each device's interfaces in that order.

    A device's links keep the order in which it lists them. Where the orders of several devices
    contradict each other, the order at the device of the lower tier wins.
    """
    remaining: dict[_Cable, LinkSpec] = {}
    order: dict[str, list[_Cable]] = {name: [] for name in listed}
    for name, item in sorted(listed.items(), key=lambda pair: pair[1].tier):
        for link in item.links:
            here, there = (name, link.interface), (link.peer, link.peer_interface)
            cable = frozenset((here, there))
            order[name].append(cable)
            remaining.setdefault(cable, LinkSpec(name, link.peer, link.rate or 0, link.delay or 0))
    interfaces: dict[str, tuple[str, ...]] = dict.fromkeys(listed, ())
    specs = []
    # The order of devices of this tier and above may be ignored, the highest tier's first.
    tier_limits = sorted({item.tier for item in listed.values()} | {len(GROUPS)}, reverse=True)
    while remaining:
        cable = next(
            cable
            for tier in tier_limits
            for cable in remaining
            if all(order[d][0] == cable or listed[d].tier >= tier for d, _ in cable)
        )
        specs.append(remaining.pop(cable))
        for device, interface in cable:
            order[device].remove(cable)
            interfaces[device] = (*interfaces[device], interface)
    return specs, interfaces
