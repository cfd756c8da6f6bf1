"""Starvation: long-lived flows that receive next to nothing of a port that they share.

The rate of a flow that finishes is known from its completion time, and a flow that does not finish
makes a trial invalid. A long-lived flow, which lasts as long as the trial, does neither, so its
received bytes have to be checked.

The fair share of a flow is a lower bound: an equal share of every port by which its packets may
leave, as if all flows that may use that port did so, whatever ECMP or load balancing chose. What
finite flows carry is subtracted first; a traffic class has the share of its weight; and no flow has
more than its window or the highest rate of its congestion control allows.

A slow congestion control is not starvation but a result: where no packets were lost, no pause can
have stopped the flows, and all flows to a host receive similar shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inventory.routing import attachment, base_rtt_ns, next_hops, window_bytes
from orchestration.analysis.load import FlowEnds, measure_delivered
from orchestration.core.records import DONE, LONG_LIVED, Floats, Ints, Samples, Schedule
from orchestration.core.roce import HEADER_BYTES, RoceSpec
from orchestration.core.topology import Port, Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_duration, format_size
from orchestration.results.stamp import Reason

# A flow that receives less than this part of its fair share starves.
STARVED_BELOW = 0.1
# A flow is checked if it sends for so many base RTTs and could send so many packets: with fewer,
# its start or a single loss decides what it receives. A wait in the longest queue may last no more
# than `STARVED_BELOW` of that time, because packets that wait there are not withheld.
MIN_ROUND_TRIPS, MIN_PACKETS = 100, 100
# Flows receive similar shares if none of them receives less than this part of their mean.
SIMILAR = 0.5

_Group = tuple[str, ...]


@dataclass(frozen=True)
class Shares:
    """Received bytes and fair shares of long-lived flows, arrays (flows,) of the schedule.

    `judged` marks flows that sent for long enough and whose `accepted` bytes are known; `slow`
    marks those that only their own congestion control can have slowed down.
    """

    judged: NDArray[np.bool_]
    accepted: Floats
    fair: Floats
    slow: NDArray[np.bool_]

    @property
    def starved(self) -> NDArray[np.bool_]:
        """Return which flows starve, (flows,)."""
        little = self.accepted < STARVED_BELOW * self.fair
        return np.asarray(self.judged & little & ~self.slow)


def check_starvation(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: FlowEnds, ports: Samples
) -> Iterator[Reason] | None:
    """Find long-lived flows that received less than a tenth of their fair share.

    Returns None where that cannot be checked: without RoCE, without long-lived flows that are known
    for long enough, or if links fail on purpose.
    """
    shares = measure_shares(trial, testbed, schedule, ends, ports)
    return _findings(trial, testbed, schedule, shares) if shares is not None else None


def measure_shares(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: FlowEnds, ports: Samples
) -> Shares | None:
    """Return the shares of long-lived flows; None where `check_starvation` is None."""
    roce, long_lived = trial.host.roce, ends.status == LONG_LIVED
    if roce is None or trial.faults or not long_lived.any():
        return None
    begin_ns, stop_ns = trial.measured_ns
    accepted = measure_delivered(trial, testbed, schedule, ends, ports).accepted
    sends_ns = np.clip(stop_ns - np.maximum(schedule.start_ns, begin_ns), 0, None)
    fair = _fair_bps(trial, testbed, schedule, ends, roce) * sends_ns / 8e9
    judged = long_lived & np.isfinite(accepted)
    min_ns = (
        MIN_ROUND_TRIPS * base_rtt_ns(testbed) + longest_wait_ns(testbed, ports) / STARVED_BELOW
    )
    judged &= sends_ns >= min_ns
    judged &= fair >= MIN_PACKETS * roce.payload_bytes
    if not judged.any():
        return None
    return Shares(judged, accepted, fair, _slow(testbed, schedule, ends, judged, accepted))


def longest_wait_ns(testbed: Testbed, ports: Samples) -> float:
    """Return how long the longest sampled queue takes to drain, in ns."""
    if not len(ports.t_ns):
        return 0.0
    rate_bps = np.array([queue.rate_bps for queue in testbed.queues], dtype=np.float64)
    return float((np.maximum(ports.qlen_bytes, 0) * 8e9 / rate_bps).max(initial=0.0))


def _slow(
    testbed: Testbed,
    schedule: Schedule,
    ends: FlowEnds,
    judged: NDArray[np.bool_],
    accepted: Floats,
) -> NDArray[np.bool_]:
    """Return which flows lost nothing, were never paused, and received shares like the others."""
    if testbed.switch is not None:  # a pause may have stopped them
        return np.zeros(len(schedule), dtype=bool)
    hosts = len(testbed.hosts)
    got = np.bincount(schedule.dst, np.where(judged, accepted, 0.0), hosts)
    mean = got / np.maximum(np.bincount(schedule.dst, judged, hosts), 1)
    return np.asarray((accepted >= SIMILAR * mean[schedule.dst]) & (ends.retransmits == 0))


def _findings(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, shares: Shares
) -> Iterator[Reason]:
    starved = shares.starved
    if not starved.any():
        return
    by_host = np.bincount(schedule.dst, starved, len(testbed.hosts))
    host = int(np.argmax(by_host))
    there = shares.judged & (schedule.dst == host)
    got, fair = shares.accepted[there], shares.fair[there]
    name = testbed.hosts[host]
    where = ", ".join(testbed.ports[nic.peer].label for nic in testbed.ports_of[name])
    squares = float((got**2).sum())
    jain = f"{got.sum() ** 2 / len(got) / squares:.2f}" if squares else "none: all got 0"
    begin_ns, stop_ns = trial.measured_ns
    others = int(np.count_nonzero(by_host)) - 1
    more = f"; so did flows to {others} more {'host' if others == 1 else 'hosts'}" if others else ""
    timeout = format_duration(trial.host.roce.timeout_ns) if trial.host.roce else ""
    yield Reason(
        "flows-starved",
        "warning" if trial.allow_starvation else "invalid",
        f"{int(by_host[host])} of {len(got)} flows that last as long as the trial received less "
        f"than {STARVED_BELOW:.0%} of their fair share at {where}, the port to {name}: in "
        f"{format_duration(stop_ns - begin_ns)} the minimum is {format_size(float(got.min()))}, "
        f"the mean {format_size(float(got.mean()))}, and a fair share at least "
        f"{format_size(float(fair.mean()))} (Jain's index {jain}){more}. Look at drops and pauses "
        f"there, at the buffer and its thresholds, and at roce.timeout ({timeout}), for which a "
        "flow waits after a loss that no later packet reveals"
        + ("" if trial.allow_starvation else "; allow_starvation: true makes it a result"),
    )


def _fair_bps(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: FlowEnds, roce: RoceSpec
) -> Floats:
    """Return the fair share of long-lived flows as payload in bit/s, (flows,)."""
    begin_ns, stop_ns = trial.measured_ns
    long_lived = ends.status == LONG_LIVED
    ended = (ends.status == DONE) & (ends.end_ns <= begin_ns)
    finite = ~long_lived & (schedule.start_ns < stop_ns) & ~ended
    packet = roce.payload_bytes + HEADER_BYTES + roce.telemetry_bytes + testbed.framing_bytes
    fabric = PossiblePorts(testbed)
    count = fabric.per_port(schedule, long_lived.astype(np.float64))
    taken = fabric.per_port(schedule, np.where(finite, schedule.size_bytes, 0.0))
    rate_bps = np.array([port.rate_bps for port in testbed.ports], dtype=np.float64)
    payload_bps = rate_bps * roce.payload_bytes / packet
    left_bps = np.maximum(payload_bps - taken * 8e9 / (stop_ns - begin_ns), 0.0)
    fair_bps = fabric.minimum(schedule, left_bps / np.maximum(count, 1.0))
    return np.minimum(
        fair_bps * class_weights(trial, testbed, schedule), max_rate_bps(testbed, roce)
    )


def class_weights(trial: TrialSpec, testbed: Testbed, schedule: Schedule) -> Floats:
    """Return the share of a port of each flow's traffic class when all classes have packets."""
    if not testbed.classes:
        return np.ones(len(schedule))
    total = sum(klass.weight for klass in testbed.classes)
    patterns = [
        testbed.classes[testbed.class_index(spec.queue_class)].weight / total
        for spec in trial.traffic
    ]
    return np.array(patterns)[schedule.klass]


