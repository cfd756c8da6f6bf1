"""Repeats under one condition: figures and differences of arms, over seeds and networks."""

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

# The factor whose levels are the columns of the tables of verdicts, in this order.
TRANSPORT, TRANSPORTS = "transport", ("dctcp", "dcqcn")


def order_transports(transports: set[str]) -> tuple[str, ...]:
    """Return transports in the order of the page's columns."""
    known = {name: place for place, name in enumerate(TRANSPORTS)}
    return tuple(sorted(transports, key=lambda name: (known.get(name, len(known)), name)))


@dataclass(frozen=True)
class Repeat:
    """One trial of an arm: its figures by metric, its flows, and its network; "" if none is named.

    Without flows it has no tails.
    """

    figures: Mapping[str, float]
    flows: DoneFlows | None = None
    checkpoint: str = ""


# arm -> seed -> repeat
Repeats = Mapping[str, Mapping[int, Repeat]]


@dataclass(frozen=True)
class Condition:
    """One combination of factors in a section, with all valid trials.

    Intervals are of `confidence`, and over networks where an arm has several: see `hierarchical`.
    """

    factors: FactorLevels
    repeats: Repeats
    confidence: float = field(default=CONFIDENCE)

    @property
    def label(self) -> str:
        """`load 0.6`, or `all trials` if nothing varies; text levels stand without their factor."""
        return self._label({})

    @property
    def transport(self) -> str:
        """The level of the factor `transport`; "" if it has none."""
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
        """The number of seeds that at least one tuner has."""
        return len({seed for arm in self.repeats.values() for seed in arm})

    def networks(self, arm: str) -> tuple[str, ...]:
        """Return the networks that an arm has had, in order of their names."""
        return tuple(sorted({repeat.checkpoint for repeat in self.repeats.get(arm, {}).values()}))

    def with_network(self, arm: str, network: str) -> Condition:
        """Return the condition with the repeats of one network of an arm, and all of the others."""
        chosen = {
            seed: repeat
            for seed, repeat in self.repeats.get(arm, {}).items()
            if repeat.checkpoint == network
        }
        return replace(self, repeats={**self.repeats, arm: chosen})

    def as_one_network(self) -> Condition:
        """Return the condition as if all repeats of an arm had the same network."""
        same = {
            arm: {seed: replace(repeat, checkpoint="") for seed, repeat in repeats.items()}
            for arm, repeats in self.repeats.items()
        }
        return replace(self, repeats=same)

    def beyond(self, arm: str, metric: str) -> int | None:
        """Return how many flows of all repeats lie beyond a tail; None if it is no tail."""
        tail = METRICS[metric].tail
        if tail is None:
            return None
        return beyond(list(self.samples(arm, metric).values()), tail)

    def has_too_few_flows(self, arms: tuple[str, ...], metric: str) -> bool:
        """Return whether the metric is a tail and some arm has too few flows beyond it."""
        found = [self.beyond(arm, metric) for arm in arms if self.repeats.get(arm)]
        return any(count is not None and count < MIN_BEYOND for count in found)

    def samples(self, arm: str, metric: str) -> dict[int, Floats]:
        """Return the values of a tail's flows, by seed."""
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
        """Return an arm's figures by seed."""
        return {seed: one.figures[metric] for seed, one in self.repeats.get(arm, {}).items()}

    def estimate(self, arm: str, metric: str) -> Estimate:
        """Return the mean over the repeats, or their common tail; NaN for an arm without trials."""
        tail = METRICS[metric].tail
        repeats = self.repeats.get(arm, {})
        if tail is None:
            labels = [one.checkpoint for one in repeats.values()]
            figures = list(self.values_by_seed(arm, metric).values())
            return pooled_estimate(figures, labels, self.confidence)
        samples = self.samples(arm, metric)
        labels = [repeats[seed].checkpoint for seed in samples]
        return pooled_quantile(list(samples.values()), tail, labels, self.confidence)

    def difference(self, arm: str, against: str, metric: str) -> PairedDifference:
        """Return `arm` minus `against` over their common seeds."""
        seeds, groupings = self.pairs(arm, against)
        tail = METRICS[metric].tail
        if tail is None:
            mine, others = self.values_by_seed(arm, metric), self.values_by_seed(against, metric)
            a, b = ([figures[seed] for seed in seeds] for figures in (others, mine))
            return pooled_difference(a, b, groupings, self.confidence)
        few = [self.samples(name, metric) for name in (against, arm)]
        if not all(few) or not seeds:
            return NO_DIFFERENCE
        first, second = ([values[seed] for seed in seeds] for values in few)
        return tail_difference(first, second, tail, groupings, self.confidence)

    def pairs(self, arm: str, against: str) -> tuple[list[int], list[list[Hashable]]]:
        """Return the common seeds of two arms, and the networks of each side."""
        mine, others = (self.repeats.get(name, {}) for name in (arm, against))
        seeds = sorted(set(mine) & set(others))
        return seeds, [[side[seed].checkpoint for seed in seeds] for side in (mine, others)]

    def detectable(self, arm: str, against: str, difference: PairedDifference) -> float:
        """Return the smallest difference, in its unit, that these repeats could have shown."""
        _, groupings = self.pairs(arm, against)
        if difference.n < 2 or difference.n != len(groupings[0]):
            groupings = [[0] * difference.n]
        freedom = min(units(groups) for groups in groupings) - 1
        half = (difference.high - difference.low) / 2
        return detectable(half, freedom, self.confidence)

    def detectable_by_repeats(self, arm: str, against: str, metric: str) -> float:
        """Return `detectable`, as a share, by the spread of an arm's repeats within each network.

        It is what more repeats would make smaller; the networks' own spread takes more networks.
        Where networks have one repeat each, and for tails, networks are not told apart.
        """
        seeds, (labels, _) = self.pairs(arm, against)
        mine, others = self.values_by_seed(arm, metric), self.values_by_seed(against, metric)
        freedom = len(seeds) - len(set(labels))
        if METRICS[metric].tail is not None or freedom < 1 or len(set(labels)) < 2:
            alike = self.as_one_network()
            difference = alike.difference(arm, against, metric)
            return abs(alike.detectable(arm, against, difference) / reference_mean(difference))
        by_network: dict[Hashable, list[float]] = {}
        for seed, label in zip(seeds, labels, strict=True):
            by_network.setdefault(label, []).append(mine[seed] - others[seed])
        squares = sum(float(np.var(values)) * len(values) for values in by_network.values())
        error = math.sqrt(squares / freedom / len(seeds))
        base = float(np.mean([others[seed] for seed in seeds]))
        return abs(noncentrality(freedom, 1 - self.confidence) * error / base)


def reference_mean(difference: PairedDifference) -> float:
    """Return the mean that a difference is from; NaN if there is none."""
    return difference.mean / difference.relative if difference.relative else math.nan
