"""The trials under one condition, by arm and seed: means, tails and differences of arms.

Differences are paired by seed. Where a learned arm has several networks, intervals are over the
networks, too (`orchestration.analysis.quantiles`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from orchestration.analysis.flow_metrics import DoneFlows, values_of
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.quantiles import (
    MIN_BEYOND,
    NO_DIFFERENCE,
    beyond,
    pooled_difference,
    pooled_estimate,
    pooled_quantile,
    tail_difference,
    units,
)
from orchestration.analysis.statistics import Estimate, PairedDifference
from orchestration.analysis.student_t import CONFIDENCE, detectable, noncentrality
from orchestration.core.records import Floats
from orchestration.papers.claims import FactorLevels

# The factor whose levels are columns of the tables of verdicts, and these levels in their order.
TRANSPORT, TRANSPORTS = "transport", ("dctcp", "dcqcn")


def order_transports(transports: set[str]) -> tuple[str, ...]:
    """Return transports in the order of the page's columns."""
    rank = {name: number for number, name in enumerate(TRANSPORTS)}
    return tuple(sorted(transports, key=lambda name: (rank.get(name, len(rank)), name)))


@dataclass(frozen=True)
class Repeat:
    """One trial of an arm.

    `metrics` are its values by metric. Without `flows` it has no tails. `checkpoint` names its
    network, "" if none is named.
    """

    metrics: Mapping[str, float]
    flows: DoneFlows | None = None
    checkpoint: str = ""


# arm -> seed -> repeat
Repeats = Mapping[str, Mapping[int, Repeat]]


