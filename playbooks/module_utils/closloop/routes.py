"""Reads and sets interfaces, IPv4 addresses, routes and rules over routing netlink.

A route that was read has the kernel's own message, so that a replaced route can be restored with
all its attributes.
"""

from __future__ import annotations

import errno
import socket
import struct

from ansible.module_utils.agent.linux import ethtool
from ansible.module_utils.agent.linux.fib import attribute_u32, hops
from ansible.module_utils.agent.linux.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETROUTE,
    RTM_GETRULE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTM_NEWRULE,
    RouteSocket,
    attribute,
    attributes,
    message,
)
from ansible.module_utils.closloop.reconcile import Refused

_DELETE = 1  # RTM_DEL... is RTM_NEW... plus one
_CREATE_EXCL, _CREATE_REPLACE = NLM_F_CREATE | NLM_F_EXCL, NLM_F_CREATE | NLM_F_REPLACE
_IFLA_IFNAME, _IFLA_MTU = 3, 4
_IFF_UP = 1
_IFINFO = struct.Struct("=BxHiII")
_NOT_THERE_ERRORS = (errno.ESRCH, errno.ENOENT, errno.EADDRNOTAVAIL, errno.ENODEV)

MAIN = 254
_STATIC = 4  # RTPROT_STATIC
_LINK_SCOPE = 253
_UNICAST, _ONLINK, _CLONED = 1, 4, 0x200
_DST, _OIF, _GATEWAY, _PRIORITY, _PREFSRC, _METRICS, _MULTIPATH, _TABLE = 1, 4, 5, 6, 7, 8, 9, 15
_IFADDR, _RTMSG, _NEXTHOP = struct.Struct("=BBBBi"), struct.Struct("=8BI"), struct.Struct("=HBBi")
_RULE = _RTMSG
_FRA_SRC, _FRA_PRIORITY, _FRA_TABLE = 2, 6, 15
_TO_TABLE = 1


class Links:
    """The interfaces of this network namespace.

    `index`, `mtu` (in bytes) and `up` are by name; `name` has the names by index.
    """

    def __init__(self, route: RouteSocket) -> None:
        self._route = route
        self.refresh()

    def refresh(self) -> None:
        """Read all interfaces again."""
        self.index: dict = {}
        self.name: dict = {}
        self.mtu: dict = {}
        self.up: dict = {}
        for kind, payload in self._route.dump(message(RTM_GETLINK, _IFINFO.pack(0, 0, 0, 0, 0))):
            if kind != RTM_NEWLINK:
                continue
            _, _, index, flags, _ = _IFINFO.unpack_from(payload)
            parsed = attributes(payload, _IFINFO.size)
            name = parsed[_IFLA_IFNAME].rstrip(b"\0").decode()
            self.index[name], self.name[index] = index, name
            (self.mtu[name],) = struct.unpack("=I", parsed[_IFLA_MTU])
            self.up[name] = bool(flags & _IFF_UP)

    def require(self, name: str) -> int:
        """Return an interface's index. Raises Refused if the interface does not exist."""
        if name not in self.index:
            raise Refused(
                f"there is no interface {name!r}; there are {', '.join(sorted(self.index))}",
                "correct the interfaces in closloop_links of the inventory",
            )
        return self.index[name]

    def set_mtu(self, name: str, mtu_bytes: int) -> None:
        """Set the MTU. Raises Refused."""
        body = _IFINFO.pack(0, 0, self.require(name), 0, 0)
        body += attribute(_IFLA_MTU, struct.pack("=I", mtu_bytes))
        try:
            self._route.request([message(RTM_NEWLINK, body)])
        except OSError as error:
            raise Refused(
                f"{name} refuses an MTU of {mtu_bytes} bytes: {error.strerror}",
                "lower the testbed's mtu, or check what the NIC can do: ip -d link show " + name,
            ) from None

    def set_up(self, name: str, up: bool) -> None:
        """Set the interface up or down."""
        flags = _IFF_UP if up else 0
        body = _IFINFO.pack(0, 0, self.require(name), flags, _IFF_UP)
        self._route.request([message(RTM_NEWLINK, body)])


