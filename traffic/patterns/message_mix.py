"""Poisson arrivals at a load, of messages of a few sizes (ACC, SIGCOMM 2021, figure 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from orchestration.core.pattern import DRAW, INDEPENDENT, START, STOP, STRATA, Draw, given
from orchestration.core.records import Floats
from traffic.arrivals import PoissonFlows, Sizes

ACC_SIZES_BYTES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)


@dataclass(frozen=True)
class MessageMixSpec(PoissonFlows):
    """Poisson arrivals of messages, whose sizes are equally likely.

    With a `receiver`, all other hosts send to it, and `load` is a share of its line rate.
    """

    sizes_bytes: tuple[int, ...] = field(
        metadata=given(
            "sizes of messages, equally likely; without it the ACC paper's",
            "positive",
            default=ACC_SIZES_BYTES,
        )
    )
    load: float = field(
        metadata=given("offered payload as a share of the hosts' line rate, like 0.6", "share")
    )
    start_ns: int = field(metadata=START)
    stop_ns: int = field(metadata=STOP)
    receiver: str = field(
        default="",
        metadata=given("a host that all messages go to; `load` is then of its line rate", "host"),
    )
    draw: Draw = field(default=INDEPENDENT, metadata=given(DRAW, default=STRATA))
    kind: ClassVar = "message-mix"

    @property
    def sizes(self) -> Sizes:
        """The distribution of messages' sizes, which are all equally likely."""
        each = np.array(self.sizes_bytes, dtype=np.int64)
        return Sizes(float(each.mean()), lambda u: each[(u * len(each)).astype(np.int64)])

    def quantiles(self, at: Floats) -> Floats:
        """Return the messages' sizes in bytes."""
        return np.array(self.sizes_bytes, dtype=np.float64)
