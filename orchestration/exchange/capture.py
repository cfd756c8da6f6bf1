"""Make flow records from a packet capture (pcap or pcapng, optionally gzipped).

A flow is the packets of a five-tuple in one direction, until none comes for a while. TCP's bytes
are counted by sequence number, so that a segment counts once even if it was sent twice or captured
at two ports.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestration.core.errors import InputError, needs
from orchestration.core.units import format_duration
from orchestration.exchange.records import (
    LINK_TYPES,
    FlowRecord,
    Packet,
    RecordedFlows,
    UnsupportedCounts,
    UnsupportedKind,
    ends_of,
    nonzero_counts,
    parse,
)

# Packets may be a little out of order, because the ports of a switch are captured one by one.
_JUMP_NS = 1_000_000_000
_PCAP_HEADER_BYTES = 24
# TCP retransmits within this time (Linux' TCP_RTO_MAX); ports are reused after TIME_WAIT.
_MAX_RTO_NS = 120_000_000_000
_HALF, _WRAP, _MAX_WINDOW = 1 << 31, 1 << 32, 1 << 30


def read_capture(path: Path, idle_ns: int, without: Collection[str] = ()) -> RecordedFlows:
    """Return the flows of a capture. A gap of more than `idle_ns` within a five-tuple ends a flow.

    `without` names kinds of packets that are left out (orchestration/exchange/records.py). Raises
    InputError for packets of such a kind that is not named, and for a file that is not a capture,
    is truncated, or has times that jump back. Raises NotReadyError without Scapy.
    """
    flows: dict[bytes, _Flow] = {}
    ended: list[_Flow] = []
    unsupported = UnsupportedCounts("packets", without)
    packets = last_ns = jumps = 0
    for t_ns, data, link_type, wire_bytes in _packets(path):
        packets += 1
        if t_ns < last_ns - _JUMP_NS:
            back = format_duration(last_ns - t_ns)
            raise InputError.single(
                f"{path}: packet {packets}",
                f"the clock jumps back by {back}",
                "split the capture there (editcap) and import the parts, or capture again",
            )
        last_ns = max(last_ns, t_ns)
        packet = parse(data, link_type, wire_bytes)
        if isinstance(packet, UnsupportedKind):
            unsupported.add(packet, f"{path}: packet {packets}")
            continue
        flow = flows.get(packet.key)
        if flow is None or t_ns - flow.end_ns > idle_ns or flow.is_other_connection(packet):
            before = None
            if flow is not None:
                ended.append(flow)
                other = flow.is_other_connection(packet)
                jumps += other and not packet.opens
                before = None if other or t_ns - flow.end_ns > _MAX_RTO_NS else flow
            flow = flows[packet.key] = _Flow(packet.key, t_ns, before)
        flow.take(t_ns, packet)
    ended += flows.values()
    records = [record for flow in ended if (record := flow.record()) is not None]
    notes = nonzero_counts([*unsupported.notes(), *_notes(ended, records, jumps)])
    return RecordedFlows(f"{packets} packets", sorted(records, key=lambda r: r.start_ns), notes)


def _notes(
    flows: Sequence[_Flow], records: Sequence[FlowRecord], jumps: int
) -> Iterator[tuple[int, str]]:
    """Yield counts with texts: flows without a record, and records that may be wrong."""
    silent = len(flows) - len(records)
    yield silent, "flows carry no payload (acknowledgements, empty connections)"
    yield (
        sum(flow.began_earlier for flow in flows),
        "TCP flows begin without a SYN: bytes sent before the capture are not counted",
    )
    yield (
        jumps,
        "flows continue at a sequence number that is a window or more away: another connection "
        "began, or packets are missing",
    )
    yield (
        sum(record.klass == "udp" for record in records),
        "flows are UDP: datagrams that were sent or captured twice count twice",
    )


class _Flow:
    """The packets of a five-tuple since it was last idle.

    `before` is the earlier flow of the same connection, whose bytes are not counted again.
    """

    __slots__ = ("_before", "_first", "_highest", "_opened", "end_ns", "key", "payload", "start_ns")

    def __init__(self, key: bytes, t_ns: int, before: _Flow | None = None) -> None:
        self.key = key
        self.start_ns, self.end_ns = -1, t_ns
        self.payload = 0
        self._opened: int | None = before._opened if before else None
        # sequence numbers of TCP, without wrapping at 32 bits
        self._highest: int | None = before._highest if before else None
        self._before = self._highest
        self._first: int | None = None

    @property
    def began_earlier(self) -> bool:
        """Whether it is the first flow of a TCP connection that began before the capture."""
        return self._opened is None and self._before is None and self._first is not None

    def is_other_connection(self, packet: Packet) -> bool:
        """Whether a packet belongs to a later connection between the same ports.

        Within a connection no packet is further than the largest window from the bytes already sent
        (RFC 7323).
        """
        if packet.sequence < 0:
            return False
        if packet.opens and self._opened is not None:
            return packet.sequence != self._opened
        if self._highest is None or not (packet.opens or packet.payload_bytes):
            return False
        if packet.opens:
            # in a capture of several ports, the SYN may come after data
            return self._before is not None or (packet.sequence - (self._first or 0)) % _WRAP != 0
        return abs(self._ahead(packet)) > _MAX_WINDOW

    def _ahead(self, packet: Packet) -> int:
        """Return how far a packet begins beyond the highest number; negative if before it."""
        return (packet.sequence - (self._highest or 0) + _HALF) % _WRAP - _HALF

    def take(self, t_ns: int, packet: Packet) -> None:
        self.end_ns = max(self.end_ns, t_ns)
        if packet.opens:
            self._opened = packet.sequence
        size = packet.payload_bytes
        if not size:
            return
        if packet.sequence < 0:
            self._seen(t_ns)
            self.payload += size
            return
        begin = packet.sequence
        if self._highest is not None:
            begin = self._highest + self._ahead(packet)
        end = begin + size
        if self._before is not None:
            begin = max(begin, self._before)
        if begin >= end:
            return
        self._seen(t_ns)
        self._first = begin if self._first is None else min(self._first, begin)
        self._highest = end if self._highest is None else max(self._highest, end)

    def _seen(self, t_ns: int) -> None:
        """Note the time of a packet with payload; packets may come out of order."""
        self.start_ns = t_ns if self.start_ns < 0 else min(self.start_ns, t_ns)

    def record(self) -> FlowRecord | None:
        """Return the flow's record; None if it carried no payload."""
        size = self.payload
        if self._highest is not None and self._first is not None:
            size += self._highest - self._first
        if size <= 0:
            return None
        src, dst, protocol = ends_of(self.key)
        return FlowRecord((self.key,), src, dst, self.start_ns, self.end_ns, size, protocol)


