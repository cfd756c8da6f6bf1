"""All-to-all bursts: all hosts send to each other at once, as in a MapReduce shuffle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from orchestration.core.pattern import START, STOP, Expected, Flows, PatternSpec, Streams, given
from orchestration.core.topology import Testbed


@dataclass(frozen=True)
class AllToAllSpec(PatternSpec):
    """Each host sends to every other host at the same moment, again and again."""

    size_bytes: int = field(metadata=given("bytes of each flow, like 64KB", "positive"))
    period_ns: int = field(metadata=given("time from one to the next, like 2ms", "positive"))
    start_ns: int = field(metadata=START)
    stop_ns: int = field(metadata=STOP)
    kind: ClassVar = "all-to-all"
    iterations: ClassVar = True
    sized_by: ClassVar = (
        "period",
        "makes {flows:,.0f} flows",
        "use a longer period or a shorter window",
    )

    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return the bursts: at `start_ns` and every period after, all flows at once."""
        starts = np.arange(self.start_ns, self.stop_ns, self.period_ns, dtype=np.int64)
        src, dst = np.nonzero(~np.eye(len(testbed.hosts), dtype=np.bool_))
        return Flows(
            start_ns=np.repeat(starts, len(src)),
            src=np.tile(src.astype(np.int64), len(starts)),
            dst=np.tile(dst.astype(np.int64), len(starts)),
            size_bytes=np.full(len(src) * len(starts), self.size_bytes, dtype=np.int64),
        )

    def expected(self, testbed: Testbed) -> Expected:
        """Return the exact number of flows and their payload."""
        hosts = len(testbed.hosts)
        bursts = -(-max(0, self.stop_ns - self.start_ns) // self.period_ns)
        flows = bursts * hosts * (hosts - 1)
        return Expected(flows, flows * self.size_bytes)
