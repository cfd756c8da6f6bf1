"""All hosts' NICs over time: notifications, rates, round trips, a line per tuner."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.device_figures import allowed_bps, round_trips_ns
from orchestration.analysis.figure_parts import corner_name
from orchestration.analysis.report.shown import ShownRepeat
from orchestration.analysis.report.spans import Spans, spans_between
from orchestration.analysis.sample_parts import arrivals
from orchestration.core.records import MISSING, Floats
from orchestration.render.figure import Figure
from orchestration.render.figure_style import Colours, base_figure, curve, end_labels, label_room
from orchestration.render.numbers import Unit, extremes, quantity
from orchestration.render.picture import Picture, lines_of

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
