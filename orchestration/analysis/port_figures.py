"""Figures of a trial's queues and links: lengths, marks, utilisation, throughput, classes.

Queue metrics use samples taken while flows arrived, from the warm-up's end to the trial's duration,
because a long drain would dilute them. Counters count from the warm-up's end to the trial's. A run
that has only a histogram of its queues may be of another time: `queue_span` says which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.counters import known_queues, per_port
from orchestration.analysis.queue_histogram import FACT, QueueHistogram
from orchestration.analysis.sample_parts import after_warm_up, arrivals, counted
from orchestration.core.records import Floats, Ints, Samples
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES, Testbed
from orchestration.results.reader import TrialResult

# Queue lengths at which the distribution is evaluated: 0, then 40 steps per decade.
QUEUE_GRID_BYTES = np.concatenate(([0.0], np.geomspace(1e3, 1e8, 201)))


@dataclass(frozen=True)
class PortFigures:
    """The port metrics of a trial; for the arrays see `TrialMetrics`."""

    scalars: dict[str, float]
    queue_ccdf: Floats
    queue_mean_bytes: Floats


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


def _queue_scalars(queue: Ints) -> dict[str, float]:
    if not queue.size:
        return {}
    return {
        "queue_mean_bytes": float(queue.mean()),
        "queue_p99_bytes": float(np.quantile(queue, 0.99)),
        "queue_max_bytes": float(queue.max()),
        "queue_busiest_bytes": float(queue.mean(axis=0).max()),
    }


def _link_scalars(testbed: Testbed, ports: Samples) -> dict[str, float]:
    """Return utilisation and marking between the first and the last sample."""
    if len(ports.t_ns) < 2:
        return {}
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


def measure_throughput(result: TrialResult) -> dict[str, float]:
    """Return the papers' figures of queues, throughput and traffic classes that a trial has.

    Throughput is payload that arrives: bytes sent minus the headers of all packets. So
    acknowledgements count 0, and what is sent again or thrown away by its receiver counts; goodput
    is what was acknowledged.
    The receiver is the host to which most bytes are sent. The class share is the first traffic
    class's part (RDMA in ACC's figure 8) of the bytes sent to the receiver. The shortfall is
    1 - share / (the class's part of the weights); unfairness is its absolute value. Fairness, by
    which a search can choose, is the lesser of share / part and its inverse: 1 at best.
    """
    testbed, ports = result.testbed, arrivals(result.ports, result.spec.measured_ns)
    if len(ports.t_ns) < 2:
        return {}
    peers = np.array([testbed.peer_device(queue).name for queue in testbed.queues], dtype=object)
    at_receiver = peers == _receiver(result)
    span_ns = float(ports.t_ns[-1] - ports.t_ns[0])
    sent = ports.tx_bytes[-1] - ports.tx_bytes[0]
    packets = ports.tx_packets[-1] - ports.tx_packets[0]
    payload_bps = (sent - (ETHERNET_HEADER_BYTES + TCP_IP_HEADER_BYTES) * packets) * 8e9 / span_ns
    queue = ports.qlen_bytes
    to_receiver = queue[:, at_receiver] if at_receiver.any() else np.array([math.nan])
    figures = {
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


def _receiver(result: TrialResult) -> str:
    """Return the host to which most bytes are sent, the first by name of several; "" if none."""
    schedule = result.table("schedule")
    names, which = np.unique(schedule["dst"].astype(str), return_inverse=True)
    if not len(names):
        return ""
    return str(names[int(np.argmax(np.bincount(which, weights=schedule["bytes"])))])
