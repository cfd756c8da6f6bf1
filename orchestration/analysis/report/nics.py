"""The report's figures of RoCE NICs: the most congested hosts, and all hosts over time.

Congestion control sets the rate at which a NIC may send each flow. Under DCQCN it lowers the rate
on congestion notification packets (CNPs), which receivers send on CE-marked packets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from orchestration.core.records import MISSING, Floats, Ints, Samples
from orchestration.render.figure import Figure
from orchestration.render.figure_style import Colours, base_figure, curve, end_labels, label_room
from orchestration.render.numbers import Unit, extremes, quantity
from orchestration.render.page import CaptionedFigure, lines_of

# Brewer's Purples, which vary in lightness only; dark is a low rate, and all differ from the page.
_SCALE = [(0, "#3F007D"), (0.25, "#6A51A3"), (0.5, "#9E9AC8"), (0.75, "#CBC9E2"), (1, "#EFEDF5")]
_PERCENTS = [0, 25, 50, 75, 100]


def _windows(shown: ShownRepeat) -> dict[str, Samples]:
    return {
        arm: measured_samples(result.samples("host"), result.spec.measured_ns)
        for arm, result in shown.by_arm.items()
    }


def rate_figure(shown: ShownRepeat, bins: int, colours: Colours) -> CaptionedFigure | None:
    """Draw the lowest rate that each host was allowed in each bin of time, of its line rate.

    There are at most `bins` bins. The hosts with the most CNPs are drawn or, under a congestion
    control without CNPs, such as Swift, those with the lowest rates. None without RoCE flows.
    """
    windows, testbed = _windows(shown), shown.results[0].testbed
    rates = {arm: allowed_bps(testbed, window) for arm, window in windows.items()}
    if any(len(window.t_ns) < 2 for window in windows.values()):
        return None
    if any(np.isnan(rate).all() for rate in rates.values()):
        return None
    line_bps = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
    # CNPs of each host until flows stopped arriving
    cnps = {arm: np.asarray(window.cnps[-1] - window.cnps[0]) for arm, window in windows.items()}
    held = np.sum([np.nansum(1 - rate / line_bps, axis=0) for rate in rates.values()], axis=0)
    notified = np.sum(list(cnps.values()), axis=0)
    counted = all((window.cnps != MISSING).all() for window in windows.values())
    if not counted or not any(got.any() for got in cnps.values()):
        cnps, notified = {}, held
    rows = np.sort(np.lexsort((-held, -notified))[:MAX_ROWS])
    hosts, lines = [testbed.hosts[row] for row in rows], line_bps[rows]
    of_time = bins_between([window.t_ns for window in windows.values()], bins)
    # by arm, shapes (hosts, bins): NaN without unfinished flows
    grids = {
        arm: of_time.binned(window.t_ns[1:], rates[arm][1:, rows], np.nanmin)
        for arm, window in windows.items()
    }
    if all(np.isnan(grid).all() for grid in grids.values()):  # flows that ended before a reading
        return None
    drawn = {arm: got[rows] for arm, got in cnps.items()}
    names = {
        arm: [f"{host} · {got:,}" for host, got in zip(hosts, drawn[arm], strict=True)]
        if drawn
        else hosts
        for arm in grids
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
        scale_title="lowest rate allowed, of the line rate",
    )
    lowest = {
        arm: _lowest(grid, of_time) for arm, grid in grids.items() if not np.isnan(grid).all()
    }
    if cnps:
        arm = max(drawn, key=lambda name: int(drawn[name].max()))
        row = int(np.argmax(drawn[arm]))
        maximum = f"received the most CNPs: {drawn[arm][row]:,}"
    else:
        arm = min(lowest, key=lambda name: lowest[name][1])
        row, bps, at = lowest[arm]
        maximum = f"had the lowest rate: {quantity(bps, 'bps')} around {at}"
    behind = " The number behind a host's name is that of its CNPs." if cnps else ""
    hidden = ""
    if cnps and (count := len(testbed.hosts) - len(rows)):
        more = max(int(np.delete(got, rows).max()) for got in cnps.values())
        hidden = f" {count} more hosts are not drawn: none of them got more than {more:,} CNPs."
    return CaptionedFigure(
        f"{hosts[row]} {maximum}, with {arm}",
        f"{_lowest_rates(lowest, cnps, hosts, lines)} Each cell is the lowest sampled rate that "
        "congestion control allowed to all unfinished flows of the host together, in "
        f"{quantity(of_time.bin_ns, 'ns')}; it is blank without flows.{behind} Repeat "
        f"{shown.repeat}, while flows arrived.{hidden}",
        figure,
        "rates-of-hosts",
        grid_data(grids, of_time, [f"{host}_bps" for host in hosts]),
    )


def _lowest(grid: Floats, of_time: Bins) -> tuple[int, float, str]:
    """Return which drawn host had the lowest rate, that rate, and when."""
    row, bin_index = np.unravel_index(int(np.nanargmin(grid)), grid.shape)
    at = quantity(1e6 * float(of_time.middle_ms[bin_index]), "ns")
    return int(row), float(grid[row, bin_index]), at


def _lowest_rates(
    lowest: Mapping[str, tuple[int, float, str]],
    cnps: Mapping[str, Ints],
    hosts: Sequence[str],
    lines_bps: Ints | Floats,
) -> str:
    """Return a sentence on CNPs and the lowest rate with each arm.

    `hosts` and their line rates `lines_bps` are those that are drawn; `cnps` are of all hosts.
    """
    clauses = []
    for arm, (row, bps, at) in lowest.items():
        got = ""
        if cnps:
            got = f"{int((cnps[arm] > 0).sum())} of {len(cnps[arm])} hosts got "
            got += f"{int(cnps[arm].sum()):,} CNPs; "
        clauses.append(
            f"with {arm}, {got}the lowest rate was {hosts[row]}'s, {quantity(bps, 'bps')} of "
            f"{quantity(float(lines_bps[row]), 'bps')} around {at}"
        )
    return sentence(clauses)


class _Panel(NamedTuple):
    """The texts of a panel over time, and how its values are shown.

    `corner` stands in its corner, `title` is the figure's title if the panel is the first one, and
    `extreme` names the value that `pick` finds. Values are multiplied by `scale` and shown by the
    format `number`; `column` is their column in the figure's data.
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
        "CNPs per ms, all hosts", 1.0, "%{y:,.4g}", "count", "cnps_per_ms", "CNPs per ms: {}",
        "the highest number of CNPs per ms was", np.nanargmax,
    ),
    "rate_bps": _Panel(
        "mean rate allowed to a host, Gbps", 1e-9, "%{y:.3g} Gbps", "bps", "rate_mean_bps",
        "A host with flows may send {}", "the lowest mean rate was", np.nanargmin,
    ),
    "rtt_ns": _Panel(
        "median RTT of hosts, us", 1e-3, "%{y:.3g} us", "ns", "rtt_median_ns",
        "Round trips take {}", "the longest median RTT was", np.nanargmax,
    ),
}  # fmt: skip
_PANEL_PIXELS, _AROUND_PIXELS, _GAP = 140, 70, 0.07

