"""Flow records (source, destination, bytes, time), and the packets that none is made of.

Some kinds of traffic would give wrong flows, or none: RoCE and tunnels. A file with such packets is
refused unless the user leaves that kind out by its name. All other unsupported packets are counted,
and the notes say how many there are.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple

from orchestration.core.errors import InputError, check_known


class FlowRecord(NamedTuple):
    """One flow in one direction.

    `key` identifies the flow, for instance by its five-tuple. Times are in ns since 1970.
    """

    key: tuple[object, ...]
    src: str
    dst: str
    start_ns: int
    end_ns: int
    size_bytes: int
    klass: str


@dataclass
class RecordedFlows:
    """The flow records of a file, and notes on what was left out, estimated or unknown.

    `source` says how much was read, like `1200 packets`.
    """

    source: str
    records: list[FlowRecord]
    notes: list[str] = field(default_factory=list)


def merge_records(records: Iterable[FlowRecord], idle_ns: int) -> tuple[list[FlowRecord], int]:
    """Join records with the same key that follow each other within `idle_ns`; sort by start.

    NetFlow exporters report a long flow in pieces. Also return how many records begin before the
    record that they continue has ended; that does not happen with records of a single exporter.
    """
    overlaps = 0
    result: list[FlowRecord] = []
    last: dict[tuple[object, ...], int] = {}
    for record in sorted(records, key=lambda record: record.start_ns):
        index = last.get(record.key)
        if index is not None and record.start_ns - result[index].end_ns <= idle_ns:
            before = result[index]
            overlaps += record.start_ns < before.end_ns
            result[index] = before._replace(
                end_ns=max(before.end_ns, record.end_ns),
                size_bytes=before.size_bytes + record.size_bytes,
            )
        else:
            last[record.key] = len(result)
            result.append(record)
    return result, overlaps


def nonzero_counts(notes: Sequence[tuple[int, str]]) -> list[str]:
    """Return a note for each count above 0: the count, then the text."""
    return [f"{count} {words}" for count, words in notes if count]


class UnsupportedKind(NamedTuple):
    """A kind of packets or records that no flow is made of.

    `words` describes it. `name` is its name in `--without`, "" for a kind that is only counted.
    """

    words: str
    name: str = ""


# RoCE (InfiniBand's specification, annexes A16 and A17): a flow is a queue pair, its payload is
# without BTH and CRC, and its sequence numbers count packets.
ROCE = UnsupportedKind(
    "RoCE (UDP port 4791, or Ethertype 0x8915), whose queue pairs are not read yet",
    "roce",
)
TUNNEL = UnsupportedKind(
    "in a tunnel (VXLAN, Geneve, GRE, IP in IP, IPsec, MPLS, PPPoE); inner flows are not read",
    "tunnels",
)
NOT_IP = UnsupportedKind("not IP (ARP, LLDP and the like)")
OTHER = UnsupportedKind("neither TCP nor UDP")
CUT = UnsupportedKind("cut off within their headers")
FRAGMENT = UnsupportedKind(
    "later fragments (the first one of UDP counts for all; TCP's bytes in them may be missing)"
)
MALFORMED = UnsupportedKind("of an impossible length")
REFUSED = {kind.name: kind for kind in (ROCE, TUNNEL)}

# VXLAN's port (RFC 7348), Linux' default for it, and Geneve's (RFC 8926).
_VXLAN_PORTS, _GENEVE_PORT, _ROCE_PORT = (4789, 8472), 6081, 4791
TUNNEL_PROTOCOLS = frozenset((4, 41, 47, 50, 51))  # IP in IP, IPv6 in IP, GRE, ESP, AH


def kind_of_datagram(port: int, payload: bytes = b"") -> UnsupportedKind | None:
    """Return the unsupported kind of datagrams to a UDP port; None if flows are made of them.

    A `payload` that does not begin with the header of a tunnel shows another use of its port.
    """
    if port == _ROCE_PORT:
        return ROCE
    if port in _VXLAN_PORTS:
        return TUNNEL if not payload or payload[0] & 0x08 else None
    if port == _GENEVE_PORT:
        return TUNNEL if not payload or payload[0] >> 6 == 0 else None
    return None


def check_without(names: Sequence[str]) -> None:
    """Raise InputError for names in `--without` that are not those of refused kinds."""
    check_known("--without", "unknown: {!r}", names, REFUSED)


class UnsupportedCounts:
    """Counts unsupported packets or records by kind; refuses kinds that `without` does not name."""

    def __init__(self, noun: str, without: Collection[str] = ()) -> None:
        self._noun, self._without = noun, without
        self._counts: Counter[UnsupportedKind] = Counter()

    def add(self, kind: UnsupportedKind, where: str) -> None:
        """Count a packet or record, which is at `where`. Raises InputError for a refused kind."""
        if kind.name and kind.name not in self._without:
            raise InputError.single(
                where,
                f"is {kind.words}",
                f"to make flows of the rest, leave this kind out: --without {kind.name}",
            )
        self._counts[kind] += 1

    def notes(self) -> list[tuple[int, str]]:
        """Return a count and a text for each kind."""
        return [
            (count, f"{self._noun} are {kind.words}{', left out' if kind.name else ''}")
            for kind, count in self._counts.items()
        ]


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
    """What the headers of a TCP or UDP packet say.

    `key` is the five-tuple as bytes. `sequence` is TCP's number of the first payload byte, -1 for
    UDP. `opens` says whether the packet is a SYN, which occupies the number before `sequence`.
    """

    key: bytes
    payload_bytes: int
    sequence: int
    opens: bool = False


def parse(data: bytes, link_type: int, wire_bytes: int) -> Packet | UnsupportedKind:
    """Return the headers of a TCP or UDP packet, or the unsupported kind that it is of.

    `data` may be cut off; `wire_bytes` is the packet's full length on the link, headers included.
    """
    start = _network_start(data, link_type)
    if isinstance(start, UnsupportedKind):
        return start
    if len(data) <= start:
        return CUT
    version = data[start] >> 4
    if version == 4:
        return _ip4(data, start, wire_bytes)
    if version == 6:
        return _ip6(data, start, wire_bytes)
    return NOT_IP


def _network_start(data: bytes, link_type: int) -> int | UnsupportedKind:
    """Return the offset of the IP header, or the kind of another protocol."""
    # the offsets of the Ethertype, and of the header that it names
    if link_type == ETHERNET:
        type_offset, start = 12, 14
    elif link_type == _SLL:
        type_offset, start = 14, 16
    elif link_type == _SLL2:
        type_offset, start = 0, 20
    else:
        return 4 if link_type == _NULL else 0
    kind = int.from_bytes(data[type_offset : type_offset + 2], "big")
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


def _ip4(data: bytes, start: int, wire_bytes: int) -> Packet | UnsupportedKind:
    if len(data) < start + 20:
        return CUT
    transport = start + (data[start] & 15) * 4
    # only the first fragment has ports
    if int.from_bytes(data[start + 6 : start + 8], "big") & 0x1FFF:
        return FRAGMENT
    total = int.from_bytes(data[start + 2 : start + 4], "big") or wire_bytes - start
    if transport < start + 20 or start + total < transport:
        return MALFORMED
    return _transport(
        data, transport, data[start + 9], data[start + 12 : start + 20], start + total
    )


def _ip6(data: bytes, start: int, wire_bytes: int) -> Packet | UnsupportedKind:
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
    """Return the length in a jumbo payload option (RFC 2675), 0 without one."""
    offset = 0
    while offset < len(options):
        if options[offset] == _PAD1:
            offset += 1
        elif options[offset] == _JUMBO and len(options) >= offset + 6:
            return int.from_bytes(options[offset + 2 : offset + 6], "big")
        else:
            offset += 2 + (options[offset + 1] if len(options) > offset + 1 else 0)
    return 0


def _transport(
    data: bytes, at: int, kind: int, addresses: bytes, end: int
) -> Packet | UnsupportedKind:
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
