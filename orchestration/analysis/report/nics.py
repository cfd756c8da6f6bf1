"""The report's pictures of hosts' NICs: who was told to slow down, and all hosts over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from orchestration.analysis.device_figures import allowed_bps, round_trips_ns
from orchestration.analysis.figure_parts import corner_name, time_axis
from orchestration.analysis.report.heat_maps import (
    MOST_ROWS,
    Spans,
    grid_data,
    over_time,
    sentence,
    spans_between,
)
from orchestration.analysis.report.shown import ShownRepeat
from orchestration.analysis.sample_parts import arrivals
from orchestration.core.records import MISSING, Floats, Ints, Samples
from orchestration.render.figure import Figure
from orchestration.render.figure_style import Colours, base_figure, curve, end_labels, label_room
from orchestration.render.numbers import Unit, extremes, quantity
from orchestration.render.page import Picture, lines_of

# Brewer's Purples, as lightness only; dark means held back most. No cell is as light as the page.
_SCALE = [(0, "#3F007D"), (0.25, "#6A51A3"), (0.5, "#9E9AC8"), (0.75, "#CBC9E2"), (1, "#EFEDF5")]
_PERCENTS = [0, 25, 50, 75, 100]


@dataclass(frozen=True)
class _HostGrids:
    """What hosts' NICs may send, in one repeat, by tuner.

    `lowest_bps` is tuner -> (hosts, spans): the lowest rate in each span, NaN without unfinished
    flows. `line_bps` (hosts,) are line rates. `cnps` is tuner -> (all hosts,): those that each got
    until flows stopped arriving; empty if no trial counts them. `rows` (hosts,) are the numbers of
    the hosts that are drawn among all.
    """

    names: tuple[str, ...]
    rows: Ints
    line_bps: Floats
    spans: Spans
    lowest_bps: dict[str, Floats]
    cnps: dict[str, Ints]


def _host_grids(shown: ShownRepeat, spans: int) -> _HostGrids | None:
    """Return the rates of the hosts that were held back most; None without RoCE flows.

    Those are the hosts with the most CNPs. Under controls that need none, such as Swift, they are
    those with the lowest rates.
    """
    windows = _windows(shown)
    testbed = shown.results[0].testbed
    rates = [allowed_bps(testbed, window) for window in windows.values()]
    if any(len(window.t_ns) < 2 for window in windows.values()):
        return None
    if any(np.isnan(rate).all() for rate in rates):
        return None
    line_bps = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
    counted = {
        tuner: np.asarray(window.cnps[-1] - window.cnps[0]) for tuner, window in windows.items()
    }
    notified = all((window.cnps != MISSING).all() for window in windows.values()) and any(
        cnps.any() for cnps in counted.values()
    )
    held = np.sum([np.nansum(1 - rate / line_bps, axis=0) for rate in rates], axis=0)
    told = -np.sum(list(counted.values()), axis=0) if notified else -held
    rows = np.sort(np.lexsort((-held, told))[:MOST_ROWS])
    of_time = spans_between([window.t_ns for window in windows.values()], spans)
    return _HostGrids(
        names=tuple(testbed.hosts[row] for row in rows),
        rows=rows,
        line_bps=line_bps[rows],
        spans=of_time,
        lowest_bps={
            tuner: of_time.binned(window.t_ns[1:], rate[1:, rows], np.nanmin)
            for (tuner, window), rate in zip(windows.items(), rates, strict=True)
        },
        cnps=counted if notified else {},
    )


def _windows(shown: ShownRepeat) -> dict[str, Samples]:
    return {
        tuner: arrivals(result.samples("host"), result.spec.measured_ns)
        for tuner, result in shown.by_tuner.items()
    }


def rate_picture(shown: ShownRepeat, spans: int, colours: Colours) -> Picture | None:
    """Draw the lowest rate, of its line's, that each host was allowed in each of `spans` spans.

    The hosts that were held back most are drawn. None without RoCE flows.
    """
    grids = _host_grids(shown, spans)
    if grids is None:
        return None
    names = {
        tuner: [
            f"{name} · {grids.cnps[tuner][row]:,}" if grids.cnps else name
            for name, row in zip(grids.names, grids.rows, strict=True)
        ]
        for tuner in grids.lowest_bps
    }
    figure = over_time(
        grids.lowest_bps,
        grids.spans,
        names,
        "bps",
        colours,
        shades=lambda grid: np.round(100 * grid / grids.line_bps[:, None], 1),
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
    counted = " Behind each name are the host's CNPs." if grids.cnps else ""
    return Picture(
        _most(grids),
        f"{_told(grids)} Each cell is the lowest rate that congestion control allowed the host's "
        f"unfinished flows together in {quantity(grids.spans.span_ns, 'ns')}, as far as it was "
        f"read; blank without flows.{counted} Repeat {shown.repeat}, while flows arrived."
        f"{_left(grids)}",
        figure,
        "rates-of-hosts",
        grid_data(grids.lowest_bps, grids.spans, [f"{name}_bps" for name in grids.names]),
    )


def _most(grids: _HostGrids) -> str:
    if not grids.cnps:
        known = {name: grid for name, grid in grids.lowest_bps.items() if not np.isnan(grid).all()}
        tuner = min(known, key=lambda name: float(np.nanmin(known[name])))
        place, bps, at_ns = _lowest(grids, tuner)
        return (
            f"{grids.names[place]} was held back the most: to {quantity(bps, 'bps')} "
            f"around {quantity(at_ns, 'ns')}, with {tuner}"
        )
    drawn = {tuner: cnps[grids.rows] for tuner, cnps in grids.cnps.items()}
    tuner = max(drawn, key=lambda name: int(drawn[name].max()))
    place = int(np.argmax(drawn[tuner]))
    return (
        f"{grids.names[place]} was told to slow down the most: {drawn[tuner][place]:,} CNPs, with "
        f"{tuner}"
    )


def _lowest(grids: _HostGrids, tuner: str) -> tuple[int, float, float]:
    """Return which drawn host had the lowest rate, that rate, and when."""
    grid = grids.lowest_bps[tuner]
    place, span = np.unravel_index(int(np.nanargmin(grid)), grid.shape)
    return int(place), float(grid[place, span]), 1e6 * float(grids.spans.middle_ms[span])


def _told(grids: _HostGrids) -> str:
    """Return how many hosts got CNPs, and which was held to the lowest rate, for each tuner."""
    clauses = []
    for tuner, grid in grids.lowest_bps.items():
        if np.isnan(grid).all():
            continue
        place, bps, at_ns = _lowest(grids, tuner)
        text = f"with {tuner} "
        if grids.cnps:
            cnps = grids.cnps[tuner]
            text += f"{int((cnps > 0).sum())} of {len(cnps)} hosts got {int(cnps.sum()):,} CNPs; "
        clauses.append(
            f"{text}the lowest rate was {grids.names[place]}'s, {quantity(bps, 'bps')} of "
            f"{quantity(float(grids.line_bps[place]), 'bps')} around {quantity(at_ns, 'ns')}"
        )
    return sentence(clauses)


def _left(grids: _HostGrids) -> str:
    hidden = [np.delete(cnps, grids.rows) for cnps in grids.cnps.values()]
    if not hidden or not len(hidden[0]):
        return ""
    most = max(int(cnps.max()) for cnps in hidden)
    return f" {len(hidden[0])} more hosts are not drawn: none of them got more than {most:,} CNPs."


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
    of_time = spans_between([window.t_ns for window in windows.values()], spans)
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


def _lines(shown: ShownRepeat, window: Samples, of_time: Spans) -> dict[str, Floats]:
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
    figure: Figure, panel: _Panel, lines: Mapping[str, Floats], of_time: Spans, colours: Colours
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


def _peaks(panels: _Lines, of_time: Spans) -> str:
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
