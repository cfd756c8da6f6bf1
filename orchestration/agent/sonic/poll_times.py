"""When a group of counters was polled, where the switch does not say so.

syncd of SONiC 202305 and 202405 stamps nothing; later ones stamp groups that they read in bulk
(sonic-sairedis PR 1457). What remains are the moments at which counters change: a change between
two readings is a poll between them, at the earliest when the earlier one was asked for.

syncd polls a group queue by queue. A queue whose own counters stay the same may not have been
reached yet when another's change. So it takes three sweeps: a counter that changes again is of a
new sweep; that ends the one before, which polled every queue and began after the change that
showed the first.

What syncd takes to bring a number from the ASIC to Redis is not in it: some ms of a sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_SWEEPS = 3


class PollTimes:
    """One group's times: none is later than the poll, None until a poll was seen."""

    def __init__(self, count: int) -> None:
        self._values: list[Any] = [None] * count
        self._times: list[int | None] = [None] * count
        self._sweeps: list[int] = []
        self._in_sweep: set[int] = set()
        self._asked_ns: int | None = None

    def seen(self, values: Sequence[Any], asked_ns: int) -> list[int | None]:
        """Take a reading that was asked for at `asked_ns`; return when each queue's was polled."""
        before_ns, self._asked_ns = self._asked_ns, asked_ns
        if before_ns is not None:
            pairs = enumerate(zip(values, self._values))
            changed = {place for place, (new, old) in pairs if new != old}
            if changed and (not self._sweeps or changed & self._in_sweep):
                self._sweeps = [*self._sweeps, before_ns][-_SWEEPS:]
                self._in_sweep.clear()
            self._in_sweep |= changed
            all_since = self._sweeps[0] if len(self._sweeps) == _SWEEPS else None
            for place, known in enumerate(self._times):
                if place in changed:
                    self._times[place] = before_ns
                elif all_since is not None and (known is None or known < all_since):
                    self._times[place] = all_since
        self._values = list(values)
        return list(self._times)
