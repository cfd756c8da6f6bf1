"""Incasts: many hosts send to one at the same time, once in every period."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from orchestration.core.pattern import START, STOP, Expected, Flows, PatternSpec, Streams, given
from orchestration.core.topology import Testbed

_DRAWS_AT_ONCE = 1_000_000
# The time to draw an incast on one core, in s for each host of the testbed.
_DRAW_S = 1e-7


@dataclass(frozen=True)
class IncastSpec(PatternSpec):
    """N hosts send to one at the same moment, once in every period.

    `receiver` is a host's name; "" means that the trial's seed draws a host for each period.
    """

    fan_in: int = field(metadata=given("how many hosts send to one, like 16", "senders"))
    size_bytes: int = field(metadata=given("bytes of each flow, like 64KB", "positive"))
    period_ns: int = field(metadata=given("time from one to the next, like 2ms", "positive"))
    start_ns: int = field(metadata=START)
    stop_ns: int = field(metadata=STOP)
    receiver: str = field(
        default="", metadata=given("the receiving host; without it one is drawn each time", "host")
    )
    kind: ClassVar = "incast"
    incasts: ClassVar = True
    sized_by: ClassVar = (
        "period",
        "makes {flows:,.0f} flows",
        "use a longer period or a shorter window",
    )

    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return the incasts: `fan_in` flows at `start_ns` and after every period.

        For each period, distinct senders are drawn. A smaller `fan_in` has a subset of them.
        """
        starts = np.arange(self.start_ns, self.stop_ns, self.period_ns, dtype=np.int64)
        hosts = len(testbed.hosts)
        receiver = np.empty(len(starts), dtype=np.int64)
        senders = np.empty((len(starts), self.fan_in), dtype=np.int64)
        # in parts, because in a large fabric there are many more draws than flows
        rows = max(1, _DRAWS_AT_ONCE // hosts)
        for part in (slice(at, at + rows) for at in range(0, len(starts), rows)):
            # One row of draws per event: the first picks a receiver, the others rank senders.
            draws = streams.hosts.random((len(starts[part]), 1 + hosts))
            receiver[part] = (draws[:, 0] * hosts).astype(np.int64)
            if self.receiver:
                receiver[part] = testbed.hosts.index(self.receiver)
            rank = draws[:, 1:]
            rank[np.arange(len(rank)), receiver[part]] = np.inf
            senders[part] = np.argsort(rank, axis=1, kind="stable")[:, : self.fan_in]
        return Flows(
            start_ns=np.repeat(starts, self.fan_in),
            src=senders.ravel(),
            dst=np.repeat(receiver, self.fan_in),
            size_bytes=np.full(senders.size, self.size_bytes, dtype=np.int64),
        )

    def expected(self, testbed: Testbed) -> Expected:
        """Return the exact number of flows and their payload."""
        flows = -(-max(0, self.stop_ns - self.start_ns) // self.period_ns) * self.fan_in
        return Expected(flows, flows * self.size_bytes)

    def drawing_s(self, testbed: Testbed) -> float:
        """Return the time to draw all incasts, in s."""
        events = (self.stop_ns - self.start_ns) / self.period_ns
        return events * len(testbed.hosts) * _DRAW_S
