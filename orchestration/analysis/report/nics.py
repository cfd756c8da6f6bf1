"""Which hosts were told to slow down, to what rate, and when: a panel per tuner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestration.analysis.device_figures import allowed_bps
from orchestration.analysis.figure_parts import Cells, cell_panels, grid_data, texts_of
from orchestration.analysis.report.shown import ShownRepeat
from orchestration.analysis.report.spans import Spans, spans_between
from orchestration.analysis.sample_parts import arrivals
from orchestration.core.records import MISSING, Floats, Ints, Samples
from orchestration.render.figure_style import Colours
from orchestration.render.numbers import quantity
from orchestration.render.picture import Picture
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
