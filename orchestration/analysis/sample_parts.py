"""Which samples count, and what a counter counted."""

from __future__ import annotations

import math

import numpy as np

from orchestration.model.records import MISSING, Ints, Samples


def arrivals(samples: Samples, duration_ns: int) -> Samples:
    """Return the samples taken while flows arrived, or all samples if those are fewer than two."""
    upto = int(np.searchsorted(samples.t_ns, duration_ns, side="right"))
    if upto < 2:
        return samples
    return samples.upto(upto)


def total(counts: Ints) -> float:
    """Return the sum of a counter; NaN if nothing was counted, as in some imports."""
    known = counts[counts != MISSING]
    return float(known.sum()) if len(known) else math.nan


def totals(samples: Ints) -> Ints:
    """Return each target's last value of a counter, 0 if it never had one: shape (targets,)."""
    if not len(samples):
        return np.zeros(samples.shape[1], dtype=np.int64)
    return np.asarray(np.maximum(samples.max(axis=0), 0))


def counted(samples: Ints) -> float:
    """Return the sum of all targets' last values of a counter; NaN if it never had one."""
    return total(totals(samples) if (samples != MISSING).any() else samples)
