"""The measured window of a trial: which flows and samples count, and by how much counters grew.

The window begins when the warm-up ends. Only this module knows what a warm-up excludes: flows that
start in it, samples taken in it, and what counters had counted when it ended.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from orchestration.core.records import MISSING, Floats, Ints, Samples
from orchestration.core.signals import Scope, recorded
from orchestration.results.reader import TrialResult


def measured_flows(result: TrialResult) -> NDArray[np.bool_]:
    """Return which flows count, shape (flows,): those that start after the warm-up."""
    return np.asarray(result.table("schedule")["start_ns"] >= result.spec.warm_up_ns)


def measured_samples(samples: Samples, measured_ns: tuple[int, int]) -> Samples:
    """Return the samples of the measured time, while flows arrived. Counters are as read.

    With fewer than two of them, return all samples after the warm-up, or else all.
    """
    first = _first(samples, measured_ns[0])
    upto = int(np.searchsorted(samples.t_ns, measured_ns[1], side="right"))
    for begin, end in ((first, upto), (first, len(samples.t_ns))):
        if end - begin >= 2:
            return _rows(samples, begin, end)
    return samples


def after_warm_up(result: TrialResult, scope: Scope) -> Samples:
    """Return a scope's samples from the warm-up's end on, drain included.

    Counters count from the warm-up's end. Without a warm-up the samples are as read.
    """
    samples = result.ports if scope == "queue" else result.samples(scope)
    return since(samples, scope, result.spec.warm_up_ns)


def since(samples: Samples, scope: Scope, from_ns: int) -> Samples:
    """Return the samples from `from_ns` on; counters count from their last value until then."""
    before = int(np.searchsorted(samples.t_ns, from_ns, side="right")) - 1
    if not from_ns or before < 0:
        return samples
    later = _rows(samples, _first(samples, from_ns), len(samples.t_ns))
    values = dict(later.values)
    for signal in recorded(scope):
        if signal.cumulative and signal.name in values:
            base, counts = samples.values[signal.name][before], values[signal.name]
            known = (base != MISSING) & (counts != MISSING)
            values[signal.name] = np.where(known, counts - base, counts)
    return Samples(later.t_ns, values)


def _first(samples: Samples, from_ns: int) -> int:
    return int(np.searchsorted(samples.t_ns, from_ns)) if from_ns else 0


def _rows(samples: Samples, begin: int, end: int) -> Samples:
    values = {name: one[begin:end] for name, one in samples.values.items()}
    return Samples(samples.t_ns[begin:end], values)


def known_mean(values: Floats) -> float:
    """Return the mean of the values that are not NaN; NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


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
