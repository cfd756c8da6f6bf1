"""Measurements of two trials' switch ports: when queues first differ, and timelines aligned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis import student_t
from orchestration.analysis.comparison.flows import BLOCKS, QUEUE_EDGES_BYTES, block_of, histogram
from orchestration.analysis.counters import known_queues, per_port
from orchestration.analysis.measured_window import measured_samples
from orchestration.analysis.sequential import InterimAnalysis
from orchestration.core.errors import InputError
from orchestration.core.records import Floats, Ints, Samples
from orchestration.core.topology import Queue, Testbed
from orchestration.results.reader import TrialResult


@dataclass(frozen=True)
class PortBlocks:
    """One trial's ports by block of time, while flows arrived.

    `queue_histogram` (blocks, bins) is over queues and samples; `queue_sum_bytes` and `queue_count`
    have shape (blocks,). Counted between samples: `marked` and `dropped` packets, and the packets
    of queues whose marks (`packets`) or drops (`drop_packets`) are known. `busy` and `time`
    (blocks, 2) are link-nanoseconds of transmission and in total, for links to hosts and links
    between switches.
    """

    queue_histogram: Floats
    queue_sum_bytes: Floats
    queue_count: Floats
    marked: Floats
    packets: Floats
    drop_packets: Floats
    dropped: Floats
    busy: Floats
    time: Floats


@dataclass(frozen=True)
class Timeline:
    """The fabric over time: `queued_bytes` in all queues at `t_ns`, both (samples,).

    `marked_share` and `utilisation` of all links (0..1) are of the interval that ends with a
    sample. NaN means not measured.
    """

    t_ns: Ints
    queued_bytes: Floats
    marked_share: Floats
    utilisation: Floats


@dataclass(frozen=True)
class TrialPorts:
    """A trial's ports. `queue_mean_bytes` and `marked` have shape (queues,), NaN if unknown."""

    blocks: PortBlocks
    timeline: Timeline
    queue_mean_bytes: Floats
    marked: Floats


def read_ports(trial: TrialResult) -> TrialPorts | None:
    """Return what a trial's ports measured; None if they were not sampled over time.

    Raises InputError if a table is unreadable or its clock jumps back.
    """
    back = np.flatnonzero(np.diff(trial.ports.t_ns) <= 0)
    if len(back):
        before, after = trial.ports.t_ns[back[0] : back[0] + 2].tolist()
        raise InputError.single(
            str(trial.folder / "ports.parquet"),
            f"its clock jumps: after {before} ns comes {after} ns, {len(back)} such samples",
            "run the trial again with a clock that does not jump",
        )
    window = measured_samples(trial.ports, trial.spec.measured_ns)
    if not len(window.t_ns):
        return None
    if len(window.t_ns) < 2:
        raise InputError.single(
            str(trial.folder / "ports.parquet"),
            "has one sample of each queue",
            "sample more often: sample_period",
        )
    steps = _Steps(trial.testbed, window)
    known = known_queues(window.qlen_bytes)
    queue = window.qlen_bytes[:, known]
    means = np.full(len(known), np.nan)
    means[known] = queue.mean(axis=0)
    return TrialPorts(
        blocks=_blocks(trial, window, queue, steps),
        timeline=Timeline(
            window.t_ns,
            queue.sum(axis=1) if known.any() else np.full(len(queue), math.nan),
            _after_first(_share(steps.marked, steps.counted, known=steps.marks_known)),
            _after_first(_share(steps.busy_ns, steps.could_ns, known=steps.links_known)),
        ),
        queue_mean_bytes=means,
        marked=np.where(known_queues(window.marked_packets), steps.marked.sum(axis=0), np.nan),
    )


class _Steps:
    """Counts between samples, shapes (samples - 1, queues) or (samples - 1, links)."""

    def __init__(self, testbed: Testbed, window: Samples) -> None:
        packets = _counted(window.tx_packets)
        wire = _counted(window.tx_bytes) + testbed.framing_bytes * packets
        sent = known_queues(window.tx_packets)
        self.marks_known = known_queues(window.marked_packets) & sent
        self.marked = _counted(window.marked_packets) * self.marks_known
        self.counted = packets * self.marks_known
        drops_known = known_queues(window.dropped_packets) & sent
        self.dropped = _counted(window.dropped_packets) * drops_known
        self.drop_packets = packets * (drops_known if drops_known.any() else math.nan)
        links = testbed.switch_ports
        sure = known_queues(window.tx_bytes) & sent
        self.links_known = per_port(testbed, (~sure).astype(np.int64)) == 0
        rate_bps = np.array([port.rate_bps for port in links], dtype=np.float64)
        self.busy_ns = per_port(testbed, wire) * 8e9 / rate_bps * self.links_known
        self.could_ns = np.diff(window.t_ns)[:, None] * self.links_known[None, :].astype(np.float64)
        self.to_host = np.array([testbed.peer_device(port).kind == "host" for port in links])