# panel -> arm -> (bins,), NaN where unknown
_Lines = Mapping[str, Mapping[str, Floats]]


def nics_over_time(shown: ShownRepeat, bins: int, colours: Colours) -> CaptionedFigure | None:
    """Draw a panel each for CNPs, rates and round-trip times, with a line per arm.

    Lines have at most `bins` points. A panel without values is left out; None without RoCE flows.
    """
    windows = _windows(shown)
    if any(len(window.t_ns) < 3 for window in windows.values()):
        return None
    of_time = bins_between([window.t_ns for window in windows.values()], bins)
    by_arm = {arm: _lines(shown, window, of_time) for arm, window in windows.items()}
    panels = {key: {arm: lines[key] for arm, lines in by_arm.items()} for key in _PANELS}
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
        for arm, line in lines.items():
            values = np.round(panel.scale * line, 4)
            trace = curve(of_time.middle_ms, values, colours[arm], 2)
            trace["hovertemplate"] = f"{arm}, %{{x:.2f}} ms: {panel.number}<extra></extra>"
            figure.add_trace(trace, row=row)
        figure.update_yaxes(row=row, range=[0, top], nticks=5)
        corner_name(figure, row, panel.corner)
    time_axis(figure, count)
    first, lines = next((_PANELS[key], lines) for key, lines in panels.items())
    _name_lines(figure, first, lines, of_time, colours)
    means = {arm: float(np.nanmean(line)) for arm, line in lines.items() if (line >= 0).any()}
    columns = {
        arm: {_PANELS[key].column: lines[arm].tolist() for key, lines in panels.items()}
        for arm in windows
    }
    return CaptionedFigure(
        first.title.format(extremes(means, first.unit)),
        f"{_peaks(panels, of_time)} Rates, which are at most the line rate, and round-trip times "
        "are those of hosts with unfinished RoCE flows. There is one value per "
        f"{quantity(of_time.bin_ns, 'ns')} of repeat {shown.repeat}, while flows arrived.",
        figure,
        "hosts-over-time",
        lines_of("arm", columns, {"from_ns": of_time.begins_ns.tolist()}),
    )


