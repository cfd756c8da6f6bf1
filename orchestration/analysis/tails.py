"""Tails over repeats: quantiles of all repeats' values together.

The p99 of one trial with some hundred flows is one to three of them, and the mean of such quantiles
is biased. So a tail is the quantile of the repeats' flows together, and there has to be a hundred
flows beyond it: the relative error of a tail's probability is then about a tenth. Flows of a trial
share queues and are not independent, so the bootstrap draws repeats (`hierarchical`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from orchestration.analysis.hierarchical import (
    DRAWS,
    NO_DIFFERENCE,
    Groups,
    difference_of,
    draw_counts,
    stretched,
    units,
)
from orchestration.analysis.statistics import CONFIDENCE, Estimate, PairedDifference
from orchestration.core.records import Floats, Ints

LEAST_BEYOND = 100


def beyond(samples: Sequence[Floats], share: float) -> int:
    """Return how many values of all repeats together lie beyond the quantile of that `share`."""
    count = sum(len(sample) for sample in samples)
    return math.floor(count * (1 - share) + 1e-9)


def pooled_tail(
    samples: Sequence[Floats], share: float, groups: Groups, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the quantile of all repeats' values together, with its interval.

    `samples` has one array of values a repeat, `groups` the network of each. NaN without values.
    """
    filled = [place for place, sample in enumerate(samples) if len(sample)]
    if not filled:
        return Estimate(math.nan, math.nan, math.nan, 0)
    kept = [samples[place] for place in filled]
    labels = [groups[place] for place in filled]
    point = float(np.quantile(np.concatenate(kept), share))
    draws = drawn_tails(kept, share, draw_counts(labels, DRAWS // 4))
    return Estimate(point, *stretched(point, draws, units(labels), confidence), len(kept))


def tail_difference(
    a: Sequence[Floats],
    b: Sequence[Floats],
    share: float,
    groupings: Sequence[Groups],
    confidence: float = CONFIDENCE,
) -> PairedDifference:
    """Compare the pooled quantile of `b` with that of `a`; both have one array a repeat, paired.

    Repeats without values on one side are left out.
    """
    both = [place for place in range(len(a)) if len(a[place]) and len(b[place])]
    first, second = [a[place] for place in both], [b[place] for place in both]
    labels = [[grouping[place] for place in both] for grouping in groupings]
    if not both:
        return NO_DIFFERENCE

    def statistic(counts: Ints) -> tuple[float, float, Floats, Floats]:
        return (
            float(np.quantile(np.concatenate(first), share)),
            float(np.quantile(np.concatenate(second), share)),
            drawn_tails(first, share, counts),
            drawn_tails(second, share, counts),
        )

    return difference_of(statistic, labels, len(both), confidence)


def drawn_tails(samples: Sequence[Floats], share: float, counts: Ints) -> Floats:
    """Return the quantile of the repeats of each draw together, shape (draws,).

    `counts` (draws, repeats) says how often a draw has each repeat. It is np.quantile of the values
    repeated that often, which are never written out: only the largest of each repeat can matter.
    """
    sizes = np.array([len(sample) for sample in samples])
    drawn = counts @ sizes
    # a repeat that is drawn has each of its values at least once, so these are enough of each
    most = math.ceil((1 - share) * int(drawn.max())) + 2
    tops = [np.sort(np.asarray(sample, dtype=np.float64))[::-1][:most] for sample in samples]
    values = np.concatenate(tops)
    which = np.repeat(np.arange(len(tops)), [len(top) for top in tops])
    order = np.argsort(-values, kind="stable")
    values, which = values[order], which[order]
    at = share * (drawn - 1)
    lower = np.floor(at).astype(np.int64)
    found = np.empty(len(counts))
    for row, weights in enumerate(counts):
        reached = np.cumsum(weights[which])
        # places counted from the largest value
        here = values[np.searchsorted(reached, drawn[row] - 1 - lower[row], side="right")]
        upper = max(int(drawn[row] - 2 - lower[row]), 0)
        there = values[np.searchsorted(reached, upper, side="right")]
        found[row] = here + (at[row] - lower[row]) * (there - here)
    return found
