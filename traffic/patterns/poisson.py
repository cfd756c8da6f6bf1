"""Poisson arrivals at a load, of flows whose sizes follow a workload."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from orchestration.core.pattern import DRAW, INDEPENDENT, START, STOP, STRATA, Draw, given
from orchestration.core.records import Floats
from traffic.arrivals import PoissonFlows, Sizes

if TYPE_CHECKING:
    from traffic.workloads import Workload


@dataclass(frozen=True)
class PoissonSpec(PoissonFlows):
    """Poisson arrivals of flows whose sizes follow a workload."""

    workload: str = field(
        metadata=given("flow sizes: a name, like WebSearch, or a CSV file of bytes,cdf", "workload")
    )
    load: float = field(
        metadata=given("offered payload as a share of the hosts' line rate, like 0.6", "share")
    )
    start_ns: int = field(metadata=START)
    stop_ns: int = field(metadata=STOP)
    draw: Draw = field(default=INDEPENDENT, metadata=given(DRAW, default=STRATA))
    kind: ClassVar = "poisson"

    @property
    def label(self) -> str:
        """The kind, with the workload."""
        from traffic.workloads import workload_name

        return f"{self.kind}:{workload_name(self.workload)}"

    @property
    def sizes(self) -> Sizes:
        """The distribution of the workload."""
        workload = self._table()
        return Sizes(workload.mean_bytes, workload.sizes_bytes)

    def quantiles(self, at: Floats) -> Floats:
        """Return the workload's sizes in bytes, not rounded, at some probabilities."""
        return self._table().quantile(at)

    def _table(self) -> Workload:
        # imported here, because a guest has the pattern but never draws flows
        from traffic.workloads import load_workload

        return load_workload(self.workload)
