"""Readings of all flows of a trial: samples at a campaign's `flow_sample_period`, and those at the
ends of the measured time, which every trial with RoCE NICs has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from orchestration.core.records import Ints, Samples
from orchestration.core.signals import FLOW_SCOPE, names
from orchestration.core.trial import TrialSpec


class FlowReadings:
    """Reads every flow when that is due, and keeps what a trial asks for.

    What flows had acknowledged is kept of the readings around the measured time's ends. A trial
    whose sample period divides these times has one reading at each, others have the one before and
    the one after.
    """

    def __init__(self, trial: TrialSpec, read: Callable[[], Mapping[str, Ints]]) -> None:
        """`read` returns the signals of scope flow by name, arrays (flows,)."""
        self._read = read
        period_ns = trial.sample_period_ns
        self._every = trial.flow_sample_period_ns // period_ns
        ends = {
            tick
            for end_ns in trial.measured_ns
            for tick in (end_ns // period_ns, -(-end_ns // period_ns))
            if tick
        }
        self._ends = sorted(ends) if trial.host.roce is not None else []
        self._sampled: list[tuple[int, Mapping[str, Ints]]] = []
        self._acked: list[tuple[int, Ints]] = []

    def take(self, tick: int, t_ns: int) -> None:
        """Read the flows at `t_ns` if that is due after so many sample periods."""
        sampled, at_end = self._every and tick % self._every == 0, tick in self._ends
        if not sampled and not at_end:
            return
        counters = self._read()
        if sampled:
            self._sampled.append((t_ns, counters))
        if at_end:
            self._acked.append((t_ns, counters["acked_bytes"]))

    def ahead(self, tick: int) -> int:
        """Return after how many more sample periods flows are read next; many if never."""
        to_sample = self._every - tick % self._every if self._every else _NEVER
        return min(to_sample, *(end - tick for end in self._ends if end > tick), _NEVER)

    def samples(self) -> Samples | None:
        """Return the samples, arrays (samples, flows); None if the trial asks for none."""
        if not self._every:
            return None
        rows = [row for _, row in self._sampled]
        values = {name: np.array([row[name] for row in rows]) for name in names(FLOW_SCOPE)}
        return Samples(np.array([t_ns for t_ns, _ in self._sampled], dtype=np.int64), values)

    def acked(self) -> Samples | None:
        """Return `acked_bytes` at the measured time's ends, (readings, flows); None if unknown."""
        if not self._acked:
            return None
        t_ns, rows = (np.array(column, dtype=np.int64) for column in zip(*self._acked, strict=True))
        return Samples(t_ns, {"acked_bytes": rows})


_NEVER = 1 << 62