def _blocks(trial: TrialResult, window: Samples, queue: Ints, steps: _Steps) -> PortBlocks:
    block = block_of(window.t_ns, trial.spec.measured_ns)
    # an interval belongs to the block in which it ends
    which = np.eye(BLOCKS)[block]
    ends = which[1:]
    rows = np.repeat(block, queue.shape[1])
    return PortBlocks(
        queue_histogram=histogram(
            rows, queue.ravel().astype(np.float64), QUEUE_EDGES_BYTES, (BLOCKS,)
        ),
        queue_sum_bytes=which.T @ queue.sum(axis=1),
        queue_count=which.T @ np.full(len(queue), float(queue.shape[1])),
        marked=ends.T @ steps.marked.sum(axis=1),
        packets=ends.T @ steps.counted.sum(axis=1),
        drop_packets=ends.T @ steps.drop_packets.sum(axis=1),
        dropped=ends.T @ steps.dropped.sum(axis=1),
        busy=_two(ends, steps.busy_ns, steps.to_host),
        time=_two(ends, steps.could_ns, steps.to_host),
    )


def _two(ends: Floats, values: Floats, to_host: np.ndarray) -> Floats:
    """Return sums by block for links to hosts and links between switches, shape (blocks, 2)."""
    kinds = [values[:, to_host].sum(axis=1), values[:, ~to_host].sum(axis=1)]
    return np.asarray(ends.T @ np.stack(kinds, axis=1))


def _counted(samples: Ints) -> Floats:
    """Return the counts between samples; 0 for queues that were not read every time."""
    return np.asarray(np.diff(samples, axis=0).astype(np.float64) * known_queues(samples))


def _share(part: Floats, whole: Floats, *, known: np.ndarray) -> Floats:
    """Return shares over time from arrays (times, columns); NaN if no column is known."""
    parts, wholes = part.sum(axis=1), whole.sum(axis=1)
    nothing = np.full(len(parts), 0.0 if known.any() else math.nan)
    return np.asarray(np.divide(parts, wholes, out=nothing, where=wholes > 0))


def _after_first(values: Floats) -> Floats:
    """Return the values of intervals at the samples that end them; NaN for the first sample."""
    return np.concatenate(([np.nan], values))


# The queues differ if, for this many samples in a row, their difference exceeds both this share of
# A's mean queue and two packets.
_SAMPLES, _SHARE, _MIN_BYTES = 3, 0.1, 3_000


@dataclass(frozen=True)
class PortDivergence:
    """Two trials on the same ports: names and kinds of the queues, and when they first differ.

    `diverged_ns` is the time of the first difference, None if there is none; `diverged_at` is the
    queue that differs most then. `identical` means that all samples are equal.
    """

    labels: tuple[str, ...]
    kinds: tuple[str, ...]
    diverged_ns: int | None
    diverged_at: str
    identical: bool


