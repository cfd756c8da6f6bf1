"""Metrics of flows: FCT and slowdown of finished flows, goodput and RTT of long-lived flows.

Finished flows count if they started after the warm-up. Long-lived flows last as long as the trial;
their metrics are those between two samples. RTTs are those that the senders' NICs measured; in a
mean over flows, every flow has the same weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from inventory.routing import PathTable
from orchestration.analysis.measured_window import after_warm_up, known_mean, measured_flows
from orchestration.analysis.metric_types import FlowChoice, Metric
from orchestration.analysis.metrics import QUANTILES, SIZE_CLASSES, fct_key, slowdown_key
from orchestration.core.records import DONE, LONG_LIVED, STATUS_NAMES, Floats, Ints
from orchestration.results.reader import TrialResult
from orchestration.results.tables import TABLES, damaged

_SMALL_UPTO_BYTES, _LARGE_FROM_BYTES = 100_000, 10_000_000


@dataclass(frozen=True)
class DoneFlows:
    """A trial's finished flows, arrays of shape (done,)."""

    start_ns: Ints
    size_bytes: Ints
    fct_ns: Floats
    slowdown: Floats

    def within(self, from_ns: int, to_ns: int | None) -> DoneFlows:
        """Return the flows that started at `from_ns` or later and before `to_ns`."""
        chosen = self.start_ns >= from_ns
        if to_ns is not None:
            chosen &= self.start_ns < to_ns
        return DoneFlows(*(values[chosen] for values in vars(self).values()))


def done_flows(result: TrialResult, patterns: Sequence[str] | None = None) -> DoneFlows:
    """Return a trial's finished flows that started after its warm-up, of all or of some patterns.

    Raises InputError for an unreadable table.
    """
    flows, schedule = result.table("flows"), result.table("schedule")
    if not np.array_equal(flows["flow_id"], schedule["flow_id"]):
        raise damaged(
            result.folder / TABLES["flows"].file,
            f"has {len(flows['flow_id']):,} flows, which are not the "
            f"{len(schedule['flow_id']):,} of {TABLES['schedule'].file}",
        )
    done = (flows["status"] == STATUS_NAMES[DONE]) & measured_flows(result)
    if patterns is not None:
        done &= np.isin(schedule["class"].astype(str), patterns)
    fct = flows["fct_ns"][done].astype(np.float64)
    slowdown = fct / flows["ideal_ns"][done]
    return DoneFlows(flows["start_ns"][done], schedule["bytes"][done], fct, slowdown)


def in_class(size_bytes: Ints, klass: str) -> np.ndarray:
    """Return which flows belong to a flow-size class, as booleans (flows,)."""
    if klass == "small":
        return size_bytes <= _SMALL_UPTO_BYTES
    if klass == "large":
        return size_bytes >= _LARGE_FROM_BYTES
    if klass == "medium":
        return (size_bytes > _SMALL_UPTO_BYTES) & (size_bytes < _LARGE_FROM_BYTES)
    return np.ones(len(size_bytes), dtype=bool)


def flow_scalars(size: Ints, fct: Floats, slowdown: Floats) -> dict[str, float]:
    """Return slowdown and mean FCT by size class of finished flows, given as arrays (flows,)."""
    scalars = {}
    for klass in SIZE_CLASSES:
        chosen = in_class(size, klass)
        some = bool(chosen.any())
        values = slowdown[chosen]
        quantiles = np.quantile(values, QUANTILES) if some else np.full(3, math.nan)
        scalars[fct_key(klass)] = float(fct[chosen].mean()) if some else math.nan
        for statistic, value in zip(("p50", "p95", "p99"), quantiles, strict=True):
            scalars[slowdown_key(statistic, klass)] = float(value)
        scalars[slowdown_key("mean", klass)] = float(values.mean()) if some else math.nan
    return scalars


def values_of(choice: FlowChoice, flows: DoneFlows) -> Floats:
    """Return the values of the flows that a metric counts, shape (flows,)."""
    chosen = flows.size_bytes >= choice.min_bytes
    if choice.max_bytes is not None:
        chosen &= flows.size_bytes <= choice.max_bytes
    return (flows.slowdown if choice.column == "slowdown" else flows.fct_ns)[chosen]


def flow_figure(metric: Metric, flows: DoneFlows) -> float:
    """Return a metric of flows that are chosen by size; NaN if there are none."""
    if metric.flows is None:  # until the last of the flows that start at one time has ended
        starts, which = np.unique(flows.start_ns, return_inverse=True)
        values = np.zeros(len(starts))
        np.maximum.at(values, which, flows.fct_ns)
    else:
        values = values_of(metric.flows, flows)
    if not len(values):
        return math.nan
    return float(values.mean() if metric.tail is None else np.quantile(values, metric.tail))


