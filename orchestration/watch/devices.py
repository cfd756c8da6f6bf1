"""Who stops whom, how full shared buffers are, and what hosts may send, by a snapshot."""

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
class StopFigures:
    """Arrays of shape (lossless queues,), in the order of `Testbed.lossless_queues`.

    `stopping` is the share of the time since the previous snapshot for which the port had stopped
    its peer, NaN where unknown. `pauses` counts the pause frames that it sent in that time.
    """

    stopping: Floats
    pauses: Floats


@dataclass(frozen=True)
class BufferFigures:
    """Arrays of shape (switches,), in the order of `Testbed.switches`; NaN where unknown.

    `peak_bytes` is the most that was read since the previous snapshot, headroom included as in
    `held_bytes`. `size_bytes` is what each switch has.
    """

    held_bytes: Floats
    peak_bytes: Floats
    headroom_bytes: Floats
    size_bytes: int


@dataclass(frozen=True)
class HostFigures:
    """Arrays of shape (hosts,), in the order of `Testbed.hosts`; NaN where unknown.

    CNPs are counted between two readings of the hosts, some samples apart. `rate_bps` is what
    congestion control allows all flows of a host, at most its line rate, `rtt_ns` their last round
    trip; both are NaN where a host has no unfinished RoCE flow.
    """

    cnps_per_s: Floats
    rate_bps: Floats
    rtt_ns: Floats


def stop_figures(testbed: Testbed, snapshot: Snapshot) -> StopFigures | None:
    """Return who stops whom; None if no switch of the trial can."""
    key, count = "priority.pausing_ns", len(testbed.lossless_queues)
    if len(snapshot.values.get(key, ())) != count or not count:
        return None
    window_ns = snapshot.t_ns - snapshot.before_ns
    share = grown(snapshot, key) / window_ns if window_ns else np.full(count, np.nan)
    return StopFigures(np.minimum(share, 1), grown(snapshot, "priority.pauses_sent"))


def buffer_figures(testbed: Testbed, snapshot: Snapshot) -> BufferFigures | None:
    """Return what shared buffers hold; None if no switch has one."""
    held = snapshot.values.get("switch.buffer_bytes")
    if testbed.switch is None or held is None or len(held) != len(testbed.switches):
        return None
    return BufferFigures(
        known(held),
        known(snapshot.peak_buffer_bytes),
        known(snapshot.values["switch.headroom_bytes"]),
        testbed.switch.buffer_bytes,
    )


def host_figures(testbed: Testbed, snapshot: Snapshot) -> HostFigures | None:
    """Return what hosts with RoCE NICs got and may send; None if no host has one."""
    now, before = snapshot.hosts, snapshot.hosts_before
    absent = np.full(len(testbed.hosts), -1, dtype=np.int64)
    cnps, rate, rtt = (now.get(name, absent) for name in ("cnps", "rate_bps", "rtt_ns"))
    if all((values < 0).all() for values in (cnps, rate, rtt)) or len(cnps) != len(testbed.hosts):
        return None
    window_ns = snapshot.hosts_ns - snapshot.hosts_before_ns
    got = known(cnps) - known(before.get("cnps", absent))
    line_bps = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
    return HostFigures(
        got * 1e9 / window_ns if window_ns else np.full(len(cnps), np.nan),
        np.where(rate > 0, np.minimum(rate, line_bps), np.nan),
        np.where((rtt > 0) & (rate != 0), rtt, np.nan),
    )


def stops(testbed: Testbed, figures: StopFigures) -> list[tuple[str, str, float]]:
    """Return who stops whom for which share of the time, the longest first; never none of it.

    Of several cables and classes between two devices the longest counts.
    """
    found: dict[tuple[str, str], float] = {}
    for queue, share in zip(testbed.lossless_queues, figures.stopping.tolist(), strict=True):
        if share > 0:
            pair = (queue.device, testbed.peer_device(queue.port).name)
            found[pair] = max(found.get(pair, 0.0), share)
    return sorted(((*pair, share) for pair, share in found.items()), key=lambda item: -item[2])


