"""Lines of the live view on pauses, shared buffers and hosts' NICs, where a trial has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.text import Text

from collectors.snapshot import Snapshot
from orchestration.core.records import Floats
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration, format_rate, format_size
from orchestration.watch.devices import (
    BufferFigures,
    HostFigures,
    StopFigures,
    buffer_figures,
    host_figures,
    stop_figures,
    stops,
)

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
        most = f" ({names[worst]} {_count(told[worst])})" if total else ""
        parts.append(f"CNPs {_count(total)}/s{most}")
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
