"""Keeps what the loop observes and applies, as the arrays of a trial's tables."""

from __future__ import annotations

import numpy as np

from orchestration.model.records import MISSING, ActionRecords, Applied, Observation, PortRecords


class Recorder:
    """A loop observer that remembers everything. Use a new one for each trial."""

    def __init__(self) -> None:
        self._observations: list[Observation] = []
        self._changes: list[tuple[int, int, Applied]] = []

    def observed(self, observation: Observation) -> None:
        """Keep one reading of all queues."""
        self._observations.append(observation)

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Keep one change of thresholds."""
        self._changes.append((observed_ns, decided_ns, applied))

    def ports(self, queues: int) -> PortRecords:
        """Return the samples, shape (samples, `queues`)."""
        rows = self._observations
        old = _nothing_new(rows)

        def stack(name: str) -> np.ndarray:
            if not rows:
                return np.zeros((0, queues), dtype=np.int64)
            values = np.stack([getattr(row, name) for row in rows])
            return values if old is None else np.where(old, MISSING, values)

        return PortRecords(
            t_ns=np.array([row.t_ns for row in rows], dtype=np.int64),
            qlen_bytes=stack("qlen_bytes"),
            tx_bytes=stack("tx_bytes"),
            tx_packets=stack("tx_packets"),
            marked_packets=stack("marked_packets"),
            dropped_packets=stack("dropped_packets"),
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


def _nothing_new(rows: list[Observation]) -> np.ndarray | None:
    """Return at which samples a queue showed what an earlier one had, or nothing of this trial.

    Shape (samples, queues); None if every reading was of its own time.
    """
    if not rows or any(row.taken_ns is None for row in rows):
        return None
    taken = np.stack([row.taken_ns for row in rows if row.taken_ns is not None])
    before = np.vstack([np.full((1, taken.shape[1]), -1), np.maximum.accumulate(taken)[:-1]])
    return (taken <= before) | (taken < 0)