@dataclass(frozen=True)
class FlowProgress:
    """Samples of the long-lived flows: counters (samples, flows), the rest (flows,).

    `line_bps` is the sum of the line rates of these flows' receivers, `base_rtt_ns` the RTT on an
    idle path. `dropped` (samples,) counts the packets of all `flows` of the trial that switches
    dropped.
    """

    t_ns: Ints
    acked_bytes: Ints
    rtts: Ints
    rtt_sum_ns: Ints
    base_rtt_ns: Floats
    line_bps: float
    dropped: Ints
    flows: int

    def since(self, from_ns: int) -> FlowProgress:
        """Return the samples from `from_ns` on."""
        rows = self.t_ns >= from_ns
        samples = ("t_ns", "acked_bytes", "rtts", "rtt_sum_ns", "dropped")
        return replace(self, **{name: getattr(self, name)[rows] for name in samples})

    @property
    def _acked(self) -> Floats:
        """Bytes of each flow between the first and the last sample."""
        return np.asarray(self.acked_bytes[-1] - self.acked_bytes[0], dtype=np.float64)

    @property
    def _rtt_ns(self) -> Floats:
        """Each flow's mean RTT; NaN for a flow without a measured RTT."""
        rtts = (self.rtts[-1] - self.rtts[0]).astype(np.float64)
        total_ns = self.rtt_sum_ns[-1] - self.rtt_sum_ns[0]
        return np.asarray(total_ns / np.where(rtts > 0, rtts, math.nan))

    def goodput(self) -> float:
        """Return the payload that was acknowledged, as a share of the receivers' line rates."""
        span_ns = float(self.t_ns[-1] - self.t_ns[0])
        return float(self._acked.sum()) * 8e9 / span_ns / self.line_bps

    def rtt_ns(self) -> float:
        """Return the mean RTT of the flows, in ns."""
        return known_mean(self._rtt_ns)

    def rtt_inflation(self) -> float:
        """Return the mean over flows of RTT divided by base RTT."""
        return known_mean(self._rtt_ns / self.base_rtt_ns)

    def power(self) -> float:
        """Return goodput divided by RTT inflation: throughput over delay (Kleinrock, ICC 1979)."""
        return self.goodput() / self.rtt_inflation()

    def fairness(self) -> float:
        """Return Jain's index of the flows' goodput: 1 if all are equal, 1/n if one has all.

        Jain, Chiu and Hawe, "A Quantitative Measure of Fairness", DEC-TR-301, 1984.
        """
        squares = float((self._acked**2).sum())
        return float(self._acked.sum()) ** 2 / len(self._acked) / squares if squares else math.nan

    def lost(self) -> float:
        """Return the packets dropped between the first and the last sample, per flow."""
        return float(self.dropped[-1] - self.dropped[0]) / self.flows

    def lost_ever(self) -> float:
        """Return the packets dropped from the trial's start to the last sample, per flow."""
        return float(self.dropped[-1]) / self.flows


def flow_progress(result: TrialResult) -> FlowProgress | None:
    """Return a trial's samples of long-lived flows after its warm-up; None for fewer than two.

    Losses count from the end of the warm-up.
    """
    flows, schedule, testbed = result.table("flows"), result.table("schedule"), result.testbed
    long_lived = flows["status"] == STATUS_NAMES[LONG_LIVED]
    if not long_lived.any():
        return None
    table, count = result.table("flow_samples"), len(flows["flow_id"])
    rows = len(table["t_ns"]) // count
    if rows < 2:
        return None
    paths = PathTable(testbed)
    src, dst = schedule["src"][long_lived], schedule["dst"][long_lived]
    base_ns = [2 * paths.path(str(a), str(b)).one_way_ns for a, b in zip(src, dst, strict=True)]
    receivers = {str(name) for name in dst}
    t_ns = table["t_ns"][:rows]
    counters = {
        name: table[name].reshape(count, rows).T[:, long_lived]
        for name in ("acked_bytes", "rtts", "rtt_sum_ns")
    }
    progress = FlowProgress(
        t_ns=t_ns,
        **counters,
        base_rtt_ns=np.array(base_ns, dtype=np.float64),
        line_bps=float(sum(testbed.host_rate_bps(name) for name in receivers)),
        dropped=_dropped(result, t_ns),
        flows=count,
    ).since(result.spec.warm_up_ns)
    return progress if len(progress.t_ns) > 1 else None


def _dropped(result: TrialResult, t_ns: Ints) -> Ints:
    """Return the packets dropped by all queues until each of these times."""
    ports = after_warm_up(result, "queue")
    counted = np.concatenate([[0], ports.dropped_packets.sum(axis=1)])
    return np.asarray(counted[np.searchsorted(ports.t_ns, t_ns, side="right")])
