"""The report's figures of shared buffers: the fullest one over time, and those of all switches.

Headroom here is the part of a buffer that is reserved for what still arrives after a pause frame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from orchestration.analysis.figure_parts import corner_name, size_axis, time_axis
from orchestration.analysis.measured_window import measured_samples
from orchestration.analysis.report.heat_maps import MAX_ROWS, Bins, bins_of, grid_data, over_time
from orchestration.analysis.report.queue_figures import downsample
from orchestration.analysis.report.selection import ShownRepeat
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
from orchestration.render.page import CaptionedFigure, rows_of
from orchestration.results.reader import TrialResult

# Brewer's Greens, which vary in lightness only; dark is full.
_SCALE = [(0, "#F1F7EF"), (0.25, "#BAE4B3"), (0.5, "#74C476"), (0.75, "#238B45"), (1, "#00441B")]
# With less than this share in use, the axis does not go up to the buffer's size.
_MIN_SHARE = 0.1


def buffer_figures(
    shown: ShownRepeat, points: int, bins: int, colours: Colours
) -> list[CaptionedFigure]:
    """Draw the fullest buffer over time, and the buffers of all switches, while flows arrived.

    Lines have at most `points` points, heat maps at most `bins` bins of time. Nothing is drawn
    without shared buffers, or if they stayed empty; for one switch there is no heat map.
    """
    testbed = shown.results[0].testbed
    windows = {
        arm: measured_samples(result.samples("switch"), result.spec.measured_ns)
        for arm, result in shown.by_arm.items()
    }
    if testbed.switch is None or any(len(window.t_ns) < 2 for window in windows.values()):
        return []
    held = {arm: _known(window.buffer_bytes) for arm, window in windows.items()}
    # the most that each switch held with any arm, 0 if unknown
    peak = np.max([np.nan_to_num(values).max(axis=0) for values in held.values()], axis=0)
    if not peak.any():
        return []
    pictures = [_fullest_buffer(shown, testbed, windows, int(np.argmax(peak)), points, colours)]
    if len(testbed.switches) > 1:
        pictures.append(_buffer_map(shown, testbed, windows, peak, bins, colours))
    return pictures


def _known(values: Ints) -> Floats:
    return np.where(values == MISSING, math.nan, values)


def _fullest_buffer(
    shown: ShownRepeat,
    testbed: Testbed,
    windows: Mapping[str, Samples],
    switch: int,
    points: int,
    colours: Colours,
) -> CaptionedFigure:
    """Draw the buffer of the switch that held most over time, a panel per arm."""
    assert testbed.switch is not None
    name, size = testbed.switches[switch], testbed.switch.buffer_bytes
    ports = [(port.rate_bps, port.delay_ns) for port in testbed.ports_of[name]]
    pool = size - testbed.switch.reserved_bytes(ports, testbed.frame_bytes)
    held = {arm: _known(one.buffer_bytes[:, switch]) for arm, one in windows.items()}
    headroom = {arm: _known(one.headroom_bytes[:, switch]) for arm, one in windows.items()}
    peaks = {arm: float(np.nanmax(values)) for arm, values in held.items()}
    peak = float(np.nan_to_num(list(peaks.values())).max())
    # with room for names above the lines
    top = 1.3 * (size if peak >= _MIN_SHARE * size else peak)
    figure = Figure(len(windows), gap=0.05, same_y=True)
    base_figure(height=90 + 130 * len(windows), right=16, figure=figure)
    for row, (arm, window) in enumerate(windows.items(), start=1):
        t_ns, values = downsample(window.t_ns, held[arm], points)
        trace = line(t_ns / 1e6, values, colours[arm], 1.5)
        trace.update(fill="tozeroy", hovertemplate="%{x:.2f} ms: %{y:,} B in use<extra></extra>")
        figure.add_trace(trace, row=row)
        if np.nansum(headroom[arm]) > 0:
            t_ns, values = downsample(window.t_ns, headroom[arm], points)
            dark = line(t_ns / 1e6, values, INK, 1.2)
            dark["hovertemplate"] = "%{x:.2f} ms: %{y:,} B of it in headroom<extra></extra>"
            figure.add_trace(dark, row=row)
        corner_name(figure, row, f"<b>{short(arm)}</b>", readable(colours[arm]))
    _draw_limits(figure, pool, size, top)
    size_axis(figure, top)
    time_axis(figure, len(windows))
    used = extremes({arm: maximum / size for arm, maximum in peaks.items()}, "share")
    return CaptionedFigure(
        f"{name}'s buffer of {quantity(size, 'bytes')} holds up to {extremes(peaks, 'bytes')}",
        f"Largest share in use: {used}. {_lines(pool, size, top)}{_headroom(shown)} Shown is the "
        f"switch that held most in repeat {shown.repeat}, while flows arrived.",
        figure,
        f"buffer-{name}",
        rows_of(
            {"arm": arm, "t_ns": int(at), "buffer_bytes": total, "headroom_bytes": part}
            for arm, window in windows.items()
            for at, total, part in zip(window.t_ns, held[arm], headroom[arm], strict=True)
        ),
    )


def _draw_limits(figure: Figure, pool: int, size: int, top: float) -> None:
    """Draw lines at the size of the buffer and of its shared part, named in the first panel."""
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
    """Return what the lines of a panel mean, and whether the buffer's size is beyond its scale."""
    text = "Black: headroom in use. " if pool < size else ""
    if pool > top:
        return f"{text}The buffer's size is beyond the scale."
    if pool == size:
        return text.strip()
    return f"{text}The part above the dashed line is reserved as headroom."