def max_rate_bps(testbed: Testbed, roce: RoceSpec) -> float:
    """Return the highest rate that a flow may have by its window and its congestion control."""
    window, max_bps = window_bytes(testbed, roce), math.inf
    if window:
        max_bps = window * 8e9 / base_rtt_ns(testbed)
    if roce.control == "dcqcn":
        mbps = roce.parameters["rpg_max_rate"]
    else:
        mbps = roce.control_values.get("rate", 0)
    return min(max_bps, mbps * 1e6) if mbps else max_bps


def _grouped(keys: Ints) -> dict[int, Ints]:
    """Return the indices at which each value stands, by the value."""
    order = np.argsort(keys, kind="stable")
    values, first = np.unique(keys[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, first[1:]), strict=True))


class PossiblePorts:
    """The ports by which packets between hosts may leave, on all equal paths."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._hops = next_hops(testbed)
        groups = [attachment(testbed, host) for host in testbed.hosts]
        self._groups: list[_Group] = list(dict.fromkeys(groups))
        group_index = {group: index for index, group in enumerate(self._groups)}
        self._group = np.array([group_index[group] for group in groups])
        self._nics = [[port.index for port in testbed.ports_of[host]] for host in testbed.hosts]
        self._last = [[port.peer for port in testbed.ports_of[host]] for host in testbed.hosts]
        self._between: dict[int, list[int]] = {}

    def per_port(self, schedule: Schedule, values: Floats) -> Floats:
        """Return the sum over all flows that may leave by a port, (ports,)."""
        total = np.zeros(len(self._testbed.ports))
        for hosts, ports_of in ((schedule.src, self._nics), (schedule.dst, self._last)):
            sums = np.bincount(hosts, values, len(ports_of))
            for host in np.flatnonzero(sums).tolist():
                total[ports_of[host]] += sums[host]
        sums = np.bincount(self._pairs(schedule), values)
        for pair in np.flatnonzero(sums).tolist():
            total[self._inner(pair)] += sums[pair]
        return total

    def minimum(self, schedule: Schedule, values: Floats) -> Floats:
        """Return the minimum of the values of the ports by which each flow may leave, (flows,)."""
        pairs = self._pairs(schedule)
        inner = np.full(len(self._groups) ** 2, math.inf)
        for pair in np.unique(pairs).tolist():
            inner[pair] = values[self._inner(pair)].min(initial=math.inf)
        near = np.array([values[ports].min() for ports in self._nics])
        far = np.array([values[ports].min() for ports in self._last])
        ends = np.minimum(near[schedule.src], far[schedule.dst])
        return np.asarray(np.minimum(ends, inner[pairs]), dtype=np.float64)

    def of_flow(self, schedule: Schedule, flow: int) -> list[int]:
        """Return the ports by which a flow may leave: its hosts' own, and those between."""
        src, dst = int(schedule.src[flow]), int(schedule.dst[flow])
        pair = int(self._group[src]) * len(self._groups) + int(self._group[dst])
        return [*self._nics[src], *self._last[dst], *self._inner(pair)]

    def users(self, schedule: Schedule) -> dict[int, Ints]:
        """Return the flows that may leave by each port, by the port's index."""
        users: dict[int, Ints] = {}
        for hosts, ports_of in ((schedule.src, self._nics), (schedule.dst, self._last)):
            for host, flows in _grouped(hosts).items():
                users |= dict.fromkeys(ports_of[host], flows)
        between: dict[int, list[Ints]] = {}
        for pair, flows in _grouped(self._pairs(schedule)).items():
            for port in self._inner(pair):
                between.setdefault(port, []).append(flows)
        return users | {port: np.concatenate(flows) for port, flows in between.items()}

    def _pairs(self, schedule: Schedule) -> Ints:
        src, dst = self._group[schedule.src], self._group[schedule.dst]
        return np.asarray(src * len(self._groups) + dst, dtype=np.int64)

    def _inner(self, pair: int) -> list[int]:
        """Return the ports between the switches of two groups of hosts."""
        if pair not in self._between:
            src, dst = (self._groups[index] for index in divmod(pair, len(self._groups)))
            inner: set[int] = set()
            for target in dst:
                todo = [name for name in src if name != target]
                seen = set(todo)
                while todo:
                    ports: Mapping[str, tuple[Port, ...]] = self._hops[todo.pop()]
                    for port in ports.get(target, ()):
                        inner.add(port.index)
                        name = self._testbed.ports[port.peer].device
                        if name != target and name not in seen:
                            seen.add(name)
                            todo.append(name)
            self._between[pair] = sorted(inner)
        return self._between[pair]
