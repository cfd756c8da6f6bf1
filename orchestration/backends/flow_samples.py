"""Samples of all flows of a trial, as rigs take them at a campaign's `flow_sample_period`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from orchestration.model.records import Ints, Samples
from orchestration.model.signals import FLOW_SCOPE, names


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
