"""Where two runs differ: by flow size, by port and by time, over all pairs of a cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis import student_t
from orchestration.analysis.comparison.equivalence import Interval, interval_of
from orchestration.analysis.comparison.estimates import CellEstimates
from orchestration.analysis.comparison.ports import Timeline
from orchestration.analysis.comparison.trials import PairFigures
from orchestration.analysis.sequential import Look
from orchestration.core.records import Floats

# The most points a picture can show.
_POINTS = 400
# The quantities that are aligned over time.
SERIES = ("queued_bytes", "utilisation", "marked_share")


@dataclass(frozen=True)
class AlignedTimeline:
    """One quantity over time, shapes (points,): means over the pairs, and the difference B - A.

    `low` and `high` are the 95 % interval of the mean difference at each point, NaN with one pair.
    """

    name: str
    t_ns: Floats
    a: Floats
    b: Floats
    difference: Floats
    low: Floats
    high: Floats


def align(pairs: Sequence[PairFigures], look: Look) -> list[AlignedTimeline]:
    """Return the quantities of `SERIES` over the time span common to all trials.

    Empty without ports; a quantity that one run did not count is left out. Time is cut into
    intervals at least as long as the longest sampling period. A value is the mean of the samples in
    its interval, or is interpolated if there are none.
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
    aligned = [_aligned(name, lines, edges, look) for name in SERIES]
    return [line for line in aligned if np.isfinite(line.difference).any()]


def _aligned(
    name: str, lines: Sequence[tuple[Timeline, Timeline]], edges: Floats, look: Look
) -> AlignedTimeline:
    a, b = (np.stack([_binned(both[side], name, edges) for both in lines]) for side in (0, 1))
    apart, n = b - a, len(lines)
    mean = apart.mean(axis=0)
    half = np.full(len(mean), np.nan)
    if n > 1:
        t = student_t.quantile(n - 1, 1 - look.level / 2)
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


_EIGHTHS = 8


@dataclass(frozen=True)
class SizeGroup:
    """Flows of up to `upto_bytes`: their number in A, mean slowdowns, and the difference."""

    upto_bytes: float
    flows: int
    a: float
    b: float
    interval: Interval


@dataclass(frozen=True)
class PortGap:
    """One queue's mean length and marks in both runs, averaged over the pairs."""

    label: str
    kind: str
    queue_a_bytes: float
    queue_b_bytes: float
    marked_a: float
    marked_b: float

    @property
    def gap_bytes(self) -> float:
        """B's mean length minus A's."""
        return self.queue_b_bytes - self.queue_a_bytes


@dataclass(frozen=True)
class Places:
    """Where the pairs of a cell differ.

    `sizes` are ordered by flow size, `ports` by the difference of their queues, largest first.
    `parted_ns` is the median time at which queues first differ, over the `parted_pairs` pairs in
    which they do; `parted_at` is the most common queue. `apart_ns` is the eighth of the time in
    which the queued bytes differ most, and `apart_bytes` the mean difference there; `apart_ns` is
    None without ports.
    """

    sizes: tuple[SizeGroup, ...]
    ports: tuple[PortGap, ...]
    timelines: tuple[AlignedTimeline, ...]
    parted_ns: float
    parted_pairs: int
    parted_at: str
    apart_ns: tuple[float, float] | None
    apart_bytes: float


def find_places(
    pairs: Sequence[PairFigures], estimates: CellEstimates, size_edges: Floats
) -> Places:
    """Return where the pairs differ."""
    times = [
        (pair.parting.parted_ns, pair.parting.parted_at)
        for pair in pairs
        if pair.parting is not None and pair.parting.parted_ns is not None
    ]
    timelines = tuple(align(pairs, estimates.look))
    apart_ns, apart_bytes = _eighth(timelines)
    names = [name for _, name in times]
    return Places(
        sizes=tuple(_sizes(pairs, estimates, size_edges)),
        ports=tuple(_ports(pairs)),
        timelines=timelines,
        parted_ns=float(np.median([t for t, _ in times])) if times else math.nan,
        parted_pairs=len(times),
        parted_at=max(dict.fromkeys(names), key=names.count) if names else "",
        apart_ns=apart_ns,
        apart_bytes=apart_bytes,
    )


def _sizes(
    pairs: Sequence[PairFigures], estimates: CellEstimates, edges: Floats
) -> list[SizeGroup]:
    groups = []
    for group, upto in enumerate(edges):
        means = estimates.by_size(group)
        if means is not None and math.isfinite(upto):
            flows = sum(
                int(p.a.flows.group_count[:, group].sum()) for p in pairs if p.a.flows is not None
            )
            interval = interval_of(means, estimates.look)
            groups.append(SizeGroup(float(upto), flows, means.a, means.b, interval))
    return groups


def _ports(pairs: Sequence[PairFigures]) -> list[PortGap]:
    known = [pair for pair in pairs if pair.parting is not None]
    partings = [pair.parting for pair in known if pair.parting is not None]
    if not known or any(item.labels != partings[0].labels for item in partings):
        return []
    columns = [
        np.mean([getattr(figures.ports, name) for figures in side], axis=0).tolist()
        for name in ("queue_mean_bytes", "marked")
        for side in ([pair.a for pair in known], [pair.b for pair in known])
    ]
    rows = zip(partings[0].labels, partings[0].kinds, *columns, strict=True)
    gaps = [PortGap(label, kind, *values) for label, kind, *values in rows]
    sure = [gap for gap in gaps if math.isfinite(gap.gap_bytes)]
    return sorted(sure, key=lambda gap: -abs(gap.gap_bytes))


def _eighth(timelines: Sequence[AlignedTimeline]) -> tuple[tuple[float, float] | None, float]:
    queued = next((line for line in timelines if line.name == "queued_bytes"), None)
    if queued is None or len(queued.t_ns) < _EIGHTHS:
        return None, math.nan
    parts = np.array_split(np.arange(len(queued.t_ns)), _EIGHTHS)
    gaps = [float(queued.difference[part].mean()) for part in parts]
    most = int(np.argmax(np.abs(gaps)))
    half = float(queued.t_ns[1] - queued.t_ns[0]) / 2
    span = (queued.t_ns[parts[most][0]] - half, queued.t_ns[parts[most][-1]] + half)
    return (float(span[0]), float(span[1])), gaps[most]