def _headroom(shown: ShownRepeat) -> str:
    """Return which port used the largest share of its headroom; "" if none used any."""
    ports = [(arm, _fullest_port(result)) for arm, result in shown.by_arm.items()]
    known = [(held / has, label, held, has, arm) for arm, (label, held, has) in ports if held]
    if not known:
        return ""
    _, label, held, has, arm = max(known, key=lambda one: one[0])
    return (
        f" {label} used most of its headroom: {quantity(held, 'bytes')} of "
        f"{quantity(has, 'bytes')} ({100 * held / has:.0f}%), with {arm}."
    )


def _fullest_port(result: TrialResult) -> tuple[str, int, int]:
    """Return the port that used the largest share of its headroom.

    That is its label, and the bytes that it used and has; "" and zeros without headroom.
    """
    testbed = result.testbed
    pauses = measured_samples(result.samples("priority"), result.spec.measured_ns)
    if testbed.switch is None or not pauses.headroom_bytes.size:
        return "", 0, 0
    ports = [queue.port for queue in testbed.lossless_queues]
    has = [
        testbed.switch.port_headroom_bytes(port.rate_bps, port.delay_ns, testbed.frame_bytes)
        for port in ports
    ]
    maximum = pauses.headroom_bytes.max(axis=0)
    index = int(np.argmax(maximum / np.array(has)))
    return ports[index].label, int(maximum[index]), has[index]


def _buffer_map(
    shown: ShownRepeat,
    testbed: Testbed,
    windows: Mapping[str, Samples],
    peak: Floats,
    bins: int,
    colours: Colours,
) -> CaptionedFigure:
    """Draw the largest share of its buffer that each switch used in each bin of time."""
    assert testbed.switch is not None
    size = testbed.switch.buffer_bytes
    by_peak = np.argsort(-peak, kind="stable")
    rows, rest = np.sort(by_peak[:MAX_ROWS]), by_peak[MAX_ROWS:]
    of_time = bins_of([window.t_ns for window in windows.values()], bins)
    grids = {
        arm: of_time.binned(window.t_ns, _known(window.buffer_bytes[:, rows]))
        for arm, window in windows.items()
    }
    names = [testbed.switches[row] for row in rows.tolist()]
    figure = over_time(
        grids,
        of_time,
        dict.fromkeys(grids, names),
        "bytes",
        colours,
        shades=lambda grid: np.round(100 * grid / size, 2),
        says="up to",
        row_pixels=16,
        scale={
            "colorscale": _SCALE,
            "cmin": 0,
            "cmax": 100 * float(peak.max()) / size,
            "colorbar": {"ticksuffix": "%", "nticks": 6},
        },
        scale_title="largest share of its buffer that a switch used",
    )
    more = f" {len(rest)} more switches held less and are not drawn." if len(rest) else ""
    return CaptionedFigure(
        f"The fullest: {_fullest(grids, names, of_time, size)}",
        "Each cell is the largest share that the switch used of its "
        f"{quantity(size, 'bytes')} within {quantity(of_time.bin_ns, 'ns')}, in repeat "
        f"{shown.repeat}, while flows arrived.{more}",
        figure,
        "buffers-over-time",
        grid_data(grids, of_time, [f"{name}_bytes" for name in names]),
    )


def _fullest(grids: Mapping[str, Floats], names: list[str], of_time: Bins, size: int) -> str:
    """Return which switch had the fullest buffer with each arm, how full, and when."""
    clauses = {}
    for arm, grid in grids.items():
        row, bin_index = np.unravel_index(int(np.nanargmax(grid)), grid.shape)
        share = float(grid[row, bin_index]) / size
        at = quantity(1e6 * float(of_time.middle_ms[bin_index]), "ns")
        clauses[arm] = (share, f"{names[row]}, {quantity(share, 'share')} around {at}")
    if len(clauses) > 2:
        maximum = max(clauses, key=lambda name: clauses[name][0])
        clauses = {maximum: clauses[maximum]}
    return "; ".join(f"{text}, with {arm}" for arm, (_, text) in clauses.items())
