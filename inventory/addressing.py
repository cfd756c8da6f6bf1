"""Addresses of a fabric's hosts and switches. Links are unnumbered.

An emulated or simulated fabric is alone in its world: NIC n of leaf number t is
10.t.(n/256).(n%256). ECMP hashes depend on these addresses, so they never change.

A rack's devices have other networks, too, so its addresses come from one prefix that nobody else
uses (`rack_addresses`). Each leaf has a block of it, for the NICs below it; the first block is for
the switches. Every address is a /32: a NIC's on the NIC, a switch's on its loopback interface, for
which it answers ARP at every port.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from orchestration.core.topology import Testbed

# Set aside for tests of network devices (RFC 2544), so that no office and no provider uses it.
# Link-local addresses would not do: SONiC's intfmgrd does not pass addresses of 169.254/16 on to
# the ASIC (cfgmgr/intfmgr.cpp, getAddrScope in sonic-swss-common).
DEFAULT_PREFIX = "198.18.0.0/15"
# A leaf's block is a /24 where the prefix has room for that.
_USUAL_BITS = 8
# The lowest and the highest address of a block are not given to anyone.
_RESERVED = 2


def attachments(testbed: Testbed) -> dict[str, int]:
    """Return the switches that hosts attach to, with their numbers in the hosts' addresses."""
    owners = [
        testbed.ports[port.peer].device for host in testbed.hosts for port in testbed.ports_of[host]
    ]
    return {name: number for number, name in enumerate(dict.fromkeys(owners))}


def emulated_addresses(testbed: Testbed) -> dict[int, str]:
    """Return the address of every host port of an emulated fabric, by port index."""
    numbers = attachments(testbed)
    return {
        index: f"10.{numbers[leaf]}.{place >> 8}.{place & 255}"
        for index, (leaf, place) in _places(testbed).items()
    }


@dataclass(frozen=True)
class Addresses:
    """A rack's addresses: of `nics` by port index, of `routers` by switch, and `blocks` by leaf."""

    prefix: IPv4Network
    nics: Mapping[int, str]
    routers: Mapping[str, str]
    blocks: Mapping[str, str]


def rack_addresses(testbed: Testbed, prefix: str = DEFAULT_PREFIX) -> Addresses:
    """Return the addresses of a rack in `prefix`. Raises ValueError if they do not fit."""
    network = IPv4Network(prefix)
    places = _places(testbed)
    widest = max((place for _, place in places.values()), default=1)
    minimum = (widest + _RESERVED - 1).bit_length()
    for bits in range(max(minimum, _USUAL_BITS), minimum - 1, -1):
        for_switches = -(-(len(testbed.switches) + _RESERVED) >> bits)
        needed = (for_switches + len(attachments(testbed))) << bits
        if needed <= network.num_addresses:
            break
    else:
        raise ValueError(
            f"the fabric of {testbed.name} needs {needed} addresses, and {network} has "
            f"{network.num_addresses}"
        )
    first = {
        leaf: network[(for_switches + number) << bits]
        for leaf, number in attachments(testbed).items()
    }
    return Addresses(
        prefix=network,
        nics={index: str(first[leaf] + place) for index, (leaf, place) in places.items()},
        routers={name: str(network[1 + number]) for number, name in enumerate(testbed.switches)},
        blocks={leaf: f"{address}/{32 - bits}" for leaf, address in first.items()},
    )


def _places(testbed: Testbed) -> dict[int, tuple[str, int]]:
    """Return each host port's leaf, and its number among the leaf's NICs, which begins at 1."""
    count = dict.fromkeys(attachments(testbed), 0)
    result = {}
    for host in testbed.hosts:
        for port in testbed.ports_of[host]:
            leaf = testbed.ports[port.peer].device
            count[leaf] += 1
            result[port.index] = leaf, count[leaf]
    return result
