"""Queue lengths of imported runs that have a histogram in place of samples over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestration.core.records import Floats
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration

FACT = "queue_histogram"


@dataclass(frozen=True)
class QueueHistogram:
    """Queue lengths of a run that has only a histogram, as written by the HPCC simulator.

    The fact `queue_histogram` has `bin_bytes` and, by queue label, the number of samples in each
    bin. A bin's lower edge stands for its lengths. `queue_span` says of which time they are.
    `edges_bytes` and `weight` (bins,) are over all queues; `means` is (queues,), NaN if
    unknown.
    """

    edges_bytes: Floats
    weight: Floats
    means: Floats

    @classmethod
    def of(cls, fact: Mapping[str, Any], testbed: Testbed) -> QueueHistogram:
        """Build the histogram from the fact. Raises KeyError on foreign data."""
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
        """The queue metrics; empty if there are no samples."""
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
        """Return the share of samples above each grid length; NaN without samples."""
        total = self.weight.sum()
        if not total:
            return np.full(len(grid_bytes), math.nan)
        upto = np.concatenate(([0.0], np.cumsum(self.weight)))
        below = upto[np.searchsorted(self.edges_bytes, grid_bytes, side="right")]
        return np.asarray(1 - below / total)

    def binned(self, edges_bytes: Floats) -> Floats:
        """Return the samples in other bins, shape (1, bins): bin i holds lengths up to its edge."""
        place = np.minimum(np.searchsorted(edges_bytes, self.edges_bytes), len(edges_bytes) - 1)
        return np.bincount(place, self.weight, len(edges_bytes)).astype(np.float64)[None, :]


def queue_span(facts: Mapping[str, Any]) -> str:
    """Return of which time a run's queue lengths are; "" if they are of while flows arrived."""
    fact = facts.get(FACT)
    if fact is None or fact.get("while_flows_arrived"):
        return ""
    until = format_duration(fact["until_ns"])
    if "from_ns" not in fact:  # imported by an earlier version
        return f"of the whole run until {until}, drain included"
    begin, arrived = (format_duration(fact[key]) for key in ("from_ns", "arrived_ns"))
    return f"from {begin} to {until}, where flows arrived until {arrived}"