def set_offloads(name: str, target: dict) -> None:
    """Turn the offloads off, or restore the features. Raises Refused."""
    if "features" in target:
        ethtool.set_features(name, target["features"])
        return
    for offload in ethtool.offloads_on(name):
        try:
            ethtool.turn_off(name, offload)
        except OSError as error:
            raise Refused(
                f"{name} keeps {offload} on: {error.strerror}",
                f"check what the NIC can do: ethtool -k {name}",
            ) from None


class Routing:
    """Addresses, routes and rules of this network namespace.

    Keys are `eth0 10.0.0.1/32` for an address, `254 10.0.0.0/16 0` for a route (table, destination,
    metric), and `4101 10.0.0.1/32 4101` for a rule (priority, source, table).
    """

    def __init__(self, route: RouteSocket, links: Links) -> None:
        self._route = route
        self._links = links

    def addresses(self) -> dict:
        """Return all addresses by key."""
        result = {}
        for kind, payload in self._route.dump(message(RTM_GETADDR, _IFADDR.pack(2, 0, 0, 0, 0))):
            family, length, _, _, index = _IFADDR.unpack_from(payload)
            if kind != RTM_NEWADDR or family != socket.AF_INET or index not in self._links.name:
                continue
            parsed = attributes(payload, _IFADDR.size)
            address = socket.inet_ntoa(parsed.get(2) or parsed[1])
            key = f"{self._links.name[index]} {address}/{length}"
            result[key] = {}
        return result

    def routes(self) -> dict:
        """Return the routes of all tables but `local` by key."""
        result = {}
        for kind, payload in self._route.dump(message(RTM_GETROUTE, _RTMSG.pack(2, *[0] * 8))):
            family, length, _, tos, table, protocol, scope, type_, flags = _RTMSG.unpack_from(
                payload
            )
            if kind != RTM_NEWROUTE or family != socket.AF_INET or flags & _CLONED:
                continue
            parsed = attributes(payload, _RTMSG.size)
            table = attribute_u32(parsed, _TABLE, table)
            if table == 255 or tos:
                continue
            destination = socket.inet_ntoa(parsed.get(_DST, bytes(4)))
            key = f"{table} {destination}/{length} {attribute_u32(parsed, _PRIORITY, 0)}"
            result.setdefault(
                key,
                {
                    "via": self._via(parsed, flags),
                    "source": socket.inet_ntoa(parsed[_PREFSRC]) if _PREFSRC in parsed else "",
                    "protocol": protocol,
                    "scope": scope,
                    "type": type_,
                    "metrics": parsed.get(_METRICS, b"").hex(),
                    "message": _without_link_state(payload).hex(),
                },
            )
        return result

    def rules(self) -> dict:
        """Return the rules that send a source to a table, by key."""
        result = {}
        for kind, payload in self._route.dump(message(RTM_GETRULE, _RULE.pack(2, *[0] * 8))):
            family, _, length, _, table, _, _, action, _ = _RULE.unpack_from(payload)
            if kind != RTM_NEWRULE or family != socket.AF_INET or action != _TO_TABLE:
                continue
            parsed = attributes(payload, _RULE.size)
            source = socket.inet_ntoa(parsed.get(_FRA_SRC, bytes(4)))
            priority = attribute_u32(parsed, _FRA_PRIORITY, 0)
            key = f"{priority} {source}/{length} {attribute_u32(parsed, _FRA_TABLE, table)}"
            result[key] = {}
        return result

    def set_address(self, key: str, target: object) -> None:
        """Add or remove an address."""
        name, _, prefix = key.partition(" ")
        address, _, length = prefix.partition("/")
        packed = socket.inet_aton(address)
        body = _IFADDR.pack(2, int(length), 0, 0, self._links.require(name))
        body += attribute(2, packed) + attribute(1, packed)
        if target is None:
            self._delete(RTM_NEWADDR, body)
        else:
            self._send(RTM_NEWADDR, _CREATE_EXCL, body)

    def set_route(self, key: str, target: object) -> None:
        """Add or replace a route, restore a former one, or remove it."""
        table, prefix, priority = key.split(" ")
        destination, _, length = prefix.partition("/")
        attrs = attribute(_TABLE, struct.pack("=I", int(table)))
        if int(length):
            attrs += attribute(_DST, socket.inet_aton(destination))
        if int(priority):
            attrs += attribute(_PRIORITY, struct.pack("=I", int(priority)))
        short_table = int(table) if int(table) < 256 else 0
        if target is None:
            nowhere = 255  # RT_SCOPE_NOWHERE matches any scope
            body = _RTMSG.pack(2, int(length), 0, 0, short_table, 0, nowhere, 0, 0) + attrs
            self._delete(RTM_NEWROUTE, body)
            return
        body = bytes.fromhex(target["message"]) if "message" in target else b""
        if not body:
            via = target["via"]
            scope = 0 if via[0][0] else _LINK_SCOPE
            flags, more = self._nexthops(via)
            if target.get("source"):
                more += attribute(_PREFSRC, socket.inet_aton(target["source"]))
            head = _RTMSG.pack(2, int(length), 0, 0, short_table, _STATIC, scope, _UNICAST, flags)
            body = head + attrs + more
        self._send(RTM_NEWROUTE, _CREATE_REPLACE, body)

    def set_rule(self, key: str, target: object) -> None:
        """Add or remove a rule."""
        priority, prefix, table = key.split(" ")
        source, _, length = prefix.partition("/")
        short_table = int(table) if int(table) < 256 else 0
        body = (
            _RULE.pack(2, 0, int(length), 0, short_table, 0, 0, _TO_TABLE, 0)
            + attribute(_FRA_SRC, socket.inet_aton(source))
            + attribute(_FRA_PRIORITY, struct.pack("=I", int(priority)))
            + attribute(_FRA_TABLE, struct.pack("=I", int(table)))
        )
        if target is None:
            self._delete(RTM_NEWRULE, body)
        else:
            self._send(RTM_NEWRULE, _CREATE_EXCL, body)

    def _via(self, parsed: dict, flags: int) -> list:
        """Return the next hops, each as [gateway ("" for none), interface, weight]."""
        via = []
        for hop in hops(parsed, flags):
            gateway = socket.inet_ntoa(hop.router) if hop.family == socket.AF_INET else ""
            via.append([gateway, self._links.name.get(hop.ifindex, ""), hop.weight])
        return [hop for hop in via if hop[1] or _MULTIPATH in parsed]

    def _nexthops(self, via: list) -> tuple:
        if len(via) == 1:
            gateway, name, _ = via[0]
            more = attribute(_OIF, struct.pack("=i", self._links.require(name)))
            if not gateway:
                return 0, more
            return _ONLINK, attribute(_GATEWAY, socket.inet_aton(gateway)) + more
        packed = b""
        for gateway, name, weight in via:
            inner = attribute(_GATEWAY, socket.inet_aton(gateway))
            index = self._links.require(name)
            packed += _NEXTHOP.pack(_NEXTHOP.size + len(inner), _ONLINK, weight - 1, index) + inner
        return 0, attribute(_MULTIPATH, packed)

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._route.request([message(kind, body, flags)])

    def _delete(self, kind: int, body: bytes) -> None:
        try:
            self._route.request([message(kind + _DELETE, body)])
        except OSError as error:
            if error.errno not in _NOT_THERE_ERRORS:
                raise


