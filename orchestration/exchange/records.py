"""Flow records (source, destination, bytes, time), and what a file holds that is made into none.

A kind of traffic whose flows would be wrong or missing is refused, unless the user leaves it out by
its name. All others are counted, and stand in the notes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestration.core.errors import InputError, check_known


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


def merged(records: Iterable[FlowRecord], idle_ns: int) -> tuple[list[FlowRecord], int]:
    """Join the records of one key that follow each other within `idle_ns`, sorted by start.

    Exporters report a long flow in pieces. Also return how many records begin before the one that
    they continue ends: pieces of one exporter do not.
    """
    overlaps = 0
    result: list[FlowRecord] = []
    last: dict[tuple[object, ...], int] = {}
    for record in sorted(records, key=lambda record: record.start_ns):
        place = last.get(record.key)
        if place is not None and record.start_ns - result[place].end_ns <= idle_ns:
            before = result[place]
            overlaps += record.start_ns < before.end_ns
            result[place] = before._replace(
                end_ns=max(before.end_ns, record.end_ns),
                size_bytes=before.size_bytes + record.size_bytes,
            )
        else:
            last[record.key] = len(result)
            result.append(record)
    return result, overlaps


def counted(notes: Sequence[tuple[int, str]]) -> list[str]:
    """Return `N words` for each count above 0."""
    return [f"{count} {words}" for count, words in notes if count]


class Unread(NamedTuple):
    """A kind of packets or records. `name` is what `--without` calls it, "" if it is counted."""

    words: str
    name: str = ""


# RoCE (InfiniBand's spec, annexes A16 and A17): a flow is a queue pair, its payload is without BTH
# and CRC, and its sequence numbers are those of packets.
ROCE = Unread(
    "RoCE (UDP port 4791, or Ethertype 0x8915), whose flows are queue pairs, not read yet", "roce"
)
TUNNEL = Unread(
    "a tunnel's (VXLAN, Geneve, GRE, IP in IP, IPsec, MPLS, PPPoE), whose inner flows are not read",
    "tunnels",
)
NOT_IP = Unread("not IP (ARP, LLDP and the like)")
OTHER = Unread("neither TCP nor UDP")
CUT = Unread("cut within their headers")
FRAGMENT = Unread("later fragments (UDP's first one counts for all; TCP's bytes in them may lack)")
MALFORMED = Unread("of an impossible length")
REFUSED = {kind.name: kind for kind in (ROCE, TUNNEL)}

# VXLAN's port (RFC 7348), Linux' default for it, and Geneve's (RFC 8926).
_VXLAN_PORTS, _GENEVE_PORT, _ROCE_PORT = (4789, 8472), 6081, 4791
TUNNEL_PROTOCOLS = frozenset((4, 41, 47, 50, 51))  # IP in IP, IPv6 in IP, GRE, ESP, AH


def kind_of_datagram(port: int, payload: bytes = b"") -> Unread | None:
    """Return the kind of datagrams to a UDP port that flows are not made of; None for others.

    The beginning of a `payload` that is no header of such a tunnel tells another use of its port.
    """
    if port == _ROCE_PORT:
        return ROCE
    if port in _VXLAN_PORTS:
        return TUNNEL if not payload or payload[0] & 0x08 else None
    if port == _GENEVE_PORT:
        return TUNNEL if not payload or payload[0] >> 6 == 0 else None
    return None


def check_names(names: Sequence[str]) -> None:
    """Raise InputError for a name that is no refused kind's."""
    check_known("--without", "unknown: {!r}", names, REFUSED)


class Tally:
    """Counts what is not read, and refuses what the user did not leave out (`without`)."""

    def __init__(self, noun: str, without: Collection[str] = ()) -> None:
        self._noun, self._without = noun, without
        self._counts: Counter[Unread] = Counter()

    def add(self, kind: Unread, where: str) -> None:
        """Count a packet or record at `where`. Raises InputError for a refused kind."""
        if kind.name and kind.name not in self._without:
            raise InputError.single(
                where,
                f"is {kind.words}",
                f"to make flows of the rest, leave such out: --without {kind.name}",
            )
        self._counts[kind] += 1

    def notes(self) -> list[tuple[int, str]]:
        """Return a count and words for each kind."""
        return [
            (count, f"{self._noun} are {kind.words}{', left out' if kind.name else ''}")
            for kind, count in self._counts.items()
        ]
