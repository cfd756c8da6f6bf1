"""What hosts reach over the fabric, judged by their pings of each other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from inventory.rack import Rack

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


def reach_problems(
    rack: Rack, reached: Mapping[str, Reach]
) -> Iterator[tuple[str, Severity, str, str]]:
    """Yield host, severity, what is wrong and the remedy; nothing before provisioning."""
    if not is_provisioned(reached.values()):
        return
    addresses = fabric_addresses(rack)
    owners = {address: host for host, own in addresses.items() for address in own}
    absent = {a for host, reach in reached.items() for a in {*addresses[host]} - {*reach.own}}
    for host, reach in reached.items():
        if reach.problem:
            what = f"that it reaches the other hosts is not proven: {reach.problem}"
            yield host, "unproven", what, "log in as root, or with sudo"
            continue
        if missing := [address for address in addresses[host] if address in absent]:
            what = f"has not its fabric address {', '.join(missing)}"
            yield host, "wrong", what, "`closloop provision` sets it"
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
                yield host, "wrong", what, _REMEDY
