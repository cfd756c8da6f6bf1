"""One flow between two hosts."""

from __future__ import annotations

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


@dataclass(frozen=True)
class SingleFlowSpec(PatternSpec):
    """One flow between two hosts."""

    src: str = field(metadata=given("the sending host's name", "host"))
    dst: str = field(metadata=given("the receiving host's name", "host"))
    size_bytes: int = field(metadata=given("bytes of each flow, like 64KB", "positive"))
    start_ns: int = field(metadata=START)
    kind: ClassVar = "flow"

    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return the flow."""
        ends = (testbed.hosts.index(host) for host in (self.src, self.dst))
        columns = (self.start_ns, *ends, self.size_bytes)
        return Flows(*(np.array([value], dtype=np.int64) for value in columns))

    def expected(self, testbed: Testbed) -> Expected:
        """Return exactly what it sends."""
        return Expected(1, self.size_bytes)

    def impossible(self, testbed: Testbed) -> str:
        """Refuse a flow from a host to itself."""
        return f"a flow from {self.src} to itself: name two hosts" if self.src == self.dst else ""

    @classmethod
    def faults(cls, fields: Mapping[str, Any], context: CampaignContext) -> Iterator[Problem]:
        """Refuse a flow from a host to itself."""
        if "src" in fields and fields["src"] == fields.get("dst"):
            yield Problem("dst", f"a flow from {fields['src']} to itself", "name two hosts")

    def cut(self, duration_ns: int, drain_ns: int, testbed: Testbed) -> Self:
        """Return the flow; raise ValueError if it starts too late."""
        if self.start_ns >= duration_ns:
            raise ValueError(
                f"the flow from {self.src} to {self.dst} starts at {self.start_ns} ns, "
                f"when the trial's {duration_ns} ns are over: start it earlier"
            )
        return self
