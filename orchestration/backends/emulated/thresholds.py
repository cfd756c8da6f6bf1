"""The ECN thresholds of a fabric's queues: how they are read, set, and read back."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from collectors.readers.tc import QueueReading
from orchestration.core.knobs import ECN
from orchestration.core.records import Change, Floats, Ints
from orchestration.core.topology import Testbed


class Queues(Protocol):
    """All queues of the fabric, in the order of `Testbed.queues`."""

    def read(self) -> QueueReading:
        """Read all queues."""

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        """Set thresholds of `queues`; all arrays have shape (changes,)."""

    def in_kernel(self, pmax: Floats) -> Ints:
        """Return the kernel's numbers for marking probabilities at kmax."""

    def from_kernel(self, max_p: Floats) -> Floats:
        """Return the marking probabilities at kmax that the kernel's numbers stand for."""


class Thresholds:
    """The knob `ecn` of all queues. `known` is their last reading."""

    def __init__(self, testbed: Testbed, queues: Queues) -> None:
        self._queues = queues
        self._bounds = ECN.bounds(testbed)
        self.known: QueueReading | None = None

    def apply(self, change: Change) -> Change:
        """Change thresholds without touching queued packets; return those read back.

        Queues that already have these settings are skipped: a change restarts RED's count of
        packets since the last marked one. Raises ImpossibleSetting for values out of bounds.
        """
        self._bounds.check(change)
        queues, max_p = change.targets, self._queues.in_kernel(change["pmax"])
        known = self.known or self._read()
        differs = (known.kmin_bytes[queues] != change["kmin_bytes"]) | (
            known.kmax_bytes[queues] != change["kmax_bytes"]
        )
        differs |= known.max_p[queues] != max_p
        if differs.any():
            self._queues.set(queues[differs], *(change[name][differs] for name in ECN.column_names))
            known = self._read()
        columns = self.settings(known)
        return Change(ECN.name, queues, {name: values[queues] for name, values in columns.items()})

    def settings(self, reading: QueueReading) -> dict[str, np.ndarray]:
        """Return the thresholds of all queues in a reading, by the knob's columns."""
        pmax = self._queues.from_kernel(reading.max_p)
        return ECN.named(reading.kmin_bytes, reading.kmax_bytes, pmax)

    def _read(self) -> QueueReading:
        self.known = self._queues.read()
        return self.known
