"""The queues of a fabric over time as a grid, ports by spans of time, small enough to draw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inventory.topology import Testbed
from orchestration.analysis.counters import per_port
from orchestration.analysis.metrics import arrivals
from orchestration.analysis.report.shown import ShownRepeat
from orchestration.artifacts.reader import TrialResult
from orchestration.model.records import MISSING, Floats, Ints

# Rows that a phone can show with names that can be read.
_MOST_PORTS = 24


@dataclass(frozen=True)
class FabricGrids:
    """Ports by spans of time, for each tuner, in one repeat.

    `peak_bytes` is tuner -> (ports, spans): the most that a port's queues held in each span, NaN
    unknown. `begins_ns` (spans,). Not rows are `left_out` ports, none of which held more than
    `left_bytes`, and `unsampled` ports without any number.
    """

    repeat: int
    ports: tuple[str, ...]
    towards: tuple[str, ...]
    begins_ns: Ints
    span_ns: float
    peak_bytes: dict[str, Floats]
    left_out: int
    left_bytes: float
    unsampled: int


def fabric_grids(shown: ShownRepeat, spans: int) -> FabricGrids | None:
    """Return the busiest ports' queues in at most `spans` spans; None if nothing was sampled."""
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
    first, last = held[0][0][0], min(float(t_ns[-1]) for t_ns, _ in held)
    samples = min(len(t_ns) for t_ns, _ in held)
    count, half_ns = min(spans, samples), (last - first) / max(1, samples - 1) / 2
    # samples lie within spans, not on their edges
    edges = np.linspace(max(0.0, first - half_ns), last + half_ns + 1, count + 1)
    return FabricGrids(
        repeat=shown.repeat,
        ports=tuple(_label(testbed, row) for row in rows),
        towards=tuple(testbed.peer_device(testbed.switch_ports[row]).name for row in rows),
        begins_ns=edges[:-1].astype(np.int64),
        span_ns=float(edges[1] - edges[0]),
        peak_bytes={
            trial.tuner: _binned(t_ns, values[:, rows], edges)
            for trial, (t_ns, values) in zip(shown.trials, held, strict=True)
        },
        left_out=len(rest),
        left_bytes=float(rest.max()) if len(rest) else 0.0,
        unsampled=len(worst) - len(sampled),
    )


def _held(result: TrialResult) -> tuple[Ints, Floats]:
    """Return times (samples,) and what ports held (samples, ports), NaN where it is unknown."""
    window = arrivals(result.ports, result.spec.duration_ns)
    unknown = per_port(result.testbed, (window.qlen_bytes == MISSING).astype(np.int64)) > 0
    values = per_port(result.testbed, window.qlen_bytes)
    return window.t_ns, np.where(unknown, math.nan, values)


def _label(testbed: Testbed, row: int) -> str:
    port = testbed.switch_ports[row]
    return f"{port.device}:{port.name}"


def _binned(t_ns: Ints, values: Floats, edges: Floats) -> Floats:
    """Return the highest value of each span between edges, shape (ports, spans), NaN if none."""
    found = np.full((values.shape[1], len(edges) - 1), math.nan)
    place = np.clip(np.searchsorted(edges, t_ns, side="left") - 1, 0, len(edges) - 2)
    for span in np.unique(place):
        part = values[place == span]
        known = ~np.isnan(part).all(axis=0)
        found[known, span] = np.nanmax(part[:, known], axis=0)
    return found
