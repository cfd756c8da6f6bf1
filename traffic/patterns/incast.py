"""Incasts: many hosts send to one at the same time, once in every period or at random times.

Random ones repeat figure 11a of HPCC (Li et al., SIGCOMM 2019, section 5.1): beside other traffic,
60 senders send 500 KB each to one receiver. The paper does not say when. Its author does, in issue
36 of alibaba-edu/High-Precision-Congestion-Control: incasts arrive as a Poisson process, their mean
interval follows from a load of 2 % of the network's capacity, and each picks its hosts at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from orchestration.core.pattern import (
    START,
    STOP,
    CampaignContext,
    Expected,
    Flows,
    Streams,
    given,
)
from orchestration.core.problems import Problem
from orchestration.core.records import Floats, Ints
from orchestration.core.topology import Testbed
from traffic.arrivals import OfferedLoad, poisson_times

_DRAWS_AT_ONCE = 1_000_000
# The time to draw an incast on one core, in s for each host of the testbed.
_DRAW_S = 1e-7
_NEVER_NS = 10**18

Arrivals = Literal["periodic", "poisson"]
PERIODIC: Arrivals = "periodic"
POISSON: Arrivals = "poisson"


@dataclass(frozen=True)
class IncastSpec(OfferedLoad):
    """N hosts send to one at the same moment: once in every period, or as a Poisson process.

    `receiver` is a host's name; "" means that the trial's seed draws a host for each incast. The
    time from one incast to the next is `period_ns`, or, if that is 0, what offers `load`. With
    `arrivals` "poisson" it is the mean, and times are drawn from the exponential distribution.
    """

    fan_in: int = field(metadata=given("how many hosts send to one, like 16", "senders"))
    size_bytes: int = field(metadata=given("bytes of each flow, like 64KB", "positive"))
    period_ns: int = field(
        metadata=given(
            "time from one to the next, like 2ms; with `arrivals: poisson` its mean",
            "positive",
            default=None,
        )
    )
    start_ns: int = field(metadata=START)
    stop_ns: int = field(metadata=STOP)
    receiver: str = field(
        default="", metadata=given("the receiving host; without it one is drawn each time", "host")
    )
    load: float = field(
        default=0.0,
        metadata=given(
            "instead of period: offered payload as a share of the hosts' line rate, or of the "
            "receiver's if it is given, like 0.02",
            "share",
            default=None,
        ),
    )
    arrivals: Arrivals = field(
        default=PERIODIC, metadata=given("when they begin: once in a period, or at random times")
    )
    kind: ClassVar = "incast"
    incasts: ClassVar = True
    newer: ClassVar = ("load", "arrivals")
    sized_by: ClassVar = (
        "period",
        "makes {flows:,.0f} flows",
        "use a longer period, a smaller load, or a shorter window",
    )

    def interval_ns(self, testbed: Testbed) -> float:
        """Return the time from one incast to the next, or its mean, in ns."""
        if self.period_ns or not self.load:  # without both, which `impossible` reports, none begins
            return self.period_ns or _NEVER_NS
        return self.fan_in * self.size_bytes * 8e9 / (self.load * self.capacity_bps(testbed))

    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return the incasts, of `fan_in` flows each.

        For each incast, distinct senders are drawn. A smaller `fan_in` has a subset of them.
        """
        starts = self._starts(testbed, streams)
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

    def _starts(self, testbed: Testbed, streams: Streams) -> Ints:
        """Return the times in ns at which incasts begin, shape (incasts,), sorted."""
        interval_ns = self.interval_ns(testbed)
        if self.arrivals == POISSON:
            window_ns = self.stop_ns - self.start_ns
            return self.start_ns + poisson_times(1 / interval_ns, window_ns, streams.times)
        return np.arange(self.start_ns, self.stop_ns, _whole(interval_ns), dtype=np.int64)

    def expected(self, testbed: Testbed) -> Expected:
        """Return the number of flows and their payload: exact, or means if times are drawn."""
        window_ns, interval_ns = max(0, self.stop_ns - self.start_ns), self.interval_ns(testbed)
        events = window_ns / interval_ns
        if self.arrivals == PERIODIC:
            events = -(-window_ns // _whole(interval_ns))
        return Expected(events * self.fan_in, events * self.fan_in * self.size_bytes)

    def drawing_s(self, testbed: Testbed) -> float:
        """Return the time to draw all incasts, in s."""
        events = (self.stop_ns - self.start_ns) / self.interval_ns(testbed)
        return events * len(testbed.hosts) * _DRAW_S

    def quantiles(self, at: Floats) -> Floats:
        """Return the bytes of an incast, all of which go through its receiver's link."""
        return np.array([self.fan_in * self.size_bytes], dtype=np.float64)

    def impossible(self, testbed: Testbed) -> str:
        """Return why the incasts have no interval, or two of them; "" if they have one."""
        if bool(self.period_ns) == bool(self.load):
            return "an incast has either a period or a load: give one of the two"
        return ""

    @classmethod
    def faults(cls, fields: Mapping[str, Any], context: CampaignContext) -> Iterator[Problem]:
        """Report incasts without an interval, or with two."""
        period_ns, load = fields.get("period_ns", 0), fields.get("load", 0)
        if period_ns is None and load is None:
            remedy = "add period: 2ms, the time from one to the next, or load: 0.02"
            yield Problem("", "nothing says how often an incast begins", remedy)
        elif period_ns and load:
            what = "both 'period' and 'load' say how often an incast begins"
            yield Problem("load", what, "keep one of the two")


def _whole(interval_ns: float) -> int:
    return max(1, round(interval_ns))
