"""The heat map of a fabric's queues over time: a row per port, a panel per tuner."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.counters import per_port
from orchestration.analysis.figure_parts import Cells, cell_panels, grid_data, texts_of
from orchestration.analysis.report.shown import ShownRepeat, Spans, spans_of
from orchestration.analysis.sample_parts import arrivals
from orchestration.core.records import MISSING, Floats, Ints
from orchestration.core.topology import Testbed
from orchestration.core.units import format_size
from orchestration.render.figure_style import Colours
from orchestration.render.numbers import quantity
from orchestration.render.page import Picture
from orchestration.results.reader import TrialResult

# Shorter queues look empty: this is less than a full frame.
_FLOOR_BYTES = 1e3
_ROW_PIXELS = 14
# Brewer's Blues: a single hue that varies in lightness only; dark means much.
_SCALE = [
    (0, "#F1F4F8"),
    (0.25, "#C6DBEF"),
    (0.5, "#6BAED6"),
    (0.75, "#2171B5"),
    (1, "#08306B"),
]


def fabric_heatmap(grids: FabricGrids, colours: Colours) -> Picture:
    """Draw the longest queue of each port in each time span, on a log scale."""
    top = max(10 * _FLOOR_BYTES, *(float(np.nanmax(grid)) for grid in grids.peak_bytes.values()))
    decades = [at for at in (3, 4, 5, 6, 7, 8) if 10**at <= top * 1.001]
    names = [format_size(10**at) for at in decades]
    ticks = {"tickvals": decades, "ticktext": [f"≤{names[0]}", *names[1:]]}
    ends = {"cmin": np.log10(_FLOOR_BYTES), "cmax": np.log10(top)}
    figure = cell_panels(
        {tuner: _panel(grid, grids) for tuner, grid in grids.peak_bytes.items()},
        colours,
        says=", %{y}, %{x:.2f} ms: up to %{text}",
        row_pixels=_ROW_PIXELS,
        x_title="time since the start, ms",
        scale={"colorscale": _SCALE, **ends, "colorbar": ticks},
        scale_title="longest queue in the span",
    )
    return Picture(
        f"{_hottest(grids)}",
        f"{_busy(grids)} Each cell is the most that the port's queues held within "
        f"{quantity(grids.spans.span_ns, 'ns')}, in repeat {grids.repeat}, while flows arrived."
        f"{_left(grids)}{_unknown(grids)}",
        figure,
        "fabric-over-time",
        grid_data(grids.peak_bytes, grids.spans.begins_ns.tolist(), grids.ports),
    )


def _panel(grid: Floats, grids: FabricGrids) -> Cells:
    # steps of a hundredth of a decade: as fine as the eye can see, and short in JSON
    z = np.round(np.log10(np.maximum(grid, _FLOOR_BYTES)), 2).tolist()
    return Cells(grids.spans.middle_ms, list(grids.ports), z, texts_of(grid, "bytes"))


def _hottest(grids: FabricGrids) -> str:
    tuner = max(grids.peak_bytes, key=lambda name: float(np.nanmax(grids.peak_bytes[name])))
    grid = grids.peak_bytes[tuner]
    row, span = np.unravel_index(int(np.nanargmax(grid)), grid.shape)
    at = quantity(float(grids.spans.begins_ns[span]), "ns")
    return (
        f"The longest queue: {quantity(float(grid[row, span]), 'bytes')} at {grids.ports[row]} "
        f"towards {grids.towards[row]} around {at}, with {tuner}"
    )


def _busy(grids: FabricGrids) -> str:
    """Return how many ports held a long queue, and for what share of spans the fullest did."""
    clauses = []
    for tuner, grid in grids.peak_bytes.items():
        over = grid > 10 * _FLOOR_BYTES
        row = int(np.argmax(over.sum(axis=1)))
        clauses.append(
            f"with {tuner} {int(over.any(axis=1).sum())} of {len(grid)} ports ever held over "
            f"{format_size(10 * _FLOOR_BYTES)}, {grids.ports[row]} in {_share(over[row])} of spans"
        )
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _share(over: np.ndarray) -> str:
    return f"{100 * float(over.mean()):.0f}%"


def _left(grids: FabricGrids) -> str:
    text = ""
    if grids.left_out:
        text += (
            f" {grids.left_out} more ports are not drawn: none of them ever held more than "
            f"{quantity(grids.left_bytes, 'bytes')}."
        )
    if grids.unsampled:
        text += f" {grids.unsampled} ports have no samples."
    return text


def _unknown(grids: FabricGrids) -> str:
    share = float(np.mean([np.isnan(grid).mean() for grid in grids.peak_bytes.values()]))
    return f" {100 * share:.0f}% of the cells are empty: no new number then." if share else ""


# The most rows whose names are readable on a phone.
_MOST_PORTS = 24


@dataclass(frozen=True)
class FabricGrids:
    """Queues by port and time span, for each tuner, in one repeat.

    `peak_bytes` is tuner -> (ports, spans): the maximum that a port's queues held in each span, NaN
    if unknown. `left_out` counts ports that are not shown and never held more than `left_bytes`;
    `unsampled` counts ports without samples.
    """

    repeat: int
    ports: tuple[str, ...]
    towards: tuple[str, ...]
    spans: Spans
    peak_bytes: dict[str, Floats]
    left_out: int
    left_bytes: float
    unsampled: int


def fabric_grids(shown: ShownRepeat, spans: int) -> FabricGrids | None:
    """Return the queues of the busiest ports in at most `spans` spans; None without samples."""
    if not shown.sampled:
        return None
    testbed = shown.results[0].testbed
    held = [_held(result) for result in shown.results]
    if any(np.isnan(values).all() for _, values in held):
        return None
    worst = np.fmax.reduce([np.fmax.reduce(values, axis=0) for _, values in held])
    sampled = np.flatnonzero(~np.isnan(worst))
    by_peak = sampled[np.argsort(-worst[sampled], kind="stable")]
    rows, rest = np.sort(by_peak[:_MOST_PORTS]), worst[by_peak[_MOST_PORTS:]]
    of_time = spans_of([t_ns for t_ns, _ in held], spans)
    return FabricGrids(
        repeat=shown.repeat,
        ports=tuple(_label(testbed, row) for row in rows),
        towards=tuple(testbed.peer_device(testbed.switch_ports[row]).name for row in rows),
        spans=of_time,
        peak_bytes={
            trial.tuner: of_time.binned(t_ns, values[:, rows])
            for trial, (t_ns, values) in zip(shown.trials, held, strict=True)
        },
        left_out=len(rest),
        left_bytes=float(rest.max()) if len(rest) else 0.0,
        unsampled=len(worst) - len(sampled),
    )


def _held(result: TrialResult) -> tuple[Ints, Floats]:
    """Return times (samples,) and bytes held by ports (samples, ports), NaN if unknown."""
    window = arrivals(result.ports, result.spec.measured_ns)
    unknown = per_port(result.testbed, (window.qlen_bytes == MISSING).astype(np.int64)) > 0
    values = per_port(result.testbed, window.qlen_bytes)
    return window.t_ns, np.where(unknown, math.nan, values)


def _label(testbed: Testbed, row: int) -> str:
    port = testbed.switch_ports[row]
    return f"{port.device}:{port.name}"
