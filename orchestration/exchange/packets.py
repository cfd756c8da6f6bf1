"""The headers of captured packets that flows are made from.

The payload of a packet is computed from its IP header, because captures may contain only the first
bytes of a packet, and segments may be larger than an MTU. A length of 0 there stands for what is
longer than the field can say, or for what the NIC will cut: then the packet's length on the link
counts, as in tcpdump (print-ip.c, "presumed TSO") and Wireshark.
"""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import NamedTuple

from orchestration.exchange.records import (
    CUT,
    FRAGMENT,
    MALFORMED,
    NOT_IP,
    OTHER,
    ROCE,
    TUNNEL,
    TUNNEL_PROTOCOLS,
    Unread,
    kind_of_datagram,
)

TCP, UDP = 6, 17
ETHERNET, RAW_IP4, RAW_IP6 = 1, 228, 229
_NULL, _RAW, _SLL, _SLL2 = 0, 101, 113, 276
LINK_TYPES = frozenset((ETHERNET, _NULL, _RAW, 12, _SLL, RAW_IP4, RAW_IP6, _SLL2))
_IP4, _IP6, _VLANS = 0x0800, 0x86DD, (0x8100, 0x88A8, 0x9100)
_ROCE_V1 = 0x8915
# MPLS, PPPoE, provider backbone bridges, NSH
_TUNNELS = (0x8847, 0x8848, 0x8864, 0x88E7, 0x894F)
# IPv6 headers before the transport header: hop by hop, routing, destination options; fragment.
_IP6_EXTENSIONS, _IP6_HOPS, _IP6_FRAGMENT = (0, 43, 60), 0, 44
_JUMBO, _PAD1 = 0xC2, 0
_SIX = struct.Struct("!HHII")
_SYN = 2


class Packet(NamedTuple):
    """The headers of a packet. `key` is the five-tuple as bytes; `sequence` is TCP's, or -1.

    `opens` says whether it is a SYN, which occupies the number before `sequence`.
    """

    key: bytes
    payload_bytes: int
    sequence: int
    opens: bool = False


def parse(data: bytes, link_type: int, wire_bytes: int) -> Packet | Unread:
    """Return a TCP or UDP packet's headers, or of what kind it is that flows are not made of.

    `data` may be cut off; `wire_bytes` is the packet's length on the link, its header included.
    """
    start = _network_start(data, link_type)
    if isinstance(start, Unread):
        return start
    if len(data) <= start:
        return CUT
    version = data[start] >> 4
    if version == 4:
        return _ip4(data, start, wire_bytes)
    if version == 6:
        return _ip6(data, start, wire_bytes)
    return NOT_IP


def _network_start(data: bytes, link_type: int) -> int | Unread:
    """Return the offset of the IP header, or the kind of another protocol."""
    # where the Ethertype is, and where what it names begins
    if link_type == ETHERNET:
        place, start = 12, 14
    elif link_type == _SLL:
        place, start = 14, 16
    elif link_type == _SLL2:
        place, start = 0, 20
    else:
        return 4 if link_type == _NULL else 0
    kind = int.from_bytes(data[place : place + 2], "big")
    while kind in _VLANS:
        kind = int.from_bytes(data[start + 2 : start + 4], "big")
        start += 4
    if kind in (_IP4, _IP6):
        return start
    if len(data) < start:
        return CUT
    if kind == _ROCE_V1:
        return ROCE
    return TUNNEL if kind in _TUNNELS else NOT_IP


def _ip4(data: bytes, start: int, wire_bytes: int) -> Packet | Unread:
    if len(data) < start + 20:
        return CUT
    transport = start + (data[start] & 15) * 4
    # Only the first fragment has ports.
    if int.from_bytes(data[start + 6 : start + 8], "big") & 0x1FFF:
        return FRAGMENT
    total = int.from_bytes(data[start + 2 : start + 4], "big") or wire_bytes - start
    if transport < start + 20 or start + total < transport:
        return MALFORMED
    return _transport(
        data, transport, data[start + 9], data[start + 12 : start + 20], start + total
    )


def _ip6(data: bytes, start: int, wire_bytes: int) -> Packet | Unread:
    if len(data) < start + 40:
        return CUT
    length = int.from_bytes(data[start + 4 : start + 6], "big")
    kind, transport = data[start + 6], start + 40
    jumbo = 0
    while kind in _IP6_EXTENSIONS and len(data) >= transport + 8:
        size = 8 * (data[transport + 1] + 1)
        if kind == _IP6_HOPS:
            jumbo = _jumbo_length(data[transport + 2 : transport + size])
        kind, transport = data[transport], transport + size
    if kind == _IP6_FRAGMENT:
        if len(data) < transport + 8:
            return CUT
        if int.from_bytes(data[transport + 2 : transport + 4], "big") & 0xFFF8:
            return FRAGMENT
        kind, transport = data[transport], transport + 8
    end = start + 40 + length if length else start + 40 + jumbo if jumbo else wire_bytes
    return _transport(data, transport, kind, data[start + 8 : start + 40], end)


def _jumbo_length(options: bytes) -> int:
    """Return the length that a jumbo payload option has (RFC 2675), 0 without one."""
    at = 0
    while at < len(options):
        if options[at] == _PAD1:
            at += 1
        elif options[at] == _JUMBO and len(options) >= at + 6:
            return int.from_bytes(options[at + 2 : at + 6], "big")
        else:
            at += 2 + (options[at + 1] if len(options) > at + 1 else 0)
    return 0


def _transport(data: bytes, at: int, kind: int, addresses: bytes, end: int) -> Packet | Unread:
    if kind in TUNNEL_PROTOCOLS:
        return TUNNEL
    if kind in _IP6_EXTENSIONS:
        return CUT
    if kind not in (TCP, UDP):
        return OTHER
    key = bytes((kind,)) + addresses + data[at : at + 4]
    if kind == TCP:
        if len(data) < at + 14:
            return CUT
        _, _, sequence, _ = _SIX.unpack_from(data, at)
        opens = bool(data[at + 13] & _SYN)
        payload = end - at - (data[at + 12] >> 4) * 4
        if payload < 0:
            return MALFORMED
        # SYN occupies one sequence number before the payload.
        return Packet(key, payload, sequence + opens, opens)
    if len(data) < at + 8:
        return CUT
    port, length = (int.from_bytes(data[at + n : at + n + 2], "big") for n in (2, 4))
    unread = kind_of_datagram(port, data[at + 8 : at + 16])
    if unread is not None:
        return unread
    # RFC 2675: a jumbogram's UDP length is 0
    payload = (length or end - at) - 8
    return Packet(key, payload, -1) if payload >= 0 else MALFORMED


class Ends(NamedTuple):
    """A five-tuple as text."""

    src: str
    dst: str
    protocol: str


def ends_of(key: bytes) -> Ends:
    """Return the addresses and the protocol of a packet's key."""
    width = (len(key) - 5) // 2
    src, dst = key[1 : 1 + width], key[1 + width : 1 + 2 * width]
    return Ends(str(ip_address(src)), str(ip_address(dst)), "tcp" if key[0] == TCP else "udp")
