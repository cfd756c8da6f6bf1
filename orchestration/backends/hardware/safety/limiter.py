"""The rate limit on threshold changes: none is lost without being counted."""

from __future__ import annotations

import numpy as np

from orchestration.model.records import SetThresholds

_NEVER_NS = np.iinfo(np.int64).min // 2


class ChangeLimiter:
    """Lets each queue's thresholds change at most once in `min_interval_ns`.

    A change that comes too early waits; a later one for the same queue takes its place.

    `held_back` counts changes that had to wait, `superseded` those of them that never took effect
    because a later one came first. Setting a queue to what it has is no change.
    """

    def __init__(self, queues: int, min_interval_ns: int) -> None:
        self._interval_ns = min_interval_ns
        self._changed_ns = np.full(queues, _NEVER_NS, dtype=np.int64)
        # kmin, kmax, pmax
        self._set = np.full((3, queues), np.nan)
        self._waiting_values = np.full((3, queues), np.nan)
        self._waits = np.zeros(queues, dtype=bool)
        self.held_back = 0
        self.superseded = 0

    @property
    def waiting(self) -> int:
        """How many queues have a change that waits."""
        return int(self._waits.sum())

    @property
    def next_due_ns(self) -> int | None:
        """When the next change that waits may be made; None if none waits."""
        if not self._waits.any():
            return None
        return int(self._changed_ns[self._waits].min()) + self._interval_ns

    def submit(self, action: SetThresholds, now_ns: int) -> SetThresholds:
        """Take a tuner's action; return what may be set now, waiting changes that are due included.

        Values are taken as they are: bounds are checked before.
        """
        queues = action.queues
        wanted = np.stack([action.kmin_bytes, action.kmax_bytes, action.pmax]).astype(np.float64)
        waited = self._waits[queues]
        repeated = waited & (self._waiting_values[:, queues] == wanted).all(axis=0)
        self.superseded += int((waited & ~repeated).sum())
        differs = ~(self._set[:, queues] == wanted).all(axis=0)
        self._waiting_values[:, queues] = wanted
        self._waits[queues] = differs
        ready = self._release(now_ns)
        self.held_back += int((self._waits[queues] & ~repeated).sum())
        return ready

    def due(self, now_ns: int) -> SetThresholds:
        """Return the waiting changes that may be made now; they wait no more."""
        return self._release(now_ns)

    def _release(self, now_ns: int) -> SetThresholds:
        may = self._waits & (now_ns - self._changed_ns >= self._interval_ns)
        queues = np.flatnonzero(may)
        values = self._waiting_values[:, queues]
        self._set[:, queues] = values
        self._changed_ns[queues] = now_ns
        self._waits[queues] = False
        return SetThresholds(
            queues=queues,
            kmin_bytes=values[0].astype(np.int64),
            kmax_bytes=values[1].astype(np.int64),
            pmax=values[2],
        )