def find_port_divergence(
    trials: tuple[TrialResult, TrialResult], notes: list[str]
) -> PortDivergence | None:
    """Return when two trials' queues first differ.

    Return None, and add to `notes`, if their testbeds have different ports.
    """
    testbed, other = trials[0].testbed, trials[1].testbed
    labels = tuple(
        f"{queue.label} to {testbed.peer_device(queue).name}" for queue in testbed.queues
    )
    if [queue.label for queue in testbed.queues] != [queue.label for queue in other.queues]:
        notes.append(
            f"the testbeds '{testbed.name}' ({len(testbed.queues)} queues) and '{other.name}' "
            f"({len(other.queues)} queues) have different ports, so single ports are not compared"
        )
        return None
    first, second = (measured_samples(trial.ports, trial.spec.measured_ns) for trial in trials)
    diverged_ns, queue_index = _parted(first, second)
    names = ("t_ns", "qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
    return PortDivergence(
        labels=labels,
        kinds=tuple(_kind(testbed, queue) for queue in testbed.queues),
        diverged_ns=diverged_ns,
        diverged_at=labels[queue_index] if diverged_ns is not None else "",
        identical=all(np.array_equal(getattr(first, n), getattr(second, n)) for n in names),
    )


def _kind(testbed: Testbed, queue: Queue) -> str:
    """Return `ports to hosts, tier 1`, `ports up, tier 1`."""
    here, there = testbed.device[queue.device], testbed.peer_device(queue)
    if there.kind == "host":
        return f"ports to hosts, tier {here.tier}"
    return f"ports {'up' if there.tier > here.tier else 'down'}, tier {here.tier}"


def _parted(a: Samples, b: Samples) -> tuple[int | None, int]:
    """Return when the queues first differ, and the queue that differs most at that time."""
    known = known_queues(a.qlen_bytes) & known_queues(b.qlen_bytes)
    if not known.any():
        return None, 0
    upto = int(np.searchsorted(a.t_ns, b.t_ns[-1], side="right"))
    queues_a, t_ns = a.qlen_bytes[:upto], a.t_ns[:upto]
    gaps = np.abs(at_times(b.t_ns, b.qlen_bytes, t_ns) - queues_a) * known
    bound = max(_MIN_BYTES, _SHARE * float((queues_a * known).sum(axis=1).mean()) if upto else 0)
    beyond = gaps.sum(axis=1) > bound
    run = np.convolve(beyond, np.ones(_SAMPLES), "valid") if len(beyond) >= _SAMPLES else beyond
    starts = np.flatnonzero(run >= min(_SAMPLES, len(beyond)))
    if not len(starts):
        return None, 0
    at = int(starts[0])
    return int(t_ns[at]), int(np.argmax(gaps[at]))


def at_times(t_ns: Ints, values: Ints, target_ns: Ints) -> Floats:
    """Return samples (samples, queues) at the times `target_ns` by linear interpolation."""
    if np.array_equal(t_ns, target_ns):
        return values.astype(np.float64)
    columns = [np.interp(target_ns, t_ns, column) for column in values.T]
    return np.stack(columns, axis=1)


# The largest number of points that a figure can show.
_MAX_POINTS = 400
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


def align(
    lines: Sequence[tuple[Timeline, Timeline]], interim: InterimAnalysis
) -> list[AlignedTimeline]:
    """Return the quantities of `SERIES` over the time span common to all trials, given in pairs.

    Empty without trials; a quantity that one run did not count is left out. Time is cut into
    intervals at least as long as the longest sampling period. A value is the mean of the samples in
    its interval, or is interpolated if there are none.
    """
    if not lines:
        return []
    every = [line for both in lines for line in both]
    end_ns = min(int(line.t_ns[-1]) for line in every)
    begin_ns = max(int(line.t_ns[0]) for line in every)
    period = max(float(np.median(np.diff(line.t_ns))) for line in every)
    points = int(min(_MAX_POINTS, (end_ns - begin_ns) // period))
    if points < 2:
        return []
    edges = np.linspace(begin_ns, end_ns, points + 1)
    aligned = [_aligned(name, lines, edges, interim) for name in SERIES]
    return [line for line in aligned if np.isfinite(line.difference).any()]


def _aligned(
    name: str, lines: Sequence[tuple[Timeline, Timeline]], edges: Floats, interim: InterimAnalysis
) -> AlignedTimeline:
    a, b = (np.stack([_binned(both[side], name, edges) for both in lines]) for side in (0, 1))
    differences, n = b - a, len(lines)
    mean = differences.mean(axis=0)
    half = np.full(len(mean), np.nan)
    if n > 1:
        t = student_t.quantile(n - 1, 1 - interim.level / 2)
        half = t * differences.std(axis=0, ddof=1) / np.sqrt(n)
    middle = (edges[1:] + edges[:-1]) / 2
    return AlignedTimeline(
        name, middle, a.mean(axis=0), b.mean(axis=0), mean, mean - half, mean + half
    )


def _binned(line: Timeline, name: str, edges: Floats) -> Floats:
    values = np.asarray(getattr(line, name))
    known = np.isfinite(values) & (line.t_ns >= edges[0]) & (line.t_ns <= edges[-1])
    bin_of = np.clip(np.searchsorted(edges, line.t_ns[known], side="right") - 1, 0, len(edges) - 2)
    count = np.bincount(bin_of, minlength=len(edges) - 1)
    total = np.bincount(bin_of, values[known], minlength=len(edges) - 1)
    filled = np.flatnonzero(count)
    if not len(filled):
        return np.full(len(count), np.nan)
    return np.interp(np.arange(len(count)), filled, total[filled] / count[filled])
