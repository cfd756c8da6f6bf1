"""Reads the IPv4 routes of the kernel's main table, with the state of their next hops.

Layouts: linux/rtnetlink.h, linux/nexthop.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from .netlink import RTM_GETROUTE, RTM_NEWROUTE, RouteSocket, attributes, message

# Groups that a socket subscribes to for changes: RTMGRP_LINK, RTMGRP_IPV4_ROUTE.
LINK_GROUP, ROUTE_GROUP = 0x1, 0x40

_RTMSG, _NEXTHOP = struct.Struct("=8BI"), struct.Struct("=HBBi")
_DST, _OIF, _GATEWAY, _PRIORITY, _MULTIPATH, _TABLE, _VIA, _NH_ID = 1, 4, 5, 6, 9, 15, 18, 30
_MAIN, _UNICAST, _CLONED = 254, 1, 0x200
# RTNH_F_DEAD and RTNH_F_LINKDOWN: the interface is down, or has no carrier
_DOWN = 0x01 | 0x10
# A default route, also one in two halves, leads anywhere, so it does not count as overlapping.
_DEFAULT_BITS = 1

Prefix = tuple[bytes, int]


@dataclass(frozen=True)
class Hop:
    """A next hop: interface index, router address, weight, and whether its link is up.

    `family` is the address family of `router`, 0 for none.
    """

    ifindex: int
    family: int
    router: bytes
    weight: int
    up: bool


@dataclass(frozen=True)
class Route:
    """A route's next hops, in the kernel's order; none if it is not a unicast route.

    `hidden` says that it has a nexthop object whose next hops the kernel does not show.
    """

    hops: tuple[Hop, ...]
    hidden: bool = False


def routes(kernel: RouteSocket) -> dict[Prefix, Route]:
    """Return the main table's routes by (network, bits); of several, the one of lowest metric."""
    best: dict[Prefix, tuple[int, Route]] = {}
    for prefix, tos, type_, flags, words in _main_table(kernel):
        if tos:
            continue
        next_hops = tuple(hops(words, flags)) if type_ == _UNICAST else ()
        metric = attribute_u32(words, _PRIORITY, 0)
        if prefix not in best or metric < best[prefix][0]:
            best[prefix] = metric, Route(next_hops, not next_hops and _NH_ID in words)
    return {prefix: route for prefix, (_, route) in best.items()}


def overlapping_routes(
    kernel: RouteSocket, prefix: str, own_networks: Collection[str]
) -> list[str]:
    """Return the destinations of IPv4 routes in the main table that overlap with `prefix`.

    Default routes, and routes to a network of `own_networks`, are left out.
    """
    network = ip_network(prefix)
    destinations = [ip_network(to) for to, *_ in _main_table(kernel) if to[1] > _DEFAULT_BITS]
    overlapping = dict.fromkeys(str(to) for to in destinations if to.overlaps(network))
    return [to for to in overlapping if to not in own_networks]


def _main_table(kernel: RouteSocket) -> Iterator[tuple[Prefix, int, int, int, dict[int, bytes]]]:
    """Yield each route's prefix, type of service, type, flags and attributes."""
    for kind, payload in kernel.dump(message(RTM_GETROUTE, _RTMSG.pack(socket.AF_INET, *[0] * 8))):
        family, bits, _, tos, table, _, _, type_, flags = _RTMSG.unpack_from(payload)
        if kind == RTM_NEWROUTE and family == socket.AF_INET and not flags & _CLONED:
            words = attributes(payload, _RTMSG.size)
            if attribute_u32(words, _TABLE, table) == _MAIN:
                yield (words.get(_DST, bytes(4)), bits), tos, type_, flags, words


def hops(words: dict[int, bytes], flags: int) -> Iterator[Hop]:
    """Yield the next hops of a route, given its attributes and flags."""
    if _MULTIPATH not in words:
        if _OIF in words:
            yield Hop(attribute_u32(words, _OIF, 0), *_router(words), 1, not flags & _DOWN)
        return
    data, at = words[_MULTIPATH], 0
    while at + _NEXTHOP.size <= len(data):
        length, hop_flags, more, ifindex = _NEXTHOP.unpack_from(data, at)
        inner = attributes(data[at : at + length], _NEXTHOP.size)
        yield Hop(ifindex, *_router(inner), more + 1, not hop_flags & _DOWN)
        at += (max(length, _NEXTHOP.size) + 3) & ~3


def _router(words: dict[int, bytes]) -> tuple[int, bytes]:
    """Return a next hop's router: its family, 0 for none, and its address."""
    if _GATEWAY in words:
        return socket.AF_INET, words[_GATEWAY]
    if _VIA in words:  # a router of another family, as of RFC 5549
        (family,) = struct.unpack_from("=H", words[_VIA])
        return int(family), words[_VIA][2:]
    return 0, b""


def attribute_u32(words: dict[int, bytes], kind: int, otherwise: int) -> int:
    """Return an attribute of 32 bits, or `otherwise` if it is absent."""
    return int(struct.unpack("=I", words[kind])[0]) if kind in words else otherwise
