"""Keeps what the loop observes and applies, as the arrays of a trial's tables."""

from __future__ import annotations

import numpy as np

from orchestration.model.records import (
    MISSING,
    ActionRecords,
    Applied,
    Ints,
    Observation,
    PortRecords,
)

# What a reading tells of a queue that is kept.
COUNTERS = ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
# Readings are kept in blocks of so many. Arrays of single readings lie scattered in memory; in a
# guest each scattered page is a mapping of the host's, which allows a process 65,530 of them
# (vm.max_map_count): 600 readings of 1,000 queues, and the guest dies or hangs.
_BLOCK_READINGS = 64


class Recorder:
    """A loop observer that remembers everything. Use a new one for each trial."""

    def __init__(self) -> None:
        self._t_ns: list[int] = []
        self._taken_ns: list[Ints | None] = []
        self._blocks: list[np.ndarray] = []
        self._changes: list[tuple[int, int, Applied]] = []

    def observed(self, observation: Observation) -> None:
        """Keep one reading of all queues."""
        row = len(self._t_ns) % _BLOCK_READINGS
        if row == 0:
            shape = (_BLOCK_READINGS, len(COUNTERS), len(observation.qlen_bytes))
            self._blocks.append(np.empty(shape, dtype=np.int64))
        for place, name in enumerate(COUNTERS):
            self._blocks[-1][row, place] = getattr(observation, name)
        self._t_ns.append(observation.t_ns)
        self._taken_ns.append(observation.taken_ns)

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Keep one change of thresholds."""
        self._changes.append((observed_ns, decided_ns, applied))

    def ports(self, queues: int) -> PortRecords:
        """Return the samples, shape (samples, `queues`)."""
        old = _nothing_new(self._taken_ns)
        samples = len(self._t_ns)

        def stack(place: int) -> np.ndarray:
            values = np.empty((samples, queues), dtype=np.int64)
            for number, block in enumerate(self._blocks):
                rows = values[number * _BLOCK_READINGS : (number + 1) * _BLOCK_READINGS]
                rows[:] = block[: len(rows), place]
            return values if old is None else np.where(old, MISSING, values)

        return PortRecords(
            t_ns=np.array(self._t_ns, dtype=np.int64),
            **{name: stack(place) for place, name in enumerate(COUNTERS)},
        )

    def actions(self) -> ActionRecords:
        """Return the changes, a row for each changed queue."""
        rows = self._changes
        counts = [len(applied.queues) for _, _, applied in rows]

        def spread(times: list[int]) -> np.ndarray:
            return np.repeat(np.array(times, dtype=np.int64), counts)

        def joined(name: str, dtype: type) -> np.ndarray:
            parts: list[np.ndarray] = [
                np.asarray(getattr(applied, name), dtype=dtype) for _, _, applied in rows
            ]
            return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)

        return ActionRecords(
            observed_ns=spread([row[0] for row in rows]),
            decided_ns=spread([row[1] for row in rows]),
            applied_ns=spread([applied.t_ns for _, _, applied in rows]),
            queue=joined("queues", np.int64),
            kmin_bytes=joined("kmin_bytes", np.int64),
            kmax_bytes=joined("kmax_bytes", np.int64),
            pmax=joined("pmax", np.float64),
        )


def _nothing_new(taken_ns: list[Ints | None]) -> np.ndarray | None:
    """Return at which samples a queue showed what an earlier one had, or nothing of this trial.

    Shape (samples, queues); None if every reading was of its own time.
    """
    rows = [row for row in taken_ns if row is not None]
    if not rows or len(rows) < len(taken_ns):
        return None
    taken = np.stack(rows)
    before = np.vstack([np.full((1, taken.shape[1]), -1), np.maximum.accumulate(taken)[:-1]])
    return (taken <= before) | (taken < 0)
