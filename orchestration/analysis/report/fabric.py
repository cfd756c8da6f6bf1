"""The report's heat maps of a fabric, a panel per arm: queues over time, paths, PFC pauses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestration.analysis.counters import per_port
from orchestration.analysis.device_metrics import packets_by_uplink, shares
from orchestration.analysis.measured_window import after_warm_up, measured_samples
from orchestration.analysis.report.heat_maps import (
    MAX_ROWS,
    bins_of,
    cell_panels,
    grid_data,
    over_time,
    sentence,
)
from orchestration.analysis.report.selection import ShownRepeat
from orchestration.core.records import MISSING, Floats, Ints
from orchestration.core.units import format_size
from orchestration.render.figure_style import Colours
from orchestration.render.numbers import quantity
from orchestration.render.page import CaptionedFigure, rows_of
from orchestration.results.reader import TrialResult

# Shorter queues, of less than a full frame, are drawn as empty ones.
_FLOOR_BYTES = 1e3
# Brewer's scales: each is a single hue that varies in lightness only; dark is high.
_QUEUES = [(0, "#F1F4F8"), (0.25, "#C6DBEF"), (0.5, "#6BAED6"), (0.75, "#2171B5"), (1, "#08306B")]
_PATHS = [(0, "#EFF3FF"), (0.25, "#BDD7E7"), (0.5, "#6BAED6"), (0.75, "#3182BD"), (1, "#08306B")]
_PAUSES = [(0, "#FBF3F0"), (0.25, "#FCBBA1"), (0.5, "#FB6A4A"), (0.75, "#CB181D"), (1, "#67000D")]
# Names of devices stand upright below the columns of pauses.
_NAMES_PIXELS = 86

# (device that pauses, device that is paused) -> ns
_PausedPairs = Counter[tuple[str, str]]


def fabric_heatmap(shown: ShownRepeat, bins: int, colours: Colours) -> CaptionedFigure | None:
    """Draw the longest queue of the busiest ports in each bin of time, on a log scale.

    There are at most `bins` bins. None without samples.
    """
    if not shown.sampled:
        return None
    testbed = shown.results[0].testbed
    held = [_held(result) for result in shown.results]
    if any(np.isnan(values).all() for _, values in held):
        return None
    worst = np.fmax.reduce([np.fmax.reduce(values, axis=0) for _, values in held])
    sampled = np.flatnonzero(~np.isnan(worst))
    by_peak = sampled[np.argsort(-worst[sampled], kind="stable")]
    rows, rest = np.sort(by_peak[:MAX_ROWS]), worst[by_peak[MAX_ROWS:]]
    of_time = bins_of([t_ns for t_ns, _ in held], bins)
    grids = {
        arm: of_time.binned(t_ns, values[:, rows])
        for arm, (t_ns, values) in zip(shown.by_arm, held, strict=True)
    }
    ports = [testbed.switch_ports[row] for row in rows]
    names = [port.label for port in ports]
    peaks = {arm: float(np.nanmax(grid)) for arm, grid in grids.items()}
    figure = over_time(
        grids,
        of_time,
        dict.fromkeys(grids, names),
        "bytes",
        colours,
        # steps of a hundredth of a decade: as fine as the eye can see, and short in JSON
        shades=lambda grid: np.round(np.log10(np.maximum(grid, _FLOOR_BYTES)), 2),
        says="up to",
        row_pixels=14,
        scale=_log_scale(max(10 * _FLOOR_BYTES, *peaks.values())),
        scale_title="longest queue in the bin",
    )
    arm = max(peaks, key=peaks.__getitem__)
    row, bin_index = np.unravel_index(int(np.nanargmax(grids[arm])), grids[arm].shape)
    missing = ""
    if len(rest):
        missing += (
            f" {len(rest)} more ports are not drawn: none of them ever held more than "
            f"{quantity(float(rest.max()), 'bytes')}."
        )
    if len(worst) > len(sampled):
        missing += f" {len(worst) - len(sampled)} ports have no samples."
    if empty := float(np.mean([np.isnan(grid).mean() for grid in grids.values()])):
        missing += f" {100 * empty:.0f}% of the cells are blank, as nothing was sampled then."
    return CaptionedFigure(
        f"The longest queue: {quantity(peaks[arm], 'bytes')} at {names[row]} towards "
        f"{testbed.peer_device(ports[row]).name} around "
        f"{quantity(float(of_time.begins_ns[bin_index]), 'ns')}, with {arm}",
        f"{_busy(grids, names)} Each cell is the most that the port's queues held within "
        f"{quantity(of_time.bin_ns, 'ns')}, in repeat {shown.repeat}, while flows arrived."
        + missing,
        figure,
        "fabric-over-time",
        grid_data(grids, of_time, names),
    )


def _log_scale(top_bytes: float) -> dict[str, Any]:
    """Return the attributes of a logarithmic colour scale up to `top_bytes`."""
    decades = [at for at in (3, 4, 5, 6, 7, 8) if 10**at <= top_bytes * 1.001]
    sizes = [format_size(10**at) for at in decades]
    ticks = {"tickvals": decades, "ticktext": [f"≤{sizes[0]}", *sizes[1:]]}
    ends = {"cmin": np.log10(_FLOOR_BYTES), "cmax": np.log10(top_bytes)}
    return {"colorscale": _QUEUES, **ends, "colorbar": ticks}


def _held(result: TrialResult) -> tuple[Ints, Floats]:
    """Return times (samples,) and bytes held by ports (samples, ports), NaN if unknown."""
    window = measured_samples(result.ports, result.spec.measured_ns)
    unknown = per_port(result.testbed, (window.qlen_bytes == MISSING).astype(np.int64)) > 0
    values = per_port(result.testbed, window.qlen_bytes)
    return window.t_ns, np.where(unknown, math.nan, values)


def _busy(grids: Mapping[str, Floats], names: Sequence[str]) -> str:
    """Return how many ports held a long queue, and for what share of the bins one of them did."""
    clauses = []
    for arm, grid in grids.items():
        over = grid > 10 * _FLOOR_BYTES
        row = int(np.argmax(over.sum(axis=1)))
        clauses.append(
            f"with {arm}, {int(over.any(axis=1).sum())} of {len(grid)} ports ever held over "
            f"{format_size(10 * _FLOOR_BYTES)}, {names[row]} in "
            f"{100 * float(over[row].mean()):.0f}% of the bins"
        )
    return sentence(clauses)


def uplink_figure(shown: ShownRepeat, colours: Colours) -> CaptionedFigure | None:
    """Draw each uplink's share of its switch's packets; None if no switch has several uplinks."""
    packets = {
        arm: packets_by_uplink(result.testbed, after_warm_up(result, "queue"))
        for arm, result in shown.by_arm.items()
    }
    names = list(next(iter(packets.values())))
    if not names:
        return None
    total = {name: sum(int(rows[name].sum()) for rows in packets.values()) for name in names}
    maximum = set(sorted(names, key=lambda name: -total[name])[:MAX_ROWS])
    drawn = {
        arm: {name: row for name, row in rows.items() if name in maximum}
        for arm, rows in packets.items()
    }
    every = [(arm, name, row) for arm, rows in drawn.items() for name, row in rows.items()]
    wide = max(len(row) for *_, row in every)
    top = max(float(np.nanmax(shares(row), initial=0)) for *_, row in every)
    figure = cell_panels(
        {arm: _uplinks(rows, wide) for arm, rows in drawn.items()},
        colours,
        says=": %{y} sent %{text} by port %{x}",
        row_pixels=16,
        x_title="port to the tier above",
        scale={"colorscale": _PATHS, "cmin": 0, "cmax": round(100 * top, 1)},
        scale_title="of the switch's packets, %",
    )
    figure.update_xaxes(type="category", showgrid=False, dtick=1)
    left = len(names) - len(maximum)
    title = "No switch sent packets to the tier above"
    if busy := [(arm, name, shares(row)) for arm, name, row in every if row.sum()]:
        arm, name, parts = max(busy, key=lambda one: float(np.nanmax(one[2])) / (1 / len(one[2])))
        title = (
            f"The most uneven switch is {name}: {float(np.nanmax(parts)):.0%} by one port, where "
            f"an even share is {1 / len(parts):.0%}, with {arm}"
        )
    return CaptionedFigure(
        title,
        "Each cell is an uplink's share of the packets that its switch sent to the tier above, in "
        f"repeat {shown.repeat}. With an even spread, the cells of a row are equal."
        + (f" {left} more switches, which sent fewer packets, are not drawn." if left else ""),
        figure,
        "packets-by-path",
        rows_of(
            {"arm": arm, "switch": name, "uplink": number, "packets": count}
            for arm, name, row in every
            for number, count in enumerate(row.tolist(), start=1)
        ),
    )


def _uplinks(rows: Mapping[str, Ints], wide: int) -> dict[str, list[object]]:
    """Return the cells of a panel, blank where a switch has fewer uplinks or sent nothing."""
    grid = [
        [*(100 * shares(row)).tolist(), *[math.nan] * (wide - len(row))] for row in rows.values()
    ]
    return {
        "x": [str(number + 1) for number in range(wide)],
        "y": list(rows),
        "z": [[None if cell != cell else round(cell, 2) for cell in line] for line in grid],
        "text": [["" if cell != cell else f"{cell:.1f} %" for cell in line] for line in grid],
    }


def pause_figure(shown: ShownRepeat, colours: Colours) -> CaptionedFigure | None:
    """Draw for how long each device (row) paused each of its neighbours (columns) by PFC.

    Times of several cables and classes between two devices are added. None if none was paused.
    """
    paused_ns = {arm: _paused_pairs(result) for arm, result in shown.by_arm.items()}
    total: _PausedPairs = Counter()
    for pairs in paused_ns.values():
        total.update(pairs)
    if not total:
        return None
    order = {device.name: index for index, device in enumerate(shown.results[0].testbed.devices)}
    stopping, stopped = (_longest(total, side, order) for side in (0, 1))
    left = sum(a not in stopping or b not in stopped for a, b in total)
    every = [(ns, pair, arm) for arm, pairs in paused_ns.items() for pair, ns in pairs.items()]
    max_ns, longest, with_arm = max(every, key=lambda one: one[0])
    panels = {}
    for arm, pairs in paused_ns.items():
        grid = [[pairs.get((a, b)) for b in stopped] for a in stopping]
        panels[arm] = {
            "x": stopped,
            "y": stopping,
            "z": [[None if ns is None else round(ns / 1e6, 4) for ns in line] for line in grid],
            "text": [["" if ns is None else quantity(ns, "ns") for ns in line] for line in grid],
        }
    figure = cell_panels(
        panels,
        colours,
        says=": %{y} paused %{x} for %{text}",
        row_pixels=18,
        x_title="device that is paused",
        scale={"colorscale": _PAUSES, "cmin": 0, "cmax": max_ns / 1e6},
        scale_title="time paused, ms",
        below_pixels=_NAMES_PIXELS,
    )
    figure.update_xaxes(type="category", showgrid=False, tickangle=-90, dtick=1)
    counts = sentence(
        f"with {arm}, {len({b for _, b in pairs})} devices were paused by "
        f"{len({a for a, _ in pairs})}, for {quantity(pairs.total(), 'ns')} in all"
        for arm, pairs in paused_ns.items()
    )
    return CaptionedFigure(
        f"{longest[0]} paused {longest[1]} the longest: {quantity(max_ns, 'ns')}, with {with_arm}",
        f"{counts} Each cell is how long the device of the row paused that of the column, summed "
        f"over their cables and lossless classes, in repeat {shown.repeat}."
        + (f" {left} more pairs are not drawn." if left else ""),
        figure,
        "who-stops-whom",
        rows_of(
            {"arm": arm, "stops": pair[0], "stopped": pair[1], "paused_ns": ns}
            for arm, pairs in paused_ns.items()
            for pair, ns in sorted(pairs.items())
        ),
    )


def _paused_pairs(result: TrialResult) -> _PausedPairs:
    """Return for how long devices paused their neighbours in a trial, by its last sample."""
    table, testbed = result.table("pauses"), result.testbed
    last = table["t_ns"] == table["t_ns"].max(initial=-1)
    peers = {
        (port.device, port.name): testbed.peer_device(port).name for port in testbed.switch_ports
    }
    pairs: _PausedPairs = Counter()
    columns = (table[name][last].tolist() for name in ("device", "port", "pausing_ns"))
    for device, port, ns in zip(*columns, strict=True):
        if ns > 0:
            pairs[device, peers[device, port]] += ns
    return pairs


def _longest(total: _PausedPairs, side: int, order: Mapping[str, int]) -> list[str]:
    """Return the devices on one side of the pairs with the longest times, in testbed order."""
    sums: Counter[str] = Counter()
    for pair, ns in total.items():
        sums[pair[side]] += ns
    maximum = sorted(sums, key=lambda name: (-sums[name], order[name]))[:MAX_ROWS]
    return sorted(maximum, key=order.__getitem__)
