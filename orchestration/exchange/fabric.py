"""Fabrics that others' files describe: names and tiers for what has neither."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import count

from inventory.parts import Device, LinkSpec
from inventory.topology import Testbed

DEFAULT_MTU_BYTES = 1500
DEFAULT_BUFFER_BYTES = 16_000_000


def tiers(nodes: int, hosts: Collection[int], links: Sequence[tuple[int, int]]) -> list[int]:
    """Return each node's tier: 0 for hosts, for a switch its links to the nearest host.

    Of two linked switches that are as near, the later one goes up, since links join tiers. A switch
    that no host reaches begins in tier 1.
    """
    near: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in links:
        near[a].append(b)
        near[b].append(a)
    distance = dict.fromkeys(hosts, 0)
    todo = deque(hosts)
    while todo:
        node = todo.popleft()
        for other in near[node]:
            if other not in distance:
                distance[other] = distance[node] + 1
                todo.append(other)
    tier = dict.fromkeys(hosts, 0)
    switches = (node for node in range(nodes) if node not in tier)
    for node in sorted(switches, key=lambda node: (distance.get(node, 1), node)):
        taken = {tier[other] for other in near[node] if other in tier}
        tier[node] = next(n for n in count(distance.get(node, 1)) if n not in taken)
    return [tier[node] for node in range(nodes)]


def one_big_switch(
    name: str, hosts: Sequence[str], rate_bps: int, delay_ns: int, mtu_bytes: int
) -> Testbed:
    """Return a testbed of all hosts on one switch: for results that say nothing of their fabric."""
    switch = "switch"
    while switch in hosts:
        switch += "_"
    return Testbed.build(
        name,
        [*(Device(host, "host", 0) for host in hosts), Device(switch, "switch", 1)],
        [LinkSpec(host, switch, rate_bps, delay_ns) for host in hosts],
        mtu_bytes=mtu_bytes,
        buffer_bytes=DEFAULT_BUFFER_BYTES,
        source="one big switch of the hosts seen",
    )


def host_numbers(testbed: Testbed) -> Mapping[str, int]:
    """Return each host's number in a schedule."""
    return {name: number for number, name in enumerate(testbed.hosts)}
