"""Make flow records from NetFlow (nfdump's CSV) and from sFlow (the output of `sflowtool`).

NetFlow v5, v9 and IPFIX count IP bytes including headers, and report a long flow in pieces.

An sFlow sample stands for as many packets as the sampling rate says. A packet may be sampled at
every switch on its path, so that only the switch with the most samples of a flow counts. Times are
those of the sFlow datagrams, in whole seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

from orchestration.core.csv_columns import numbered_lines, opened_csv, quoted_cell, refuse
from orchestration.core.errors import InputError
from orchestration.core.topology import TCP_IP_HEADER_BYTES
from orchestration.exchange.records import (
    ETHERNET,
    OTHER,
    RAW_IP4,
    RAW_IP6,
    TUNNEL,
    FlowRecord,
    RecordedFlows,
    UnsupportedCounts,
    UnsupportedKind,
    ends_of,
    kind_of_datagram,
    merge_records,
    nonzero_counts,
    parse,
)

# Column names of nfdump 1.6, and of the shorter CSV of 1.7.
_COLUMNS = {
    "start": ("ts", "firstSeen"),
    "duration": ("td", "duration"),
    "src": ("sa", "srcAddr"),
    "dst": ("da", "dstAddr"),
    "sport": ("sp", "srcPort"),
    "dport": ("dp", "dstPort"),
    "protocol": ("pr", "proto"),
    "packets": ("ipkt", "packets"),
    "bytes": ("ibyt", "bytes"),
    "back_packets": ("opkt",),
    "back_bytes": ("obyt",),
}
_IF_BOTH_WAYS = ("back_packets", "back_bytes")
_UDP_IP_HEADER_BYTES = 28
_IP6_MORE_BYTES = 20
_PROTOCOLS = {"6": "tcp", "TCP": "tcp", "17": "udp", "UDP": "udp"}
_WRITE_AGAIN = "write it again with `nfdump -o csv`"
# The protocols of tunnels, as nfdump prints them.
_TUNNELS = frozenset(("4", "IPIP", "41", "IPV6", "47", "GRE", "50", "ESP", "51", "AH"))
# sFlow's header_protocol (sflow_version_5.txt) -> link type.
_LINKS = {1: ETHERNET, 11: RAW_IP4, 12: RAW_IP6}
_PRINT_AGAIN = "print it with `sflowtool -r FILE`; with -l, -L or -J it leaves out times or headers"


def read_nfdump(path: Path, idle_ns: int, without: Collection[str] = ()) -> RecordedFlows:
    """Return the flows of nfdump's CSV. Records of a five-tuple within `idle_ns` are one flow.

    `without` names kinds of records that are left out. Raises InputError, with the line, for a
    record of such a kind that is not named, for another format, and for a malformed row.
    """
    records: list[FlowRecord] = []
    unsupported = UnsupportedCounts("records", without)
    rows = whole_seconds = 0
    with opened_csv(path, _WRITE_AGAIN) as (_, reader):
        header = [name.strip() for name in next(reader, [])]
        first = ("src", "start")
        version = next(
            (n for n in (0, 1) if all(_COLUMNS[name][n] in header for name in first)), None
        )
        if version is None:
            refuse(path, 1, "is not the header of `nfdump -o csv`", "write it with -o csv")
        columns = {name: names[version] for name, names in _COLUMNS.items() if names[version:]}
        index = {name: header.index(own) for name, own in columns.items() if own in header}
        if absent := [columns[name] for name in columns if name not in (*index, *_IF_BOTH_WAYS)]:
            refuse(path, 1, f"has no column {', '.join(absent)}", _WRITE_AGAIN)
        for line, row in enumerate(reader, start=2):
            if not row or row[0].strip() in ("Summary", "No matching flows"):
                break
            if len(row) < max(index.values()) + 1:
                what = f"has {len(row)} cells, the header {len(header)}"
                refuse(path, line, what, _WRITE_AGAIN)
            cells = {name: row[number].strip() for name, number in index.items()}
            rows += 1
            protocol = _PROTOCOLS.get(cells["protocol"].upper(), "")
            kind = _unsupported_kind(cells, protocol)
            if kind is not None:
                unsupported.add(kind, f"{path}:{line}")
                continue
            whole_seconds += "." not in cells["start"]
            try:
                records += _records(cells, protocol)
            except ValueError as error:
                refuse(path, line, str(error), _WRITE_AGAIN)
    flows, overlaps = merge_records(records, idle_ns)
    kept = [flow for flow in flows if flow.size_bytes > 0]
    notes = [
        f"payload is estimated: IP bytes less {TCP_IP_HEADER_BYTES} B for each packet of TCP and "
        f"{_UDP_IP_HEADER_BYTES} B of UDP; retransmitted bytes count again",
        *nonzero_counts(
            [
                (len(records) - len(flows), "records continue the flow of another record"),
                (
                    overlaps,
                    "of them begin before that record ends, and are added: if several exporters "
                    "saw a flow, give the records of one (`nfdump 'exporter ip ADDRESS'`)",
                ),
                *unsupported.notes(),
                (len(flows) - len(kept), "flows carry no payload (acknowledgements)"),
                (whole_seconds, "starts are known to a second only"),
            ]
        ),
    ]
    return RecordedFlows(f"{rows} records", kept, notes)


def _unsupported_kind(cells: dict[str, str], protocol: str) -> UnsupportedKind | None:
    """Return the kind of a record that no flow is made of; None if a flow is made of it."""
    if not protocol:
        return TUNNEL if cells["protocol"].upper() in _TUNNELS else OTHER
    port = cells["dport"]
    return kind_of_datagram(int(port)) if protocol == "udp" and port.isdecimal() else None


def _records(cells: dict[str, str], protocol: str) -> list[FlowRecord]:
    """Return a row's flow, and the reverse flow if the row has both. Raises ValueError."""
    start_ns = _time_ns(cells["start"])
    end_ns = start_ns + _decimal(cells["duration"], 10**9)
    src, dst, sport, dport = (cells[name] for name in ("src", "dst", "sport", "dport"))
    header = TCP_IP_HEADER_BYTES if protocol == "tcp" else _UDP_IP_HEADER_BYTES
    header += _IP6_MORE_BYTES if ":" in src else 0

    def record(ends: tuple[str, str, str, str], size: str, packets: str) -> FlowRecord:
        payload = max(0, _decimal(size, 1) - header * _decimal(packets, 1))
        return FlowRecord((protocol, *ends), *ends[:2], start_ns, end_ns, payload, protocol)

    found = [record((src, dst, sport, dport), cells["bytes"], cells["packets"])]
    if cells.get("back_packets", "0") not in ("", "0"):
        back = (dst, src, dport, sport)
        found.append(record(back, cells.get("back_bytes", ""), cells["back_packets"]))
    return found


