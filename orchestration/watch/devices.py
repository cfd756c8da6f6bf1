"""Metrics of devices from a snapshot: pauses by PFC, shared buffers, and hosts with RoCE NICs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.text import Text

from collectors.snapshot import Snapshot
from orchestration.core.records import Floats, Ints
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration, format_rate, format_size


@dataclass(frozen=True)
class PauseMetrics:
    """Arrays of shape (lossless queues,), in the order of `Testbed.lossless_queues`.

    `pausing_share` is the share of the time since the previous snapshot for which the port had
    paused its peer, NaN where unknown. `pauses` is the number of pause frames that it sent in that
    time.
    """

    pausing_share: Floats
    pauses: Floats


@dataclass(frozen=True)
class BufferMetrics:
    """Arrays of shape (switches,), in the order of `Testbed.switches`; NaN where unknown.

    `peak_bytes` is the highest reading since the previous snapshot. It includes the bytes in
    headroom, as `held_bytes` does. `size_bytes` is the size of each switch's buffer.
    """

    held_bytes: Floats
    peak_bytes: Floats
    headroom_bytes: Floats
    size_bytes: int


@dataclass(frozen=True)
class HostMetrics:
    """Arrays of shape (hosts,), in the order of `Testbed.hosts`; NaN where unknown.

    CNPs are counted between two readings of the hosts, which are some samples apart. `rate_bps` is
    the rate that congestion control allows all flows of a host together, at most its line rate.
    `rtt_ns` is their last round-trip time. Both are NaN where a host has no unfinished RoCE flow.
    """

    cnps_per_s: Floats
    rate_bps: Floats
    rtt_ns: Floats


def pause_metrics(testbed: Testbed, snapshot: Snapshot) -> PauseMetrics | None:
    """Return the pauses of all lossless queues; None if no switch of the trial has PFC."""
    key, count = "priority.pausing_ns", len(testbed.lossless_queues)
    if len(snapshot.values.get(key, ())) != count or not count:
        return None
    window_ns = snapshot.t_ns - snapshot.before_ns
    share = increase(snapshot, key) / window_ns if window_ns else np.full(count, np.nan)
    return PauseMetrics(np.minimum(share, 1), increase(snapshot, "priority.pauses_sent"))


def buffer_metrics(testbed: Testbed, snapshot: Snapshot) -> BufferMetrics | None:
    """Return the contents of shared buffers; None if no switch has one."""
    held = snapshot.values.get("switch.buffer_bytes")
    if testbed.switch is None or held is None or len(held) != len(testbed.switches):
        return None
    return BufferMetrics(
        nan_if_unknown(held),
        nan_if_unknown(snapshot.peak_buffer_bytes),
        nan_if_unknown(snapshot.values["switch.headroom_bytes"]),
        testbed.switch.buffer_bytes,
    )


def host_metrics(testbed: Testbed, snapshot: Snapshot) -> HostMetrics | None:
    """Return the CNPs, rates and round-trip times of hosts; None if no host has a RoCE NIC."""
    now, before = snapshot.hosts, snapshot.hosts_before
    absent = np.full(len(testbed.hosts), -1, dtype=np.int64)
    cnps, rate, rtt = (now.get(name, absent) for name in ("cnps", "rate_bps", "rtt_ns"))
    if all((values < 0).all() for values in (cnps, rate, rtt)) or len(cnps) != len(testbed.hosts):
        return None
    window_ns = snapshot.hosts_ns - snapshot.hosts_before_ns
    received_cnps = nan_if_unknown(cnps) - nan_if_unknown(before.get("cnps", absent))
    line_bps = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
    return HostMetrics(
        received_cnps * 1e9 / window_ns if window_ns else np.full(len(cnps), np.nan),
        np.where(rate > 0, np.minimum(rate, line_bps), np.nan),
        np.where((rtt > 0) & (rate != 0), rtt, np.nan),
    )


def paused_pairs(testbed: Testbed, metrics: PauseMetrics) -> list[tuple[str, str, float]]:
    """Return the pairs of devices of which one paused the other, with the share of the time.

    The longest share comes first. Of several cables and classes between two devices the longest
    counts.
    """
    found: dict[tuple[str, str], float] = {}
    for queue, share in zip(testbed.lossless_queues, metrics.pausing_share.tolist(), strict=True):
        if share > 0:
            pair = (queue.device, testbed.peer_device(queue.port).name)
            found[pair] = max(found.get(pair, 0.0), share)
    return sorted(((*pair, share) for pair, share in found.items()), key=lambda item: -item[2])


def devices_to_json(testbed: Testbed, snapshot: Snapshot) -> dict[str, Any]:
    """Return the metrics as JSON-ready data. Those that a trial does not have are left out."""
    found: dict[str, Any] = {}
    if (pauses := pause_metrics(testbed, snapshot)) is not None:
        found["stops"] = [
            {"device": device, "peer": peer, "share": round(share, 6)}
            for device, peer, share in paused_pairs(testbed, pauses)
        ]
    if (buffers := buffer_metrics(testbed, snapshot)) is not None:
        found["switches"] = [
            {"switch": name, "size_bytes": buffers.size_bytes, **values}
            for name, values in zip(
                testbed.switches,
                json_rows(
                    buffer_bytes=buffers.held_bytes,
                    peak_bytes=buffers.peak_bytes,
                    headroom_bytes=buffers.headroom_bytes,
                ),
                strict=True,
            )
        ]
    if (hosts := host_metrics(testbed, snapshot)) is not None:
        columns = {name: getattr(hosts, name) for name in ("cnps_per_s", "rate_bps", "rtt_ns")}
        found["hosts"] = [
            {"host": name, **values}
            for name, values in zip(testbed.hosts, json_rows(**columns), strict=True)
        ]
    return found


def json_rows(**columns: Floats) -> list[dict[str, float | None]]:
    """Return columns as rows: dictionaries of rounded numbers, with None in place of NaN."""
    plain = {
        name: [None if value != value else round(value, 6) for value in values.tolist()]
        for name, values in columns.items()
    }
    return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


def nan_if_unknown(values: Ints | Floats) -> Floats:
    """Return the numbers, with NaN in place of negative ones, which stand for unknown values."""
    return np.where(values < 0, np.nan, values)


def increase(snapshot: Snapshot, counter: str) -> Floats:
    """Return by how much a counter increased since the previous snapshot."""
    return nan_if_unknown(snapshot.values[counter]) - nan_if_unknown(snapshot.before[counter])


_GAP = "    "
_Rows = list[tuple[str, ...]]


def device_lines(testbed: Testbed, snapshot: Snapshot, width: int, arrow: str) -> list[Text]:
    """Return one line each on pauses, on the fullest buffer, and on hosts."""
    lines = []
    if (pauses := pause_metrics(testbed, snapshot)) is not None:
        lines.append(_pauses_line(paused_pairs(testbed, pauses), width, arrow))
    if (buffers := buffer_metrics(testbed, snapshot)) is not None:
        lines.append(_buffers_line(testbed, buffers))
    if (hosts := host_metrics(testbed, snapshot)) is not None:
        lines.append(_hosts_line(testbed, hosts))
    return lines


def device_tables(
    testbed: Testbed, snapshot: Snapshot, width: int, rows: int, arrow: str
) -> list[Text]:
    """Return tables of at most `rows` rows on hosts, pauses and buffers, side by side."""
    tables = []
    if (hosts := host_metrics(testbed, snapshot)) is not None:
        tables.append(_hosts_table(testbed, hosts, rows))
    if (pauses := pause_metrics(testbed, snapshot)) is not None:
        tables.append(_pauses_table(testbed, pauses, rows, arrow))
    if (buffers := buffer_metrics(testbed, snapshot)) is not None:
        tables.append(_buffers_table(testbed, buffers, rows))
    lines: list[list[str]] = []
    used = 0
    for table in (align_columns(rows) for rows in tables if len(rows) > 1):
        wide = len(table[0])
        if lines and used + len(_GAP) + wide <= width:
            lines[-1] = _side_by_side(lines[-1], table)
            used += len(_GAP) + wide
        else:
            lines.append(table)
            used = wide
    return [
        Text(line, style="" if index else "dim")
        for block in lines
        for index, line in enumerate(block)
    ]


def align_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of cells as lines of equal width: the first column left-aligned, others right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(_padded(row, widths)) for row in rows]


def _padded(row: tuple[str, ...], widths: list[int]) -> list[str]:
    first = f"{row[0]:<{widths[0]}}"
    return [first, *(f"{cell:>{w}}" for cell, w in zip(row[1:], widths[1:], strict=True))]


def _side_by_side(left: list[str], right: list[str]) -> list[str]:
    wide = max(len(line) for line in left)
    lines = max(len(left), len(right))
    pairs = zip(left + [""] * (lines - len(left)), right + [""] * (lines - len(right)), strict=True)
    return [f"{left_line:<{wide}}{_GAP}{right_line}" for left_line, right_line in pairs]


def _pauses_line(pairs: list[tuple[str, str, float]], width: int, arrow: str) -> Text:
    if not pairs:
        return Text("no device is paused")
    line = "paused, share of the time: "
    for index, (device, peer, share) in enumerate(pairs):
        text = f"{', ' if index else ''}{device} {arrow} {peer} {_percent(share)}"
        more = f", {len(pairs) - index} more"
        if len(line) + len(text) + len(more) > width and index:
            return Text(f"{line}{more}")
        line += text
    return Text(line)


def _pauses_table(testbed: Testbed, metrics: PauseMetrics, count: int, arrow: str) -> _Rows:
    pairs = paused_pairs(testbed, metrics)[:count]
    rows = [(f"{device} {arrow} {peer}", _percent(share)) for device, peer, share in pairs]
    return [("who pauses whom", "of the time"), *rows]


def _buffers_line(testbed: Testbed, metrics: BufferMetrics) -> Text:
    order = _highest(metrics.peak_bytes)
    if not order:
        return Text("shared buffers are empty")
    index = order[0]
    peak = metrics.peak_bytes[index]
    return Text(
        f"fullest buffer: {testbed.switches[index]} {_size(metrics.held_bytes[index])}, up to "
        f"{_size(peak)} of {format_size(metrics.size_bytes)} "
        f"({_percent(peak / metrics.size_bytes)}), headroom "
        f"{_size(metrics.headroom_bytes[index])}"
    )


def _buffers_table(testbed: Testbed, metrics: BufferMetrics, count: int) -> _Rows:
    rows = [
        (
            testbed.switches[index],
            _size(metrics.held_bytes[index]),
            _size(metrics.peak_bytes[index]),
            _percent(metrics.peak_bytes[index] / metrics.size_bytes),
            _size(metrics.headroom_bytes[index]),
        )
        for index in _highest(metrics.peak_bytes)[:count]
    ]
    return [
        ("fullest buffers", "now", "longest", f"of {format_size(metrics.size_bytes)}", "headroom"),
        *rows,
    ]


def _hosts_line(testbed: Testbed, metrics: HostMetrics) -> Text:
    """Return a line on all hosts together, and after each metric the host with the worst value."""
    names, parts = testbed.hosts, []
    cnps_per_s, rate_bps, rtt_ns = metrics.cnps_per_s, metrics.rate_bps, metrics.rtt_ns
    if not np.isnan(cnps_per_s).all():
        total = float(np.nansum(cnps_per_s))
        worst = int(np.nanargmax(cnps_per_s))
        maximum = f" ({names[worst]} {_count(cnps_per_s[worst])})" if total else ""
        parts.append(f"CNPs {_count(total)}/s{maximum}")
    if not np.isnan(rate_bps).all():
        worst = int(np.nanargmin(rate_bps))
        mean = format_rate(float(np.nanmean(rate_bps)), 1)
        parts.append(f"rate {mean} ({names[worst]} {format_rate(float(rate_bps[worst]), 1)})")
    if not np.isnan(rtt_ns).all():
        worst = int(np.nanargmax(rtt_ns))
        median = format_duration(float(np.nanmedian(rtt_ns)), 1)
        parts.append(f"RTT {median} ({names[worst]} {format_duration(float(rtt_ns[worst]), 1)})")
    return Text(f"hosts: {', '.join(parts)}" if parts else "hosts: no RoCE flow")


def _hosts_table(testbed: Testbed, metrics: HostMetrics, count: int) -> _Rows:
    """Return a table of the hosts with the most CNPs, and of equals those with the lowest rates."""
    cnps_per_s = np.nan_to_num(metrics.cnps_per_s)
    rate_bps = np.where(np.isnan(metrics.rate_bps), np.inf, metrics.rate_bps)
    order = [int(index) for index in np.lexsort((rate_bps, -cnps_per_s))]
    order = [index for index in order if cnps_per_s[index] > 0 or math.isfinite(rate_bps[index])]
    rows = []
    for index in order[:count]:
        bps, line_bps = metrics.rate_bps[index], testbed.host_rate_bps(testbed.hosts[index])
        idle = math.isnan(bps)
        rows.append(
            (
                testbed.hosts[index],
                _count(metrics.cnps_per_s[index]),
                "idle" if idle else format_rate(float(bps), 1),
                "" if idle else _percent(bps / line_bps),
                "" if idle else _time(metrics.rtt_ns[index]),
            )
        )
    return [("hosts slowed down", "CNPs/s", "allowed rate", "of line rate", "RTT"), *rows]


def _highest(values: Floats) -> list[int]:
    known = np.nan_to_num(values)
    return [int(index) for index in np.argsort(-known, kind="stable") if known[index] > 0]


def _count(value: float) -> str:
    """Return `312`, `31.2k`, `2.1M`; `?` for NaN."""
    if math.isnan(value):
        return "?"
    for scale, unit in ((1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.0f}"


def _percent(share: float) -> str:
    return "?" if math.isnan(share) else f"{100 * share:.0f} %"


def _size(value: float) -> str:
    return "?" if math.isnan(value) else format_size(float(value), 1)


def _time(ns: float) -> str:
    return "?" if math.isnan(ns) else format_duration(float(ns), 1)
