"""A trial's metrics by their keys. Metrics of the same data are computed together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from orchestration.analysis.backlog import measure_backlog
from orchestration.analysis.device_metrics import measure_balance, measure_devices, measure_paths
from orchestration.analysis.flow_metrics import (
    DoneFlows,
    FlowProgress,
    done_flows,
    flow_figure,
    flow_progress,
    flow_scalars,
)
from orchestration.analysis.goodput import measure_goodput
from orchestration.analysis.incasts import measure_incasts
from orchestration.analysis.load import TrialLoad, measure_load
from orchestration.analysis.measured_window import measured_flows, total
from orchestration.analysis.metric_types import Metric, Source
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.port_metrics import PortFigures, measure_ports, measure_throughput
from orchestration.core.errors import InputError
from orchestration.core.records import Floats, Ints
from orchestration.results.reader import TrialResult, recorded_load_shares
from traffic.schedule import class_names

_OF_PROGRESS: dict[str, Callable[[FlowProgress], float]] = {
    "goodput": FlowProgress.goodput,
    "latency": FlowProgress.rtt_ns,
    "rtt_inflation": FlowProgress.rtt_inflation,
    "power": FlowProgress.power,
    "fairness": FlowProgress.fairness,
    "lost": FlowProgress.lost_ever,
    "lost_later": FlowProgress.lost,
}


# Where no pattern is a collective, a report has no iterations.
_ITERATION = "iteration_mean"


@dataclass
class Measurements:
    """The data of a trial from which metrics are computed, read when first needed."""

    result: TrialResult

    @cached_property
    def flows(self) -> DoneFlows:
        """The finished flows that started after the warm-up."""
        return done_flows(self.result)

    @cached_property
    def iterations(self) -> DoneFlows | None:
        """Those of them that are of collectives; None if no pattern is one."""
        traffic = self.result.spec.traffic
        named = zip(class_names(traffic), traffic, strict=True)
        patterns = [name for name, spec in named if spec.iterations]
        return done_flows(self.result, patterns) if patterns else None

    @cached_property
    def ports(self) -> PortFigures:
        """The metrics of queues and links."""
        return measure_ports(self.result)

    @cached_property
    def load(self) -> TrialLoad:
        """The offered, delivered and discarded load."""
        return measure_load(self.result)

    @cached_property
    def progress(self) -> FlowProgress | None:
        """The samples of long-lived flows; None if there are none."""
        return flow_progress(self.result)

    @cached_property
    def by_class(self) -> dict[str, float]:
        """The metrics of flows by size class."""
        flows, resent = self.flows, self.result.table("flows")["retransmits"]
        return {
            **flow_scalars(flows.size_bytes, flows.fct_ns, flows.slowdown),
            "retransmits": total(resent[measured_flows(self.result)]),
        }


# How the metrics of each source of data are computed, all together.
_SOURCES: dict[Source, Callable[[Measurements], Mapping[str, float]]] = {
    "flow-classes": lambda trial: trial.by_class,
    "flow-samples": lambda trial: of_progress(trial.progress),
    "queues": lambda trial: trial.ports.scalars,
    "links": lambda trial: trial.ports.scalars,
    "load": lambda trial: trial.load.scalars,
    "devices": lambda trial: measure_devices(trial.result),
    "paths": lambda trial: measure_paths(trial.result),
    "balance": lambda trial: measure_balance(trial.result),
    "hosts-links": lambda trial: measure_throughput(trial.result),
    "incasts": lambda trial: measure_incasts(trial.result),
    "backlog": lambda trial: measure_backlog(trial.result),
    "goodput": lambda trial: measure_goodput(trial.result, trial.load),
}


@dataclass(frozen=True)
class TrialMetrics:
    """One trial's metrics.

    `scalars` has every metric, NaN if the trial has none. `size_bytes`, `fct_ns` and `slowdown` are
    of finished flows, shape (done,). `queue_ccdf` is the share of queue samples above each of
    `QUEUE_GRID_BYTES`; `queue_mean_bytes` has one value per queue. Queues that some samples lack
    count only in totals, and are NaN in `queue_mean_bytes`.
    """

    scalars: Mapping[str, float]
    size_bytes: Ints
    fct_ns: Floats
    slowdown: Floats
    queue_ccdf: Floats
    queue_mean_bytes: Floats
    load: TrialLoad


def measure(result: TrialResult, others: Iterable[str] = ()) -> TrialMetrics:
    """Return a trial's metrics for a report, and the `others`, which are named by their keys.

    Raises InputError for a table that cannot be read.
    """
    trial = Measurements(result)
    named = list(others)
    scalars = _figures(trial, dict.fromkeys([*METRICS.report, *(METRICS[name] for name in named)]))
    if trial.iterations is None and _ITERATION not in named:
        scalars[_ITERATION] = math.nan
    return TrialMetrics(
        scalars=scalars,
        size_bytes=trial.flows.size_bytes,
        fct_ns=trial.flows.fct_ns,
        slowdown=trial.flows.slowdown,
        queue_ccdf=trial.ports.queue_ccdf,
        queue_mean_bytes=trial.ports.queue_mean_bytes,
        load=trial.load,
    )


def figures(result: TrialResult, names: Iterable[str], from_ns: int = 0) -> dict[str, float]:
    """Return the values of the named metrics for a finished trial: NaN where the trial has none.

    Metrics that are computed from samples of flows leave out what was sampled before `from_ns`, a
    time of the trial. Raises InputError for a table that cannot be read.
    """
    trial = Measurements(result)
    if from_ns and trial.progress is not None:
        trial.progress = trial.progress.since(from_ns)
    return _figures(trial, [METRICS[name] for name in names])


def _figures(trial: Measurements, metrics: Iterable[Metric]) -> dict[str, float]:
    chosen = list(metrics)
    values: dict[str, float] = {}
    for source in dict.fromkeys(metric.source for metric in chosen):
        if source in _SOURCES:
            values |= _SOURCES[source](trial)
    for metric in chosen:
        if metric.source == "flows":
            own = trial.iterations if metric.flows is None else None
            values[metric.key] = flow_figure(metric, own or trial.flows)
    values |= own_figures(trial.result, chosen)
    return {metric.key: values.get(metric.key, math.nan) for metric in chosen}


def own_figures(result: TrialResult, metrics: Iterable[Metric]) -> dict[str, float]:
    """Return a trial's values of those metrics that a user has brought.

    Raises InputError if the function of one fails.
    """
    values = {}
    for metric in metrics:
        if metric.of is not None:
            try:
                values[metric.key] = float(metric.of(result))
            except InputError:
                raise
            except Exception as error:
                raise InputError.single(
                    str(result.folder),
                    f"the metric {metric.key} cannot be computed: {type(error).__name__}, {error}",
                    "correct its function; math.nan stands for a trial that has none",
                ) from error
    return values


def of_flows(flows: DoneFlows) -> dict[str, float]:
    """Return the metrics of flows that are chosen by size."""
    chosen = [metric for metric in METRICS.values() if metric.source == "flows"]
    return {metric.key: flow_figure(metric, flows) for metric in chosen}


def of_progress(progress: FlowProgress | None) -> dict[str, float]:
    """Return the metrics of long-lived flows; empty with fewer than two samples of them."""
    if progress is None or len(progress.t_ns) < 2:
        return {}
    return {key: compute(progress) for key, compute in _OF_PROGRESS.items()}


def written_load(result: TrialResult) -> dict[str, float]:
    """Return the load that a trial recorded, as shares of the hosts' line rates, by key.

    The delivered load of earlier versions had another meaning, so it is left out.
    """
    return {key: value for key, value in recorded_load_shares(result).items() if value is not None}


def throughput_figures(result: TrialResult) -> dict[str, float]:
    """Return the papers' metrics of a trial except those of flows, by key; NaN if it has none."""
    values = {**measure_throughput(result), **measure_balance(result), **written_load(result)}
    values |= own_figures(result, METRICS.own)
    rest = (m for m in METRICS.papers.values() if m.source not in ("flows", "flow-samples"))
    return {metric.key: values.get(metric.key, math.nan) for metric in rest}