def devices_to_json(testbed: Testbed, snapshot: Snapshot) -> dict[str, Any]:
    """Return the figures as JSON-ready data; what a trial does not have is left out."""
    found: dict[str, Any] = {}
    if (stopping := stop_figures(testbed, snapshot)) is not None:
        found["stops"] = [
            {"device": device, "peer": peer, "share": round(share, 6)}
            for device, peer, share in stops(testbed, stopping)
        ]
    if (buffers := buffer_figures(testbed, snapshot)) is not None:
        found["switches"] = [
            {"switch": name, "size_bytes": buffers.size_bytes, **values}
            for name, values in zip(
                testbed.switches,
                plain_rows(
                    buffer_bytes=buffers.held_bytes,
                    peak_bytes=buffers.peak_bytes,
                    headroom_bytes=buffers.headroom_bytes,
                ),
                strict=True,
            )
        ]
    if (hosts := host_figures(testbed, snapshot)) is not None:
        columns = {name: getattr(hosts, name) for name in ("cnps_per_s", "rate_bps", "rtt_ns")}
        found["hosts"] = [
            {"host": name, **values}
            for name, values in zip(testbed.hosts, plain_rows(**columns), strict=True)
        ]
    return found


def plain_rows(**columns: Floats) -> list[dict[str, float | None]]:
    """Return columns as rows of rounded numbers, None for NaN."""
    plain = {
        name: [None if value != value else round(value, 6) for value in values.tolist()]
        for name, values in columns.items()
    }
    return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


def known(values: Ints | Floats) -> Floats:
    """Return numbers with NaN for those that are not known."""
    return np.where(values < 0, np.nan, values)


def grown(snapshot: Snapshot, counter: str) -> Floats:
    """Return by how much a counter grew since the previous snapshot."""
    return known(snapshot.values[counter]) - known(snapshot.before[counter])


_GAP = "    "
_Rows = list[tuple[str, ...]]


def device_lines(testbed: Testbed, snapshot: Snapshot, width: int, arrow: str) -> list[Text]:
    """Return one line each on who stops whom, the fullest buffer, and what hosts may send."""
    lines = []
    if (stopping := stop_figures(testbed, snapshot)) is not None:
        lines.append(_stops_line(stops(testbed, stopping), width, arrow))
    if (buffers := buffer_figures(testbed, snapshot)) is not None:
        lines.append(_buffers_line(testbed, buffers))
    if (hosts := host_figures(testbed, snapshot)) is not None:
        lines.append(_hosts_line(testbed, hosts))
    return lines


def device_tables(
    testbed: Testbed, snapshot: Snapshot, width: int, rows: int, arrow: str
) -> list[Text]:
    """Return tables of at most `rows` rows on the same, side by side as far as they fit."""
    tables = []
    if (hosts := host_figures(testbed, snapshot)) is not None:
        tables.append(_hosts_table(testbed, hosts, rows))
    if (stopping := stop_figures(testbed, snapshot)) is not None:
        tables.append(_stops_table(testbed, stopping, rows, arrow))
    if (buffers := buffer_figures(testbed, snapshot)) is not None:
        tables.append(_buffers_table(testbed, buffers, rows))
    lines: list[list[str]] = []
    used = 0
    for table in (aligned(rows) for rows in tables if len(rows) > 1):
        wide = len(table[0])
        if lines and used + len(_GAP) + wide <= width:
            lines[-1] = _beside(lines[-1], table)
            used += len(_GAP) + wide
        else:
            lines.append(table)
            used = wide
    return [
        Text(line, style="" if place else "dim")
        for block in lines
        for place, line in enumerate(block)
    ]


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of cells as lines of one width: the first column left, the others right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(_padded(row, widths)) for row in rows]


def _padded(row: tuple[str, ...], widths: list[int]) -> list[str]:
    first = f"{row[0]:<{widths[0]}}"
    return [first, *(f"{cell:>{w}}" for cell, w in zip(row[1:], widths[1:], strict=True))]


def _beside(left: list[str], right: list[str]) -> list[str]:
    wide = max(len(line) for line in left)
    lines = max(len(left), len(right))
    pairs = zip(left + [""] * (lines - len(left)), right + [""] * (lines - len(right)), strict=True)
    return [f"{one:<{wide}}{_GAP}{other}" for one, other in pairs]


