"""The rate limit on changes of a knob: no change is lost without being counted."""

from __future__ import annotations

import numpy as np

from orchestration.core.knobs import Knob
from orchestration.core.records import Change

_NEVER_NS = np.iinfo(np.int64).min // 2


class ChangeLimiter:
    """Lets each of a knob's `count` targets change at most once in `min_interval_ns`.

    A change that comes too early waits; a later change of the same target replaces it.

    `held_back` counts changes that had to wait, `superseded` those among them that a later change
    replaced before they took effect. Setting a target to its current value is no change.
    """

    def __init__(self, knob: Knob, count: int, min_interval_ns: int) -> None:
        self._knob = knob
        self._interval_ns = min_interval_ns
        self._changed_ns = np.full(count, _NEVER_NS, dtype=np.int64)
        self._set = np.full((len(knob.columns), count), np.nan)
        self._waiting_values = self._set.copy()
        self._waits = np.zeros(count, dtype=bool)
        self.held_back = 0
        self.superseded = 0

    def submit(self, change: Change, now_ns: int) -> Change:
        """Take a tuner's change; return what may be set now, with the waiting changes that are due.

        Values are not checked here: the loop has checked their bounds.
        """
        queues = change.targets
        wanted = np.stack([change[name] for name in self._knob.column_names]).astype(np.float64)
        waited = self._waits[queues]
        repeated = waited & (self._waiting_values[:, queues] == wanted).all(axis=0)
        self.superseded += int((waited & ~repeated).sum())
        differs = ~(self._set[:, queues] == wanted).all(axis=0)
        self._waiting_values[:, queues] = wanted
        self._waits[queues] = differs
        ready = self._release(now_ns)
        self.held_back += int((self._waits[queues] & ~repeated).sum())
        return ready

    def due(self, now_ns: int) -> Change:
        """Remove and return the waiting changes that may be made now."""
        return self._release(now_ns)

    def _release(self, now_ns: int) -> Change:
        may = self._waits & (now_ns - self._changed_ns >= self._interval_ns)
        queues = np.flatnonzero(may)
        values = self._waiting_values[:, queues]
        self._set[:, queues] = values
        self._changed_ns[queues] = now_ns
        self._waits[queues] = False
        columns = zip(self._knob.columns, values, strict=True)
        return self._knob.change(queues, *(row.astype(column.dtype) for column, row in columns))
