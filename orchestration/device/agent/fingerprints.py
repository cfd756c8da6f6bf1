"""Fingerprints of addresses, routes and rules: whether somebody changed them, not what they are."""

from __future__ import annotations

import hashlib
import struct

from orchestration.device.agent import netlink
from orchestration.device.agent.netlink import RouteSocket

# What the kernel changes by itself: lifetimes, and flags of links that are down or offloaded.
_VOLATILE_ADDRESS, _VOLATILE_ROUTE = {6, 8}, {12, 23}
_ROUTE_CLONED, _MULTIPATH = 0x200, 9


def fingerprints(route: RouteSocket) -> dict[str, str]:
    """Return the fingerprints by name."""
    tables = (
        ("addresses", netlink.RTM_GETADDR, netlink.RTM_NEWADDR, 8),
        ("routes", netlink.RTM_GETROUTE, netlink.RTM_NEWROUTE, 12),
        ("rules", netlink.RTM_GETRULE, netlink.RTM_NEWRULE, 12),
    )
    result = {}
    for name, ask, kind, head_bytes in tables:
        found = route.dump(netlink.message(ask, bytes(head_bytes)))
        lines = [_stable(kind, payload, head_bytes) for got, payload in found if got == kind]
        text = "\n".join(sorted(line for line in lines if line))
        result[name] = hashlib.sha256(text.encode()).hexdigest()
    return result


def _stable(kind: int, payload: bytes, head_bytes: int) -> str:
    head, volatile = bytearray(payload[:head_bytes]), set()
    if kind == netlink.RTM_NEWADDR:
        head[2] = 0
        volatile = _VOLATILE_ADDRESS
    elif kind == netlink.RTM_NEWROUTE:
        if struct.unpack_from("=I", head, 8)[0] & _ROUTE_CLONED:
            return ""
        head[8:12] = bytes(4)
        volatile = _VOLATILE_ROUTE
    parts = [head.hex()]
    for number, value in sorted(netlink.attributes(payload, head_bytes).items()):
        if number in volatile:
            continue
        if kind == netlink.RTM_NEWROUTE and number == _MULTIPATH:
            value = _without_flags(value)
        parts.append(f"{number}={value.hex()}")
    return " ".join(parts)


def _without_flags(hops: bytes) -> bytes:
    """Return a multipath attribute with the next hops' flags (dead, link down) cleared."""
    result, at = bytearray(hops), 0
    while at + 8 <= len(hops):
        (length,) = struct.unpack_from("=H", hops, at)
        result[at + 2] = 0
        if length < 8:
            break
        at += (length + 3) & ~3
    return bytes(result)
