"""How much a first campaign sends and for how long, so that a trial is short and says something."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestration.core.errors import InputError
from orchestration.core.topology import Testbed
from traffic.workloads import load_workload

MS = 1_000_000
_MOST_LOAD = 0.9
# Of the links upwards, by random pairs of hosts: what is left is for bursts.
_MOST_UPLINKS = 0.8
_USUAL_LOAD = 0.6
# 10 ms at 25 Gbit/s, which has some 300 flows of WebSearch on 24 hosts at 60 %.
_WINDOW_BITS = 250_000_000
_LEAST_WINDOW_NS, _MOST_WINDOW_NS = 5 * MS, 25 * MS
_INCAST_BYTES, _LEAST_INCAST_BYTES = 128_000, 8_000
_MOST_FAN_IN = 16
# The largest flow of a workload may take this many times its time alone before a trial ends.
_DRAIN_IDEALS = 10
_LEAST_DRAIN_NS = 200 * MS


@dataclass(frozen=True)
class Incast:
    """Incasts: how many hosts send to one, bytes of each flow, and the time between them in ns."""

    fan_in: int
    size_bytes: int
    period_ns: int


def uplink_ratio(testbed: Testbed) -> float:
    """Return how busy the links upwards of the busiest leaf are at a load of 1.

    Pairs of hosts are random; 0 where there are no links upwards.
    """
    hosts, busiest = len(testbed.hosts), 0.0
    for name in testbed.switches:
        tier = testbed.device[name].tier
        peers = [(testbed.peer_device(port), port.rate_bps) for port in testbed.ports_of[name]]
        below = {peer.name for peer, _ in peers if peer.kind == "host"}
        down = sum(rate for peer, rate in peers if peer.kind == "host")
        up = sum(rate for peer, rate in peers if peer.tier > tier)
        if below and up:
            busiest = max(busiest, down / up * (hosts - len(below)) / (hosts - 1))
    return busiest


def usual_load(testbed: Testbed) -> float:
    """Return 0.6, or less where links between switches could not carry it, in steps of 0.05."""
    ratio = uplink_ratio(testbed)
    most = _MOST_UPLINKS / ratio if ratio else 1.0
    return _USUAL_LOAD if most >= _USUAL_LOAD else max(0.05, math.floor(most * 20) / 20)


def checked_load(load: float, testbed: Testbed) -> float:
    """Return the load. Raises InputError where hosts or links between switches cannot carry it."""
    ratio = uplink_ratio(testbed)
    most = min(_MOST_LOAD, 1 / ratio if ratio else 1.0)
    if not 0 < load <= most:
        why = "its links between switches carry" if most < _MOST_LOAD else "hosts can send"
        raise InputError.single(
            "--load",
            f"{load:g} is more than {testbed.name} takes: {why} a load of {most:.2g}"
            if load > 0
            else f"{load:g} is no load",
            f"use a share of the hosts' line rate, above 0 and up to {math.floor(most * 100) / 100}"
            f" (usual: {usual_load(testbed):g})",
        )
    return load


def window_ns(testbed: Testbed) -> int:
    """Return how long to measure: as many bits a NIC everywhere, within bounds."""
    exact = _WINDOW_BITS * 10**9 // _nic_bps(testbed)
    return max(_LEAST_WINDOW_NS, min(_MOST_WINDOW_NS, _up(exact, MS)))


def drain_ns(testbed: Testbed, workload: str) -> int:
    """Return how long flows may take after arrivals end: an unfinished flow makes a trial invalid.

    A trial ends when all have, so a long drain costs nothing otherwise.
    """
    largest_bytes = load_workload(workload).points[-1][0]
    alone_ns = largest_bytes * 8 * 10**9 // _nic_bps(testbed)
    return max(_LEAST_DRAIN_NS, _up(_DRAIN_IDEALS * alone_ns, 100 * MS))


def incast(testbed: Testbed) -> Incast:
    """Return incasts that fill at most half of a port's buffer and take a third of the time."""
    fan_in = max(2, min(_MOST_FAN_IN, 2 * len(testbed.hosts) // 3))
    room_bytes = min(port.buffer_bytes for port in testbed.switch_ports) // 2
    size_bytes = _INCAST_BYTES
    while size_bytes * fan_in > room_bytes and size_bytes > _LEAST_INCAST_BYTES:
        size_bytes //= 2
    lasts_ns = fan_in * size_bytes * 8 * 10**9 // _nic_bps(testbed)
    return Incast(fan_in, size_bytes, max(MS, _up(3 * lasts_ns, MS)))


def _nic_bps(testbed: Testbed) -> int:
    return min(port.rate_bps for host in testbed.hosts for port in testbed.ports_of[host])


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