@dataclass(frozen=True)
class Condition:
    """One combination of levels of a section's factors, with all valid trials under it.

    All intervals have the level `confidence`.
    """

    factors: FactorLevels
    repeats: Repeats
    confidence: float = field(default=CONFIDENCE)

    @property
    def label(self) -> str:
        """The levels as text, like `load 0.6, WebSearch`; `all trials` if nothing varies.

        A level that is a number has its factor's name before it.
        """
        return self._label({})

    @property
    def transport(self) -> str:
        """The level of the factor `transport`; "" if transports do not vary."""
        return str(self.factors.get(TRANSPORT, ""))

    @property
    def label_without_transport(self) -> str:
        """The label without the transport."""
        return self._label({TRANSPORT})

    def _label(self, without: Mapping[str, object] | set[str]) -> str:
        parts = [
            level if isinstance(level, str) else f"{name} {level}"
            for name, level in self.factors.items()
            if name not in without
        ]
        return ", ".join(parts) or "all trials"

    @property
    def seeds(self) -> int:
        """The number of seeds at which at least one arm has a trial."""
        return len({seed for arm in self.repeats.values() for seed in arm})

    def networks(self, arm: str) -> tuple[str, ...]:
        """Return the names of an arm's networks, sorted."""
        return tuple(sorted({repeat.checkpoint for repeat in self.repeats.get(arm, {}).values()}))

    def with_network(self, arm: str, network: str) -> Condition:
        """Return the condition with one network's repeats of `arm`, and all of the other arms'."""
        chosen = {
            seed: repeat
            for seed, repeat in self.repeats.get(arm, {}).items()
            if repeat.checkpoint == network
        }
        return replace(self, repeats={**self.repeats, arm: chosen})

    def as_one_network(self) -> Condition:
        """Return the condition as if all repeats of each arm had the same network."""
        same = {
            arm: {seed: replace(repeat, checkpoint="") for seed, repeat in repeats.items()}
            for arm, repeats in self.repeats.items()
        }
        return replace(self, repeats=same)

    def flows_beyond(self, arm: str, metric: str) -> int | None:
        """Return how many flows of all repeats lie beyond a tail's quantile; None for no tail."""
        tail = METRICS[metric].tail
        if tail is None:
            return None
        return beyond(list(self.samples(arm, metric).values()), tail)

    def has_too_few_flows(self, arms: tuple[str, ...], metric: str) -> bool:
        """Return whether the metric is a tail with less than `MIN_BEYOND` flows beyond it.

        One of the arms is enough for that; arms without trials do not count.
        """
        counts = [self.flows_beyond(arm, metric) for arm in arms if self.repeats.get(arm)]
        return any(count is not None and count < MIN_BEYOND for count in counts)

    def samples(self, arm: str, metric: str) -> dict[int, Floats]:
        """Return the values of the flows that a metric counts, by seed; {} if it counts none."""
        chosen = METRICS[metric].flows
        repeats = self.repeats.get(arm, {})
        if chosen is None:
            return {}
        return {
            seed: values_of(chosen, repeat.flows)
            for seed, repeat in repeats.items()
            if repeat.flows
        }

    def values_by_seed(self, arm: str, metric: str) -> dict[int, float]:
        """Return an arm's values of a metric by seed."""
        repeats = self.repeats.get(arm, {})
        return {seed: repeat.metrics[metric] for seed, repeat in repeats.items()}

    def estimate(self, arm: str, metric: str) -> Estimate:
        """Return the mean over the repeats, or for a tail the quantile of all their flows.

        It is NaN for an arm without trials.
        """
        tail = METRICS[metric].tail
        repeats = self.repeats.get(arm, {})
        if tail is None:
            labels = [repeat.checkpoint for repeat in repeats.values()]
            values = list(self.values_by_seed(arm, metric).values())
            return pooled_estimate(values, labels, self.confidence)
        samples = self.samples(arm, metric)
        labels = [repeats[seed].checkpoint for seed in samples]
        return pooled_quantile(list(samples.values()), tail, labels, self.confidence)

    def difference(self, arm: str, against: str, metric: str) -> PairedDifference:
        """Return `arm` minus `against` over their common seeds."""
        seeds, groupings = self.pairs(arm, against)
        tail = METRICS[metric].tail
        if tail is None:
            by_seed = [self.values_by_seed(name, metric) for name in (against, arm)]
            a, b = ([values[seed] for seed in seeds] for values in by_seed)
            return pooled_difference(a, b, groupings, self.confidence)
        samples = [self.samples(name, metric) for name in (against, arm)]
        if not all(samples) or not seeds:
            return NO_DIFFERENCE
        first, second = ([flows[seed] for seed in seeds] for flows in samples)
        return tail_difference(first, second, tail, groupings, self.confidence)

    def pairs(self, arm: str, against: str) -> tuple[list[int], list[list[Hashable]]]:
        """Return the common seeds of two arms, and each arm's network at these seeds."""
        first, second = (self.repeats.get(name, {}) for name in (arm, against))
        seeds = sorted(set(first) & set(second))
        return seeds, [[side[seed].checkpoint for seed in seeds] for side in (first, second)]

    def detectable(self, arm: str, against: str, difference: PairedDifference) -> float:
        """Return the minimum detectable effect of these repeats, in the difference's unit."""
        _, groupings = self.pairs(arm, against)
        if difference.n < 2 or difference.n != len(groupings[0]):
            groupings = [[0] * difference.n]
        freedom = min(units(groups) for groups in groupings) - 1
        half = (difference.high - difference.low) / 2
        return detectable(half, freedom, self.confidence)

    def detectable_by_repeats(self, arm: str, against: str, metric: str) -> float:
        """Return the minimum detectable effect by the spread within each network, as a share.

        This is the part that more repeats make smaller; the spread between networks becomes smaller
        with more networks only. For tails, and where each network has one repeat, the networks
        count as one.
        """
        seeds, (labels, _) = self.pairs(arm, against)
        values = self.values_by_seed(arm, metric)
        reference = self.values_by_seed(against, metric)
        freedom = len(seeds) - len(set(labels))
        if METRICS[metric].tail is not None or freedom < 1 or len(set(labels)) < 2:
            merged = self.as_one_network()
            difference = merged.difference(arm, against, metric)
            return abs(merged.detectable(arm, against, difference) / reference_mean(difference))
        by_network: dict[Hashable, list[float]] = {}
        for seed, label in zip(seeds, labels, strict=True):
            by_network.setdefault(label, []).append(values[seed] - reference[seed])
        squares = sum(float(np.var(deltas)) * len(deltas) for deltas in by_network.values())
        error = math.sqrt(squares / freedom / len(seeds))
        base = float(np.mean([reference[seed] for seed in seeds]))
        return abs(noncentrality(freedom, 1 - self.confidence) * error / base)


def reference_mean(difference: PairedDifference) -> float:
    """Return the mean that a relative difference is a share of; NaN if that is unknown."""
    return difference.mean / difference.relative if difference.relative else math.nan
