"""The report's pictures of hosts' NICs: who was told to slow down, and all hosts over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from orchestration.analysis.device_metrics import allowed_bps, round_trips_ns
from orchestration.analysis.figure_parts import corner_name, time_axis
from orchestration.analysis.measured_window import measured_samples
from orchestration.analysis.report.heat_maps import (
    MAX_ROWS,
    Bins,
    bins_between,
    grid_data,
    over_time,
    sentence,
)
from orchestration.analysis.report.selection import ShownRepeat
from orchestration.core.records import MISSING, Floats, Samples
from orchestration.render.figure import Figure
from orchestration.render.figure_style import Colours, base_figure, curve, end_labels, label_room
from orchestration.render.numbers import Unit, extremes, quantity
from orchestration.render.page import Picture, lines_of

# Brewer's Purples, as lightness only; dark means held back most. No cell is as light as the page.
_SCALE = [(0, "#3F007D"), (0.25, "#6A51A3"), (0.5, "#9E9AC8"), (0.75, "#CBC9E2"), (1, "#EFEDF5")]
_PERCENTS = [0, 25, 50, 75, 100]


def _windows(shown: ShownRepeat) -> dict[str, Samples]:
    return {
        tuner: measured_samples(result.samples("host"), result.spec.measured_ns)
        for tuner, result in shown.by_tuner.items()
    }


def rate_picture(shown: ShownRepeat, spans: int, colours: Colours) -> Picture | None:
    """Draw the lowest rate, of its line's, that each host was allowed in each time span.

    There are at most `spans` spans. The hosts that were held back most are drawn: those with the
    most CNPs or, under controls that need none, such as Swift, with the lowest rates. None without
    RoCE flows.
    """
    windows, testbed = _windows(shown), shown.results[0].testbed
    rates = {tuner: allowed_bps(testbed, window) for tuner, window in windows.items()}
    if any(len(window.t_ns) < 2 for window in windows.values()):
        return None
    if any(np.isnan(rate).all() for rate in rates.values()):
        return None
    line_bps = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
    # what each host got until flows stopped arriving
    cnps = {
        tuner: np.asarray(window.cnps[-1] - window.cnps[0]) for tuner, window in windows.items()
    }
    held = np.sum([np.nansum(1 - rate / line_bps, axis=0) for rate in rates.values()], axis=0)
    notified = np.sum(list(cnps.values()), axis=0)
    counted = all((window.cnps != MISSING).all() for window in windows.values())
    if not counted or not any(got.any() for got in cnps.values()):
        cnps, notified = {}, held
    rows = np.sort(np.lexsort((-held, -notified))[:MAX_ROWS])
    hosts, lines = [testbed.hosts[row] for row in rows], line_bps[rows]
    of_time = bins_between([window.t_ns for window in windows.values()], spans)
    # by tuner, shapes (hosts, spans): NaN without unfinished flows
    grids = {
        tuner: of_time.binned(window.t_ns[1:], rates[tuner][1:, rows], np.nanmin)
        for tuner, window in windows.items()
    }
    drawn = {tuner: got[rows] for tuner, got in cnps.items()}
    names = {
        tuner: [f"{host} · {got:,}" for host, got in zip(hosts, drawn[tuner], strict=True)]
        if drawn
        else hosts
        for tuner in grids
    }
    figure = over_time(
        grids,
        of_time,
        names,
        "bps",
        colours,
        shades=lambda grid: np.round(100 * grid / lines[:, None], 1),
        says="at least",
        row_pixels=14,
        scale={
            "colorscale": _SCALE,
            "cmin": 0,
            "cmax": 100,
            "colorbar": {"tickvals": _PERCENTS, "ticktext": [f"{part}%" for part in _PERCENTS]},
        },
        scale_title="lowest rate allowed, of the line's",
    )
    lowest = {
        tuner: _lowest(grid, of_time) for tuner, grid in grids.items() if not np.isnan(grid).all()
    }
    clauses = []
    for tuner, (row, bps, at) in lowest.items():
        got = ""
        if cnps:
            got = f"{int((cnps[tuner] > 0).sum())} of {len(cnps[tuner])} hosts got "
            got += f"{int(cnps[tuner].sum()):,} CNPs; "
        clauses.append(
            f"with {tuner} {got}the lowest rate was {hosts[row]}'s, {quantity(bps, 'bps')} of "
            f"{quantity(float(lines[row]), 'bps')} around {at}"
        )
    if cnps:
        tuner = max(drawn, key=lambda name: int(drawn[name].max()))
        row = int(np.argmax(drawn[tuner]))
        maximum = f"was told to slow down the most: {drawn[tuner][row]:,} CNPs"
    else:
        tuner = min(lowest, key=lambda name: lowest[name][1])
        row, bps, at = lowest[tuner]
        maximum = f"was held back the most: to {quantity(bps, 'bps')} around {at}"
    behind = " Behind each name are the host's CNPs." if cnps else ""
    left = ""
    if cnps and (hidden := len(testbed.hosts) - len(rows)):
        more = max(int(np.delete(got, rows).max()) for got in cnps.values())
        left = f" {hidden} more hosts are not drawn: none of them got more than {more:,} CNPs."
    return Picture(
        f"{hosts[row]} {maximum}, with {tuner}",
        f"{sentence(clauses)} Each cell is the lowest rate that congestion control allowed the "
        f"host's unfinished flows together in {quantity(of_time.span_ns, 'ns')}, as far as it was "
        f"read; blank without flows.{behind} Repeat {shown.repeat}, while flows arrived.{left}",
        figure,
        "rates-of-hosts",
        grid_data(grids, of_time, [f"{host}_bps" for host in hosts]),
    )


def _lowest(grid: Floats, of_time: Bins) -> tuple[int, float, str]:
    """Return which drawn host had the lowest rate, that rate, and when."""
    row, span = np.unravel_index(int(np.nanargmin(grid)), grid.shape)
    at = quantity(1e6 * float(of_time.middle_ms[span]), "ns")
    return int(row), float(grid[row, span]), at


class _Panel(NamedTuple):
    """What a panel over time says in its corner, in a title and of its extreme, and its numbers.

    `scale` multiplies its values, which are shown as `number`; `column` is that of its data.
    """

    corner: str
    scale: float
    number: str
    unit: Unit
    column: str
    title: str
    extreme: str
    pick: Callable[[Floats], np.intp]


_PANELS = {
    "cnps": _Panel(
        "CNPs a ms, all hosts", 1.0, "%{y:,.4g}", "count", "cnps_per_ms", "CNPs in each ms: {}",
        "the most CNPs a ms were", np.nanargmax,
    ),
    "rate_bps": _Panel(
        "mean rate allowed to a host, Gbps", 1e-9, "%{y:.3g} Gbps", "bps", "rate_mean_bps",
        "A host with flows may send {}", "the lowest mean rate", np.nanargmin,
    ),
    "rtt_ns": _Panel(
        "median RTT of hosts, us", 1e-3, "%{y:.3g} us", "ns", "rtt_median_ns",
        "Round trips take {}", "the longest median RTT", np.nanargmax,
    ),
}  # fmt: skip
_PANEL_PIXELS, _AROUND_PIXELS, _GAP = 140, 70, 0.07

# panel -> tuner -> (spans,), NaN where unknown
_Lines = Mapping[str, Mapping[str, Floats]]


def nics_over_time(shown: ShownRepeat, spans: int, colours: Colours) -> Picture | None:
    """Draw a panel each for notifications, rates and round trips, with a line per tuner.

    Lines have at most `spans` points. A panel without a value is left out; None without RoCE flows.
    """
    windows = _windows(shown)
    if any(len(window.t_ns) < 3 for window in windows.values()):
        return None
    of_time = bins_between([window.t_ns for window in windows.values()], spans)
    by_tuner = {tuner: _lines(shown, window, of_time) for tuner, window in windows.items()}
    panels = {key: {tuner: lines[key] for tuner, lines in by_tuner.items()} for key in _PANELS}
    panels = {
        key: lines
        for key, lines in panels.items()
        if any(bool(np.nansum(line) > 0) for line in lines.values())
    }
    if not panels:
        return None
    count = len(panels)
    figure = Figure(count, gap=_GAP if count > 1 else 0)
    base_figure(
        height=_AROUND_PIXELS + _PANEL_PIXELS * count, right=label_room(windows), figure=figure
    )
    for row, (key, lines) in enumerate(panels.items(), start=1):
        panel = _PANELS[key]
        top = 1.35 * panel.scale * max(float(np.nanmax(line, initial=0)) for line in lines.values())
        for tuner, line in lines.items():
            values = np.round(panel.scale * line, 4)
            trace = curve(of_time.middle_ms, values, colours[tuner], 2)
            trace["hovertemplate"] = f"{tuner}, %{{x:.2f}} ms: {panel.number}<extra></extra>"
            figure.add_trace(trace, row=row)
        figure.update_yaxes(row=row, range=[0, top], nticks=5)
        corner_name(figure, row, panel.corner)
    time_axis(figure, count)
    first, lines = next((_PANELS[key], lines) for key, lines in panels.items())
    _name_lines(figure, first, lines, of_time, colours)
    means = {tuner: float(np.nanmean(line)) for tuner, line in lines.items() if (line >= 0).any()}
    columns = {
        tuner: {_PANELS[key].column: lines[tuner].tolist() for key, lines in panels.items()}
        for tuner in windows
    }
    return Picture(
        first.title.format(extremes(means, first.unit)),
        f"{_peaks(panels, of_time)} Rates and round trips are of hosts with unfinished RoCE flows, "
        f"a rate is at most the line's. Values each {quantity(of_time.span_ns, 'ns')} of repeat "
        f"{shown.repeat}, while flows arrived.",
        figure,
        "hosts-over-time",
        lines_of("tuner", columns, {"from_ns": of_time.begins_ns.tolist()}),
    )


def _lines(shown: ShownRepeat, window: Samples, of_time: Bins) -> dict[str, Floats]:
    """Return CNPs a ms, rates and round trips of hosts with unfinished flows, shapes (spans,)."""
    t_ns, testbed = window.t_ns[1:], shown.results[0].testbed
    rates, trips = allowed_bps(testbed, window)[1:], round_trips_ns(window)[1:]
    got = np.diff(np.where(window.cnps == MISSING, math.nan, window.cnps), axis=0)
    added = of_time.binned(t_ns, got.sum(axis=1, keepdims=True), np.nansum)[0]
    return {
        "cnps": added * 1e6 / of_time.span_ns,
        "rate_bps": _over_hosts(of_time.binned(t_ns, rates, np.nanmean), np.nanmean),
        "rtt_ns": _over_hosts(of_time.binned(t_ns, trips, np.nanmedian), np.nanmedian),
    }


def _over_hosts(grid: Floats, reduced: Callable[..., Floats]) -> Floats:
    """Return one value for each span of (hosts, spans), NaN where no host has one."""
    found = np.full(grid.shape[1], math.nan)
    known = ~np.isnan(grid).all(axis=0)
    found[known] = reduced(grid[:, known], axis=0)
    return found


def _name_lines(
    figure: Figure, panel: _Panel, lines: Mapping[str, Floats], of_time: Bins, colours: Colours
) -> None:
    """Write the tuners' names at the ends of the first panel's lines."""
    last = {tuner: np.flatnonzero(~np.isnan(line)) for tuner, line in lines.items()}
    ends = {
        tuner: (float(of_time.middle_ms[at[-1]]), panel.scale * float(lines[tuner][at[-1]]))
        for tuner, at in last.items()
        if len(at)
    }
    low, high = figure.layout["yaxis"]["range"]
    # the first panel has a share of the height, names are as high in all
    end_labels(figure, ends, colours, 2.2 * (high - low))


def _peaks(panels: _Lines, of_time: Bins) -> str:
    """Return the extreme of each panel, and when it was."""
    clauses = []
    for key, lines in panels.items():
        panel = _PANELS[key]
        known = {tuner: line for tuner, line in lines.items() if not np.isnan(line).all()}
        places = {tuner: int(panel.pick(line)) for tuner, line in known.items()}
        values = {tuner: float(known[tuner][at]) for tuner, at in places.items()}
        tuner = (min if panel.pick is np.nanargmin else max)(values, key=values.__getitem__)
        at_ns = 1e6 * float(of_time.middle_ms[places[tuner]])
        value = quantity(values[tuner], panel.unit)
        clauses.append(f"{panel.extreme} {value} around {quantity(at_ns, 'ns')}, with {tuner}")
    return sentence(clauses)