def same_route(present: object, target: object) -> bool:
    """Return True if a route that was read equals the desired or former one."""
    if not isinstance(present, dict) or not isinstance(target, dict):
        return present is target
    if "message" in target:
        return all(present[k] == v for k, v in target.items() if k != "message")
    return (
        present["via"] == [list(hop) for hop in target["via"]]
        and present["source"] == target.get("source", "")
        and present["type"] == _UNICAST
        and not present["metrics"]
    )


def _without_link_state(payload: bytes) -> bytes:
    """Return a route's message without the flags about the state of its links.

    The kernel refuses a request that has these flags.
    """
    packed = bytearray(payload)
    (flags,) = struct.unpack_from("=I", packed, 8)
    struct.pack_into("=I", packed, 8, flags & _ONLINK)
    at = _RTMSG.size
    while at + 4 <= len(packed):
        length, kind = struct.unpack_from("=HH", packed, at)
        hop, end = at + 4, at + length
        while kind & 0x3FFF == _MULTIPATH and hop + _NEXTHOP.size <= end:
            packed[hop + 2] &= _ONLINK
            hop += (max(struct.unpack_from("=H", packed, hop)[0], _NEXTHOP.size) + 3) & ~3
        at += (max(length, 4) + 3) & ~3
    return bytes(packed)
