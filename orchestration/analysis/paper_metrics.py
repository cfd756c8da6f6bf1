"""Metrics that the papers print: FCT of mice and elephants, queues, throughput.

Flow metrics count finished flows that started after the trial's warm-up and in the wanted window.
Queues and throughput use samples taken while flows arrived, from the warm-up's end to the trial's
duration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from inventory.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES
from orchestration.analysis.flow_progress import FlowProgress
from orchestration.analysis.metrics import DoneFlows
from orchestration.analysis.sample_parts import arrivals
from orchestration.artifacts.load_fact import written_shares
from orchestration.artifacts.reader import TrialResult
from orchestration.model.records import Floats

PaperUnit = Literal["ns", "bytes", "ratio", "share", "bps"]
Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class PaperMetric:
    """A metric of a trial as a paper prints it. `better` says whether low or high is good.

    `of_flows` computes it from flows, `of_progress` from samples of flows; if both are None, it is
    one of `port_figures`, `balance_figures` or `load_figures`. A tail is the quantile `tail` of
    what `samples`
    returns, shape (flows,); it is taken over repeats together.
    """

    key: str
    label: str
    unit: PaperUnit
    better: Better = "lower"
    of_flows: Callable[[DoneFlows], float] | None = None
    of_progress: Callable[[FlowProgress], float] | None = None
    samples: Callable[[DoneFlows], Floats] | None = None
    tail: float | None = None

    @property
    def of_ports(self) -> bool:
        """Whether it is one of `port_figures` or `balance_figures`."""
        return self.of_flows is None and self.of_progress is None


def _values(
    flows: DoneFlows,
    *,
    slowdown: bool = False,
    least_bytes: int = 0,
    most_bytes: int | None = None,
) -> Floats:
    chosen = flows.size_bytes >= least_bytes
    if most_bytes is not None:
        chosen &= flows.size_bytes <= most_bytes
    return (flows.slowdown if slowdown else flows.fct_ns)[chosen]


_SHORT, _MICE, _LONG, _ELEPHANTS = 10_000, 100_000, 1_000_001, 10_000_000


def _flow_metric(
    key: str, label: str, unit: PaperUnit = "ns", tail: float | None = None, **which: object
) -> PaperMetric:
    """Return the mean of the flows that `which` selects, or their quantile `tail`."""
    samples: Callable[[DoneFlows], Floats] = partial(_values, **which)  # type: ignore[arg-type]

    def of_flows(flows: DoneFlows) -> float:
        values = samples(flows)
        if not len(values):
            return math.nan
        return float(values.mean() if tail is None else np.quantile(values, tail))

    return PaperMetric(key, label, unit, of_flows=of_flows, samples=samples, tail=tail)


def _longest_of_each_start(flows: DoneFlows) -> float:
    """Return the mean, over all starts, of the time until the last flow of a start has ended."""
    starts, which = np.unique(flows.start_ns, return_inverse=True)
    longest = np.zeros(len(starts))
    np.maximum.at(longest, which, flows.fct_ns)
    return float(longest.mean()) if len(starts) else math.nan


PAPER_METRICS: dict[str, PaperMetric] = {
    metric.key: metric
    for metric in (
        _flow_metric("slowdown_mean", "mean FCT slowdown", "ratio", slowdown=True),
        _flow_metric("slowdown_p99", "p99 FCT slowdown", "ratio", tail=0.99, slowdown=True),
        _flow_metric("fct_mean", "mean FCT"),
        _flow_metric("fct_p90", "p90 FCT", tail=0.9),
        _flow_metric("fct_p99", "p99 FCT", tail=0.99),
        _flow_metric("short_mean", "mean FCT, up to 10 KB", most_bytes=_SHORT),
        _flow_metric("short_p90", "p90 FCT, up to 10 KB", most_bytes=_SHORT, tail=0.9),
        _flow_metric("short_p99", "p99 FCT, up to 10 KB", most_bytes=_SHORT, tail=0.99),
        _flow_metric("short_p999", "p99.9 FCT, up to 10 KB", most_bytes=_SHORT, tail=0.999),
        _flow_metric("mice_mean", "mean FCT, up to 100 KB", most_bytes=_MICE),
        _flow_metric("mice_p90", "p90 FCT, up to 100 KB", most_bytes=_MICE, tail=0.9),
        _flow_metric("mice_p95", "p95 FCT, up to 100 KB", most_bytes=_MICE, tail=0.95),
        _flow_metric("mice_p99", "p99 FCT, up to 100 KB", most_bytes=_MICE, tail=0.99),
        _flow_metric("above_mice_mean", "mean FCT, above 100 KB", least_bytes=_MICE + 1),
        _flow_metric("long_mean", "mean FCT, above 1 MB", least_bytes=_LONG),
        _flow_metric("elephants_mean", "mean FCT, from 10 MB", least_bytes=_ELEPHANTS),
        PaperMetric(
            "iteration_mean", "mean time of an iteration", "ns", of_flows=_longest_of_each_start
        ),
        PaperMetric("goodput", "goodput", "share", "higher", of_progress=FlowProgress.goodput),
        PaperMetric("latency", "mean RTT", "ns", of_progress=FlowProgress.rtt_ns),
        PaperMetric(
            "rtt_inflation", "RTT inflation", "ratio", of_progress=FlowProgress.rtt_inflation
        ),
        PaperMetric("power", "power", "ratio", "higher", of_progress=FlowProgress.power),
        PaperMetric(
            "fairness", "Jain's index", "ratio", "higher", of_progress=FlowProgress.fairness
        ),
        PaperMetric("lost", "packets lost by flow", "ratio", of_progress=FlowProgress.lost_ever),
        PaperMetric("lost_later", "of them then", "ratio", of_progress=FlowProgress.lost),
        PaperMetric("queue_mean", "mean queue, all ports", "bytes"),
        PaperMetric("queue_std", "its deviation", "bytes"),
        PaperMetric("receiver_queue_mean", "mean queue, receiver's ports", "bytes"),
        PaperMetric("receiver_queue_std", "its deviation", "bytes"),
        PaperMetric("throughput", "throughput, all hosts", "bps", "higher"),
        PaperMetric("receiver_throughput", "throughput, receiver", "bps", "higher"),
        PaperMetric("lost_share", "packets lost", "share"),
        PaperMetric("reordered_share", "packets out of order", "share"),
        PaperMetric("flowlets_of_a_flow", "flowlets of a flow", "ratio"),
        PaperMetric("class_share", "RDMA's share", "share", "higher"),
        PaperMetric("class_shortfall", "RDMA below its weight", "share"),
        PaperMetric("class_unfairness", "RDMA off its weight", "share"),
        PaperMetric("class_fairness", "RDMA's nearness to its weight", "ratio", "higher"),
        PaperMetric("offered_load", "offered load", "share"),
        PaperMetric("delivered_load", "delivered load", "share", "higher"),
    )
}


def port_figures(result: TrialResult) -> Mapping[str, float]:
    """Return metrics of ports, packets and traffic classes by key; NaN if there is none.

    Throughput is payload that arrives: bytes sent minus the headers of all packets. So
    acknowledgements count 0, and what is sent again or thrown away by its receiver counts; goodput
    is what was acknowledged.
    The receiver is the host to which most bytes are sent. The class share is the first traffic
    class's part (RDMA in ACC's figure 8) of the bytes sent to the receiver. The shortfall is
    1 - share / (the class's part of the weights); unfairness is its absolute value. Fairness, by
    which a search can choose, is the lesser of share / part and its inverse: 1 at best.
    """
    testbed, ports = result.testbed, arrivals(result.ports, result.spec.measured_ns)
    figures = {key: math.nan for key, metric in PAPER_METRICS.items() if metric.of_ports}
    if len(ports.t_ns) < 2:
        return figures
    peers = np.array([testbed.peer_device(queue).name for queue in testbed.queues], dtype=object)
    at_receiver = peers == _receiver(result)
    span_ns = float(ports.t_ns[-1] - ports.t_ns[0])
    sent = ports.tx_bytes[-1] - ports.tx_bytes[0]
    packets = ports.tx_packets[-1] - ports.tx_packets[0]
    payload_bps = (sent - (ETHERNET_HEADER_BYTES + TCP_IP_HEADER_BYTES) * packets) * 8e9 / span_ns
    queue = ports.qlen_bytes
    to_receiver = queue[:, at_receiver] if at_receiver.any() else np.array([math.nan])
    figures |= {
        "queue_mean": float(queue.mean()),
        "queue_std": float(queue.std()),
        "receiver_queue_mean": float(to_receiver.mean()),
        "receiver_queue_std": float(to_receiver.std()),
        "throughput": float(payload_bps[np.isin(peers, testbed.hosts)].sum()),
        "receiver_throughput": float(payload_bps[at_receiver].sum()),
    }
    total = float(sent[at_receiver].sum())
    if testbed.classes and total:
        first = np.array([queue.klass == 0 for queue in testbed.queues])
        share = float(sent[at_receiver & first].sum()) / total
        weights = [klass.weight for klass in testbed.classes]
        shortfall = 1 - share * sum(weights) / weights[0]
        figures |= {
            "class_share": share,
            "class_shortfall": shortfall,
            "class_unfairness": abs(shortfall),
            "class_fairness": min(1 - shortfall, 1 / (1 - shortfall)) if share else 0.0,
        }
    return figures


def load_figures(result: TrialResult) -> Mapping[str, float]:
    """Return the offered and delivered load that a trial wrote down, by key; NaN if it did not.

    They are shares of the hosts' line rates. What an earlier version called delivered was another
    thing, which is left out.
    """
    told = written_shares(result)
    loads = {key: told[key] for key in ("offered_load", "delivered_load")}
    return {key: math.nan if value is None else value for key, value in loads.items()}


def _receiver(result: TrialResult) -> str:
    """Return the host to which most bytes are sent, the first by name of several; "" if none."""
    schedule = result.table("schedule")
    names, which = np.unique(schedule["dst"].astype(str), return_inverse=True)
    if not len(names):
        return ""
    return str(names[int(np.argmax(np.bincount(which, weights=schedule["bytes"])))])