def _lines(shown: ShownRepeat, window: Samples, of_time: Bins) -> dict[str, Floats]:
    """Return CNPs per ms, rates and RTTs of hosts with unfinished flows, shapes (bins,)."""
    t_ns, testbed = window.t_ns[1:], shown.results[0].testbed
    rates, trips = allowed_bps(testbed, window)[1:], round_trips_ns(window)[1:]
    got = np.diff(np.where(window.cnps == MISSING, math.nan, window.cnps), axis=0)
    added = of_time.binned(t_ns, got.sum(axis=1, keepdims=True), np.nansum)[0]
    return {
        "cnps": added * 1e6 / of_time.bin_ns,
        "rate_bps": _over_hosts(of_time.binned(t_ns, rates, np.nanmean), np.nanmean),
        "rtt_ns": _over_hosts(of_time.binned(t_ns, trips, np.nanmedian), np.nanmedian),
    }


def _over_hosts(grid: Floats, reduced: Callable[..., Floats]) -> Floats:
    """Return one value for each bin of a grid (hosts, bins), NaN where no host has one."""
    values = np.full(grid.shape[1], math.nan)
    known = ~np.isnan(grid).all(axis=0)
    values[known] = reduced(grid[:, known], axis=0)
    return values


def _name_lines(
    figure: Figure, panel: _Panel, lines: Mapping[str, Floats], of_time: Bins, colours: Colours
) -> None:
    """Write the arms' names at the ends of the first panel's lines."""
    last = {arm: np.flatnonzero(~np.isnan(line)) for arm, line in lines.items()}
    ends = {
        arm: (float(of_time.middle_ms[at[-1]]), panel.scale * float(lines[arm][at[-1]]))
        for arm, at in last.items()
        if len(at)
    }
    low, high = figure.layout["yaxis"]["range"]
    # a panel has a part of the figure's height only, so names need a larger share of its axis
    end_labels(figure, ends, colours, 2.2 * (high - low))


def _peaks(panels: _Lines, of_time: Bins) -> str:
    """Return the extreme value of each panel, and when it was measured."""
    clauses = []
    for key, lines in panels.items():
        panel = _PANELS[key]
        known = {arm: line for arm, line in lines.items() if not np.isnan(line).all()}
        bins = {arm: int(panel.pick(line)) for arm, line in known.items()}
        values = {arm: float(known[arm][at]) for arm, at in bins.items()}
        arm = (min if panel.pick is np.nanargmin else max)(values, key=values.__getitem__)
        at_ns = 1e6 * float(of_time.middle_ms[bins[arm]])
        value = quantity(values[arm], panel.unit)
        clauses.append(f"{panel.extreme} {value} around {quantity(at_ns, 'ns')}, with {arm}")
    return sentence(clauses)
