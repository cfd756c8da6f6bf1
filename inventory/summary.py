"""A testbed's key figures: tiers, links, oversubscription, base RTTs. Pure, JSON-ready.

A base RTT is propagation only. BDP is the base RTT times the rate of the path's slowest link.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from inventory.routing import PathTable, attachment
from orchestration.core.topology import Testbed


def summarise(testbed: Testbed) -> dict[str, Any]:
    """Return the testbed's figures, as plain data with units in the names."""
    return {
        "name": testbed.name,
        "description": testbed.description,
        "source": testbed.source,
        "hosts": len(testbed.hosts),
        "switches": len(testbed.switches),
        "mtu_bytes": testbed.mtu_bytes,
        "port_buffer_bytes": max(port.buffer_bytes for port in testbed.switch_ports),
        "classes": _classes(testbed),
        "tiers": _tiers(testbed),
        "links": _links(testbed),
        "paths": _paths(testbed),
    }


def tier_name(testbed: Testbed, tier: int) -> str:
    """Return the common name of a tier's devices, `leaf` for leaf1, leaf2; else `tier 1`."""
    if tier == 0:
        return "host"
    names = {d.name.rstrip("0123456789_") for d in testbed.devices if d.tier == tier}
    return names.pop() if len(names) == 1 else f"tier {tier}"


def _classes(testbed: Testbed) -> list[dict[str, Any]]:
    """Return a row for each traffic class; empty if ports have one queue."""
    total = sum(klass.weight for klass in testbed.classes)
    return [
        {
            "name": klass.name,
            "weight": klass.weight,
            "share": klass.weight / total,
            "congestion_control": klass.congestion_control,
            "queue_buffer_bytes": max(q.buffer_bytes for q in testbed.queues if q.klass == number),
        }
        for number, klass in enumerate(testbed.classes)
    ]


def _tiers(testbed: Testbed) -> list[dict[str, Any]]:
    """Return a row for each tier, hosts first; oversubscription is that of its worst device."""
    rows = []
    for tier in sorted({device.tier for device in testbed.devices}):
        names = [device.name for device in testbed.devices if device.tier == tier]
        ratios = [ratio for name in names if (ratio := _oversubscription(testbed, name))]
        rows.append(
            {
                "tier": tier,
                "name": tier_name(testbed, tier),
                "devices": len(names),
                "ports_per_device": max(len(testbed.ports_of[name]) for name in names),
                "oversubscription": max(ratios, default=None),
            }
        )
    return rows


def _oversubscription(testbed: Testbed, name: str) -> float:
    """Return a device's bandwidth down divided by that up, 0 if it lacks either."""
    tier = testbed.device[name].tier
    down = up = 0
    for port in testbed.ports_of[name]:
        if testbed.peer_device(port).tier > tier:
            up += port.rate_bps
        else:
            down += port.rate_bps
    return down / up if up else 0.0


def _links(testbed: Testbed) -> list[dict[str, Any]]:
    """Return a row for each kind of link: the tiers that it connects, rate and delay."""
    kinds: Counter[tuple[int, int, int, int]] = Counter()
    for link in testbed.links:
        ends = (testbed.device[testbed.ports[port].device].tier for port in (link.a, link.b))
        low, high = sorted(ends)
        kinds[(low, high, link.rate_bps, link.delay_ns)] += 1
    return [
        {
            "between": [tier_name(testbed, low), tier_name(testbed, high)],
            "links": count,
            "rate_bps": rate_bps,
            "delay_ns": delay_ns,
        }
        for (low, high, rate_bps, delay_ns), count in sorted(kinds.items())
    ]


def _paths(testbed: Testbed) -> list[dict[str, Any]]:
    """Return a row for each length of path between hosts, with its longest base RTT.

    Two hosts represent each rack.
    """
    racks: dict[tuple[str, ...], list[str]] = {}
    for host in testbed.hosts:
        racks.setdefault(attachment(testbed, host), []).append(host)
    some = [host for rack in racks.values() for host in rack[:2]]
    table = PathTable(testbed)
    longest: dict[int, tuple[int, int]] = {}
    for src in some:
        for dst in some:
            if src != dst:
                path = table.path(src, dst)
                rtt_ns = table.base_rtt_ns(src, dst)
                row = (rtt_ns, rtt_ns * path.rate_bps // (8 * 10**9))
                longest[path.hops] = max(row, longest.get(path.hops, row))
    return [
        {"switches": hops - 1, "base_rtt_ns": rtt_ns, "bdp_bytes": bdp_bytes}
        for hops, (rtt_ns, bdp_bytes) in sorted(longest.items())
    ]
