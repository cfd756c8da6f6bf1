"""How full the switches' shared buffers were: the fullest over time, and all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.figure_parts import corner_name, size_axis, time_axis
from orchestration.analysis.report.heat_maps import MOST_ROWS, Spans, grid_data, over_time, spans_of
from orchestration.analysis.report.queue_figures import downsample
from orchestration.analysis.report.shown import ShownRepeat
from orchestration.analysis.sample_parts import arrivals
from orchestration.core.records import MISSING, Floats, Ints, Samples
from orchestration.core.topology import Testbed
from orchestration.render.figure import Figure
from orchestration.render.figure_style import (
    FAINT,
    INK,
    Colours,
    base_figure,
    line,
    readable,
    short,
)
from orchestration.render.numbers import extremes, quantity
from orchestration.render.page import Picture, rows_of
from orchestration.results.reader import TrialResult

# Brewer's Greens, as lightness only; dark means full.
_SCALE = [(0, "#F1F7EF"), (0.25, "#BAE4B3"), (0.5, "#74C476"), (0.75, "#238B45"), (1, "#00441B")]
# With less than this share in use, the axis does not go up to the buffer's size.
_LEAST_SHARE = 0.1


@dataclass(frozen=True)
class Buffers:
    """What switches held, in one repeat.

    `t_ns`, `buffer_bytes` and `headroom_bytes` are by tuner, shapes (samples,) and (samples,
    switches), NaN where unknown. `size_bytes` is the whole buffer of a switch, `reserved_bytes`
    (switches,) its part that is headroom. `ports` says which port's headroom was the fullest, by
    tuner: its label, what it held, what it has; empty without lossless classes.
    """

    repeat: int
    switches: tuple[str, ...]
    t_ns: dict[str, Ints]
    buffer_bytes: dict[str, Floats]
    headroom_bytes: dict[str, Floats]
    size_bytes: int
    reserved_bytes: Ints
    ports: dict[str, tuple[str, int, int]]

    @property
    def peak_bytes(self) -> Floats:
        """What each switch held at most with any tuner, shape (switches,); 0 if unknown."""
        every = [np.nan_to_num(values).max(axis=0) for values in self.buffer_bytes.values()]
        return np.asarray(np.max(every, axis=0))


def shared_buffers(shown: ShownRepeat) -> Buffers | None:
    """Return what switches held while flows arrived; None without shared buffers, or if empty."""
    testbed = shown.results[0].testbed
    windows = {
        tuner: arrivals(result.samples("switch"), result.spec.measured_ns)
        for tuner, result in shown.by_tuner.items()
    }
    if testbed.switch is None or any(len(window.t_ns) < 2 for window in windows.values()):
        return None
    found = Buffers(
        repeat=shown.repeat,
        switches=testbed.switches,
        t_ns={tuner: window.t_ns for tuner, window in windows.items()},
        buffer_bytes={tuner: _known(window.buffer_bytes) for tuner, window in windows.items()},
        headroom_bytes={tuner: _known(window.headroom_bytes) for tuner, window in windows.items()},
        size_bytes=testbed.switch.buffer_bytes,
        reserved_bytes=_reserved(testbed),
        ports={
            tuner: place
            for tuner, result in shown.by_tuner.items()
            if (place := _fullest_port(result)) is not None
        },
    )
    return found if found.peak_bytes.any() else None


def _known(values: Ints) -> Floats:
    return np.where(values == MISSING, math.nan, values)


def _reserved(testbed: Testbed) -> Ints:
    assert testbed.switch is not None
    every = [
        [(port.rate_bps, port.delay_ns) for port in testbed.ports_of[name]]
        for name in testbed.switches
    ]
    switch, frame = testbed.switch, testbed.frame_bytes
    return np.array([switch.reserved_bytes(ports, frame) for ports in every], dtype=np.int64)


def _fullest_port(result: TrialResult) -> tuple[str, int, int] | None:
    """Return the port whose headroom was the fullest: its label, what it held, what it has."""
    testbed = result.testbed
    pauses: Samples = arrivals(result.samples("priority"), result.spec.measured_ns)
    if testbed.switch is None or not pauses.headroom_bytes.size:
        return None
    ports = [queue.port for queue in testbed.lossless_queues]
    has = np.array(
        [
            testbed.switch.port_headroom_bytes(port.rate_bps, port.delay_ns, testbed.frame_bytes)
            for port in ports
        ]
    )
    most = pauses.headroom_bytes.max(axis=0)
    place = int(np.argmax(most / has))
    return (ports[place].label, int(most[place]), int(has[place])) if most[place] > 0 else None


def fullest_buffer(found: Buffers, colours: Colours, points: int) -> Picture:
    """Draw the buffer of the switch that held most over time, a panel per tuner."""
    switch = int(np.argmax(found.peak_bytes))
    name, size = found.switches[switch], found.size_bytes
    pool = size - int(found.reserved_bytes[switch])
    peak = float(found.peak_bytes[switch])
    # with room for names above the lines
    top = 1.3 * (size if peak >= _LEAST_SHARE * size else peak)
    tuners = list(found.buffer_bytes)
    figure = Figure(len(tuners), gap=0.05, same_y=True)
    base_figure(height=90 + 130 * len(tuners), right=16, figure=figure)
    for row, tuner in enumerate(tuners, start=1):
        held = found.buffer_bytes[tuner][:, switch]
        t_ns, values = downsample(found.t_ns[tuner], held, points)
        trace = line(t_ns / 1e6, values, colours[tuner], 1.5)
        trace.update(fill="tozeroy", hovertemplate="%{x:.2f} ms: %{y:,} B in use<extra></extra>")
        figure.add_trace(trace, row=row)
        headroom = found.headroom_bytes[tuner][:, switch]
        if np.nansum(headroom) > 0:
            part_ns, part = downsample(found.t_ns[tuner], headroom, points)
            dark = line(part_ns / 1e6, part, INK, 1.2)
            dark["hovertemplate"] = "%{x:.2f} ms: %{y:,} B of it in headroom<extra></extra>"
            figure.add_trace(dark, row=row)
        corner_name(figure, row, f"<b>{short(tuner)}</b>", readable(colours[tuner]))
    _draw_limits(figure, pool, size, top)
    size_axis(figure, top)
    time_axis(figure, len(tuners))
    peaks = {tuner: float(np.nanmax(held[:, switch])) for tuner, held in found.buffer_bytes.items()}
    used = extremes({tuner: held / size for tuner, held in peaks.items()}, "share")
    return Picture(
        f"{name}'s buffer of {quantity(size, 'bytes')} holds up to {extremes(peaks, 'bytes')}",
        f"At most in use: {used}. {_lines(pool, size, top)}{_headroom(found)} The switch that held "
        f"most in repeat {found.repeat}, while flows arrived.",
        figure,
        f"buffer-{name}",
        rows_of(
            {"tuner": tuner, "t_ns": int(at), "buffer_bytes": whole, "headroom_bytes": part}
            for tuner in tuners
            for at, whole, part in zip(
                found.t_ns[tuner],
                found.buffer_bytes[tuner][:, switch],
                found.headroom_bytes[tuner][:, switch],
                strict=True,
            )
        ),
    )


def _draw_limits(figure: Figure, pool: int, size: int, top: float) -> None:
    """Draw lines at the whole buffer and at the part that ports share, named in the first panel."""
    limits = [("all", size, "solid", "bottom")]
    limits += [("shared", pool, "dash", "top")] if pool < size else []
    for name, level, style, side in limits:
        if level > top:
            continue
        figure.add_hline(level, {"color": FAINT, "width": 1.2, "dash": style})
        figure.add_annotation(
            row=1,
            x=0.995,
            xref="x domain",
            y=level,
            yref="y",
            text=f"{name}: {quantity(level, 'bytes')}",
            font={"color": INK, "size": 11},
            xanchor="right",
            yanchor=side,
            showarrow=False,
        )


def _lines(pool: int, size: int, top: float) -> str:
    """Say what the lines of a panel mean, and what is beyond its scale."""
    text = "Black: headroom. " if pool < size else ""
    if pool > top:
        return f"{text}All of the buffer is beyond the scale."
    if pool == size:
        return text.strip()
    return f"{text}Above the dashed line is what is reserved as headroom."


def _headroom(found: Buffers) -> str:
    """Return which port's headroom was the fullest."""
    if not found.ports:
        return ""
    tuner = max(found.ports, key=lambda name: found.ports[name][1] / found.ports[name][2])
    label, held, has = found.ports[tuner]
    return (
        f" The fullest headroom of a port was {label}'s, {quantity(held, 'bytes')} of "
        f"{quantity(has, 'bytes')} ({100 * held / has:.0f}%), with {tuner}."
    )