def _packets(path: Path) -> Iterator[tuple[int, bytes, int, int]]:
    """Yield each packet's time in ns, its bytes, its link type, and its length on the link."""
    with needs("reading captures", "hardware"):
        from scapy.error import Scapy_Exception
        from scapy.utils import RawPcapNgReader, RawPcapReader
    number = 0
    with _scapy_warnings() as warnings:
        try:
            reader: Any = RawPcapReader(str(path))
        except FileNotFoundError:
            raise InputError.single(str(path), "no such file", "check the path") from None
        except (Scapy_Exception, OSError, EOFError) as error:
            remedy = "give a pcap or pcapng file; for flow records name their kind with --from"
            raise InputError.single(str(path), f"is not a capture: {error}", remedy) from error
        with reader:
            if isinstance(reader, RawPcapNgReader):
                block: Any
                for number, block in enumerate(reader, start=1):
                    data, meta = block
                    _refuse_damage(path, number, warnings)
                    if meta.tshigh is None:
                        raise InputError.single(
                            f"{path}: packet {number}",
                            "has no time (a simple packet block), so that no flow has a start",
                            "capture again into a pcap, or pcapng with enhanced packet blocks",
                        )
                    ticks = (meta.tshigh or 0) << 32 | (meta.tslow or 0)
                    _known_link(path, meta.linktype)
                    t_ns = ticks * 10**9 // (meta.tsresol or 10**6)
                    yield t_ns, data, meta.linktype, meta.wirelen
            else:
                _known_link(path, reader.linktype)
                scale, offset = 1 if reader.nano else 1000, _PCAP_HEADER_BYTES
                for number, (data, meta) in enumerate(reader, start=1):
                    _refuse_damage(path, number, warnings)
                    offset += 16 + meta.caplen
                    t_ns = meta.sec * 10**9 + meta.usec * scale
                    yield t_ns, data, reader.linktype, meta.wirelen
                # the reader takes a truncated header for the end of the file, without an error
                if reader.f.tell() != offset:
                    warnings.append("the next packet is cut off")
            if reader.f.read(1):
                warnings.append("the rest of the file is no packet")
            _refuse_damage(path, number, warnings)


def _known_link(path: Path, link_type: int) -> None:
    if link_type not in LINK_TYPES:
        what = f"has packets of link type {link_type}"
        remedy = "capture on Ethernet, Linux cooked or raw IP interfaces"
        raise InputError.single(str(path), what, remedy)


def _refuse_damage(path: Path, packets: int, warnings: list[str]) -> None:
    if warnings:
        raise InputError.single(
            f"{path}: packet {packets}",
            f"the capture is cut off or damaged here: {warnings[0]}",
            "copy it again; `editcap` writes its intact part into a new file",
        )


@contextmanager
def _scapy_warnings() -> Iterator[list[str]]:
    """Collect Scapy's log messages while it reads, instead of showing them."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger = logging.getLogger("scapy.runtime")
    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [Collect()], False
    try:
        yield messages
    finally:
        logger.handlers, logger.propagate = handlers, propagate
