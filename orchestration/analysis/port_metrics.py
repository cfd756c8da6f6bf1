"""Metrics of a trial's ports: queues, marks, utilisation, throughput, classes, packet-hops.

Queue metrics use samples taken while flows arrived, from the warm-up's end to the trial's duration,
because a long drain would dilute them. Counters count from the warm-up's end to the trial's. A
histogram of queues, which is all that some imports have, may be of another time, which `queue_span`
gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestration.analysis.counters import known_queues, per_port
from orchestration.analysis.measured_window import (
    after_warm_up,
    counted,
    known_mean,
    measured_samples,
    totals,
)
from orchestration.core.capabilities import capabilities
from orchestration.core.errors import InputError
from orchestration.core.records import Floats, Ints, Samples, TrialRecord
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES, Testbed
from orchestration.core.units import format_duration
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
    window = measured_samples(result.ports, result.spec.measured_ns)
    known = known_queues(window.qlen_bytes)
    queue = window.qlen_bytes[:, known]
    means = np.full(len(known), math.nan)
    if len(queue):
        means[known] = queue.mean(axis=0)
    scalars = {
        **_queue_scalars(queue),
        **_link_scalars(result.testbed, window),
        "dropped_packets": counted(after_warm_up(result, "queue").dropped_packets),
    }
    if not len(queue) and HISTOGRAM_FACT in result.facts:
        lengths = QueueHistogram.of(result.facts[HISTOGRAM_FACT], result.testbed)
        ccdf = lengths.ccdf(QUEUE_GRID_BYTES)
        return PortFigures({**scalars, **lengths.scalars}, ccdf, lengths.means)
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
        "utilisation_hosts": known_mean(busy[to_host]),
        "utilisation_fabric": known_mean(busy[~to_host]),
        "utilisation_max": math.nan if np.isnan(busy).all() else float(np.nanmax(busy)),
        "marked_share": marked / total if total else math.nan,
    }


def _sent(samples: Ints) -> Floats:
    """Return the counts between the first and last sample; NaN for queues not read every time."""
    counted = (samples[-1] - samples[0]).astype(np.float64)
    return np.where(known_queues(samples), counted, math.nan)


def _ccdf(queue: Ints) -> Floats:
    ordered = np.sort(queue, axis=None)
    if not len(ordered):
        return np.full(len(QUEUE_GRID_BYTES), math.nan)
    above = len(ordered) - np.searchsorted(ordered, QUEUE_GRID_BYTES, side="right")
    return np.asarray(above / len(ordered))


def measure_throughput(result: TrialResult) -> dict[str, float]:
    """Return the papers' figures of queues, throughput and traffic classes that a trial has.

    Throughput is payload that arrives: bytes sent minus the headers of all packets. So
    acknowledgements count 0, and payload counts although it was sent again or is discarded by its
    receiver; goodput is what was acknowledged. The receiver is the host to which most bytes are
    sent. The class share is the share of the first traffic class (RDMA in ACC's figure 8) in the
    bytes sent to the receiver. The shortfall is 1 - class share / (the class's share of the
    weights); unfairness is its absolute value. Fairness, by which a search can choose, is that
    quotient or its inverse, whichever is less: 1 at best.
    """
    testbed, ports = result.testbed, measured_samples(result.ports, result.spec.measured_ns)
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
    """Return the host to which most bytes are sent, "" if none; of several, the first by name."""
    schedule = result.table("schedule")
    names, which = np.unique(schedule["dst"].astype(str), return_inverse=True)
    if not len(names):
        return ""
    return str(names[int(np.argmax(np.bincount(which, weights=schedule["bytes"])))])


HISTOGRAM_FACT = "queue_histogram"


@dataclass(frozen=True)
class QueueHistogram:
    """Queue lengths of a run that has only a histogram, as written by the HPCC simulator.

    The fact `queue_histogram` has `bin_bytes` and, by queue label, the number of samples in each
    bin. All lengths of a bin are taken as its lower edge. `edges_bytes` and `weight` (bins,) are
    over all queues; `means` is (queues,), NaN if unknown. `queue_span` gives the time of the
    samples.
    """

    edges_bytes: Floats
    weight: Floats
    means: Floats

    @classmethod
    def of(cls, fact: Mapping[str, Any], testbed: Testbed) -> QueueHistogram:
        """Build the histogram from the fact. Raises KeyError on foreign data."""
        counts = {label: item["counts"] for label, item in fact["queues"].items()}
        bins = max(map(len, counts.values()), default=0)
        edges: Floats = np.arange(bins, dtype=np.float64) * float(fact["bin_bytes"])
        weight = np.zeros(len(edges))
        means = np.full(len(testbed.queues), math.nan)
        for number, queue in enumerate(testbed.queues):
            samples = np.array(counts.get(queue.label, ()), dtype=np.float64)
            weight[: len(samples)] += samples
            if samples.sum():
                means[number] = edges[: len(samples)] @ samples / samples.sum()
        return cls(edges, weight, means)

    @property
    def scalars(self) -> dict[str, float]:
        """The queue metrics; empty if there are no samples."""
        total = self.weight.sum()
        if not total:
            return {}
        upto = np.cumsum(self.weight)
        return {
            "queue_mean_bytes": float(self.edges_bytes @ self.weight / total),
            "queue_p99_bytes": float(self.edges_bytes[np.searchsorted(upto, 0.99 * total)]),
            "queue_max_bytes": float(self.edges_bytes[np.flatnonzero(self.weight)[-1]]),
            "queue_busiest_bytes": float(np.nanmax(self.means)),
        }

    def ccdf(self, grid_bytes: Floats) -> Floats:
        """Return the share of samples above each grid length; NaN without samples."""
        total = self.weight.sum()
        if not total:
            return np.full(len(grid_bytes), math.nan)
        upto = np.concatenate(([0.0], np.cumsum(self.weight)))
        below = upto[np.searchsorted(self.edges_bytes, grid_bytes, side="right")]
        return np.asarray(1 - below / total)

    def binned(self, edges_bytes: Floats) -> Floats:
        """Return the samples in other bins, shape (1, bins): bin i holds lengths up to its edge."""
        bin_of = np.minimum(np.searchsorted(edges_bytes, self.edges_bytes), len(edges_bytes) - 1)
        return np.bincount(bin_of, self.weight, len(edges_bytes)).astype(np.float64)[None, :]


def queue_span(facts: Mapping[str, Any]) -> str:
    """Return the time in which a run's queues were sampled; "" if that is while flows arrived."""
    fact = facts.get(HISTOGRAM_FACT)
    if fact is None or fact.get("while_flows_arrived"):
        return ""
    until = format_duration(fact["until_ns"])
    if "from_ns" not in fact:  # imported by an earlier version
        return f"of the whole run until {until}, drain included"
    begin, arrived = (format_duration(fact[key]) for key in ("from_ns", "arrived_ns"))
    return f"from {begin} to {until}, where flows arrived until {arrived}"


PACKET_HOP = "a packet sent by a NIC or a switch port"
_WITHOUT_ACKS = f"{PACKET_HOP}, data only: the fluid model has no acknowledgements"


def packet_hops(testbed: Testbed, ports: Samples) -> int:
    """Return the packet-hops of a trial, from the last values of its ports' counters.

    NICs are not sampled: hosts sent the packets that switches delivered to hosts or dropped.
    """
    sent, dropped = totals(ports.tx_packets), totals(ports.dropped_packets)
    to_host = np.array([testbed.peer_device(queue).kind == "host" for queue in testbed.queues])
    return int(sent.sum() + sent[to_host].sum() + dropped.sum())


def hop_facts(backend: str, testbed: Testbed, record: TrialRecord) -> dict[str, Any]:
    """Return the facts `packet_hops` of a trial, and `packet_hop`, the meaning of one."""
    if not len(record.ports.t_ns):
        return {}
    hops = record.facts.get("packet_hops", packet_hops(testbed, record.ports))
    return {"packet_hops": hops, "packet_hop": _meaning(backend)}


def trial_packet_hops(trial: TrialResult) -> tuple[int, str]:
    """Return a trial's packet-hops and the meaning of one.

    They are counted from the tables, so that trials of earlier versions are counted alike. Without
    samples the number that the trial recorded is taken, with its meaning in that version.
    """
    try:
        ports, testbed = trial.ports, trial.testbed
        sampled = len(ports.t_ns) > 0
    except InputError:
        sampled = False
    backend = trial.spec.backend
    if sampled:
        return packet_hops(testbed, ports), _meaning(backend)
    recorded = trial.facts.get("packet_hops")
    if not recorded:
        return 0, "nothing was counted"
    return int(recorded), str(trial.facts.get("packet_hop", capabilities(backend).former_hop))


def _meaning(backend: str) -> str:
    packets = all(mode.has_packets for mode in capabilities(backend).modes)
    return PACKET_HOP if packets else _WITHOUT_ACKS
