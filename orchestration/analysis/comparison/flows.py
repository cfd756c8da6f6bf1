"""Counts the flows of a trial on fixed grids, and pairs the flows of two trials."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from orchestration.analysis.flow_metrics import in_class
from orchestration.analysis.measured_window import measured_flows
from orchestration.analysis.metrics import SIZE_CLASSES
from orchestration.core.errors import InputError
from orchestration.core.records import DONE, STATUS_NAMES, Floats, Ints
from orchestration.results.reader import TrialResult
from orchestration.results.tables import damaged

# Blocks of a trial's time to resample when there is only one pair of trials.
BLOCKS = 8
SLOWDOWN_EDGES = np.geomspace(0.5, 1e5, 2_401)
QUEUE_EDGES_BYTES = np.concatenate(([0.0], np.geomspace(64, 1e9, 1_401)))


def block_counts(cell: Ints, weight: Floats | None, shape: tuple[int, ...]) -> Floats:
    """Return the sum of `weight`, or the count, per cell, with shape `shape`."""
    size = int(np.prod(shape))
    return np.bincount(cell, weight, size).astype(np.float64).reshape(shape)


def histogram(cell: Ints, values: Floats, edges: Floats, shape: tuple[int, ...]) -> Floats:
    """Return counts by cell and bin, shape (*shape, bins): bin i holds edges[i-1] < x <= edges[i].

    The first bin also holds smaller values, the last bin larger ones.
    """
    bins = len(edges)
    bin_of = np.minimum(np.searchsorted(edges, values), bins - 1)
    return block_counts(cell * bins + bin_of, None, (*shape, bins))


def quantiles(counts: Floats, edges: Floats, shares: tuple[float, ...]) -> Floats:
    """Return the quantiles of each row of `counts` (rows, bins): shape (rows, quantiles).

    A quantile is the upper edge of the bin that reaches its share; NaN for an empty row.
    """
    filled = counts.any(axis=0)
    if not filled.any():
        return np.full((len(counts), len(shares)), np.nan)
    reached = np.cumsum(counts[:, filled], axis=1)
    total = reached[:, -1:]
    columns = [np.argmax(reached >= share * total * (1 - 1e-12), axis=1) for share in shares]
    return np.asarray(np.where(total > 0, edges[filled][np.stack(columns, axis=1)], np.nan))


def cdf(counts: Floats) -> Floats:
    """Return cumulative shares up to each edge for rows of `counts` (..., bins); NaN if empty."""
    reached = np.cumsum(counts, axis=-1)
    with np.errstate(invalid="ignore"):
        return np.asarray(reached / reached[..., -1:])


CLASSES = tuple(klass for klass in SIZE_CLASSES if klass != "all")
# A median FCT below this share of the ideal means that the times are in another unit.
_IMPOSSIBLE = 0.5


@dataclass(frozen=True)
class TrialFlows:
    """The flows of one trial, shapes (flows,), ordered by `flow_id`.

    `done` marks finished flows that started after the warm-up; only these have a valid `fct_ns`.
    """

    flow_id: Ints
    start_ns: Ints
    src: np.ndarray
    dst: np.ndarray
    size_bytes: Ints
    fct_ns: Ints
    ideal_ns: Ints
    done: np.ndarray

    def __len__(self) -> int:
        return len(self.flow_id)


@dataclass(frozen=True)
class FlowBlocks:
    """One trial's finished flows, by the block of time in which they started.

    Shapes: `count`, `slowdown_sum` and `fct_sum_ns` are (blocks, classes), `histogram` is (blocks,
    classes, bins), `group_count` and `group_sum` are (blocks, size groups).
    """

    count: Floats
    slowdown_sum: Floats
    fct_sum_ns: Floats
    histogram: Floats
    group_count: Floats
    group_sum: Floats


@dataclass(frozen=True)
class PairedFlows:
    """How the flows of two trials pair, and how their completion times differ.

    `log_ratio_sum` and `count` (blocks,) are over flows finished in both trials; the ratio is FCT
    of B / FCT of A. `same`: the schedules are equal. `identical`: all completion times are equal.
    """

    common: int
    only_a: int
    only_b: int
    differing: int
    log_ratio_sum: Floats
    count: Floats
    same: bool
    identical: bool


def read_flows(trial: TrialResult) -> TrialFlows:
    """Return a trial's flows. Raises InputError for a table that is unreadable or implausible."""
    flows, schedule = trial.table("flows"), trial.table("schedule")
    where = str(trial.folder / "flows.parquet")
    if not np.array_equal(flows["flow_id"], schedule["flow_id"]):
        raise damaged(trial.folder / "flows.parquet", "its flows are not those of schedule.parquet")
    done = (flows["status"] == STATUS_NAMES[DONE]) & measured_flows(trial)
    fct, ideal = flows["fct_ns"][done], flows["ideal_ns"][done]
    if np.any(fct < 0) or np.any(ideal <= 0):
        raise InputError.single(
            where, "a flow ends before it starts", "its clock jumped: run the trial again"
        )
    if len(fct) and np.median(fct / ideal) < _IMPOSSIBLE:
        raise InputError.single(
            where,
            f"the median FCT is {np.median(fct / ideal):.3g} of the ideal FCT: fct_ns is not in "
            "nanoseconds, or ideal_ns is not that of this fabric",
            "bring the times into nanoseconds and import the run again",
        )
    return TrialFlows(
        flow_id=flows["flow_id"],
        start_ns=schedule["start_ns"],
        src=schedule["src"],
        dst=schedule["dst"],
        size_bytes=schedule["bytes"],
        fct_ns=flows["fct_ns"],
        ideal_ns=flows["ideal_ns"],
        done=done,
    )


