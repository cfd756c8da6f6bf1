"""Metrics of one trial: flow completion, queues, marks, utilisation.

Flow metrics count finished flows that started after the warm-up. Queue metrics use samples taken
while flows arrived, from the warm-up's end to the trial's duration, because a long drain would
dilute them. Counters count from the warm-up's end to the trial's. A run that has only a histogram
of its queues may be of another time: `queue_span` says which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from inventory.topology import Testbed
from orchestration.analysis.counters import known_queues, per_port
from orchestration.analysis.device_metrics import measure_devices
from orchestration.analysis.load import TrialLoad, measure_load
from orchestration.analysis.path_metrics import measure_paths
from orchestration.analysis.queue_histogram import FACT, QueueHistogram
from orchestration.analysis.sample_parts import (
    after_warm_up,
    arrivals,
    counted,
    measured_flows,
    total,
)
from orchestration.artifacts.reader import TrialResult
from orchestration.artifacts.tables import TABLES
from orchestration.model.errors import InputError
from orchestration.model.records import (
    DONE,
    STATUS_NAMES,
    Floats,
    Ints,
    Samples,
)

Unit = Literal["ns", "bytes", "bps", "ratio", "share", "count"]

# The papers' flow-size classes: (0, 100 KB], (100 KB, 10 MB), [10 MB, inf).
SIZE_CLASSES = {
    "all": "all",
    "small": "(0, 100KB]",
    "medium": "(100KB, 10MB)",
    "large": "[10MB, ∞)",
}
_SMALL_UPTO_BYTES, _LARGE_FROM_BYTES = 100_000, 10_000_000
SLOWDOWN_STATISTICS = {"p50": "median", "p95": "p95", "p99": "p99", "mean": "mean"}
QUANTILES = (0.5, 0.95, 0.99)

# Queue lengths at which the distribution is evaluated: 0, then 40 steps per decade.
QUEUE_GRID_BYTES = np.concatenate(([0.0], np.geomspace(1e3, 1e8, 201)))


@dataclass(frozen=True)
class Metric:
    """A metric of a trial. If `compared`, tuners are tested against each other on it."""

    key: str
    label: str
    unit: Unit
    compared: bool = False


def _slowdown_metrics() -> list[Metric]:
    compared = {("all", "p50"), ("all", "p95"), ("all", "p99"), ("small", "p99"), ("large", "p50")}
    return [
        Metric(
            slowdown_key(statistic, klass),
            f"{word} slowdown" + ("" if klass == "all" else f", {SIZE_CLASSES[klass]}"),
            "ratio",
            (klass, statistic) in compared,
        )
        for klass in SIZE_CLASSES
        for statistic, word in SLOWDOWN_STATISTICS.items()
    ]


def slowdown_key(statistic: str, klass: str) -> str:
    """Return the key of a slowdown metric."""
    return f"slowdown_{statistic}_{klass}"


def fct_key(klass: str) -> str:
    """Return the key of the mean FCT of a flow-size class."""
    return f"fct_mean_ns_{klass}"


# What a campaign's answer says of each tuner.
HEADLINES = (fct_key("all"), slowdown_key("p99", "all"))

METRICS: tuple[Metric, ...] = (
    Metric(fct_key("all"), "mean FCT", "ns", compared=True),
    *(
        Metric(fct_key(klass), f"mean FCT, {SIZE_CLASSES[klass]}", "ns")
        for klass in ("small", "medium", "large")
    ),
    *_slowdown_metrics(),
    Metric("queue_mean_bytes", "mean queue", "bytes", compared=True),
    Metric("queue_p99_bytes", "p99 queue", "bytes", compared=True),
    Metric("queue_max_bytes", "longest queue", "bytes"),
    Metric("queue_busiest_bytes", "mean of the busiest queue", "bytes"),
    Metric("marked_share", "packets marked", "share", compared=True),
    Metric("utilisation_hosts", "utilisation, links to hosts", "share"),
    Metric("utilisation_fabric", "utilisation, links between switches", "share"),
    Metric("utilisation_max", "utilisation, busiest link", "share"),
    Metric("offered_load", "offered load", "share"),
    Metric("delivered_load", "delivered load", "share"),
    Metric("discarded_load", "discarded load", "share"),
    Metric("dropped_packets", "packets dropped", "count"),
    Metric("retransmits", "segments retransmitted", "count"),
    Metric("cnps", "CNPs", "count", compared=True),
    Metric("rate_mean_bps", "mean rate allowed to a host", "bps", compared=True),
    Metric("rtt_p99_ns", "p99 RTT", "ns", compared=True),
    Metric("pauses_sent", "pauses", "count", compared=True),
    Metric("pausing_ns", "time stopped by pauses, all ports", "ns"),
    Metric("buffer_max_bytes", "fullest buffer of a switch", "bytes", compared=True),
    Metric("headroom_max_bytes", "most headroom in use at a switch", "bytes"),
    Metric("out_of_order_share", "packets that arrived out of order", "share"),
    Metric("reroutes_per_flow", "reroutes of a flow", "ratio"),
    Metric("uplink_imbalance", "busiest uplink of a switch, over the mean", "ratio"),
)
METRIC = {metric.key: metric for metric in METRICS}


@dataclass(frozen=True)
class TrialMetrics:
    """One trial's metrics.

    `scalars` has every metric, NaN if the trial has none. `size_bytes`, `fct_ns` and `slowdown` are
    of finished flows, shape (done,). `queue_ccdf` is the share of queue samples above each of
    `QUEUE_GRID_BYTES`; `queue_mean_bytes` has one value per queue. Queues that were not read in
    every sample count only in totals, and are NaN in `queue_mean_bytes`.
    """

    scalars: Mapping[str, float]
    size_bytes: Ints
    fct_ns: Floats
    slowdown: Floats
    queue_ccdf: Floats
    queue_mean_bytes: Floats
    load: TrialLoad


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


@dataclass(frozen=True)
class PortFigures:
    """The port metrics of a trial; for the arrays see `TrialMetrics`."""

    scalars: dict[str, float]
    queue_ccdf: Floats
    queue_mean_bytes: Floats


def measure(result: TrialResult) -> TrialMetrics:
    """Return the metrics of a trial. Raises InputError for a table that cannot be read."""
    flows, ports, load = done_flows(result), measure_ports(result), measure_load(result)
    return TrialMetrics(
        scalars={
            **flow_scalars(flows.size_bytes, flows.fct_ns, flows.slowdown),
            "retransmits": total(result.table("flows")["retransmits"][measured_flows(result)]),
            **ports.scalars,
            **measure_devices(result),
            **measure_paths(result),
            **load.scalars,
        },
        size_bytes=flows.size_bytes,
        fct_ns=flows.fct_ns,
        slowdown=flows.slowdown,
        queue_ccdf=ports.queue_ccdf,
        queue_mean_bytes=ports.queue_mean_bytes,
        load=load,
    )


def done_flows(result: TrialResult) -> DoneFlows:
    """Return a trial's finished flows that count: those of its warm-up do not.

    Raises InputError for an unreadable table.
    """
    flows, schedule = result.table("flows"), result.table("schedule")
    if not np.array_equal(flows["flow_id"], schedule["flow_id"]):
        raise InputError.single(
            str(result.folder / TABLES["flows"].file),
            f"has {len(flows['flow_id']):,} flows, which are not the "
            f"{len(schedule['flow_id']):,} of {TABLES['schedule'].file}",
            "run the trial again, or restore both files from a copy",
        )
    done = (flows["status"] == STATUS_NAMES[DONE]) & measured_flows(result)
    fct = flows["fct_ns"][done].astype(np.float64)
    slowdown = fct / flows["ideal_ns"][done]
    return DoneFlows(flows["start_ns"][done], schedule["bytes"][done], fct, slowdown)


def measure_ports(result: TrialResult) -> PortFigures:
    """Return a trial's port metrics. Raises InputError for an unreadable table."""
    window = arrivals(result.ports, result.spec.measured_ns)
    queue = window.qlen_bytes[:, known_queues(window.qlen_bytes)]
    means = np.full(window.qlen_bytes.shape[1], math.nan)
    if len(queue):
        means[known_queues(window.qlen_bytes)] = queue.mean(axis=0)
    scalars = {
        **_queue_scalars(queue),
        **_link_scalars(result.testbed, window),
        "dropped_packets": counted(after_warm_up(result, "queue").dropped_packets),
    }
    if not len(queue) and FACT in result.facts:
        found = QueueHistogram.of(result.facts[FACT], result.testbed)
        return PortFigures({**scalars, **found.scalars}, found.ccdf(QUEUE_GRID_BYTES), found.means)
    return PortFigures(scalars, _ccdf(queue), means)


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


