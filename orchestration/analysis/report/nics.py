"""The report's pictures of hosts' NICs: who was told to slow down, and all hosts over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.device_figures import allowed_bps, round_trips_ns
from orchestration.analysis.figure_parts import Cells, cell_panels, corner_name, grid_data, texts_of
from orchestration.analysis.report.shown import ShownRepeat, Spans, spans_between
from orchestration.analysis.sample_parts import arrivals
from orchestration.core.records import MISSING, Floats, Ints, Samples
from orchestration.render.figure import Figure
from orchestration.render.figure_style import Colours, base_figure, curve, end_labels, label_room
from orchestration.render.numbers import Unit, extremes, quantity
from orchestration.render.page import Picture, lines_of
from orchestration.results.reader import TrialResult

# The most rows whose names are readable on a phone.
_MOST_HOSTS = 24
_ROW_PIXELS = 14
# Brewer's Purples, as lightness only; dark means held back most. No cell is as light as the page.
_SCALE = [(0, "#3F007D"), (0.25, "#6A51A3"), (0.5, "#9E9AC8"), (0.75, "#CBC9E2"), (1, "#EFEDF5")]


@dataclass(frozen=True)
class HostGrids:
    """What hosts' NICs may send, in one repeat, by tuner.

    `lowest_bps` is tuner -> (hosts, spans): the lowest rate in each span, NaN without unfinished
    flows. `line_bps` (hosts,) are line rates. `cnps` is tuner -> (all hosts,): those that each got
    until flows stopped arriving; empty if no trial counts them. `rows` (hosts,) are the numbers of
    the hosts that are drawn among all.
    """

    repeat: int
    names: tuple[str, ...]
    rows: Ints
    line_bps: Floats
    spans: Spans
    lowest_bps: dict[str, Floats]
    cnps: dict[str, Ints]


def host_grids(shown: ShownRepeat, spans: int) -> HostGrids | None:
    """Return the rates of the hosts that were held back most; None without RoCE flows.

    Those are the hosts with the most CNPs. Under controls that need none, such as Swift, they are
    those with the lowest rates.
    """
    windows = [_window(result) for result in shown.results]
    testbed = shown.results[0].testbed
    rates = [allowed_bps(testbed, window) for window in windows]
    if any(len(window.t_ns) < 2 for window in windows):
        return None
    if any(np.isnan(rate).all() for rate in rates):
        return None
    line_bps = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
    counted = [np.asarray(window.cnps[-1] - window.cnps[0]) for window in windows]
    notified = all((window.cnps != MISSING).all() for window in windows) and any(
        cnps.any() for cnps in counted
    )
    held = np.sum([np.nansum(1 - rate / line_bps, axis=0) for rate in rates], axis=0)
    by_held = np.lexsort((-held, -np.sum(counted, axis=0) if notified else -held))
    rows = np.sort(by_held[:_MOST_HOSTS])
    of_time = spans_between([window.t_ns for window in windows], spans)
    return HostGrids(
        repeat=shown.repeat,
        names=tuple(testbed.hosts[row] for row in rows),
        rows=rows,
        line_bps=line_bps[rows],
        spans=of_time,
        lowest_bps={
            trial.tuner: of_time.binned(window.t_ns[1:], rate[1:, rows], np.nanmin)
            for trial, window, rate in zip(shown.trials, windows, rates, strict=True)
        },
        cnps={
            trial.tuner: cnps for trial, cnps in zip(shown.trials, counted, strict=True) if notified
        },
    )


def _window(result: TrialResult) -> Samples:
    return arrivals(result.samples("host"), result.spec.measured_ns)


def rate_picture(grids: HostGrids, colours: Colours) -> Picture:
    """Draw the lowest rate that each host was allowed in each span, of its line's."""
    figure = cell_panels(
        {tuner: _panel(tuner, grid, grids) for tuner, grid in grids.lowest_bps.items()},
        colours,
        says=", %{y}, %{x:.2f} ms: at least %{text}",
        row_pixels=_ROW_PIXELS,
        x_title="time since the start, ms",
        scale={
            "colorscale": _SCALE,
            "cmin": 0,
            "cmax": 100,
            "colorbar": {
                "tickvals": [0, 25, 50, 75, 100],
                "ticktext": ["0%", "25%", "50%", "75%", "100%"],
            },
        },
        scale_title="lowest rate allowed, of the line's",
    )
    return Picture(
        _most(grids),
        f"{_told(grids)} Each cell is the lowest rate that congestion control allowed the host's "
        f"unfinished flows together in {quantity(grids.spans.span_ns, 'ns')}, as far as it was "
        f"read; blank without flows.{_counted(grids)} Repeat {grids.repeat}, while flows arrived."
        f"{_left(grids)}",
        figure,
        "rates-of-hosts",
        grid_data(
            grids.lowest_bps,
            grids.spans.begins_ns.tolist(),
            [f"{name}_bps" for name in grids.names],
        ),
    )


