"""Flows to one receiver from few senders and from many, in turn, at drawn times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from orchestration.core.pattern import START, STOP, Expected, Flows, PatternSpec, Streams, given
from orchestration.core.records import Ints
from orchestration.core.topology import Testbed

# What drawing a phase takes of one core.
_PHASE_S = 1.5e-4


@dataclass(frozen=True)
class Phase:
    """From `start_ns` to `end_ns` few hosts send, or many; its flows are drawn from `seed`."""

    start_ns: int
    end_ns: int
    crowded: bool
    seed: int


@dataclass(frozen=True)
class AlternatingSpec(PatternSpec):
    """Few hosts send to one, then many, then few again, in phases whose lengths are drawn.

    A phase lasts `phase_ns` on average, half of it at least and half as much again at most. The
    trial's seed draws who begins, lengths and senders. In either phase long messages offer `load`
    of the receiver's rate: few hosts send `size_bytes` each, together, again and again; many send
    one message each that lasts the phase, and begin within `spread_ns`. Once all have begun, short
    messages of `short_bytes` come from any host, which offer `short_load` more.
    """

    receiver: str = field(metadata=given("the receiving host's name", "host"))
    few: int = field(metadata=given("how many hosts send in one phase, like 2", "senders"))
    many: int = field(metadata=given("how many hosts send in the next, like 12", "senders"))
    size_bytes: int = field(metadata=given("bytes of each message of few, like 500KB", "positive"))
    phase_ns: int = field(
        metadata=given(
            "mean length of a phase, like 4ms; drawn from half to one and a half times that",
            "positive",
        )
    )
    load: float = field(
        metadata=given("of long messages, a share of the receiver's rate, like 0.9", "share")
    )
    spread_ns: int = field(metadata=given("many begin within it, at most half a phase", default=0))
    short_bytes: int = field(metadata=given("bytes of each short message, like 5KB", "positive"))
    short_load: float = field(
        metadata=given("of short messages, a share of the receiver's rate, like 0.02", "share")
    )
    start_ns: int = field(metadata=START)
    stop_ns: int = field(metadata=STOP)
    kind: ClassVar = "alternating"
    sized_by: ClassVar = (
        "phase",
        "makes about {flows:,.0f} flows",
        "use longer phases, larger flows, or a shorter window",
    )

    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return the flows of all phases."""
        receiver = testbed.hosts.index(self.receiver)
        others = np.delete(np.arange(len(testbed.hosts), dtype=np.int64), receiver)
        bytes_per_ns = testbed.host_rate_bps(self.receiver) / 8e9
        rows: list[tuple[Ints, Ints, Ints]] = []
        for phase in phases(self, streams.times):
            rng = np.random.default_rng(phase.seed)
            lasts_ns = phase.end_ns - phase.start_ns
            order = rng.permutation(others)
            if phase.crowded:
                spread_ns = min(self.spread_ns, lasts_ns // 2)
                offered = bytes_per_ns * self.load * (lasts_ns - spread_ns)
                start = (rng.random(self.many) * spread_ns).astype(np.int64)
                size = np.full(self.many, max(1, round(offered / self.many)), dtype=np.int64)
                rows.append((phase.start_ns + start, order[: self.many], size))
                crowded_ns = lasts_ns - spread_ns
                count = round(bytes_per_ns * self.short_load * crowded_ns / self.short_bytes)
                start = (spread_ns + rng.random(count) * crowded_ns).astype(np.int64)
                src = others[rng.integers(len(others), size=count)]
                size = np.full(count, self.short_bytes, dtype=np.int64)
            else:
                period_ns = self.few * self.size_bytes / (bytes_per_ns * self.load)
                count = max(1, round(lasts_ns / period_ns))
                start = np.repeat((np.arange(count) * period_ns).astype(np.int64), self.few)
                src = np.tile(order[: self.few], count)
                size = np.full(len(src), self.size_bytes, dtype=np.int64)
            rows.append((phase.start_ns + start, src, size))
        start, src, size = (np.concatenate(column) for column in zip(*rows, strict=True))
        kept = start < self.stop_ns
        dst = np.full(int(kept.sum()), receiver, dtype=np.int64)
        return Flows(start[kept], src[kept], dst, size[kept])

    def expected(self, testbed: Testbed) -> Expected:
        """Return the mean; half of the phases are crowded."""
        each_bytes = testbed.host_rate_bps(self.receiver) / 8e9 * self.phase_ns
        crowded = self.many + each_bytes * self.short_load / self.short_bytes
        sparse = max(self.few, each_bytes * self.load / self.size_bytes)
        sent_bytes = each_bytes * (self.load + self.short_load / 2)
        return Expected(
            self._phases * (crowded + sparse) / 2,
            self._phases * max(sent_bytes, self.few * self.size_bytes / 2),
        )

    def drawing_s(self, testbed: Testbed) -> float:
        """Return a time for each phase."""
        return self._phases * _PHASE_S

    @property
    def _phases(self) -> float:
        """How many phases there are likely to be."""
        return max(0, self.stop_ns - self.start_ns) / self.phase_ns


def phases(spec: AlternatingSpec, times: np.random.Generator) -> Iterator[Phase]:
    """Yield the phases in turn, the last of which may end after `stop_ns`.

    They are the same whatever the sizes, the loads and the numbers of senders are.
    """
    now, crowded = spec.start_ns, bool(times.random() < 0.5)
    while now < spec.stop_ns:
        end_ns = now + max(1, round(spec.phase_ns * (0.5 + times.random())))
        yield Phase(now, end_ns, crowded, int(times.integers(2**63)))
        now, crowded = end_ns, not crowded
