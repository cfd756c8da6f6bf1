"""Make flow records from a packet capture (pcap or pcapng, optionally gzipped).

A flow is a five-tuple in one direction until it is idle for a while. TCP's bytes are counted by
sequence number: a segment that was sent twice or captured at two ports counts once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestration.exchange.records import (
    LINK_TYPES,
    FlowRecord,
    Packet,
    Recorded,
    counted,
    ends_of,
    parse,
)
from orchestration.model.errors import InputError, NotReadyError
from orchestration.model.units import format_duration

# Packets may be a little out of order, because the ports of a switch are captured in turn.
_JUMP_NS = 1_000_000_000
_PCAP_HEADER_BYTES = 24
_HALF, _WRAP = 1 << 31, 1 << 32


def read_capture(path: Path, idle_ns: int) -> Recorded:
    """Return the flows of a capture. A gap of more than `idle_ns` within a five-tuple ends a flow.

    Raises InputError for a file that is not a capture, is truncated, or has times that jump back.
    Raises NotReadyError without Scapy.
    """
    flows: dict[bytes, _Flow] = {}
    ended: list[_Flow] = []
    other = packets = last_ns = 0
    for t_ns, data, link_type in _packets(path):
        packets += 1
        if t_ns < last_ns - _JUMP_NS:
            back = format_duration(last_ns - t_ns)
            raise InputError.single(
                f"{path}: packet {packets}",
                f"the clock jumps back by {back}",
                "cut the capture there (editcap) and import the parts, or capture again",
            )
        last_ns = max(last_ns, t_ns)
        packet = parse(data, link_type)
        if packet is None:
            other += 1
            continue
        flow = flows.get(packet.key)
        if flow is None or t_ns - flow.end_ns > idle_ns:
            if flow is not None:
                ended.append(flow)
            flow = flows[packet.key] = _Flow(packet.key, t_ns)
        flow.take(t_ns, packet)
    ended += flows.values()
    records = [record for flow in ended if (record := flow.record()) is not None]
    silent = len(ended) - len(records)
    notes = counted(
        [
            (other, "packets are neither TCP nor UDP, or are cut within their headers"),
            (silent, "flows carry no payload (acknowledgements, empty connections)"),
        ]
    )
    return Recorded(f"{packets} packets", sorted(records, key=lambda r: r.start_ns), notes)


class _Flow:
    """The packets of one five-tuple since it was last idle."""

    __slots__ = ("end_ns", "first", "highest", "key", "payload", "start_ns")

    def __init__(self, key: bytes, t_ns: int) -> None:
        self.key = key
        self.start_ns, self.end_ns = -1, t_ns
        self.payload = 0
        self.first = self.highest = -1

    def take(self, t_ns: int, packet: Packet) -> None:
        self.end_ns = max(self.end_ns, t_ns)
        size = packet.payload_bytes
        if not size:
            return
        if self.start_ns < 0:
            self.start_ns = t_ns
        if packet.sequence < 0:
            self.payload += size
            return
        if self.first < 0:
            self.first = self.highest = packet.sequence
        # Sequence numbers wrap at 32 bits: unwrap to the value nearest to the highest so far.
        ahead = (packet.sequence - self.highest + _HALF) % _WRAP - _HALF
        begin = self.highest + ahead
        self.first = min(self.first, begin)
        self.highest = max(self.highest, begin + size)

    def record(self) -> FlowRecord | None:
        """Return the flow; None if it carried nothing."""
        size = self.payload + self.highest - self.first
        if size <= 0:
            return None
        src, dst, protocol = ends_of(self.key)
        return FlowRecord((self.key,), src, dst, self.start_ns, self.end_ns, size, protocol)


def _packets(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Yield each packet's time in ns, bytes and link type."""
    try:
        from scapy.error import Scapy_Exception
        from scapy.utils import RawPcapNgReader, RawPcapReader
    except ImportError as error:
        raise NotReadyError(
            "captures are read with Scapy, which is not installed",
            "pip install 'closloop[hardware]'",
        ) from error
    number = 0
    with _complaints() as complaints:
        try:
            reader: Any = RawPcapReader(str(path))
        except FileNotFoundError:
            raise InputError.single(str(path), "no such file", "check the path") from None
        except (Scapy_Exception, OSError, EOFError) as error:
            remedy = "give a pcap or pcapng file; records of exporters need their own --from"
            raise InputError.single(str(path), f"is no capture: {error}", remedy) from error
        with reader:
            if isinstance(reader, RawPcapNgReader):
                block: Any
                for number, block in enumerate(reader, start=1):
                    data, meta = block
                    _refuse_damage(path, number, complaints)
                    ticks = (meta.tshigh or 0) << 32 | (meta.tslow or 0)
                    _known_link(path, meta.linktype)
                    yield ticks * 10**9 // (meta.tsresol or 10**6), data, meta.linktype
            else:
                _known_link(path, reader.linktype)
                scale, place = 1 if reader.nano else 1000, _PCAP_HEADER_BYTES
                for number, (data, meta) in enumerate(reader, start=1):
                    _refuse_damage(path, number, complaints)
                    place += 16 + meta.caplen
                    yield meta.sec * 10**9 + meta.usec * scale, data, reader.linktype
                # The reader treats a truncated header as the end of the file, without an error.
                if reader.f.tell() != place:
                    complaints.append("the next packet is cut off")
            if reader.f.read(1):
                complaints.append("more follows that is no packet")
            _refuse_damage(path, number, complaints)


def _known_link(path: Path, link_type: int) -> None:
    if link_type not in LINK_TYPES:
        what = f"has packets of link type {link_type}"
        remedy = "capture on Ethernet, Linux cooked or raw IP interfaces"
        raise InputError.single(str(path), what, remedy)


def _refuse_damage(path: Path, packets: int, complaints: list[str]) -> None:
    if complaints:
        raise InputError.single(
            f"{path}: packet {packets}",
            f"the capture is cut off or damaged here: {complaints[0]}",
            "copy it again; `editcap` writes what is whole of it into a new file",
        )


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """Collect Scapy's log messages while it reads, instead of showing them."""
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger = logging.getLogger("scapy.runtime")
    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [Collect()], False
    try:
        yield found
    finally:
        logger.handlers, logger.propagate = handlers, propagate
