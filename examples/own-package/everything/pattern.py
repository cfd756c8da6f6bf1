"""A traffic pattern: `{kind: pairs, size: 1MB}`."""

from dataclasses import dataclass, field

import numpy as np

from closloop import Expected, Flows, PatternSpec, given


@dataclass(frozen=True)
class Pairs(PatternSpec):
    """Each host of the first half sends once to its partner in the second half."""

    size_bytes: int = field(metadata=given("bytes of each flow, like 1MB", "positive"))
    start_ns: int = field(metadata=given(default=0))
    kind = "pairs"

    def make_flows(self, testbed, streams, warm_up_ns):
        """Return the flows. A pattern with random draws takes them from `streams` only."""
        src = np.arange(len(testbed.hosts) // 2)
        start = np.full(len(src), self.start_ns)
        return Flows(start, src, src + len(src), np.full(len(src), self.size_bytes))

    def expected(self, testbed):
        """Return the numbers of flows and bytes, for the plan of a campaign."""
        flows = len(testbed.hosts) // 2
        return Expected(flows, flows * self.size_bytes)
