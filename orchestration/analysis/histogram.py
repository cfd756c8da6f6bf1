"""Queue lengths that a run has as a histogram only, as the HPCC simulator writes them.

The fact `queue_histogram` has `bin_bytes` and, by a queue's label, how many samples fell into each
bin. A length counts as its bin's lower edge. The samples are of the whole run, its drain included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from inventory.topology import Testbed
from orchestration.model.records import Floats


@dataclass(frozen=True)
class HistogramFigures:
    """`edges_bytes` and `weight` (bins,) of all queues together; `means` (queues,), NaN unknown."""

    edges_bytes: Floats
    weight: Floats
    means: Floats

    @classmethod
    def of(cls, fact: Mapping[str, Any], testbed: Testbed) -> HistogramFigures:
        """Return the figures of the fact. Raises KeyError on foreign data."""
        counts = {label: item["counts"] for label, item in fact["queues"].items()}
        bins = max(map(len, counts.values()), default=0)
        edges: Floats = np.arange(bins, dtype=np.float64) * float(fact["bin_bytes"])
        weight = np.zeros(len(edges))
        means = np.full(len(testbed.queues), math.nan)
        for number, queue in enumerate(testbed.queues):
            mine = np.array(counts.get(queue.label, ()), dtype=np.float64)
            weight[: len(mine)] += mine
            if mine.sum():
                means[number] = edges[: len(mine)] @ mine / mine.sum()
        return cls(edges, weight, means)

    @property
    def scalars(self) -> dict[str, float]:
        """The metrics of queues; none if there was no sample."""
        total = self.weight.sum()
        if not total:
            return {}
        upto = np.cumsum(self.weight)
        return {
            "queue_mean_bytes": float(self.edges_bytes @ self.weight / total),
            "queue_p99_bytes": float(self.edges_bytes[np.searchsorted(upto, 0.99 * total)]),
            "queue_max_bytes": float(self.edges_bytes[np.flatnonzero(self.weight)[-1]]),
            "queue_busiest_bytes": float(np.nanmax(self.means)),
        }

    def ccdf(self, grid_bytes: Floats) -> Floats:
        """Return the share of samples above each length of the grid, NaN without a sample."""
        total = self.weight.sum()
        if not total:
            return np.full(len(grid_bytes), math.nan)
        upto = np.concatenate(([0.0], np.cumsum(self.weight)))
        below = upto[np.searchsorted(self.edges_bytes, grid_bytes, side="right")]
        return np.asarray(1 - below / total)
