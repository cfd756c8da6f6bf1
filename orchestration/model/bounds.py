"""What every backend checks before it changes a device."""

from __future__ import annotations

import numpy as np

from orchestration.model.records import Ints, SetThresholds


class ImpossibleThresholds(ValueError):  # noqa: N818 (it is what the tuner asked for)
    """Thresholds that no device can have. `queue` is the first one meant, None if it is no queue's.

    What is wrong with it is said without the queue's number: whoever catches it knows its name.
    """

    def __init__(self, what: str, queue: int | None = None) -> None:
        super().__init__(what if queue is None else f"queue {queue}: {what}")
        self.what = what
        self.queue = queue


def clamp_thresholds(action: SetThresholds, buffer_bytes: Ints) -> tuple[SetThresholds, int]:
    """Return `action` with its values brought into bounds, and how many queues that changed.

    Bounds are 0 <= kmin <= kmax <= the queue's buffer (`buffer_bytes`, shape (queues,)) and pmax in
    0..1. A value that is no number has no nearest one: it is left to `check_thresholds`. Raises
    ImpossibleThresholds for queues that do not exist, or are set twice.
    """
    _check_queues(action, len(buffer_bytes))
    most = buffer_bytes[action.queues]
    kmax = np.clip(action.kmax_bytes, 0, most)
    kmin = np.clip(action.kmin_bytes, 0, kmax)
    pmax = np.clip(action.pmax, 0.0, 1.0)
    changed = (kmax != action.kmax_bytes) | (kmin != action.kmin_bytes) | (pmax != action.pmax)
    # not a number differs even from itself
    changed &= ~np.isnan(pmax) & ~np.isnan(kmin) & ~np.isnan(kmax)
    count = int(np.count_nonzero(changed))
    return (SetThresholds(action.queues, kmin, kmax, pmax) if count else action), count


def check_thresholds(action: SetThresholds, queues: int) -> None:
    """Raise ImpossibleThresholds, a ValueError, unless every queue is set once to possible values.

    Possible is 0 <= kmin <= kmax in bytes and pmax in 0..1. `queues` is how many there are.
    """
    _check_queues(action, queues)
    wrong = ~((action.kmin_bytes >= 0) & (action.kmin_bytes <= action.kmax_bytes))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        kmin, kmax = action.kmin_bytes[at], action.kmax_bytes[at]
        what = f"needs 0 <= kmin <= kmax, got {kmin} and {kmax} B"
        raise ImpossibleThresholds(what, int(action.queues[at]))
    wrong = ~((action.pmax >= 0) & (action.pmax <= 1))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        what = f"pmax {action.pmax[at]} is not in 0..1"
        raise ImpossibleThresholds(what, int(action.queues[at]))


def _check_queues(action: SetThresholds, queues: int) -> None:
    index = action.queues
    shapes = {np.shape(part) for part in (index, action.kmin_bytes, action.kmax_bytes, action.pmax)}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ImpossibleThresholds(
            f"queues, kmin, kmax and pmax must be arrays of one length, not {shapes}"
        )
    if len(index) and (index.min() < 0 or index.max() >= queues):
        raise ImpossibleThresholds(f"queue {index.min()}..{index.max()} is not in 0..{queues - 1}")
    if len(np.unique(index)) != len(index):
        raise ImpossibleThresholds("a queue is set twice in one action")
