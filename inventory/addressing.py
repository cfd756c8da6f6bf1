"""Addresses of a fabric's hosts: NIC n of leaf number t is 10.t.(n/256).(n%256), a /32.

Routes lead to each leaf's 10.t.0.0/16 over unnumbered links: every router answers for `GATEWAY`.
"""

from __future__ import annotations

from inventory.topology import Testbed

GATEWAY = "169.254.0.1"


def attachments(testbed: Testbed) -> dict[str, int]:
    """Switches that hosts are attached to, numbered as in their addresses."""
    owners = [
        testbed.ports[port.peer].device for host in testbed.hosts for port in testbed.ports_of[host]
    ]
    return {name: number for number, name in enumerate(dict.fromkeys(owners))}


def nic_addresses(testbed: Testbed) -> dict[int, str]:
    """Address of every host port, by port index."""
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
