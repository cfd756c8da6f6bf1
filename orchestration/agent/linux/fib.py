"""The IPv4 routes of the main table, with the state of their next hops.

Layouts: linux/rtnetlink.h, linux/nexthop.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from .netlink import RTM_GETROUTE, RTM_NEWROUTE, RouteSocket, attributes, message

# What a socket that is told of changes subscribes to: RTMGRP_LINK, RTMGRP_IPV4_ROUTE.
LINK_GROUP, ROUTE_GROUP = 0x1, 0x40

_RTMSG, _NEXTHOP = struct.Struct("=8BI"), struct.Struct("=HBBi")
_DST, _OIF, _GATEWAY, _PRIORITY, _MULTIPATH, _TABLE, _VIA, _NH_ID = 1, 4, 5, 6, 9, 15, 18, 30
_MAIN, _UNICAST, _CLONED = 254, 1, 0x200
# RTNH_F_DEAD and RTNH_F_LINKDOWN: the interface is down, or has no carrier
_DOWN = 0x01 | 0x10
# A default route, also one in two halves, leads anywhere and is no claim to any network.
_DEFAULT_BITS = 1

Prefix = tuple[bytes, int]


@dataclass(frozen=True)
class Hop:
    """A next hop: interface index, router (`family` 0 for none), weight, whether its link is up."""

    ifindex: int
    family: int
    router: bytes
    weight: int
    up: bool


@dataclass(frozen=True)
class Route:
    """A route's next hops, in the kernel's order; none if it leads nowhere.

    `hidden` says that it has a next hop object of which the kernel shows no next hops.
    """

    hops: tuple[Hop, ...]
    hidden: bool = False


def routes(kernel: RouteSocket) -> dict[Prefix, Route]:
    """Return the main table's routes by (network, bits); of several, that of the least metric."""
    found: dict[Prefix, tuple[int, Route]] = {}
    for prefix, tos, type_, flags, words in _main_table(kernel):
        if tos:
            continue
        ways = tuple(hops(words, flags)) if type_ == _UNICAST else ()
        metric = word(words, _PRIORITY, 0)
        if prefix not in found or metric < found[prefix][0]:
            found[prefix] = metric, Route(ways, not ways and _NH_ID in words)
    return {prefix: route for prefix, (_, route) in found.items()}


def overlapping_routes(kernel: RouteSocket, prefix: str, ours: Collection[str]) -> list[str]:
    """Return the networks that the main table has IPv4 routes to and that overlap with `prefix`.

    Default routes, and routes to a network of `ours`, are left out.
    """
    wanted = ip_network(prefix)
    found = [ip_network(to) for to, *_ in _main_table(kernel) if to[1] > _DEFAULT_BITS]
    there = dict.fromkeys(str(to) for to in found if to.overlaps(wanted))
    return [to for to in there if to not in ours]


def _main_table(kernel: RouteSocket) -> Iterator[tuple[Prefix, int, int, int, dict[int, bytes]]]:
    """Yield each route's prefix, type of service, type, flags and attributes."""
    for kind, payload in kernel.dump(message(RTM_GETROUTE, _RTMSG.pack(socket.AF_INET, *[0] * 8))):
        family, bits, _, tos, table, _, _, type_, flags = _RTMSG.unpack_from(payload)
        if kind == RTM_NEWROUTE and family == socket.AF_INET and not flags & _CLONED:
            words = attributes(payload, _RTMSG.size)
            if word(words, _TABLE, table) == _MAIN:
                yield (words.get(_DST, bytes(4)), bits), tos, type_, flags, words


def hops(words: dict[int, bytes], flags: int) -> Iterator[Hop]:
    """Yield the next hops of a route, given its attributes and flags."""
    if _MULTIPATH not in words:
        if _OIF in words:
            yield Hop(word(words, _OIF, 0), *_router(words), 1, not flags & _DOWN)
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


def word(words: dict[int, bytes], kind: int, otherwise: int) -> int:
    """Return an attribute of 32 bits."""
    return int(struct.unpack("=I", words[kind])[0]) if kind in words else otherwise
