"""Addresses of a fabric's hosts: NIC n of leaf number t is 10.t.(n/256).(n%256), a /32.

Links are unnumbered. Switch number s has 169.254.(1 + s/250).(1 + s%250), a /32 on its loopback
interface, and answers ARP for it at every port. Routes lead to each leaf's 10.t.0.0/16 through the
neighbours' addresses.
"""

from __future__ import annotations

from inventory.topology import Testbed

_ROUTERS_PER_OCTET = 250


def router_addresses(testbed: Testbed) -> dict[str, str]:
    """Return the address of every switch, by name; each address is unique."""
    result = {}
    for number, name in enumerate(testbed.switches):
        high, low = divmod(number, _ROUTERS_PER_OCTET)
        result[name] = f"169.254.{1 + high}.{1 + low}"
    return result


def attachments(testbed: Testbed) -> dict[str, int]:
    """Return the switches that hosts attach to, with their numbers in the hosts' addresses."""
    owners = [
        testbed.ports[port.peer].device for host in testbed.hosts for port in testbed.ports_of[host]
    ]
    return {name: number for number, name in enumerate(dict.fromkeys(owners))}


def nic_addresses(testbed: Testbed) -> dict[int, str]:
    """Return the address of every host port, by port index."""
    numbers = attachments(testbed)
    count = dict.fromkeys(numbers, 0)
    result = {}
    for host in testbed.hosts:
        for port in testbed.ports_of[host]:
            leaf = testbed.ports[port.peer].device
            count[leaf] += 1
            high, low = divmod(count[leaf], 256)
            result[port.index] = f"10.{numbers[leaf]}.{high}.{low}"
    return result
