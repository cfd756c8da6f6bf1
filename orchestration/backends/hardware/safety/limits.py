"""The limits of a trial on a rack: its guardrails, and how often a setting may change.

Guardrails bound the drops, the pauses and the throughput of the rack's ports. A trial that crosses
one ends, and the rack is restored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inventory.rack import Guardrails
from orchestration.core.errors import TrialError
from orchestration.core.knobs import Knob
from orchestration.core.records import Change, Ints, Observation
from orchestration.core.topology import Testbed

# One drop among three packets proves nothing: drops are not judged for a port with fewer packets in
# a window.
MIN_PACKETS = 100


class GuardrailCrossed(TrialError):  # noqa: N818 (names what is so)
    """Drops, pauses or throughput have crossed a guardrail."""


@dataclass(frozen=True)
class PortCounters:
    """Cumulative counters of all switch ports at one time, shapes (ports,)."""

    sent_packets: Ints
    dropped_packets: Ints
    sent_bytes: Ints
    paused_ns: Ints


class CircuitBreaker:
    """Ends a trial, by an error, if a time window crosses a guardrail.

    A window ends with each reading and begins with the latest reading that is at least
    `guardrails.window_s` older, so that no bad window is missed. A value equal to a bound is
    allowed.
    """

    def __init__(self, guardrails: Guardrails, ports: Sequence[str]) -> None:
        self._guardrails = guardrails
        self._ports = tuple(ports)
        self._window_ns = round(guardrails.window_s * 1e9)
        self._readings: deque[tuple[int, PortCounters]] = deque()
        self._busiest_bps = 0.0

    def feed(self, t_ns: int, counters: PortCounters, *, offered: bool = True) -> None:
        """Check a reading of all ports. Raises GuardrailCrossed with the port, value and bound.

        `offered` says whether traffic is still offered: throughput is not judged when all flows
        have been sent. If counters went backwards (a port was reset), windows start anew.
        """
        if self._readings and _went_back(self._readings[-1][1], counters):
            self._readings.clear()
        self._readings.append((t_ns, counters))
        while len(self._readings) > 1 and t_ns - self._readings[1][0] >= self._window_ns:
            self._readings.popleft()
        start_ns, start = self._readings[0]
        if t_ns - start_ns < self._window_ns:
            return
        self._judge_shares(start, counters, t_ns - start_ns)
        self._judge_throughput(start, counters, t_ns - start_ns, offered)

    def _judge_shares(self, start: PortCounters, end: PortCounters, elapsed_ns: int) -> None:
        dropped = end.dropped_packets - start.dropped_packets
        packets = end.sent_packets - start.sent_packets + dropped
        share = dropped / np.maximum(packets, 1)
        share[packets < MIN_PACKETS] = 0.0
        self._judge(share, self._guardrails.max_drop_share, "dropped", "of its packets")
        share = (end.paused_ns - start.paused_ns) / elapsed_ns
        self._judge(share, self._guardrails.max_pause_share, "was paused for", "of the time")

    def _judge(self, share: np.ndarray, bound: float, verb: str, unit: str) -> None:
        if not len(share):
            return
        worst = int(np.argmax(share))
        if share[worst] > bound:
            raise self._crossed(
                f"port {self._ports[worst]} {verb} {share[worst]:.1%} {unit} within "
                f"{self._guardrails.window_s:g} s; the limit is {bound:.1%}"
            )

    def _judge_throughput(
        self, start: PortCounters, end: PortCounters, elapsed_ns: int, offered: bool
    ) -> None:
        rate_bps = float((end.sent_bytes - start.sent_bytes).sum()) * 8e9 / elapsed_ns
        self._busiest_bps = max(self._busiest_bps, rate_bps)
        bound = self._guardrails.min_throughput_share
        if offered and rate_bps < bound * self._busiest_bps:
            raise self._crossed(
                f"all ports together sent {rate_bps / 1e6:.1f} Mbit/s within "
                f"{self._guardrails.window_s:g} s, {rate_bps / self._busiest_bps:.1%} of the "
                f"busiest window so far; the limit is {bound:.1%}"
            )

    @staticmethod
    def _crossed(event: str) -> GuardrailCrossed:
        return GuardrailCrossed(
            f"the circuit breaker ended the trial: {event}",
            "look at the thresholds that were set before, in actions.parquet; the limits are in "
            "closloop_safety.corridor in the inventory",
        )


class GuardrailMonitor:
    """Feeds observations to the circuit breaker.

    Numbers that a switch does not offer count as 0, which crosses no guardrail.
    """

    def __init__(self, testbed: Testbed, guardrails: Guardrails) -> None:
        ports = [queue.index for queue in testbed.queues]
        self._ports, self._port_of = np.unique(np.array(ports), return_inverse=True)
        labels = [testbed.ports[int(index)].label for index in self._ports]
        self._breaker = CircuitBreaker(guardrails, labels)

    def feed(self, t_ns: int, observation: Observation, paused_ns: Ints, offered: bool) -> None:
        """Check a reading. Raises GuardrailCrossed."""
        counters = PortCounters(
            sent_packets=self._by_port(np.add, observation.tx_packets),
            dropped_packets=self._by_port(np.add, observation.dropped_packets),
            sent_bytes=self._by_port(np.add, observation.tx_bytes),
            # a port's queues are paused together here, so one of them stands for all
            paused_ns=self._by_port(np.maximum, paused_ns),
        )
        self._breaker.feed(t_ns, counters, offered=offered)

    def _by_port(self, join: np.ufunc, values: Ints) -> Ints:
        result = np.zeros(len(self._ports), dtype=np.int64)
        join.at(result, self._port_of, np.maximum(values, 0))
        return result


def _went_back(before: PortCounters, now: PortCounters) -> bool:
    return any(
        bool((getattr(now, name) < getattr(before, name)).any())
        for name in ("sent_packets", "dropped_packets", "sent_bytes", "paused_ns")
    )


_NEVER_NS = np.iinfo(np.int64).min // 2


class ChangeLimiter:
    """Lets each of a knob's `count` targets change at most once in `min_interval_ns`.

    A change that comes too early waits; a later change of the same target replaces it.

    `held_back` counts changes that had to wait. `superseded` counts those of them that a later
    change replaced before they took effect. Setting a target to its current value is no change.
    """

    def __init__(self, knob: Knob, count: int, min_interval_ns: int) -> None:
        self._knob = knob
        self._interval_ns = min_interval_ns
        self._changed_ns = np.full(count, _NEVER_NS, dtype=np.int64)
        self._set = np.full((len(knob.columns), count), np.nan)
        self._waiting_values = self._set.copy()
        self._waits = np.zeros(count, dtype=bool)
        self.held_back = 0
        self.superseded = 0

    def submit(self, change: Change, now_ns: int) -> Change:
        """Take a tuner's change; return what may be set now, with waiting changes that are due.

        Values are not checked here: the loop has checked their bounds.
        """
        queues = change.targets
        values = np.stack([change[name] for name in self._knob.column_names]).astype(np.float64)
        waited = self._waits[queues]
        repeated = waited & (self._waiting_values[:, queues] == values).all(axis=0)
        self.superseded += int((waited & ~repeated).sum())
        self._waiting_values[:, queues] = values
        self._waits[queues] = ~(self._set[:, queues] == values).all(axis=0)
        ready = self.due(now_ns)
        self.held_back += int((self._waits[queues] & ~repeated).sum())
        return ready

    def due(self, now_ns: int) -> Change:
        """Remove and return the waiting changes that may be made now."""
        allowed = self._waits & (now_ns - self._changed_ns >= self._interval_ns)
        queues = np.flatnonzero(allowed)
        values = self._waiting_values[:, queues]
        self._set[:, queues] = values
        self._changed_ns[queues] = now_ns
        self._waits[queues] = False
        columns = zip(self._knob.columns, values, strict=True)
        return self._knob.change(queues, *(row.astype(column.dtype) for column, row in columns))
