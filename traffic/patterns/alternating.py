"""Flows to one receiver, alternately from few senders and from many, for random times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from orchestration.core.pattern import START, STOP, Expected, Flows, PatternSpec, Streams, given
from orchestration.core.records import Ints
from orchestration.core.topology import Testbed

# The time to draw a phase on one core.
_PHASE_S = 1.5e-4


@dataclass(frozen=True)
class Phase:
    """A time in which few hosts send or, if `crowded`, many. `seed` is that of its flows."""

    start_ns: int
    end_ns: int
    crowded: bool
    seed: int


@dataclass(frozen=True)
class AlternatingSpec(PatternSpec):
    """Few hosts send to one, then many, then few again, in phases of random lengths.

    A phase lasts `phase_ns` on average, at least half and at most one and a half times that. The
    first phase, the lengths and the senders are drawn by the trial's seed. In both kinds of phase,
    long messages offer `load` of the receiver's rate. In a phase of `few`, the senders repeatedly
    send `size_bytes` each, at the same time. In a phase of `many`, each sends one message for the
    whole phase, beginning within `spread_ns`; when all have begun, short messages of `short_bytes`
    from random hosts offer another `short_load`.
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
        metadata=given("load of long messages, a share of the receiver's rate, like 0.9", "share")
    )
    spread_ns: int = field(
        metadata=given("many begin within this time, at most half a phase", default=0)
    )
    short_bytes: int = field(metadata=given("bytes of each short message, like 5KB", "positive"))
    short_load: float = field(
        metadata=given("load of short messages, a share of the receiver's rate, like 0.02", "share")
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
        in_window = start < self.stop_ns
        dst = np.full(int(in_window.sum()), receiver, dtype=np.int64)
        return Flows(start[in_window], src[in_window], dst, size[in_window])

    def expected(self, testbed: Testbed) -> Expected:
        """Return the mean number of flows and payload; half of the phases are crowded."""
        phase_bytes = testbed.host_rate_bps(self.receiver) / 8e9 * self.phase_ns
        crowded = self.many + phase_bytes * self.short_load / self.short_bytes
        sparse = max(self.few, phase_bytes * self.load / self.size_bytes)
        sent_bytes = phase_bytes * (self.load + self.short_load / 2)
        return Expected(
            self._phases * (crowded + sparse) / 2,
            self._phases * max(sent_bytes, self.few * self.size_bytes / 2),
        )

    def drawing_s(self, testbed: Testbed) -> float:
        """Return the time to draw all phases, in s."""
        return self._phases * _PHASE_S

    @property
    def _phases(self) -> float:
        """The expected number of phases."""
        return max(0, self.stop_ns - self.start_ns) / self.phase_ns


def phases(spec: AlternatingSpec, times: np.random.Generator) -> Iterator[Phase]:
    """Yield the phases in order; the last may end after `stop_ns`.

    They do not depend on sizes, loads and numbers of senders.
    """
    now, crowded = spec.start_ns, bool(times.random() < 0.5)
    while now < spec.stop_ns:
        end_ns = now + max(1, round(spec.phase_ns * (0.5 + times.random())))
        yield Phase(now, end_ns, crowded, int(times.integers(2**63)))
        now, crowded = end_ns, not crowded
