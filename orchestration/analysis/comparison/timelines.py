"""The fabric over time in both runs, on one clock: means over the pairs, and their difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis import student_t
from orchestration.analysis.comparison.ports import Timeline
from orchestration.analysis.comparison.trials import PairFigures
from orchestration.analysis.statistics import CONFIDENCE
from orchestration.model.records import Floats

# As many points as a picture can show.
_POINTS = 400
# what -> its unit's word
SERIES = ("queued_bytes", "utilisation", "marked_share")


@dataclass(frozen=True)
class AlignedTimeline:
    """One quantity over time, shapes (points,): means over the pairs, and the difference B - A.

    `low` and `high` bound the difference's mean at each point at 95 %, NaN with one pair.
    """

    name: str
    t_ns: Floats
    a: Floats
    b: Floats
    difference: Floats
    low: Floats
    high: Floats


def align(pairs: Sequence[PairFigures]) -> list[AlignedTimeline]:
    """Return the quantities of `SERIES` over the time that all trials have.

    None without ports, and none that a run did not count.

    Time is cut into stretches at least as long as the longest sampling period; a value is the mean
    of the samples in a stretch, where it has none that of its neighbours.
    """
    lines = [
        (pair.a.ports.timeline, pair.b.ports.timeline)
        for pair in pairs
        if pair.a.ports is not None and pair.b.ports is not None
    ]
    if not lines:
        return []
    every = [line for both in lines for line in both]
    end_ns = min(int(line.t_ns[-1]) for line in every)
    begin_ns = max(int(line.t_ns[0]) for line in every)
    period = max(float(np.median(np.diff(line.t_ns))) for line in every)
    points = int(min(_POINTS, (end_ns - begin_ns) // period))
    if points < 2:
        return []
    edges = np.linspace(begin_ns, end_ns, points + 1)
    aligned = [_aligned(name, lines, edges) for name in SERIES]
    return [line for line in aligned if np.isfinite(line.difference).any()]


def _aligned(
    name: str, lines: Sequence[tuple[Timeline, Timeline]], edges: Floats
) -> AlignedTimeline:
    a, b = (np.stack([_binned(both[side], name, edges) for both in lines]) for side in (0, 1))
    apart, n = b - a, len(lines)
    mean = apart.mean(axis=0)
    half = np.full(len(mean), np.nan)
    if n > 1:
        t = student_t.quantile(n - 1, 0.5 + CONFIDENCE / 2)
        half = t * apart.std(axis=0, ddof=1) / np.sqrt(n)
    middle = (edges[1:] + edges[:-1]) / 2
    return AlignedTimeline(
        name, middle, a.mean(axis=0), b.mean(axis=0), mean, mean - half, mean + half
    )


def _binned(line: Timeline, name: str, edges: Floats) -> Floats:
    values = np.asarray(getattr(line, name))
    known = np.isfinite(values) & (line.t_ns >= edges[0]) & (line.t_ns <= edges[-1])
    place = np.clip(np.searchsorted(edges, line.t_ns[known], side="right") - 1, 0, len(edges) - 2)
    count = np.bincount(place, minlength=len(edges) - 1)
    total = np.bincount(place, values[known], minlength=len(edges) - 1)
    filled = np.flatnonzero(count)
    if not len(filled):
        return np.full(len(count), np.nan)
    return np.interp(np.arange(len(count)), filled, total[filled] / count[filled])
