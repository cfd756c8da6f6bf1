"""Addresses of a fabric's hosts and switches. Links are unnumbered.

Nothing else is connected to an emulated or simulated fabric, so its addresses are fixed: NIC n of
leaf number t has 10.t.(n/256).(n%256). ECMP hashes depend on these addresses, so they never change.
If there are more than 256 leaves, t has more than 8 of the last 24 bits, and n the rest.

A rack's devices are connected to other networks too, so its addresses come from one prefix that
nobody else uses (`rack_addresses`). The first block of it is for the switches; then each leaf has a
block for the NICs below it. Every address is a /32: a NIC's is set on the NIC, and a switch's on
its loopback interface. A switch answers ARP for its address at every port.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from orchestration.core.topology import Testbed

# Reserved for tests of network devices (RFC 2544), so that no office and no provider uses it.
# Link-local addresses would not do: SONiC's intfmgrd does not pass addresses of 169.254/16 on to
# the ASIC (cfgmgr/intfmgr.cpp, getAddrScope in sonic-swss-common).
DEFAULT_PREFIX = "198.18.0.0/15"
_OWN_NETWORK = IPv4Network("10.0.0.0/8")
# A leaf's block is a /24 where the prefix has room for that.
_USUAL_BITS = 8
# The lowest and the highest address of a block are not given to anyone.
_RESERVED = 2


def attachments(testbed: Testbed) -> dict[str, int]:
    """Return the switches that hosts attach to, each with its number t in the hosts' addresses."""
    owners = [
        testbed.ports[port.peer].device for host in testbed.hosts for port in testbed.ports_of[host]
    ]
    return {name: number for number, name in enumerate(dict.fromkeys(owners))}


def emulated_addresses(testbed: Testbed) -> dict[int, str]:
    """Return the address of every host port of an emulated fabric, by port index."""
    numbers = attachments(testbed)
    bits = min(16, 24 - (len(numbers) - 1).bit_length())
    return {
        index: str(_OWN_NETWORK[(numbers[leaf] << bits) + position])
        for index, (leaf, position) in _nic_positions(testbed).items()
    }


@dataclass(frozen=True)
class Addresses:
    """A rack's addresses.

    `nics` has the address of each host port by its index, `routers` that of each switch by name,
    and `blocks` each leaf's network, like 198.18.1.0/24.
    """

    prefix: IPv4Network
    nics: Mapping[int, str]
    routers: Mapping[str, str]
    blocks: Mapping[str, str]


def rack_addresses(testbed: Testbed, prefix: str = DEFAULT_PREFIX) -> Addresses:
    """Return a rack's addresses in the network `prefix`. Raises ValueError if they do not fit."""
    network = IPv4Network(prefix)
    positions = _nic_positions(testbed)
    largest = max((position for _, position in positions.values()), default=1)
    minimum = (largest + _RESERVED - 1).bit_length()
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
        nics={index: str(first[leaf] + position) for index, (leaf, position) in positions.items()},
        routers={name: str(network[1 + number]) for number, name in enumerate(testbed.switches)},
        blocks={leaf: f"{address}/{32 - bits}" for leaf, address in first.items()},
    )


def _nic_positions(testbed: Testbed) -> dict[int, tuple[str, int]]:
    """Return each host port's leaf, and its number among the leaf's NICs, which begins at 1."""
    count = dict.fromkeys(attachments(testbed), 0)
    result = {}
    for host in testbed.hosts:
        for port in testbed.ports_of[host]:
            leaf = testbed.ports[port.peer].device
            count[leaf] += 1
            result[port.index] = leaf, count[leaf]
    return result