def _panel(tuner: str, grid: Floats, grids: HostGrids) -> Cells:
    names = [_row_name(grids, tuner, place) for place in range(len(grids.names))]
    share = np.round(100 * grid / grids.line_bps[:, None], 1)
    return Cells(grids.spans.middle_ms, names, share.tolist(), texts_of(grid, "bps"))


def _row_name(grids: HostGrids, tuner: str, place: int) -> str:
    if not grids.cnps:
        return grids.names[place]
    return f"{grids.names[place]} · {grids.cnps[tuner][grids.rows[place]]:,}"


def _most(grids: HostGrids) -> str:
    if not grids.cnps:
        tuner, place, bps, at_ns = _lowest(grids)
        return (
            f"{grids.names[place]} was held back the most: to {quantity(bps, 'bps')} "
            f"around {quantity(at_ns, 'ns')}, with {tuner}"
        )
    tuner = max(grids.cnps, key=lambda name: int(grids.cnps[name][grids.rows].max()))
    place = int(np.argmax(grids.cnps[tuner][grids.rows]))
    count = int(grids.cnps[tuner][grids.rows[place]])
    return f"{grids.names[place]} was told to slow down the most: {count:,} CNPs, with {tuner}"


def _lowest(grids: HostGrids, tuner: str = "") -> tuple[str, int, float, float]:
    """Return which drawn host had the lowest rate, that rate, and when."""
    found = {
        name: float(np.nanmin(grid))
        for name, grid in grids.lowest_bps.items()
        if not np.isnan(grid).all() and tuner in ("", name)
    }
    name = min(found, key=found.__getitem__)
    grid = grids.lowest_bps[name]
    place, span = np.unravel_index(int(np.nanargmin(grid)), grid.shape)
    return name, int(place), found[name], 1e6 * float(grids.spans.middle_ms[span])


def _told(grids: HostGrids) -> str:
    """Return how many hosts got CNPs, and which was held to the lowest rate, for each tuner."""
    clauses = []
    for tuner, grid in grids.lowest_bps.items():
        if np.isnan(grid).all():
            continue
        _, place, bps, at_ns = _lowest(grids, tuner)
        text = f"with {tuner} "
        if grids.cnps:
            cnps = grids.cnps[tuner]
            text += f"{int((cnps > 0).sum())} of {len(cnps)} hosts got {int(cnps.sum()):,} CNPs; "
        clauses.append(
            f"{text}the lowest rate was {grids.names[place]}'s, {quantity(bps, 'bps')} of "
            f"{quantity(float(grids.line_bps[place]), 'bps')} around {quantity(at_ns, 'ns')}"
        )
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."


def _counted(grids: HostGrids) -> str:
    return " Behind each name are the host's CNPs." if grids.cnps else ""


def _left(grids: HostGrids) -> str:
    if not grids.cnps:
        return ""
    every = next(iter(grids.cnps.values()))
    hidden = np.setdiff1d(np.arange(len(every)), grids.rows)
    if not len(hidden):
        return ""
    most = max(int(cnps[hidden].max()) for cnps in grids.cnps.values())
    return f" {len(hidden)} more hosts are not drawn: none of them got more than {most:,} CNPs."


_PANEL_PIXELS, _AROUND_PIXELS, _GAP = 140, 70, 0.07
# key -> (what a panel says in its corner, what to multiply its values with, how values are shown)
_PANELS = {
    "cnps": ("CNPs a ms, all hosts", 1.0, "%{y:,.4g}"),
    "rate_bps": ("mean rate allowed to a host, Gbps", 1e-9, "%{y:.3g} Gbps"),
    "rtt_ns": ("median RTT of hosts, us", 1e-3, "%{y:.3g} us"),
}
_UNITS: dict[str, Unit] = {"cnps": "count", "rate_bps": "bps", "rtt_ns": "ns"}
_COLUMNS = {"cnps": "cnps_per_ms", "rate_bps": "rate_mean_bps", "rtt_ns": "rtt_median_ns"}
_EXTREMES: dict[str, tuple[str, Callable[[Floats], np.intp]]] = {
    "cnps": ("the most CNPs a ms were", np.nanargmax),
    "rate_bps": ("the lowest mean rate", np.nanargmin),
    "rtt_ns": ("the longest median RTT", np.nanargmax),
}


@dataclass(frozen=True)
class NicTimelines:
    """Figures of all hosts in spans of time, in one repeat.

    `values` is panel -> tuner -> (spans,), NaN where unknown: `cnps` a ms, `rate_bps` and `rtt_ns`
    of the hosts that had unfinished flows. A panel without a value is left out.
    """

    repeat: int
    spans: Spans
    values: dict[str, dict[str, Floats]]


