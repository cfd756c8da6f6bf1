"""The catalogue of metrics: name, unit, direction, aggregation and data of each, and its labels.

Reports, comparisons, papers, searches, adaptive repeats and telemetry use it; names, units and
directions of metrics are defined nowhere else. A user's own metric is a `Metric` with the function
`of`, offered as an entry point of `closloop.metrics` or in a Python file that the environment
variable CLOSLOOP_METRICS names (`file.py:NAME`, several separated by commas).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from orchestration.analysis.metric_types import FlowChoice, Law, Metric, Scope
from orchestration.core.errors import InputError
from orchestration.core.plugins import PluginError, load, offered
from orchestration.core.problems import of_value
from orchestration.render.numbers import Unit

# The papers' flow-size classes by name: (0, 100 KB], (100 KB, 10 MB), [10 MB, inf).
SIZE_CLASSES = {
    "all": "all",
    "small": "up to 100KB",
    "medium": "100KB to 10MB",
    "large": "10MB and more",
}
SLOWDOWN_STATISTICS = {"p50": "median", "p95": "p95", "p99": "p99", "mean": "mean"}
QUANTILES = (0.5, 0.95, 0.99)

# Margins are never smaller than this, whatever the percentage: one packet in a queue, rare marks.
_PACKET_BYTES, _MARKED_SHARE, _UTILISATION, _DROPPED_SHARE = 1_500.0, 0.002, 0.005, 0.0005
_SHORT, _MICE, _LONG, _ELEPHANTS = 10_000, 100_000, 1_000_001, 10_000_000

# The data of metrics, as tables and columns of a run folder, or as `facts.` of its trial.json.
_FCT, _SLOWDOWN = ("flows.fct_ns", "schedule.bytes"), ("flows.fct_ns", "flows.ideal_ns")
_QUEUE, _SENT = ("ports.qlen_bytes",), ("ports.tx_bytes", "ports.tx_packets")
_ACKED = ("flow_samples.acked_bytes",)
_RTT = ("flow_samples.rtts", "flow_samples.rtt_sum_ns")


def slowdown_key(statistic: str, klass: str) -> str:
    """Return the key of a slowdown metric."""
    return f"slowdown_{statistic}_{klass}"


def fct_key(klass: str) -> str:
    """Return the key of the mean FCT of a flow-size class."""
    return f"fct_mean_ns_{klass}"


# Topics: groups of metrics that a difference in a setting can affect.
SLOWDOWN, TAIL, FCT, QUEUE, MARKS = "slowdown", "tail slowdown", "FCT", "queues", "marks"
UTILISATION, DROPS = "utilisation", "drops"

FCT_RATIO = "fct_ratio"
SLOWDOWN_WASSERSTEIN, SLOWDOWN_KS = "slowdown_wasserstein", "slowdown_ks"
QUEUE_WASSERSTEIN = "queue_wasserstein_bytes"
DROPPED_SHARE = "dropped_share"

# The metrics of a report's scorecard after those that judge, the first six that trials have.
SCORECARD = (
    slowdown_key("mean", "all"), slowdown_key("p99", "small"), "incast_completion_ratio",
    "goodput_bps", slowdown_key("mean", "large"), "queue_p99_bytes", "pausing_ns", "timeouts",
    "dropped_packets", "retransmits",
)  # fmt: skip
# The metrics that explain a result: what arrived, what was lost or held up, and how fairly.
EXPLAINS = (
    "goodput_total_bps", "goodput_bps", "goodput_long_lived_bps", "incast_completion_mean_ns",
    "incast_completion_ratio", "incast_goodput_bps", "incast_fairness", "fairness", "retransmits",
    "timeouts", "nacks", "cnps", "dropped_packets", "pauses_sent", "pausing_ns",
    "out_of_order_share", "uplink_imbalance", "backlog_slope_share",
)  # fmt: skip
# What is likely to cause differences in completion times, the closest cause first.
CAUSES = (
    "timeouts", "retransmits", "dropped_packets", "pausing_ns", "out_of_order_share",
    "uplink_imbalance", "queue_p99_bytes", "queue_mean_bytes", "rate_mean_bps", "cnps",
)  # fmt: skip
# The metrics of a report's tables: of queues and links, and of NICs and buffers.
FABRIC = (
    "queue_mean_bytes", "queue_p99_bytes", "queue_max_bytes", "queue_busiest_bytes", "marked_share",
    "utilisation_hosts", "utilisation_fabric", "utilisation_max", "dropped_packets", "retransmits",
    "timeouts",
)  # fmt: skip
DEVICES = (
    "cnps", "nacks", "rate_mean_bps", "rtt_p99_ns", "pauses_sent", "pausing_ns", "buffer_max_bytes",
    "headroom_max_bytes",
)  # fmt: skip
# By what tuning headroom is measured: the mean, the tail of small flows, large flows.
TUNING_HEADROOM_METRICS = ("slowdown_mean", "mice_p99", "long_mean")


def _of_class(klass: str) -> str:
    return "" if klass == "all" else f", {SIZE_CLASSES[klass]}"


def _slowdowns() -> Iterator[Metric]:
    compared = {("all", "p50"), ("all", "p95"), ("all", "p99"), ("small", "p99"), ("large", "p50")}
    for klass in SIZE_CLASSES:
        for (statistic, word), share in zip(
            SLOWDOWN_STATISTICS.items(), (*QUANTILES, None), strict=True
        ):
            yield Metric(
                slowdown_key(statistic, klass),
                f"{word} slowdown{_of_class(klass)}",
                "ratio",
                "flow",
                "quantile" if share else "mean",
                source="flow-classes",
                columns=_SLOWDOWN,
                compared=(klass, statistic) in compared,
                quantile=share,
                family="" if statistic == "p95" else f"slowdown_{statistic}",
                topic=TAIL if statistic == "p99" else SLOWDOWN,
                klass=klass,
            )


def _mean_fcts() -> Iterator[Metric]:
    for klass in SIZE_CLASSES:
        every = klass == "all"
        yield Metric(
            fct_key(klass), f"mean FCT{_of_class(klass)}", "ns", "flow", "mean",
            source="flow-classes", columns=_FCT, compared=every,
            family="fct_mean" if every else "", topic=FCT, klass=klass,
        )  # fmt: skip


def _queue(
    key: str, label: str, law: Law, quantile: float | None = None, family: str = ""
) -> Metric:
    return Metric(
        key, label, "bytes", "queue", law, source="queues", columns=_QUEUE, compared=bool(family),
        quantile=quantile, may_be_zero=True, family=family, topic=QUEUE, floor=_PACKET_BYTES,
    )  # fmt: skip


def _used(key: str, label: str, law: Law, short: str = "", statement: str = "") -> Metric:
    return Metric(
        key, label, "share", "port", law, "higher", "links", _SENT, short=short,
        statement=statement, family="utilisation" if short else "", topic=UTILISATION,
        floor=_UTILISATION,
    )  # fmt: skip


def _flow(
    key: str,
    label: str,
    quantile: float | None = None,
    min_bytes: int = 0,
    max_bytes: int | None = None,
    short: str = "",
) -> Metric:
    """Return the mean FCT of the flows of some sizes, or their quantile."""
    return Metric(
        key, label, "ns", "flow", "quantile" if quantile else "mean", source="flows", columns=_FCT,
        short=short, quantile=quantile, flows=FlowChoice("fct_ns", min_bytes, max_bytes),
    )  # fmt: skip


_BY_SLOWDOWN = FlowChoice("slowdown")


def _per_host(key: str, label: str, unit: Unit, law: Law, column: str, **more: Any) -> Metric:
    columns = (f"hosts.{column}",)
    return Metric(key, label, unit, "host", law, source="devices", columns=columns, **more)


def _per_switch(key: str, label: str, column: str, **more: Any) -> Metric:
    return Metric(
        key, label, "bytes", "switch", "maximum", source="devices", columns=(f"switches.{column}",),
        may_be_zero=True, **more,
    )  # fmt: skip


def _lasting(key: str, label: str, law: Law, columns: tuple[str, ...], **more: Any) -> Metric:
    """Return a metric of samples of long-lived flows; `unit` is "ratio" unless given."""
    unit = more.pop("unit", "ratio")
    return Metric(key, label, unit, "flow", law, source="flow-samples", columns=columns, **more)


def _incast(key: str, label: str, unit: Unit, law: Law, **more: Any) -> Metric:
    return Metric(
        key, label, unit, "flow", law, source="incasts", columns=(*_FCT, "flows.ideal_ns"), **more
    )


def _goodput(key: str, label: str, law: Law, scope: Scope = "host", **more: Any) -> Metric:
    columns = ("flows.end_ns", "schedule.bytes", *_ACKED)
    return Metric(key, label, "bps", scope, law, "higher", "goodput", columns, **more)


def _port(
    key: str, label: str, unit: Unit, law: Law, scope: Scope = "queue", **more: Any
) -> Metric:
    """Return a metric of the papers of queues, links or traffic classes."""
    columns = _QUEUE if scope == "queue" else _SENT
    return Metric(key, label, unit, scope, law, source="hosts-links", columns=columns, **more)


def _load(key: str, label: str, columns: tuple[str, ...], **more: Any) -> Metric:
    return Metric(key, label, "share", "host", "share", source="load", columns=columns, **more)


_ORDER = ("hosts.out_of_order_packets", "hosts.received_packets")
_MARKS = ("ports.marked_packets", "ports.tx_packets")
_DROPS = ("ports.dropped_packets", "ports.tx_packets")

# Both a report and claims of papers have these.
_ITERATION = Metric(
    "iteration_mean", "mean time of an iteration", "ns", "flow", "mean", source="flows",
    columns=("flows.start_ns", *_FCT), compared=True,
)  # fmt: skip
_FAIRNESS = _lasting(
    "fairness", "Jain's index, long-lived flows", "ratio", _ACKED, better="higher", compared=True,
    short="Jain's index",
)  # fmt: skip

# The metrics of each trial in a report.
_REPORT: tuple[Metric, ...] = (
    *_mean_fcts(),
    *_slowdowns(),
    _incast("incast_completion_mean_ns", "mean incast completion time", "ns", "mean"),
    _incast("incast_completion_p99_ns", "p99 incast completion time", "ns", "quantile",
            quantile=0.99, compared=True,
            statement="1% of incasts take longer than {}"),
    _incast("incast_completion_ratio", "incast completion time over ideal", "ratio", "mean",
            compared=True, statement="An incast takes {} of its ideal time"),
    _incast("incast_goodput_bps", "goodput until an incast completes", "bps", "mean",
            better="higher"),
    _incast("incasts_unfinished", "unfinished incasts", "count", "count", may_be_zero=True),
    _incast("incast_fairness", "Jain's index, flows of an incast", "ratio", "mean",
            better="higher", compared=True),
    _ITERATION,
    _queue("queue_mean_bytes", "mean queue", "mean", family="queue_mean"),
    _queue("queue_p99_bytes", "p99 queue", "quantile", 0.99, family="queue_p99"),
    _queue("queue_max_bytes", "longest queue", "maximum"),
    _queue("queue_busiest_bytes", "mean of the busiest queue", "maximum"),
    Metric("marked_share", "packets marked", "share", "port", "share", source="links",
           columns=_MARKS, compared=True, may_be_zero=True, statement="Packets marked CE: {}",
           family="marked_share", topic=MARKS, floor=_MARKED_SHARE),
    _used("utilisation_hosts", "utilisation, links to hosts", "mean", "links to hosts used",
          "Links to hosts are busy {}"),
    _used("utilisation_fabric", "utilisation, links between switches", "mean", "core links used",
          "Links between switches are busy {}"),
    _used("utilisation_max", "utilisation, busiest link", "maximum"),
    _load("offered_load", "offered load", ("schedule.bytes",)),
    _load("delivered_load", "delivered load", ("flows.end_ns", "schedule.bytes"), better="higher"),
    _load("discarded_load", "discarded load", ("flows.retransmits",), may_be_zero=True),
    Metric("backlog_slope_share", "offered payload that accumulates", "share", "trial", "ratio",
           source="backlog", columns=("flows.start_ns", "flows.end_ns", "schedule.bytes"),
           may_be_zero=True, short="backlog's slope",
           statement="Of the offered payload, {} accumulates"),
    _goodput("goodput_bps", "goodput of a receiving host", "mean", compared=True),
    _goodput("goodput_total_bps", "goodput, all hosts", "total"),
    _goodput("goodput_long_lived_bps", "goodput of a long-lived flow", "mean", "flow",
             compared=True),
    _FAIRNESS,
    Metric("dropped_packets", "packets dropped", "count", "port", "count", source="queues",
           columns=_DROPS[:1], may_be_zero=True),
    Metric("retransmits", "segments retransmitted", "count", "flow", "count",
           source="flow-classes", columns=("flows.retransmits",), may_be_zero=True),
    _per_host("timeouts", "retransmission timeouts", "count", "count", "timeouts",
              may_be_zero=True),
    Metric("nacks", "NACKs", "count", "host", "count", source="devices", columns=("facts.naks",),
           may_be_zero=True),
    _per_host("cnps", "CNPs", "count", "count", "cnps", compared=True, may_be_zero=True),
    _per_host("rate_mean_bps", "mean rate allowed to a host", "bps", "mean", "rate_bps",
              better="higher", compared=True, statement="A host with flows may send {}"),
    _per_host("rtt_p99_ns", "p99 RTT", "ns", "quantile", "rtt_ns", quantile=0.99, compared=True,
              statement="1% of round trips take longer than {}"),
    Metric("pauses_sent", "pauses", "count", "port", "count", source="devices",
           columns=("pauses.pauses_sent",), compared=True, may_be_zero=True),
    Metric("pausing_ns", "time stopped by pauses, all ports", "ns", "port", "total",
           source="devices", columns=("pauses.pausing_ns",), may_be_zero=True),
    _per_switch("buffer_max_bytes", "fullest buffer of a switch", "buffer_bytes", compared=True,
                statement="The fullest buffer held {}"),
    _per_switch("headroom_max_bytes", "most headroom in use at a switch", "headroom_bytes"),
    Metric("out_of_order_share", "packets that arrived out of order", "share", "host", "share",
           source="paths", columns=_ORDER, may_be_zero=True, statement="Packets out of order: {}"),
    Metric("reroutes_per_flow", "reroutes of a flow", "ratio", "switch", "ratio", source="paths",
           columns=("switches.reroutes",), may_be_zero=True),
    Metric("uplink_imbalance", "busiest uplink of a switch, over the mean", "ratio", "switch",
           "ratio", source="paths", columns=("ports.tx_packets",)),
)  # fmt: skip

# The metrics of each trial in the papers, besides the two loads of the report.
_PAPERS: tuple[Metric, ...] = (
    Metric("slowdown_mean", "mean FCT slowdown", "ratio", "flow", "mean", source="flows",
           columns=_SLOWDOWN, short="mean slowdown", flows=_BY_SLOWDOWN),
    Metric("slowdown_p99", "p99 FCT slowdown", "ratio", "flow", "quantile", source="flows",
           columns=_SLOWDOWN, quantile=0.99, flows=_BY_SLOWDOWN),
    _flow("fct_mean", "mean FCT"),
    _flow("fct_p90", "p90 FCT", 0.9),
    _flow("fct_p99", "p99 FCT", 0.99),
    _flow("short_mean", "mean FCT, up to 10 KB", max_bytes=_SHORT),
    _flow("short_p90", "p90 FCT, up to 10 KB", 0.9, max_bytes=_SHORT),
    _flow("short_p99", "p99 FCT, up to 10 KB", 0.99, max_bytes=_SHORT),
    _flow("short_p999", "p99.9 FCT, up to 10 KB", 0.999, max_bytes=_SHORT),
    _flow("mice_mean", "mean FCT, up to 100 KB", max_bytes=_MICE),
    _flow("mice_p90", "p90 FCT, up to 100 KB", 0.9, max_bytes=_MICE),
    _flow("mice_p95", "p95 FCT, up to 100 KB", 0.95, max_bytes=_MICE),
    _flow("mice_p99", "p99 FCT, up to 100 KB", 0.99, max_bytes=_MICE,
          short="tail (p99 FCT up to 100 KB)"),
    _flow("above_mice_mean", "mean FCT, above 100 KB", min_bytes=_MICE + 1),
    _flow("long_mean", "mean FCT, above 1 MB", min_bytes=_LONG,
          short="large flows (mean FCT above 1 MB)"),
    _flow("elephants_mean", "mean FCT, from 10 MB", min_bytes=_ELEPHANTS),
    _ITERATION,
    _lasting("goodput", "goodput", "share", _ACKED, unit="share", better="higher"),
    _lasting("latency", "mean RTT", "mean", _RTT, unit="ns"),
    _lasting("rtt_inflation", "RTT inflation", "ratio", _RTT),
    _lasting("power", "power", "ratio", (*_ACKED, *_RTT), better="higher"),
    _FAIRNESS,
    _lasting("lost", "packets lost by flow", "ratio", _DROPS[:1], may_be_zero=True),
    _lasting("lost_later", "packets lost by flow, steady state", "ratio", _DROPS[:1],
             may_be_zero=True),
    _port("queue_mean", "mean queue, all ports", "bytes", "mean"),
    _port("queue_std", "queue deviation, all ports", "bytes", "deviation"),
    _port("receiver_queue_mean", "mean queue, receiver's ports", "bytes", "mean"),
    _port("receiver_queue_std", "queue deviation, receiver's ports", "bytes", "deviation"),
    _port("throughput", "throughput, all hosts", "bps", "total", "port", better="higher"),
    _port("receiver_throughput", "throughput, receiver", "bps", "total", "port", better="higher"),
    Metric("lost_share", "packets lost", "share", "trial", "share", source="balance",
           columns=(_DROPS[0], _ORDER[1]), may_be_zero=True),
    Metric("reordered_share", "packets out of order", "share", "host", "share", source="balance",
           columns=_ORDER, may_be_zero=True),
    Metric("flowlets_of_a_flow", "flowlets of a flow", "ratio", "switch", "ratio",
           source="balance", columns=("switches.flowlets",)),
    _port("class_share", "RDMA's share", "share", "share", "class", better="higher"),
    _port("class_shortfall", "RDMA's shortfall from its weight", "share", "share", "class",
          may_be_zero=True),
    _port("class_unfairness", "RDMA's deviation from its weight", "share", "share", "class",
          may_be_zero=True),
    _port("class_fairness", "RDMA's fairness by weight", "ratio", "ratio", "class",
          better="higher"),
)  # fmt: skip

# Metrics of two trials together, and those that only comparisons of runs have.
_PAIRS: tuple[Metric, ...] = (
    Metric(FCT_RATIO, "FCT, flow by flow", "ratio", "flow", "ratio", source="pair", columns=_FCT,
           family=FCT_RATIO, topic=FCT),
    Metric(SLOWDOWN_WASSERSTEIN, "slowdown, Wasserstein", "ratio", "flow", "distance",
           source="pair", columns=_SLOWDOWN, family=SLOWDOWN_WASSERSTEIN, topic=SLOWDOWN,
           distance="mean"),
    Metric(SLOWDOWN_KS, "slowdown, KS distance", "share", "flow", "distance", source="pair",
           columns=_SLOWDOWN, family=SLOWDOWN_KS, topic=SLOWDOWN, distance="cdf"),
    Metric(QUEUE_WASSERSTEIN, "queue, Wasserstein", "bytes", "queue", "distance", source="pair",
           columns=_QUEUE, family="queue_wasserstein", topic=QUEUE, floor=_PACKET_BYTES,
           distance="mean"),
    Metric(DROPPED_SHARE, "packets dropped", "share", "port", "share", source="pair",
           columns=_DROPS, may_be_zero=True, family=DROPPED_SHARE, topic=DROPS,
           floor=_DROPPED_SHARE),
)  # fmt: skip

# The order in which a comparison of runs shows its metrics.
_BETWEEN_RUNS = (
    *(slowdown_key(statistic, klass) for statistic in ("mean", "p50", "p99")
      for klass in SIZE_CLASSES),
    fct_key("all"), FCT_RATIO, SLOWDOWN_WASSERSTEIN, SLOWDOWN_KS,
    "queue_mean_bytes", "queue_p99_bytes", QUEUE_WASSERSTEIN,
    "marked_share", "utilisation_hosts", "utilisation_fabric", DROPPED_SHARE,
)  # fmt: skip

_GROUP, _VARIABLE = "closloop.metrics", "CLOSLOOP_METRICS"


class Catalogue(Mapping[str, Metric]):
    """All metrics by key, a user's own last. Raises InputError if one of these is wrong."""

    def __getitem__(self, key: str) -> Metric:
        return _known()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_known())

    def __len__(self) -> int:
        return len(_known())

    @property
    def own(self) -> tuple[Metric, ...]:
        """The metrics of a user's own."""
        return tuple(metric for metric in self.values() if metric.of is not None)

    @property
    def report(self) -> tuple[Metric, ...]:
        """The metrics of each trial in a report."""
        return (*_REPORT, *self.own)

    @property
    def papers(self) -> dict[str, Metric]:
        """The metrics that a paper's claims may name."""
        loads = (self["offered_load"], self["delivered_load"])
        return {metric.key: metric for metric in (*_PAPERS, *loads, *self.own)}

    @property
    def between_runs(self) -> tuple[Metric, ...]:
        """The metrics on which runs are compared, in the order in which they are shown."""
        return (*(self[key] for key in _BETWEEN_RUNS), *self.own)

    @property
    def of_a_trial(self) -> tuple[str, ...]:
        """The keys of the metrics of a single trial, the papers' first."""
        return tuple(dict.fromkeys([*self.papers, *(metric.key for metric in self.report)]))

    @property
    def objectives(self) -> tuple[str, ...]:
        """The keys of the metrics that can be a search's objective: those always above 0."""
        return tuple(key for key in self.of_a_trial if not self[key].may_be_zero)

    def canonical(self, name: str) -> str:
        """Return the key of a trial's metric as in results; "" if there is no such metric.

        In `name` the statistic may come first, as in `mean_slowdown`.
        """
        first, _, rest = name.partition("_")
        known = self.of_a_trial
        return next((key for key in (name, f"{rest}_{first}") if key in known), "")


