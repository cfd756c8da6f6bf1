"""Netlink requests for links, addresses, neighbours, rules and routes, in pyroute2's encoding.

They are the same in all trials on a fabric, and encoding them takes longer than booting the guest
of a short trial. So each is cached by its arguments: a process that is forked afterwards encodes
none of them, and does not import pyroute2.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from orchestration.agent.linux.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    NLM_F_REQUEST,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTM_NEWRULE,
)

# Every route's next hop: each end of a cable has a permanent neighbour entry for it.
GATEWAY = "169.254.0.1"
MAIN_TABLE = 254

_CACHE_SIZE = 1 << 16  # requests, of each kind

_AF_INET = 2
_RTM_NEWNEIGH = 28
_IFF_UP = 1
_NUD_PERMANENT = 0x80
_FR_ACT_TO_TBL = 1
_RTPROT_STATIC = 4
_RTN_UNICAST, _RTN_BLACKHOLE = 1, 6
_RTNH_ONLINK = 4
# Where a route's destination, its first attribute, begins: after struct nlmsghdr, rtmsg and rtattr.
_RTA_DST_AT = 16 + 12 + 4
_CREATE = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL
_REPLACE = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE


@dataclass(frozen=True)
class End:
    """One end of a cable, in the namespace that is open as file descriptor `namespace_fd`."""

    index: int
    name: str
    mac: str
    namespace_fd: int
    mtu_bytes: int


@lru_cache(maxsize=_CACHE_SIZE)
def veth(near: End, far: End) -> bytes:
    """Return the request that makes a cable between two namespaces."""

    def attrs(end: End) -> list[tuple[str, Any]]:
        return [
            ("IFLA_IFNAME", end.name),
            ("IFLA_MTU", end.mtu_bytes),
            ("IFLA_ADDRESS", end.mac),
            ("IFLA_NET_NS_FD", end.namespace_fd),
        ]

    peer = ("VETH_INFO_PEER", {"index": far.index, "attrs": attrs(far)})
    info = [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", {"attrs": [peer]})]
    both = [*attrs(near), ("IFLA_LINKINFO", {"attrs": info})]
    return _encode("ifinfmsg", RTM_NEWLINK, _CREATE, {"index": near.index}, both)


@lru_cache(maxsize=_CACHE_SIZE)
def link_up(index: int) -> bytes:
    """Return the request that sets an interface up."""
    header = {"index": index, "flags": _IFF_UP, "change": _IFF_UP}
    return _encode("ifinfmsg", RTM_NEWLINK, NLM_F_REQUEST, header, [])


@lru_cache(maxsize=_CACHE_SIZE)
def address(index: int, own: str) -> bytes:
    """Return the request that gives an interface a /32 of its own."""
    header = {"family": _AF_INET, "prefixlen": 32, "index": index}
    attrs = [("IFA_LOCAL", own), ("IFA_ADDRESS", own)]
    return _encode("ifaddrmsg", RTM_NEWADDR, _CREATE, header, attrs)


@lru_cache(maxsize=_CACHE_SIZE)
def neighbour(index: int, mac: str) -> bytes:
    """Return the request for a permanent entry: the gateway behind an interface has `mac`."""
    header = {"family": _AF_INET, "ifindex": index, "state": _NUD_PERMANENT}
    attrs = [("NDA_DST", GATEWAY), ("NDA_LLADDR", mac)]
    return _encode("ndmsg", _RTM_NEWNEIGH, _CREATE, header, attrs)


@lru_cache(maxsize=_CACHE_SIZE)
def rule(source: str, table: int) -> bytes:
    """Return the request that routes packets from an address by a table."""
    header = {"family": _AF_INET, "src_len": 32, "table": table, "action": _FR_ACT_TO_TBL}
    return _encode("fibmsg", RTM_NEWRULE, _CREATE, header, [("FRA_SRC", source)])


def route(
    prefix: str, length: int, interfaces: Sequence[int], *, replace: bool, table: int = MAIN_TABLE
) -> bytes:
    """Return the request for a route through one interface, or ECMP through several.

    The next hop is the gateway in any case.
    """
    request = _route_to_0(length, tuple(interfaces), replace, table)
    if not length:
        return request
    # Of the tens of thousands of routes of a large fabric, most differ in their prefixes alone.
    return request[:_RTA_DST_AT] + socket.inet_aton(prefix) + request[_RTA_DST_AT + 4 :]


@lru_cache(maxsize=_CACHE_SIZE)
def _route_to_0(length: int, interfaces: tuple[int, ...], replace: bool, table: int) -> bytes:
    header = _route_header(length, table, _RTN_UNICAST)
    attrs: list[tuple[str, Any]] = [("RTA_DST", "0.0.0.0")] if length else []
    gateway = ("RTA_GATEWAY", GATEWAY)
    if len(interfaces) == 1:
        header["flags"] = _RTNH_ONLINK
        attrs += [gateway, ("RTA_OIF", interfaces[0])]
    else:
        hop = {"hops": 0, "flags": _RTNH_ONLINK, "attrs": [gateway]}
        attrs.append(("RTA_MULTIPATH", [{**hop, "oif": interface} for interface in interfaces]))
    return _encode("rtmsg", RTM_NEWROUTE, _REPLACE if replace else _CREATE, header, attrs)


@lru_cache(maxsize=_CACHE_SIZE)
def unreachable(prefix: str, length: int) -> bytes:
    """Return the request for a route that drops packets to a prefix."""
    header = _route_header(length, MAIN_TABLE, _RTN_BLACKHOLE)
    return _encode("rtmsg", RTM_NEWROUTE, _REPLACE, header, [("RTA_DST", prefix)])


def _route_header(length: int, table: int, kind: int) -> dict[str, int]:
    words = {"family": _AF_INET, "dst_len": length, "table": table}
    return words | {"proto": _RTPROT_STATIC, "scope": 0, "type": kind}


def _encode(name: str, kind: int, flags: int, header: dict[str, int], attrs: Any) -> bytes:
    """Return an encoded request; `name` names pyroute2's class, which is imported when needed."""
    message = getattr(import_module(f"pyroute2.netlink.rtnl.{name}"), name)()
    for key, value in {**header, "attrs": attrs}.items():
        message[key] = value
    message["header"]["type"], message["header"]["flags"] = kind, flags
    message.encode()
    return bytes(message.data)
