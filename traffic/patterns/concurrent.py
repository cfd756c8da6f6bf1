"""Many flows at the same time, of a given size or as long as the trial lasts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from orchestration.core.pattern import (
    START,
    CampaignContext,
    Expected,
    Flows,
    PatternSpec,
    Streams,
    given,
)
from orchestration.core.problems import Problem
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration


@dataclass(frozen=True)
class ConcurrentSpec(PatternSpec):
    """Many flows at the same time, each of one size or for as long as the trial lasts.

    They go from many hosts to `receiver`, or without a receiver from all hosts to all. They start
    together, at a random time within `within_ns` after `start_ns`, and each at most `spread_ns`
    later. Each sends `size_bytes`; with 0 it is long-lived, and sends for as long as the trial
    lasts. With a receiver, `senders` hosts send, drawn by the trial's seed; 0 means all others.
    """

    flows: int = field(metadata=given("how many flows, like 512", "positive"))
    size_bytes: int = field(
        metadata=given(
            "bytes of each flow; without it flows last as long as the trial",
            "positive",
            default=None,
        )
    )
    start_ns: int = field(metadata=START)
    receiver: str = field(
        default="",
        metadata=given("the host that all flows go to; without it they go from all to all", "host"),
    )
    senders: int = field(
        default=0,
        metadata=given(
            "how many hosts send to the receiver, drawn by the seed; by default all others",
            "senders",
            default=None,
        ),
    )
    within_ns: int = field(
        default=0,
        metadata=given("all flows start at a random time, at most so long after `start`"),
    )
    spread_ns: int = field(
        default=0,
        metadata=given("each flow starts later than that by a random time of at most this length"),
    )
    kind: ClassVar = "concurrent"
    sized_by: ClassVar = ("flows", "{flows:,.0f} flows are", "use fewer")

    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return the flows. A larger number of flows adds flows, and the others stay the same.

        With a receiver, flows are assigned to the senders in rotation, in a random order. From all
        to all, there are rounds in which every host sends to one other host and receives from one.
        A host sends to no host again before it has sent to all.
        """
        start_ns = self.start_ns + int(streams.times.random() * self.within_ns)
        later_ns = (streams.times.random(self.flows) * self.spread_ns).astype(np.int64)
        number, hosts = np.arange(self.flows, dtype=np.int64), len(testbed.hosts)
        if self.receiver:
            receiver = testbed.hosts.index(self.receiver)
            others = np.delete(np.arange(hosts, dtype=np.int64), receiver)
            chosen = streams.hosts.permutation(others)[: self.senders or hosts - 1]
            src = chosen[number % len(chosen)]
            dst = np.full(self.flows, receiver, dtype=np.int64)
        else:
            order = streams.hosts.permutation(hosts).astype(np.int64)
            shift = 1 + streams.hosts.permutation(hosts - 1).astype(np.int64)
            src, rounds = order[number % hosts], number // hosts
            dst = order[(number + shift[rounds % (hosts - 1)]) % hosts]
        return Flows(start_ns + later_ns, src, dst, np.full(self.flows, self.size_bytes, np.int64))

    def expected(self, testbed: Testbed) -> Expected:
        """Return the exact number of flows and their payload, after `cut` has given all a size."""
        return Expected(self.flows, self.flows * self.size_bytes)

    @property
    def lasts(self) -> bool:
        """Whether its flows have no size, and so are long-lived."""
        return not self.size_bytes

    @classmethod
    def faults(cls, fields: Mapping[str, Any], context: CampaignContext) -> Iterator[Problem]:
        """Report flows that would start too late, and senders without a receiver."""
        start_ns = fields.get("start_ns", 0)
        latest_ns = start_ns + fields.get("within_ns", 0) + fields.get("spread_ns", 0)
        duration_ns = context.duration_ns
        if duration_ns is not None and start_ns < duration_ns <= latest_ns:
            yield Problem(
                "",
                f"the last flow may start at {format_duration(latest_ns, 6)} (start, within and "
                f"spread together), after the duration of {format_duration(duration_ns, 6)}",
                "let the flows start earlier, or make the trial longer",
            )
        senders = fields.get("senders")
        if senders and fields.get("receiver") == "":
            yield Problem(
                "senders", "without a receiver all hosts send", "name a receiver, or remove it"
            )

    def cut(self, duration_ns: int, drain_ns: int, testbed: Testbed) -> Self:
        """Return the pattern with a size: a long-lived flow has what the fastest host can send."""
        latest_ns = self.start_ns + self.within_ns + self.spread_ns
        if latest_ns >= duration_ns:
            raise ValueError(
                f"the last concurrent flow may start at {latest_ns} ns, after the trial's "
                f"duration of {duration_ns} ns: let them start earlier"
            )
        if not self.lasts:
            return self
        rate_bps = max(testbed.host_rate_bps(host) for host in testbed.hosts)
        lasts_ns = duration_ns + drain_ns - self.start_ns
        return dataclasses.replace(self, size_bytes=-(-rate_bps * lasts_ns // (8 * 10**9)))