def _queue_scalars(queue: Ints) -> dict[str, float]:
    if not queue.size:
        return dict.fromkeys((key for key in METRIC if key.startswith("queue_")), math.nan)
    return {
        "queue_mean_bytes": float(queue.mean()),
        "queue_p99_bytes": float(np.quantile(queue, 0.99)),
        "queue_max_bytes": float(queue.max()),
        "queue_busiest_bytes": float(queue.mean(axis=0).max()),
    }


def _link_scalars(testbed: Testbed, ports: Samples) -> dict[str, float]:
    """Return utilisation and marking between the first and the last sample."""
    names = ("utilisation_hosts", "utilisation_fabric", "utilisation_max", "marked_share")
    if len(ports.t_ns) < 2:
        return dict.fromkeys(names, math.nan)
    packets = _sent(ports.tx_packets)
    wire = _sent(ports.tx_bytes) + testbed.framing_bytes * packets
    links = testbed.switch_ports
    rate_bps = np.array([port.rate_bps for port in links], dtype=np.float64)
    busy = per_port(testbed, wire) * 8e9 / (rate_bps * float(ports.t_ns[-1] - ports.t_ns[0]))
    to_host = np.array([testbed.peer_device(port).kind == "host" for port in links])
    marked_packets = _sent(ports.marked_packets)
    marked = float(np.nansum(marked_packets))
    total = float(np.nansum(np.where(np.isnan(marked_packets), math.nan, packets)))
    return {
        "utilisation_hosts": _mean(busy[to_host]),
        "utilisation_fabric": _mean(busy[~to_host]),
        "utilisation_max": math.nan if np.isnan(busy).all() else float(np.nanmax(busy)),
        "marked_share": marked / total if total else math.nan,
    }


def _sent(samples: Ints) -> Floats:
    """Return the counts between the first and last sample; NaN for queues not read every time."""
    counted = (samples[-1] - samples[0]).astype(np.float64)
    return np.where(known_queues(samples), counted, math.nan)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _ccdf(queue: Ints) -> Floats:
    ordered = np.sort(queue, axis=None)
    if not len(ordered):
        return np.full(len(QUEUE_GRID_BYTES), math.nan)
    above = len(ordered) - np.searchsorted(ordered, QUEUE_GRID_BYTES, side="right")
    return np.asarray(above / len(ordered))
