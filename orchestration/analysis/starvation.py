"""Flows that starve: they last as long as the trial and get next to nothing of a port they share.

A flow that finishes says by its completion time what it got, and one that does not makes a trial
invalid. A flow that lasts says neither, so that its trial needs a look at what it got.

The share that a flow could have is a lower bound: equal shares of every port that its packets may
leave by, as if all flows that may leave there did so, whatever hash or balancing chose. What finite
flows carry is taken off first; a traffic class has its weight's part; and no flow has more than its
window or its congestion control's highest rate allow.

A congestion control that is slow by itself does not starve its flows: where nothing was lost and
no pause can have stopped them, and all flows to a host fare alike, it is what is measured.
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

# A flow that gets less than this part of its share starves.
STARVED_BELOW = 0.1
# A flow is judged if it sends for so many round trips of an idle fabric, and could send so many
# packets: before, a start or a single loss decides what it gets. A wait in the longest queue may
# take no more than `STARVED_BELOW` of that time: what waits there is not withheld.
_MIN_ROUND_TRIPS, _MIN_PACKETS = 100, 100
# Flows fare alike if none of them gets less than this part of their mean.
_ALIKE = 0.5

_Group = tuple[str, ...]


@dataclass(frozen=True)
class Shares:
    """What flows that last got and could have got, arrays (flows,) of the schedule; in bytes.

    `judged` are those that sent for long enough and whose `accepted` is known; `slow` those that
    nothing but their own congestion control can have held back.
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
    """Find flows that last and got less than a tenth of their share.

    Returns None where that cannot be judged: no flow lasts or was read, or links fail on purpose.
    """
    shares = measure_shares(trial, testbed, schedule, ends, ports)
    return _findings(trial, testbed, schedule, shares) if shares is not None else None


def measure_shares(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: FlowEnds, ports: Samples
) -> Shares | None:
    """Return the shares of flows that last; None as `check_starvation`."""
    roce, lasting = trial.host.roce, ends.status == LONG_LIVED
    if roce is None or trial.faults or not lasting.any():
        return None
    begin_ns, stop_ns = trial.measured_ns
    accepted = measure_delivered(trial, testbed, schedule, ends, ports).accepted
    sends_ns = np.clip(stop_ns - np.maximum(schedule.start_ns, begin_ns), 0, None)
    fair = _fair_bps(trial, testbed, schedule, ends, roce) * sends_ns / 8e9
    judged = lasting & np.isfinite(accepted)
    min_ns = (
        _MIN_ROUND_TRIPS * base_rtt_ns(testbed) + _longest_wait_ns(testbed, ports) / STARVED_BELOW
    )
    judged &= sends_ns >= min_ns
    judged &= fair >= _MIN_PACKETS * roce.payload_bytes
    if not judged.any():
        return None
    return Shares(judged, accepted, fair, _slow(testbed, schedule, ends, judged, accepted))


def _longest_wait_ns(testbed: Testbed, ports: Samples) -> float:
    """Return for how long the fullest queue of any port's samples takes to send what it held."""
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
    """Return which flows lost nothing, were never paused, and fare as the others to their host."""
    if testbed.switch is not None:  # a pause may have stopped them
        return np.zeros(len(schedule), dtype=bool)
    hosts = len(testbed.hosts)
    got = np.bincount(schedule.dst, np.where(judged, accepted, 0.0), hosts)
    mean = got / np.maximum(np.bincount(schedule.dst, judged, hosts), 1)
    return np.asarray((accepted >= _ALIKE * mean[schedule.dst]) & (ends.retransmits == 0))


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
    more = f"; likewise flows to {others} more hosts" if others else ""
    timeout = format_duration(trial.host.roce.timeout_ns) if trial.host.roce else ""
    yield Reason(
        "flows-starved",
        "warning" if trial.allow_starvation else "invalid",
        f"{int(by_host[host])} of {len(got)} flows that last as long as the trial got less than "
        f"{STARVED_BELOW:.0%} of their share at {where}, the port to {name}: in "
        f"{format_duration(stop_ns - begin_ns)} the least {format_size(float(got.min()))}, the "
        f"mean {format_size(float(got.mean()))}, an equal share at least "
        f"{format_size(float(fair.mean()))} (Jain's index {jain}){more}. Look at drops and pauses "
        f"there, at the buffer and its thresholds, and at roce.timeout ({timeout}), for which a "
        "flow is silent after a loss that no later packet shows"
        + ("" if trial.allow_starvation else "; allow_starvation: true makes it a result"),
    )


