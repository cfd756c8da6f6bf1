"""Estimates when a SONiC switch polled a group of counters, if it does not report that.

syncd of SONiC 202305 and 202405 does not stamp counters with the time; later ones stamp groups that
they read in bulk (sonic-sairedis PR 1457). Without stamps, only changes of counters show polls: if
a counter changes between two readings, it was polled between them, at the earliest when the earlier
reading was requested.

syncd polls a group queue by queue, in sweeps. When one queue's counters change, another queue whose
counters stay the same may not have been polled yet. So three sweeps are needed to date a queue
without changes: a counter that changes again belongs to a new sweep. That ends the sweep before,
which polled every queue, and began after the change that showed the first sweep.

The time that syncd takes to bring a number from the ASIC to Redis, some ms of a sweep, is not
included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_SWEEPS = 3


class PollTimes:
    """The poll times of one group's queues, in ns, None until a poll was seen.

    A time is never later than the poll.
    """

    def __init__(self, count: int) -> None:
        self._values: list[Any] = [None] * count
        self._times: list[int | None] = [None] * count
        self._sweep_starts_ns: list[int] = []
        self._changed_in_sweep: set[int] = set()
        self._requested_ns: int | None = None

    def update(self, values: Sequence[Any], requested_ns: int) -> list[int | None]:
        """Take the values of a reading requested at this time; return each queue's poll time."""
        previous_ns, self._requested_ns = self._requested_ns, requested_ns
        if previous_ns is not None:
            pairs = enumerate(zip(values, self._values))
            changed = {index for index, (new, old) in pairs if new != old}
            if changed and (not self._sweep_starts_ns or changed & self._changed_in_sweep):
                self._sweep_starts_ns = [*self._sweep_starts_ns, previous_ns][-_SWEEPS:]
                self._changed_in_sweep.clear()
            self._changed_in_sweep |= changed
            all_since = self._sweep_starts_ns[0] if len(self._sweep_starts_ns) == _SWEEPS else None
            for index, time_ns in enumerate(self._times):
                if index in changed:
                    self._times[index] = previous_ns
                elif all_since is not None and (time_ns is None or time_ns < all_since):
                    self._times[index] = all_since
        self._values = list(values)
        return list(self._times)
