"""A traffic pattern of one's own: `{kind: ring.py:Ring, size: 64KB, period: 1ms}`."""

from dataclasses import dataclass, field

import numpy as np

from closloop import Expected, Flows, PatternSpec, given


@dataclass(frozen=True)
class Ring(PatternSpec):
    """Each host sends to the next one, again and again."""

    size_bytes: int = field(metadata=given("bytes of each flow, like 64KB", "positive"))
    period_ns: int = field(metadata=given("time from one to the next, like 2ms", "positive"))
    start_ns: int = field(metadata=given(default=0))
    stop_ns: int = field(metadata=given(default=None))  # left open: until the trial's duration
    kind = "ring"

    def make_flows(self, testbed, streams, warm_up_ns):
        """Return the flows; one with random draws takes them from `streams` only."""
        times = np.arange(self.start_ns, self.stop_ns, self.period_ns)
        hosts = np.arange(len(testbed.hosts))
        start, src = np.repeat(times, len(hosts)), np.tile(hosts, len(times))
        dst = (src + 1) % len(hosts)
        return Flows(start, src, dst, np.full(len(src), self.size_bytes))

    def expected(self, testbed):
        """Return what a plan reckons with."""
        flows = len(range(self.start_ns, self.stop_ns, self.period_ns)) * len(testbed.hosts)
        return Expected(flows, flows * self.size_bytes)
