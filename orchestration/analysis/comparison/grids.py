"""The fixed grids of a comparison: blocks of time, bins of slowdown and of queue length.

A trial is reduced to counts and sums on them, so that a million flows cost no more to resample than
a thousand. Bins of slowdown are 0.5 % wide, of queue length 1.2 %.
"""

from __future__ import annotations

import numpy as np

from orchestration.model.records import Floats, Ints

# Blocks of a trial's time that are resampled where there is one pair of trials only.
BLOCKS = 8
SLOWDOWN_EDGES = np.geomspace(0.5, 1e5, 2_401)
QUEUE_EDGES_BYTES = np.concatenate(([0.0], np.geomspace(64, 1e9, 1_401)))


def block_counts(cell: Ints, weight: Floats | None, shape: tuple[int, ...]) -> Floats:
    """Return the sum of `weight` (or the count) in each cell, with shape `shape`."""
    size = int(np.prod(shape))
    return np.bincount(cell, weight, size).astype(np.float64).reshape(shape)


def histogram(cell: Ints, values: Floats, edges: Floats, shape: tuple[int, ...]) -> Floats:
    """Return counts by cell and bin, shape (*shape, bins): bin i holds edges[i-1] < x <= edges[i].

    The first bin holds everything up to the first edge; what is beyond the last counts there.
    """
    bins = len(edges)
    place = np.minimum(np.searchsorted(edges, values), bins - 1)
    return block_counts(cell * bins + place, None, (*shape, bins))


def quantiles(counts: Floats, edges: Floats, shares: tuple[float, ...]) -> Floats:
    """Return the quantiles of each row of `counts` (rows, bins): shape (rows, quantiles).

    A quantile is the upper edge of the bin that reaches its share; NaN for a row of nothing.
    """
    filled = counts.any(axis=0)
    if not filled.any():
        return np.full((len(counts), len(shares)), np.nan)
    reached = np.cumsum(counts[:, filled], axis=1)
    total = reached[:, -1:]
    places = [np.argmax(reached >= share * total * (1 - 1e-12), axis=1) for share in shares]
    return np.asarray(np.where(total > 0, edges[filled][np.stack(places, axis=1)], np.nan))


def cdf(counts: Floats) -> Floats:
    """Return the share of each row of `counts` (..., bins) up to each edge; NaN for no counts."""
    reached = np.cumsum(counts, axis=-1)
    with np.errstate(invalid="ignore"):
        return np.asarray(reached / reached[..., -1:])
