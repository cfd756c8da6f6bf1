"""Flow records (source, destination, bytes, time), and the packet headers they are made from.

The payload of a packet is computed from its IP header, because captures may contain only the first
bytes of a packet, and segments may be larger than an MTU.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple

TCP, UDP = 6, 17
_ETHERNET, _NULL, _RAW, _SLL, _RAW_IP4, _RAW_IP6, _SLL2 = 1, 0, 101, 113, 228, 229, 276
LINK_TYPES = frozenset((_ETHERNET, _NULL, _RAW, 12, _SLL, _RAW_IP4, _RAW_IP6, _SLL2))
_IP4, _IP6, _VLANS = 0x0800, 0x86DD, (0x8100, 0x88A8, 0x9100)
# IPv6 headers before the transport header: hop by hop, routing, destination options.
_IP6_EXTENSIONS = (0, 43, 60)
_SIX = struct.Struct("!HHII")


class FlowRecord(NamedTuple):
    """One flow in one direction. Times are ns since 1970; `key` is a five-tuple or similar."""

    key: tuple[object, ...]
    src: str
    dst: str
    start_ns: int
    end_ns: int
    size_bytes: int
    klass: str


@dataclass
class Recorded:
    """The records of a file, its kind, and notes on what was left out, estimated or unknown."""

    source: str
    records: list[FlowRecord]
    notes: list[str] = field(default_factory=list)


def merged(records: Iterable[FlowRecord], idle_ns: int) -> list[FlowRecord]:
    """Join the records of one key that follow each other within `idle_ns`, sorted by start.

    Exporters report a long flow in pieces.
    """
    result: list[FlowRecord] = []
    last: dict[tuple[object, ...], int] = {}
    for record in sorted(records, key=lambda record: record.start_ns):
        place = last.get(record.key)
        if place is not None and record.start_ns - result[place].end_ns <= idle_ns:
            before = result[place]
            result[place] = before._replace(
                end_ns=max(before.end_ns, record.end_ns),
                size_bytes=before.size_bytes + record.size_bytes,
            )
        else:
            last[record.key] = len(result)
            result.append(record)
    return result


def counted(notes: Sequence[tuple[int, str]]) -> list[str]:
    """Return `N words` for each count above 0."""
    return [f"{count} {words}" for count, words in notes if count]


class Packet(NamedTuple):
    """The headers of a packet. `key` is the five-tuple as bytes; `sequence` is TCP's, or -1."""

    key: bytes
    payload_bytes: int
    sequence: int


def parse(data: bytes, link_type: int) -> Packet | None:
    """Return a TCP or UDP packet's headers; None for other packets and truncated headers."""
    start = _network_start(data, link_type)
    if start < 0 or len(data) <= start:
        return None
    version = data[start] >> 4
    if version == 4:
        return _ip4(data, start)
    if version == 6:
        return _ip6(data, start)
    return None


def _network_start(data: bytes, link_type: int) -> int:
    """Return the offset of the IP header, -1 for another protocol."""
    if link_type == _ETHERNET:
        place = 12
    elif link_type == _SLL:
        place = 14
    elif link_type == _SLL2:
        return 20 if data[:2] in (b"\x08\x00", b"\x86\xdd") else -1
    elif link_type == _NULL:
        return 4
    else:
        return 0
    kind = int.from_bytes(data[place : place + 2], "big")
    while kind in _VLANS:
        place += 4
        kind = int.from_bytes(data[place : place + 2], "big")
    return place + 2 if kind in (_IP4, _IP6) else -1


def _ip4(data: bytes, start: int) -> Packet | None:
    transport = start + (data[start] & 15) * 4
    if len(data) < transport + 8 or transport < start + 20:
        return None
    # Only the first fragment has ports.
    if int.from_bytes(data[start + 6 : start + 8], "big") & 0x1FFF:
        return None
    total = int.from_bytes(data[start + 2 : start + 4], "big")
    return _transport(
        data, transport, data[start + 9], data[start + 12 : start + 20], start + total
    )


def _ip6(data: bytes, start: int) -> Packet | None:
    if len(data) < start + 40:
        return None
    end = start + 40 + int.from_bytes(data[start + 4 : start + 6], "big")
    kind, transport = data[start + 6], start + 40
    while kind in _IP6_EXTENSIONS and len(data) >= transport + 8:
        kind, transport = data[transport], transport + 8 * (data[transport + 1] + 1)
    return _transport(data, transport, kind, data[start + 8 : start + 40], end)


def _transport(data: bytes, at: int, kind: int, addresses: bytes, end: int) -> Packet | None:
    key = bytes((kind,)) + addresses + data[at : at + 4]
    if kind == TCP and len(data) >= at + 13:
        _, _, sequence, _ = _SIX.unpack_from(data, at)
        flags = data[at + 13] if len(data) > at + 13 else 0
        payload = end - at - (data[at + 12] >> 4) * 4
        # SYN occupies one sequence number before the payload.
        return Packet(key, max(0, payload), sequence + 1 if flags & 2 else sequence)
    if kind == UDP and len(data) >= at + 8:
        return Packet(key, max(0, int.from_bytes(data[at + 4 : at + 6], "big") - 8), -1)
    return None


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
