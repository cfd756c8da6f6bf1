"""Figures of a trial's finished flows: slowdowns and completion times.

They count finished flows that started after the warm-up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.metric import FlowChoice, Metric
from orchestration.analysis.metrics import QUANTILES, SIZE_CLASSES, fct_key, slowdown_key
from orchestration.analysis.sample_parts import measured_flows
from orchestration.core.records import DONE, STATUS_NAMES, Floats, Ints
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


def done_flows(result: TrialResult) -> DoneFlows:
    """Return a trial's finished flows that count: those of its warm-up do not.

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
    if metric.flows is None:
        return _longest_of_each_start(flows)
    values = values_of(metric.flows, flows)
    if not len(values):
        return math.nan
    return float(values.mean() if metric.tail is None else np.quantile(values, metric.tail))


def _longest_of_each_start(flows: DoneFlows) -> float:
    """Return the mean, over all starts, of the time until the last flow of a start has ended."""
    starts, which = np.unique(flows.start_ns, return_inverse=True)
    longest = np.zeros(len(starts))
    np.maximum.at(longest, which, flows.fct_ns)
    return float(longest.mean()) if len(starts) else math.nan