def buffer_map(found: Buffers, colours: Colours, spans: int) -> Picture | None:
    """Draw the share of its buffer that each switch held in each span; None for one switch."""
    if len(found.switches) < 2:
        return None
    by_peak = np.argsort(-found.peak_bytes, kind="stable")
    rows, rest = np.sort(by_peak[:MOST_ROWS]), by_peak[MOST_ROWS:]
    of_time = spans_of(list(found.t_ns.values()), spans)
    grids = {
        tuner: of_time.binned(found.t_ns[tuner], held[:, rows])
        for tuner, held in found.buffer_bytes.items()
    }
    names = [found.switches[row] for row in rows]
    top = 100 * float(found.peak_bytes.max()) / found.size_bytes
    figure = over_time(
        grids,
        of_time,
        dict.fromkeys(grids, names),
        "bytes",
        colours,
        shades=lambda grid: np.round(100 * grid / found.size_bytes, 2),
        says="up to",
        row_pixels=16,
        scale={
            "colorscale": _SCALE,
            "cmin": 0,
            "cmax": top,
            "colorbar": {"ticksuffix": "%", "nticks": 6},
        },
        scale_title="most of its buffer that a switch held",
    )
    more = f" {len(rest)} more switches held less and are not drawn." if len(rest) else ""
    return Picture(
        f"The fullest: {_fullest(grids, names, of_time, found.size_bytes)}",
        f"Each cell is the most that the switch held within {quantity(of_time.span_ns, 'ns')}, of "
        f"its {quantity(found.size_bytes, 'bytes')}, in repeat {found.repeat}, while flows "
        f"arrived.{more}",
        figure,
        "buffers-over-time",
        grid_data(grids, of_time, [f"{name}_bytes" for name in names]),
    )


def _fullest(grids: dict[str, Floats], names: list[str], of_time: Spans, size: int) -> str:
    """Return which switch was the fullest with each tuner, how full, and when."""
    clauses = {}
    for tuner, grid in grids.items():
        row, span = np.unravel_index(int(np.nanargmax(grid)), grid.shape)
        share = float(grid[row, span]) / size
        at = quantity(1e6 * float(of_time.middle_ms[span]), "ns")
        clauses[tuner] = (share, f"{names[row]}, {quantity(share, 'share')} around {at}")
    if len(clauses) > 2:
        most = max(clauses, key=lambda name: clauses[name][0])
        clauses = {most: clauses[most]}
    return "; ".join(f"{text}, with {tuner}" for tuner, (_, text) in clauses.items())