def _fair_bps(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: FlowEnds, roce: RoceSpec
) -> Floats:
    """Return the payload that flows that last can count on, (flows,) in bit/s."""
    begin_ns, stop_ns = trial.measured_ns
    lasting = ends.status == LONG_LIVED
    over = (ends.status == DONE) & (ends.end_ns <= begin_ns)
    finite = ~lasting & (schedule.start_ns < stop_ns) & ~over
    packet = roce.payload_bytes + HEADER_BYTES + roce.telemetry_bytes + testbed.framing_bytes
    fabric = _Fabric(testbed)
    count = fabric.per_port(schedule, lasting.astype(np.float64))
    taken = fabric.per_port(schedule, np.where(finite, schedule.size_bytes, 0.0))
    rate_bps = np.array([port.rate_bps for port in testbed.ports], dtype=np.float64)
    payload_bps = rate_bps * roce.payload_bytes / packet
    left_bps = np.maximum(payload_bps - taken * 8e9 / (stop_ns - begin_ns), 0.0)
    fair_bps = fabric.minimum(schedule, left_bps / np.maximum(count, 1.0))
    return np.minimum(fair_bps * _weights(trial, testbed, schedule), _max_bps(testbed, roce))


def _weights(trial: TrialSpec, testbed: Testbed, schedule: Schedule) -> Floats:
    """Return the part of a port that each flow's traffic class has when all have packets."""
    if not testbed.classes:
        return np.ones(len(schedule))
    total = sum(klass.weight for klass in testbed.classes)
    patterns = [
        testbed.classes[testbed.class_index(spec.queue_class)].weight / total
        for spec in trial.traffic
    ]
    return np.array(patterns)[schedule.klass]


def _max_bps(testbed: Testbed, roce: RoceSpec) -> float:
    """Return the highest rate that a flow may have by its window and its congestion control."""
    window, max_bps = window_bytes(testbed, roce), math.inf
    if window:
        max_bps = window * 8e9 / base_rtt_ns(testbed)
    if roce.control == "dcqcn":
        mbps = roce.parameters["rpg_max_rate"]
    else:
        mbps = roce.control_values.get("rate", 0)
    return min(max_bps, mbps * 1e6) if mbps else max_bps


class _Fabric:
    """The ports by which packets between hosts may leave, on all equal paths."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._hops = next_hops(testbed)
        groups = [attachment(testbed, host) for host in testbed.hosts]
        self._groups: list[_Group] = list(dict.fromkeys(groups))
        number = {group: place for place, group in enumerate(self._groups)}
        self._group = np.array([number[group] for group in groups])
        self._nics = [[port.index for port in testbed.ports_of[host]] for host in testbed.hosts]
        self._last = [[port.peer for port in testbed.ports_of[host]] for host in testbed.hosts]
        self._between: dict[int, list[int]] = {}

    def per_port(self, schedule: Schedule, values: Floats) -> Floats:
        """Return the sum over all flows that may leave by a port, (ports,)."""
        found = np.zeros(len(self._testbed.ports))
        for hosts, ports_of in ((schedule.src, self._nics), (schedule.dst, self._last)):
            sums = np.bincount(hosts, values, len(ports_of))
            for host in np.flatnonzero(sums).tolist():
                found[ports_of[host]] += sums[host]
        sums = np.bincount(self._pairs(schedule), values)
        for pair in np.flatnonzero(sums).tolist():
            found[self._inner(pair)] += sums[pair]
        return found

    def minimum(self, schedule: Schedule, values: Floats) -> Floats:
        """Return the least value of the ports by which each flow may leave, (flows,)."""
        pairs = self._pairs(schedule)
        inner = np.full(len(self._groups) ** 2, math.inf)
        for pair in np.unique(pairs).tolist():
            inner[pair] = values[self._inner(pair)].min(initial=math.inf)
        near = np.array([values[ports].min() for ports in self._nics])
        far = np.array([values[ports].min() for ports in self._last])
        ends = np.minimum(near[schedule.src], far[schedule.dst])
        return np.asarray(np.minimum(ends, inner[pairs]), dtype=np.float64)

    def _pairs(self, schedule: Schedule) -> Ints:
        src, dst = self._group[schedule.src], self._group[schedule.dst]
        return np.asarray(src * len(self._groups) + dst, dtype=np.int64)

    def _inner(self, pair: int) -> list[int]:
        """Return the ports between the switches of two groups of hosts."""
        if pair not in self._between:
            src, dst = (self._groups[place] for place in divmod(pair, len(self._groups)))
            found: set[int] = set()
            for target in dst:
                todo = [name for name in src if name != target]
                seen = set(todo)
                while todo:
                    ports: Mapping[str, tuple[Port, ...]] = self._hops[todo.pop()]
                    for port in ports.get(target, ()):
                        found.add(port.index)
                        name = self._testbed.ports[port.peer].device
                        if name != target and name not in seen:
                            seen.add(name)
                            todo.append(name)
            self._between[pair] = sorted(found)
        return self._between[pair]
