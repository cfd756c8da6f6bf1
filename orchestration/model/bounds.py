"""What every backend checks before it changes a device."""

from __future__ import annotations

import numpy as np

from orchestration.model.records import Ints, SetThresholds


def clamp_thresholds(action: SetThresholds, buffer_bytes: Ints) -> tuple[SetThresholds, int]:
    """Return `action` with its values brought into bounds, and how many queues that changed.

    Bounds are 0 <= kmin <= kmax <= the queue's buffer (`buffer_bytes`, shape (queues,)) and pmax in
    0..1. A value that is no number has no nearest one: it is left to `check_thresholds`.
    """
    most = buffer_bytes[action.queues]
    kmax = np.clip(action.kmax_bytes, 0, most)
    kmin = np.clip(action.kmin_bytes, 0, kmax)
    pmax = np.clip(action.pmax, 0.0, 1.0)
    changed = (kmax != action.kmax_bytes) | (kmin != action.kmin_bytes)
    changed |= (pmax != action.pmax) & ~np.isnan(action.pmax)
    count = int(np.count_nonzero(changed))
    return (SetThresholds(action.queues, kmin, kmax, pmax) if count else action), count


def check_thresholds(action: SetThresholds, queues: int) -> None:
    """Raise ValueError unless `action` sets each of its queues once, and to possible values.

    Possible is 0 <= kmin <= kmax in bytes and pmax in 0..1. `queues` is how many there are.
    """
    index = action.queues
    shapes = {np.shape(part) for part in (index, action.kmin_bytes, action.kmax_bytes, action.pmax)}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"queues, kmin, kmax and pmax must be arrays of one length, not {shapes}")
    if len(index) and (index.min() < 0 or index.max() >= queues):
        raise ValueError(f"queue {index.min()}..{index.max()} is not in 0..{queues - 1}")
    if len(np.unique(index)) != len(index):
        raise ValueError("a queue is set twice in one action")
    wrong = (action.kmin_bytes < 0) | (action.kmin_bytes > action.kmax_bytes)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        kmin, kmax = action.kmin_bytes[at], action.kmax_bytes[at]
        raise ValueError(f"queue {index[at]}: needs 0 <= kmin <= kmax, got {kmin} and {kmax} B")
    wrong = ~((action.pmax >= 0) & (action.pmax <= 1))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"queue {index[at]}: pmax {action.pmax[at]} is not in 0..1")