def _stops_line(pairs: list[tuple[str, str, float]], width: int, arrow: str) -> Text:
    if not pairs:
        return Text("nobody is stopped")
    line = "stopped, of the time: "
    for place, (device, peer, share) in enumerate(pairs):
        text = f"{', ' if place else ''}{device} {arrow} {peer} {_percent(share)}"
        more = f", {len(pairs) - place} more"
        if len(line) + len(text) + len(more) > width and place:
            return Text(f"{line}{more}")
        line += text
    return Text(line)


def _stops_table(testbed: Testbed, figures: StopFigures, count: int, arrow: str) -> _Rows:
    pairs = stops(testbed, figures)[:count]
    rows = [(f"{device} {arrow} {peer}", _percent(share)) for device, peer, share in pairs]
    return [("who stops whom", "of the time"), *rows]


def _buffers_line(testbed: Testbed, figures: BufferFigures) -> Text:
    order = _highest(figures.peak_bytes)
    if not order:
        return Text("shared buffers are empty")
    place = order[0]
    peak = figures.peak_bytes[place]
    return Text(
        f"fullest buffer: {testbed.switches[place]} {_size(figures.held_bytes[place])}, up to "
        f"{_size(peak)} of {format_size(figures.size_bytes)} "
        f"({_percent(peak / figures.size_bytes)}), headroom "
        f"{_size(figures.headroom_bytes[place])}"
    )


def _buffers_table(testbed: Testbed, figures: BufferFigures, count: int) -> _Rows:
    rows = [
        (
            testbed.switches[place],
            _size(figures.held_bytes[place]),
            _size(figures.peak_bytes[place]),
            _percent(figures.peak_bytes[place] / figures.size_bytes),
            _size(figures.headroom_bytes[place]),
        )
        for place in _highest(figures.peak_bytes)[:count]
    ]
    return [
        ("fullest buffers", "now", "longest", f"of {format_size(figures.size_bytes)}", "headroom"),
        *rows,
    ]


def _hosts_line(testbed: Testbed, figures: HostFigures) -> Text:
    """Return what all hosts get and may send, and behind it the host that is worst off."""
    names, parts = testbed.hosts, []
    told, rate, trip = figures.cnps_per_s, figures.rate_bps, figures.rtt_ns
    if not np.isnan(told).all():
        total = float(np.nansum(told))
        worst = int(np.nanargmax(told))
        maximum = f" ({names[worst]} {_count(told[worst])})" if total else ""
        parts.append(f"CNPs {_count(total)}/s{maximum}")
    if not np.isnan(rate).all():
        worst = int(np.nanargmin(rate))
        mean = format_rate(float(np.nanmean(rate)), 1)
        parts.append(f"rate {mean} ({names[worst]} {format_rate(float(rate[worst]), 1)})")
    if not np.isnan(trip).all():
        worst = int(np.nanargmax(trip))
        median = format_duration(float(np.nanmedian(trip)), 1)
        parts.append(f"RTT {median} ({names[worst]} {format_duration(float(trip[worst]), 1)})")
    return Text(f"hosts: {', '.join(parts)}" if parts else "hosts: no RoCE flow")


def _hosts_table(testbed: Testbed, figures: HostFigures, count: int) -> _Rows:
    """Return the hosts that get the most CNPs, and of equals those of the lowest rates."""
    told = np.nan_to_num(figures.cnps_per_s)
    rate = np.where(np.isnan(figures.rate_bps), np.inf, figures.rate_bps)
    order = [int(place) for place in np.lexsort((rate, -told))]
    order = [place for place in order if told[place] > 0 or math.isfinite(rate[place])]
    rows = []
    for place in order[:count]:
        bps, line_bps = figures.rate_bps[place], testbed.host_rate_bps(testbed.hosts[place])
        idle = math.isnan(bps)
        rows.append(
            (
                testbed.hosts[place],
                _count(figures.cnps_per_s[place]),
                "idle" if idle else format_rate(float(bps), 1),
                "" if idle else _percent(bps / line_bps),
                "" if idle else _time(figures.rtt_ns[place]),
            )
        )
    return [("hosts held back", "CNPs/s", "may send", "of line", "RTT"), *rows]


def _highest(values: Floats) -> list[int]:
    known = np.nan_to_num(values)
    return [int(place) for place in np.argsort(-known, kind="stable") if known[place] > 0]


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