def _decimal(text: str, scale: int) -> int:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None
    if not value.is_finite() or value < 0:
        raise ValueError(f"{text!r} is not 0 or more")
    return int(value * scale)


def _time_ns(text: str) -> int:
    """Return a time as nfdump prints it, or seconds since 1970, in ns; time zones are ignored."""
    if text.replace(".", "", 1).isdecimal():
        return _decimal(text, 10**9)
    seconds_text, _, part = text.partition(".")
    try:
        seconds = datetime.fromisoformat(seconds_text).replace(tzinfo=UTC).timestamp()
        return int(seconds) * 10**9 + int((part or "0").ljust(9, "0")[:9])
    except ValueError:
        raise ValueError(f"{text!r} is not a time like 2026-09-01 10:00:00") from None


@dataclass
class _SampledFlow:
    """The samples of one flow at one switch, with their estimated payload."""

    start_s: int
    end_s: int
    samples: int
    size_bytes: int


def read_sflowtool(path: Path, idle_ns: int, without: Collection[str] = ()) -> RecordedFlows:
    """Return the flows of sflowtool's output. A gap of more than `idle_ns` and 1 s ends a flow.

    `without` names kinds of packets that are left out. Raises InputError, with the line, for a
    sample of such a kind that is not named, for another format, and for times out of order.
    """
    reader = _SflowReader(path, max(1, idle_ns // 10**9), UnsupportedCounts("samples", without))
    for number, line in numbered_lines(path, "copy it again"):
        reader.take(number, line)
    return reader.result()


class _SflowReader:
    def __init__(self, path: Path, idle_s: int, unsupported: UnsupportedCounts) -> None:
        self._path, self._idle_s, self._unsupported = path, idle_s, unsupported
        self._time_s = -1
        self._agent = ""
        self._rate = 0
        self._open: dict[tuple[bytes, str], _SampledFlow] = {}
        self._ended: dict[bytes, list[tuple[str, _SampledFlow]]] = defaultdict(list)
        self._rates: set[int] = set()
        self._samples = self._protocol = self._frame_bytes = 0

    def take(self, number: int, line: bytes) -> None:
        tag, _, rest = line.strip().partition(b" ")
        value = rest.strip()
        if tag == b"unixSecondsUTC":
            time_s = self._integer(number, value)
            if time_s < self._time_s:
                what = f"the clock jumps back by {self._time_s - time_s} s"
                refuse(self._path, number, what, "give the output of one run of sflowtool")
            self._time_s = time_s
        elif tag == b"agent":
            self._agent = value.decode("ascii", "replace")
        elif tag == b"meanSkipCount":
            self._rate = self._integer(number, value)
            if self._rate < 1:
                refuse(self._path, number, "a sampling rate of 0", "sample packets, not counters")
        elif tag == b"startSample":
            self._protocol, self._frame_bytes = 1, 0
        elif tag == b"headerProtocol":
            self._protocol = self._integer(number, value)
        elif tag == b"sampledPacketSize":
            self._frame_bytes += self._integer(number, value)
        elif tag == b"strippedBytes":
            # the trailer, which `sampledPacketSize` includes
            self._frame_bytes -= self._integer(number, value)
        elif tag == b"headerBytes":
            self._sample(number, value)
        elif tag.startswith((b"FLOW,", b"CNTR,", b"{")):
            refuse(self._path, number, "is not sflowtool's plain output", _PRINT_AGAIN)

    def _integer(self, number: int, value: bytes) -> int:
        if not value.isdigit():
            refuse(self._path, number, f"{quoted_cell(value)} is not a whole number", _PRINT_AGAIN)
        return int(value)

    def _sample(self, number: int, value: bytes) -> None:
        """Count a sampled packet, given in hexadecimal with dashes."""
        if self._time_s < 0 or not self._rate:
            what = "a packet comes before its time or its sampling rate"
            refuse(self._path, number, what, _PRINT_AGAIN)
        self._samples += 1
        self._rates.add(self._rate)
        try:
            data = bytes.fromhex(value.decode("ascii").replace("-", ""))
        except ValueError:
            refuse(
                self._path,
                number,
                f"{quoted_cell(value)} is not a packet in hexadecimal",
                _PRINT_AGAIN,
            )
        link = _LINKS.get(self._protocol)
        if link is None:
            what = f"a packet of header protocol {self._protocol}"
            refuse(self._path, number, what, "sample on Ethernet interfaces")
        packet = parse(data, link, max(self._frame_bytes, len(data)))
        if isinstance(packet, UnsupportedKind):
            self._unsupported.add(packet, f"{self._path}:{number}")
            return
        seen = self._open.get((packet.key, self._agent))
        if seen is None or self._time_s - seen.end_s > self._idle_s:
            if seen is not None:
                self._ended[packet.key].append((self._agent, seen))
            seen = self._open[packet.key, self._agent] = _SampledFlow(
                self._time_s, self._time_s, 0, 0
            )
        seen.end_s = self._time_s
        seen.samples += 1
        seen.size_bytes += packet.payload_bytes * self._rate

    def result(self) -> RecordedFlows:
        if not self._samples:
            raise InputError.single(str(self._path), "has no sampled packets", _PRINT_AGAIN)
        for (key, agent), seen in self._open.items():
            self._ended[key].append((agent, seen))
        records = []
        for key, at_switches in self._ended.items():
            src, dst, protocol = ends_of(key)
            for seen in _of_one_switch(at_switches):
                times_ns = (seen.start_s * 10**9, seen.end_s * 10**9)
                record = FlowRecord((key,), src, dst, *times_ns, seen.size_bytes, protocol)
                records.append(record)
        kept = [record for record in records if record.size_bytes > 0]
        rates = ", ".join(str(rate) for rate in sorted(self._rates))
        notes = [
            f"sizes are estimates: sampled payload times the sampling rate (1 in {rates})",
            "starts are known to a second only",
            *nonzero_counts(
                [
                    *self._unsupported.notes(),
                    (len(records) - len(kept), "flows carry no payload (acknowledgements)"),
                ]
            ),
        ]
        kept.sort(key=lambda record: record.start_ns)
        return RecordedFlows(f"{self._samples} samples", kept, notes)


def _of_one_switch(at_switches: list[tuple[str, _SampledFlow]]) -> list[_SampledFlow]:
    """Return the flows at the switch (sFlow agent) that has the most samples of them."""
    samples: Counter[str] = Counter()
    for agent, seen in at_switches:
        samples[agent] += seen.samples
    maximum = max(samples, key=lambda agent: (samples[agent], agent))
    return [seen for agent, seen in at_switches if agent == maximum]