def nic_timelines(shown: ShownRepeat, spans: int) -> NicTimelines | None:
    """Return at most `spans` values of each; None without RoCE flows."""
    windows = [
        arrivals(result.samples("host"), result.spec.measured_ns) for result in shown.results
    ]
    if any(len(window.t_ns) < 3 for window in windows):
        return None
    testbed = shown.results[0].testbed
    of_time = spans_between([window.t_ns for window in windows], spans)
    values: dict[str, dict[str, Floats]] = {key: {} for key in _PANELS}
    for trial, window in zip(shown.trials, windows, strict=True):
        t_ns = window.t_ns[1:]
        rates, trips = allowed_bps(testbed, window)[1:], round_trips_ns(window)[1:]
        got = np.diff(np.where(window.cnps == MISSING, math.nan, window.cnps), axis=0)
        added = of_time.binned(t_ns, got.sum(axis=1, keepdims=True), np.nansum)[0]
        found = {
            "cnps": added * 1e6 / of_time.span_ns,
            "rate_bps": _over_hosts(of_time.binned(t_ns, rates, np.nanmean), np.nanmean),
            "rtt_ns": _over_hosts(of_time.binned(t_ns, trips, np.nanmedian), np.nanmedian),
        }
        for key, line in found.items():
            values[key][trial.tuner] = line
    known = {key: lines for key, lines in values.items() if _says_something(lines)}
    return NicTimelines(shown.repeat, of_time, known) if known else None


def _over_hosts(grid: Floats, reduced: Callable[..., Floats]) -> Floats:
    """Return one value for each span of (hosts, spans), NaN where no host has one."""
    found = np.full(grid.shape[1], math.nan)
    known = ~np.isnan(grid).all(axis=0)
    found[known] = reduced(grid[:, known], axis=0)
    return found


def _says_something(lines: Mapping[str, Floats]) -> bool:
    return any(bool(np.nansum(line) > 0) for line in lines.values())


def nics_over_time(found: NicTimelines, colours: Colours) -> Picture:
    """Draw a panel each for notifications, rates and round trips, with a line per tuner."""
    count = len(found.values)
    figure = Figure(count, gap=_GAP if count > 1 else 0)
    tuners = list(next(iter(found.values.values())))
    base_figure(
        height=_AROUND_PIXELS + _PANEL_PIXELS * count, right=label_room(tuners), figure=figure
    )
    for row, (key, lines) in enumerate(found.values.items(), start=1):
        words, scale, shown_as = _PANELS[key]
        top = 1.35 * scale * max(float(np.nanmax(line, initial=0)) for line in lines.values())
        for tuner, line in lines.items():
            trace = curve(found.spans.middle_ms, np.round(scale * line, 4), colours[tuner], 2)
            trace["hovertemplate"] = f"{tuner}, %{{x:.2f}} ms: {shown_as}<extra></extra>"
            figure.add_trace(trace, row=row)
        figure.update_yaxes(row=row, range=[0, top], nticks=5)
        corner_name(figure, row, words)
    figure.update_xaxes(title="time since the start, ms", row=count)
    _name_lines(figure, found, colours)
    columns = {
        tuner: {_COLUMNS[key]: lines[tuner].tolist() for key, lines in found.values.items()}
        for tuner in tuners
    }
    return Picture(
        _title(found),
        f"{_peaks(found)} Rates and round trips are of hosts with unfinished RoCE flows, a rate is "
        f"at most the line's. Values each {quantity(found.spans.span_ns, 'ns')} of repeat "
        f"{found.repeat}, while flows arrived.",
        figure,
        "hosts-over-time",
        lines_of("tuner", columns, {"from_ns": found.spans.begins_ns.tolist()}),
    )


def _name_lines(figure: Figure, found: NicTimelines, colours: Colours) -> None:
    """Write the tuners' names at the ends of the first panel's lines."""
    key, lines = next(iter(found.values.items()))
    ends = {}
    for tuner, line in lines.items():
        last = np.flatnonzero(~np.isnan(line))
        if len(last):
            at = int(last[-1])
            ends[tuner] = (float(found.spans.middle_ms[at]), _PANELS[key][1] * float(line[at]))
    low, high = figure.layout["yaxis"]["range"]
    # the first panel has a share of the height, names are as high in all
    end_labels(figure, ends, colours, 2.2 * (high - low))


def _title(found: NicTimelines) -> str:
    key, lines = next(iter(found.values.items()))
    means = {tuner: float(np.nanmean(line)) for tuner, line in lines.items() if (line >= 0).any()}
    if key == "cnps":
        return f"CNPs in each ms: {extremes(means, 'count')}"
    if key == "rate_bps":
        return f"A host with flows may send {extremes(means, 'bps')}"
    return f"Round trips take {extremes(means, 'ns')}"


def _peaks(found: NicTimelines) -> str:
    """Return the extreme of each panel, and when it was."""
    clauses = []
    for key, lines in found.values.items():
        words, pick = _EXTREMES[key]
        known = {tuner: line for tuner, line in lines.items() if not np.isnan(line).all()}
        places = {tuner: int(pick(line)) for tuner, line in known.items()}
        values = {tuner: float(known[tuner][at]) for tuner, at in places.items()}
        tuner = (min if pick is np.nanargmin else max)(values, key=values.__getitem__)
        at_ns = 1e6 * float(found.spans.middle_ms[places[tuner]])
        value = quantity(values[tuner], _UNITS[key])
        clauses.append(f"{words} {value} around {quantity(at_ns, 'ns')}, with {tuner}")
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."
