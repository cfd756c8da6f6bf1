"""Readings of all flows of a trial: samples at a campaign's `flow_sample_period`, and those at the
ends of the measured time, which every trial with RoCE NICs has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from orchestration.model.records import Ints, Samples
from orchestration.model.signals import FLOW_SCOPE, names
from orchestration.model.trial import TrialSpec


class FlowSamples:
    """Collects readings of every flow."""

    def __init__(self) -> None:
        self._t_ns: list[int] = []
        self._rows: list[Mapping[str, Ints]] = []

    def add(self, t_ns: int, counters: Mapping[str, Ints]) -> None:
        """Keep one reading: the signals of scope flow by name, arrays (flows,)."""
        self._t_ns.append(t_ns)
        self._rows.append(counters)

    def samples(self) -> Samples:
        """Return the readings, arrays (samples, flows)."""
        values = {name: np.array([row[name] for row in self._rows]) for name in names(FLOW_SCOPE)}
        return Samples(np.array(self._t_ns, dtype=np.int64), values)


class AckedAtEnds:
    """Collects what all flows had acknowledged at the readings around the measured time's ends.

    A trial whose sample period divides these times has one reading at each, others have the one
    before and the one after.
    """

    def __init__(self, trial: TrialSpec) -> None:
        period_ns = trial.sample_period_ns
        self._due_ns = sorted(
            {
                tick * period_ns
                for end_ns in trial.measured_ns
                for tick in (end_ns // period_ns, -(-end_ns // period_ns))
                if tick
            }
        )
        self._t_ns: list[int] = []
        self._acked_bytes: list[Ints] = []

    def due(self, tick_ns: int) -> bool:
        """Return whether flows are to be read at this multiple of the sample period."""
        return tick_ns in self._due_ns

    def next_due_ns(self, from_ns: int) -> int | None:
        """Return when flows are to be read next, `from_ns` at the earliest; None if never."""
        return next((due_ns for due_ns in self._due_ns if due_ns >= from_ns), None)

    def add(self, t_ns: int, acked_bytes: Ints) -> None:
        """Keep one reading, (flows,); MISSING for flows that are not of RoCE NICs."""
        self._t_ns.append(t_ns)
        self._acked_bytes.append(acked_bytes)

    def readings(self) -> Samples | None:
        """Return the readings of `acked_bytes`, (readings, flows); None if there is none."""
        if not self._t_ns:
            return None
        values = {"acked_bytes": np.array(self._acked_bytes, dtype=np.int64)}
        return Samples(np.array(self._t_ns, dtype=np.int64), values)