def reduce_flows(flows: TrialFlows, measured_ns: tuple[int, int], size_edges: Floats) -> FlowBlocks:
    """Return a trial's flows by block; `size_edges` (groups,) are each group's largest size."""
    done = flows.done
    size, fct = flows.size_bytes[done], flows.fct_ns[done].astype(np.float64)
    slowdown = fct / flows.ideal_ns[done]
    block = block_of(flows.start_ns[done], measured_ns)
    klass = np.select([in_class(size, name) for name in CLASSES], range(len(CLASSES)))
    cell = block * len(CLASSES) + klass
    shape = (BLOCKS, len(CLASSES))
    group = np.minimum(np.searchsorted(size_edges, size), max(0, len(size_edges) - 1))
    at = block * len(size_edges) + group if len(size_edges) else block
    groups = (BLOCKS, max(1, len(size_edges)))
    return FlowBlocks(
        count=block_counts(cell, None, shape),
        slowdown_sum=block_counts(cell, slowdown, shape),
        fct_sum_ns=block_counts(cell, fct, shape),
        histogram=histogram(cell, slowdown, SLOWDOWN_EDGES, shape),
        group_count=block_counts(at, None, groups),
        group_sum=block_counts(at, slowdown, groups),
    )


def pair_flows(a: TrialFlows, b: TrialFlows, measured_ns: tuple[int, int]) -> PairedFlows:
    """Pair flows by id; a pair counts only if source, destination, size and start are equal."""
    first, second, differing = _common(a, b)
    both = a.done[first] & b.done[second]
    identical = len(first) == len(a) == len(b) and bool(
        np.array_equal(a.done[first], b.done[second])
        and np.array_equal(a.fct_ns[first][both], b.fct_ns[second][both])
    )
    common = len(first)
    first, second = first[both], second[both]
    ratio = np.log(np.maximum(b.fct_ns[second], 1) / np.maximum(a.fct_ns[first], 1))
    block = block_of(a.start_ns[first], measured_ns)
    return PairedFlows(
        common=common,
        only_a=len(a) - common - differing,
        only_b=len(b) - common - differing,
        differing=differing,
        log_ratio_sum=block_counts(block, ratio, (BLOCKS,)),
        count=block_counts(block, None, (BLOCKS,)),
        same=common == len(a) == len(b),
        identical=identical,
    )


def _common(a: TrialFlows, b: TrialFlows) -> tuple[Ints, Ints, int]:
    """Return the indices in `a` and in `b` of the flows that are in both.

    The third value counts flows with the same number whose size, start, source or destination
    differs.
    """
    if np.array_equal(a.flow_id, b.flow_id):
        first = second = np.arange(len(a))
    else:
        _, first, second = np.intersect1d(a.flow_id, b.flow_id, return_indices=True)
    equal = (
        (a.start_ns[first] == b.start_ns[second])
        & (a.size_bytes[first] == b.size_bytes[second])
        & (a.src[first] == b.src[second])
        & (a.dst[first] == b.dst[second])
    ).astype(bool)
    return first[equal], second[equal], int(len(equal) - np.count_nonzero(equal))


def with_ideal_times_of(flows: TrialFlows, other: TrialFlows) -> tuple[TrialFlows, float]:
    """Return flows with the ideal FCTs that `other` has for the same flows.

    The second value is the largest share by which their own were longer; below 0 if shorter.
    """
    first, second, _ = _common(flows, other)
    ideal = flows.ideal_ns.copy()
    ideal[first] = other.ideal_ns[second]
    excess = flows.ideal_ns / ideal - 1
    maximum = float(excess[np.argmax(np.abs(excess))]) if len(excess) else 0.0
    return replace(flows, ideal_ns=ideal), maximum


def block_of(t_ns: Ints, measured_ns: tuple[int, int]) -> Ints:
    """Return the block of each time; times after the last arrival fall into the last block."""
    from_ns, to_ns = measured_ns
    block = (t_ns - from_ns) * BLOCKS // max(1, to_ns - from_ns)
    return np.asarray(np.clip(block, 0, BLOCKS - 1), dtype=np.int64)