METRICS = Catalogue()


# closloop's own metrics, which the entry point `OURS` offers.
OURS = "catalogue"
CATALOGUE = tuple({metric.key: metric for metric in (*_REPORT, *_PAPERS, *_PAIRS)}.values())


@cache
def _known() -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    groups = sorted(offered(_GROUP), key=lambda name: name != OURS)
    for reference in [*groups, *filter(None, os.environ.get(_VARIABLE, "").split(","))]:
        try:
            loaded: Any = load(reference.strip(), _GROUP)
        except PluginError as error:
            raise InputError([of_value(error, "metrics")]) from error
        for metric in loaded if isinstance(loaded, list | tuple) else [loaded]:
            metrics[_checked(metric, reference, metrics).key] = metric
    return metrics


def _checked(metric: Any, reference: str, known: Mapping[str, Metric]) -> Metric:
    if not isinstance(metric, Metric) or (metric.of is None and metric not in CATALOGUE):
        raise InputError.single(
            "metrics",
            f"{reference} is not a closloop.Metric with `of`, the function that computes it",
            "write it like closloop.Metric(key, label, unit, scope, law, of=function)",
        )
    if metric.key in known:
        raise InputError.single(
            "metrics",
            f"{reference} has the key {metric.key!r}, which another metric has",
            "choose another key",
        )
    return metric
