"""Makes flow records of nfdump's CSV (`nfdump -o csv`): NetFlow v5, v9 and IPFIX.

Exporters count IP bytes, headers included, and report a long flow in pieces.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

from inventory.topology import TCP_IP_HEADER_BYTES
from orchestration.exchange.records import FlowRecord, Recorded, counted, merged
from orchestration.exchange.textrows import refuse
from orchestration.model.errors import InputError

# What columns are called by nfdump 1.6, and by 1.7's shorter CSV.
_NAMES = (
    {
        "start": "ts",
        "duration": "td",
        "src": "sa",
        "dst": "da",
        "sport": "sp",
        "dport": "dp",
        "protocol": "pr",
        "packets": "ipkt",
        "bytes": "ibyt",
        "back_packets": "opkt",
        "back_bytes": "obyt",
    },
    {
        "start": "firstSeen",
        "duration": "duration",
        "src": "srcAddr",
        "dst": "dstAddr",
        "sport": "srcPort",
        "dport": "dstPort",
        "protocol": "proto",
        "packets": "packets",
        "bytes": "bytes",
    },
)
_UDP_IP_HEADER_BYTES = 28
_IP6_MORE_BYTES = 20
_PROTOCOLS = {"6": "tcp", "TCP": "tcp", "17": "udp", "UDP": "udp"}


def read_nfdump(path: Path, idle_ns: int) -> Recorded:
    """Return the flows of nfdump's CSV. Records of one five-tuple within `idle_ns` are one flow.

    Raises InputError, with the line, for another file or a row that is none of its own.
    """
    records: list[FlowRecord] = []
    other = rows = whole_seconds = 0
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            names = next((n for n in _NAMES if n["src"] in header and n["start"] in header), None)
            if names is None:
                refuse(path, 1, "is not the header of `nfdump -o csv`", "write it with -o csv")
            place = {
                name: header.index(called) for name, called in names.items() if called in header
            }
            for row in reader:
                if not row or row[0].strip() in ("Summary", "No matching flows"):
                    break
                line = reader.line_num
                if len(row) < max(place.values()) + 1:
                    refuse(path, line, f"has {len(row)} cells, the header {len(header)}", _AGAIN)
                cells = {name: row[at].strip() for name, at in place.items()}
                rows += 1
                protocol = _PROTOCOLS.get(cells["protocol"].upper())
                if protocol is None:
                    other += 1
                    continue
                whole_seconds += "." not in cells["start"]
                records += _records(cells, protocol, _at(path, line))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError.single(str(path), f"cannot be read: {reason}", "check the path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError.single(str(path), f"is not CSV: {error}", _AGAIN) from error
    flows = merged(records, idle_ns)
    kept = [flow for flow in flows if flow.size_bytes > 0]
    notes = [
        f"payload is estimated: IP bytes less {TCP_IP_HEADER_BYTES} B for each packet of TCP and "
        f"{_UDP_IP_HEADER_BYTES} B of UDP",
        *counted(
            [
                (len(records) - len(flows), "records continue another's flow"),
                (other, "records are neither TCP nor UDP"),
                (len(flows) - len(kept), "flows carry no payload (acknowledgements)"),
                (whole_seconds, "starts are known to a second only"),
            ]
        ),
    ]
    return Recorded(f"{rows} records", kept, notes)


_AGAIN = "write it again with `nfdump -o csv`"


def _at(path: Path, line: int) -> Callable[[str], InputError]:
    return lambda what: InputError.single(f"{path}:{line}", what, _AGAIN)


def _records(
    cells: dict[str, str], protocol: str, fault: Callable[[str], InputError]
) -> list[FlowRecord]:
    """Return a row's flow, and the one back where the row has both."""
    start_ns = _time_ns(cells["start"], fault)
    end_ns = start_ns + _decimal(cells["duration"], 10**9, fault)
    ends = (cells["src"], cells["dst"], cells["sport"], cells["dport"])
    found = [_record(ends, protocol, start_ns, end_ns, cells["packets"], cells["bytes"], fault)]
    if cells.get("back_packets", "0") not in ("", "0"):
        back = (ends[1], ends[0], ends[3], ends[2])
        packets, size = cells["back_packets"], cells.get("back_bytes", "")
        found.append(_record(back, protocol, start_ns, end_ns, packets, size, fault))
    return found


def _record(
    ends: tuple[str, str, str, str],
    protocol: str,
    start_ns: int,
    end_ns: int,
    packets: str,
    size: str,
    fault: Callable[[str], InputError],
) -> FlowRecord:
    header = TCP_IP_HEADER_BYTES if protocol == "tcp" else _UDP_IP_HEADER_BYTES
    header += _IP6_MORE_BYTES if ":" in ends[0] else 0
    payload = _decimal(size, 1, fault) - header * _decimal(packets, 1, fault)
    return FlowRecord(
        (protocol, *ends), ends[0], ends[1], start_ns, end_ns, max(0, payload), protocol
    )


def _decimal(text: str, scale: int, fault: Callable[[str], InputError]) -> int:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise fault(f"{text!r} is not a number") from None
    if not value.is_finite() or value < 0:
        raise fault(f"{text!r} is not 0 or more")
    return int(value * scale)


def _time_ns(text: str, fault: Callable[[str], InputError]) -> int:
    """Return a time as nfdump writes it, or as seconds since 1970, in ns; zones are left out."""
    if text.replace(".", "", 1).isdecimal():
        return _decimal(text, 10**9, fault)
    whole, _, part = text.partition(".")
    try:
        seconds = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()
        return int(seconds) * 10**9 + int((part or "0").ljust(9, "0")[:9])
    except ValueError:
        raise fault(f"{text!r} is not a time like 2026-09-01 10:00:00") from None
