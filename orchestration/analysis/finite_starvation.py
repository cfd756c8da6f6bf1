"""Starvation of flows that end: which took ten times as long as a fair share of their ports allows.

A flow that ends says by its completion time what it received: its size. Its fair share is the
integral, over the time that it took, of the least equal share among all ports by which its packets
may leave, as if all flows that were active and may use such a port did so, whatever ECMP or load
balancing chose. That is a lower bound: what others do not take is not counted. A traffic class has
the share of its weight, and no flow has more than its window or its congestion control allows.

Of flows of fewer than `MIN_PACKETS` a single loss decides, and slowdowns show them; they are not
judged, and neither is a flow without competitors. A flow that lost nothing, could not be paused and
was at least half as fast as those to the same host meanwhile was slowed down by its congestion
control alone, which is a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from inventory.routing import base_rtt_ns, roce_flows
from orchestration.analysis.load import FlowEnds
from orchestration.analysis.starvation import (
    MIN_PACKETS,
    MIN_ROUND_TRIPS,
    SIMILAR,
    STARVED_BELOW,
    PossiblePorts,
    class_weights,
    longest_wait_ns,
    max_rate_bps,
)
from orchestration.core.records import DONE, Floats, Ints, Samples, Schedule
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_duration, format_size
from orchestration.results.stamp import Reason
from traffic.delivery import payload_rates_bps

# Single flows among many are what slowdowns are for: at least this part of the judged ones starves.
_MIN_PART = 0.05
# At most so many flows are examined, first those that are slowest for their links' rates; and at so
# many times it is counted who competes with one.
_MAX_FLOWS, _TIMES = 200, 256


def check_finite_starvation(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: FlowEnds, ports: Samples
) -> Iterator[Reason] | None:
    """Find that a twentieth or more of the flows that ended got less than a tenth of their share.

    Returns None where that cannot be checked: if no flow competed for long enough, or if links fail
    on purpose.
    """
    if trial.faults:
        return None
    begin_ns, stop_ns = trial.measured_ns
    took_ns = np.where(ends.status == DONE, ends.end_ns - schedule.start_ns, 0)
    packet = np.full(len(schedule), testbed.mss_bytes)
    if trial.host.roce is not None and trial.traffic:
        packet[roce_flows(testbed, trial, schedule)] = trial.host.roce.payload_bytes
    min_ns = (
        MIN_ROUND_TRIPS * base_rtt_ns(testbed) + longest_wait_ns(testbed, ports) / STARVED_BELOW
    )
    judged = (ends.status == DONE) & (took_ns >= min_ns)
    judged &= schedule.size_bytes >= MIN_PACKETS * packet
    judged &= (schedule.start_ns >= begin_ns) & (schedule.start_ns < stop_ns)
    if not judged.any():
        return None
    return _findings(trial, testbed, schedule, ends, judged)


def _findings(
    trial: TrialSpec,
    testbed: Testbed,
    schedule: Schedule,
    ends: FlowEnds,
    judged: NDArray[np.bool_],
) -> Iterator[Reason]:
    competition = _Competition(trial, testbed, schedule, ends)
    starved = []
    for flow in competition.slowest(judged):
        fair = competition.fair_bytes(flow)
        if schedule.size_bytes[flow] < STARVED_BELOW * fair and not competition.is_slow(flow):
            starved.append((flow, fair))
    if len(starved) < max(1, _MIN_PART * np.count_nonzero(judged)):
        return
    flow, fair = max(starved, key=lambda item: item[1] / schedule.size_bytes[item[0]])
    took_ns = int(ends.end_ns[flow] - schedule.start_ns[flow])
    src, dst = testbed.hosts[schedule.src[flow]], testbed.hosts[schedule.dst[flow]]
    yield Reason(
        "finite-flows-starved",
        "warning",
        f"{len(starved)} of {np.count_nonzero(judged)} flows that ended and are long enough to "
        f"judge received less than {STARVED_BELOW:.0%} of their fair share meanwhile: flow {flow}, "
        f"{format_size(float(schedule.size_bytes[flow]))} from {src} to {dst}, took "
        f"{format_duration(took_ns)}, in which a fair share is {format_size(fair)} or more. Look "
        "at the rate that its congestion control allowed, and at timeouts, drops and pauses",
    )


class _Competition:
    """When which flows competed for which ports."""

    def __init__(
        self, trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: FlowEnds
    ) -> None:
        self._testbed, self._schedule = testbed, schedule
        self._retransmits = ends.retransmits
        self._start: Ints = schedule.start_ns
        over_ns = trial.duration_ns + trial.drain_ns
        self._end: Ints = np.where(ends.status == DONE, ends.end_ns, over_ns)
        self._ports = PossiblePorts(testbed)
        self._sorted: dict[int, tuple[Ints, Ints]] = {}
        self._weights = class_weights(trial, testbed, schedule)
        roce = trial.host.roce
        self._max_bps = np.full(len(schedule), np.inf)
        if roce is not None and trial.traffic:
            of_roce = roce_flows(testbed, trial, schedule)
            self._max_bps[of_roce] = max_rate_bps(testbed, roce)
        # the payload that a port carries, by the share of payload in TCP's full packets
        lines_bps = [testbed.host_rate_bps(host) for host in testbed.hosts]
        self._payload = float((payload_rates_bps(testbed) / np.array(lines_bps)).min())

    @cached_property
    def _users(self) -> dict[int, Ints]:
        return self._ports.users(self._schedule)

    def slowest(self, judged: NDArray[np.bool_]) -> list[int]:
        """Return flows that may starve, first those that are slowest for their links' rates."""
        lines_bps = np.array([self._testbed.host_rate_bps(host) for host in self._testbed.hosts])
        fastest = np.minimum(lines_bps[self._schedule.src], lines_bps[self._schedule.dst])
        took_ns = np.maximum(self._end - self._start, 1)
        part = self._schedule.size_bytes * 8e9 / took_ns / fastest
        flows = np.flatnonzero(judged & (part < STARVED_BELOW))
        found: list[int] = flows[np.argsort(part[flows], kind="stable")][:_MAX_FLOWS].tolist()
        return found

    def fair_bytes(self, flow: int) -> float:
        """Return the fair share of a flow in bytes, 0 if it had no competitors."""
        begin, end = int(self._start[flow]), int(self._end[flow])
        t_ns = begin + (np.arange(_TIMES) + 0.5) * ((end - begin) / _TIMES)
        min_bps = np.full(_TIMES, np.inf)
        competed = False
        for port in self._ports.of_flow(self._schedule, flow):
            starts, stops = self._active(port)
            active = np.searchsorted(starts, t_ns, "right") - np.searchsorted(stops, t_ns, "right")
            competed |= bool((active > 1).any())
            rate_bps = self._testbed.ports[port].rate_bps * self._payload
            min_bps = np.minimum(min_bps, rate_bps / np.maximum(active, 1))
        min_bps = np.minimum(min_bps * self._weights[flow], self._max_bps[flow])
        return float(min_bps.mean()) * (end - begin) / 8e9 if competed else 0.0

    def is_slow(self, flow: int) -> bool:
        """Return whether only its own congestion control can have slowed a flow down."""
        if self._testbed.switch is not None or self._retransmits[flow] != 0:
            return False
        last = self._testbed.ports_of[self._testbed.hosts[self._schedule.dst[flow]]][0].peer
        same = self._users[last]
        same = same[(self._start[same] < self._end[flow]) & (self._end[same] > self._start[flow])]
        took_ns = np.maximum(self._end[same] - self._start[same], 1)
        rates: Floats = self._schedule.size_bytes[same] / took_ns
        own = self._schedule.size_bytes[flow] / (self._end[flow] - self._start[flow])
        return bool(own >= SIMILAR * np.median(rates))

    def _active(self, port: int) -> tuple[Ints, Ints]:
        """Return when flows that may leave by a port start and end, each sorted."""
        if port not in self._sorted:
            users = self._users[port]
            self._sorted[port] = np.sort(self._start[users]), np.sort(self._end[users])
        return self._sorted[port]
