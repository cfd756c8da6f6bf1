"""Records what the loop observes and applies, as the arrays of a trial's tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orchestration.core.knobs import ECN, KNOBS
from orchestration.core.records import (
    MISSING,
    Applied,
    Change,
    ChangeRecords,
    Ints,
    Observation,
    Samples,
)
from orchestration.core.signals import OPTIONAL_SCOPES, Scope, recorded, sampled_scopes, targets
from orchestration.core.topology import Testbed

_BEFORE_THE_TRIAL_NS = -1


class Staleness:
    """Finds values that repeat earlier ones, by when each signal of each queue was measured."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._newest_ns: Ints | None = None

    def repeats(self, observation: Observation) -> NDArray[np.bool_] | None:
        """Return which values repeat earlier ones, or were measured before the trial.

        The shape is (signals, queues); None if all were measured at the time of the reading.
        """
        if observation.taken_ns is None:
            return None
        taken_by, otherwise = observation.taken_by, observation.taken_ns
        taken_ns = np.stack([taken_by.get(key, otherwise) for key in self._keys])
        if self._newest_ns is None:
            self._newest_ns = np.full_like(taken_ns, _BEFORE_THE_TRIAL_NS)
        old: NDArray[np.bool_] = taken_ns <= self._newest_ns
        np.maximum(self._newest_ns, taken_ns, out=self._newest_ns)
        return old


# Number of readings that are kept in one array. An array for each reading would scatter them over
# the memory, and in a guest each scattered page is a mapping on the host, which allows a process
# 65,530 of them (vm.max_map_count). After 600 readings of 1,000 queues the guest would die or hang.
_BLOCK_READINGS = 64
# The rig itself samples these scopes, less often than the loop observes.
_SAMPLED_BY_RIG: tuple[Scope, ...] = ("host",)


class Recorder:
    """A loop observer that records everything. Use a new one for each trial."""

    def __init__(self, testbed: Testbed) -> None:
        self._t_ns: list[int] = []
        self._taken: list[tuple[Ints, Ints]] = []
        self._staleness = Staleness([signal.key for signal in recorded("queue")])
        self._blocks = {
            scope: _Blocks(scope, len(targets(testbed, scope)))
            for scope in sampled_scopes()
            if scope not in _SAMPLED_BY_RIG
        }
        self._changes: dict[str, list[tuple[int, int, int, Change]]] = {name: [] for name in KNOBS}

    def observed(self, observation: Observation) -> None:
        """Keep one reading."""
        if not self._t_ns:
            self._blocks = {
                scope: blocks
                for scope, blocks in self._blocks.items()
                if scope not in OPTIONAL_SCOPES or blocks.are_in(observation)
            }
        for scope, blocks in self._blocks.items():
            repeats = self._staleness.repeats(observation) if scope == "queue" else None
            blocks.add(len(self._t_ns), observation, repeats)
        self._t_ns.append(observation.t_ns)
        if observation.taken_ns is not None and observation.took_ns is not None:
            self._taken.append((observation.taken_ns, observation.took_ns))

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Keep the changes that were made in response to one observation."""
        for change in applied.changes:
            self._changes[change.knob].append((observed_ns, decided_ns, applied.t_ns, change))

    def samples(self) -> dict[Scope, Samples]:
        """Return the samples by scope, without optional scopes that were not observed."""
        t_ns = np.array(self._t_ns, dtype=np.int64)
        return {scope: blocks.samples(t_ns) for scope, blocks in self._blocks.items()}

    @property
    def readings(self) -> int:
        """The number of readings so far."""
        return len(self._t_ns)

    def samples_since(self, first: int) -> tuple[Ints, dict[Scope, Ints]]:
        """Return times and values of the readings from number `first` on.

        Shapes are (readings,) and, by scope, (readings, signals, targets).
        """
        t_ns = np.array(self._t_ns[first:], dtype=np.int64)
        values = {scope: blocks.since(first, len(t_ns)) for scope, blocks in self._blocks.items()}
        return t_ns, values

    def changes_since(self, knob: str, first: int) -> tuple[int, ChangeRecords]:
        """Return the number of all changes of a knob, and the changes from number `first` on."""
        rows = self._changes[knob]
        return len(rows), _joined(knob, rows[first:])

    def taken(self) -> tuple[Ints, Ints] | None:
        """Return the earliest and latest time at which each queue's values can have been measured.

        None if some reading has no such times. A queue without them was measured at the time of the
        reading.
        """
        if not self._taken or len(self._taken) < len(self._t_ns):
            return None
        first, took = (np.stack(part) for part in zip(*self._taken, strict=True))
        first = np.where(took == MISSING, np.array(self._t_ns)[:, None], first)
        return first, first + np.maximum(took, 0)

    def changes(self) -> dict[str, ChangeRecords]:
        """Return the changes by knob, one row per changed target; ECN's even if there are none."""
        changed = {name: rows for name, rows in self._changes.items() if rows or name == ECN.name}
        return {name: _joined(name, rows) for name, rows in changed.items()}


class _Blocks:
    """The recorded signals of one scope, reading by reading."""

    def __init__(self, scope: Scope, count: int) -> None:
        self._signals = recorded(scope)
        self._count = count
        self._blocks: list[Ints] = []

    def are_in(self, observation: Observation) -> bool:
        return any(signal.key in observation.values for signal in self._signals)

    def add(self, number: int, observation: Observation, repeats: np.ndarray | None) -> None:
        """Keep reading `number`, counted from 0; values that repeat earlier ones become missing."""
        row = number % _BLOCK_READINGS
        if row == 0:
            shape = (_BLOCK_READINGS, len(self._signals), self._count)
            self._blocks.append(np.empty(shape, dtype=np.int64))
        for column, signal in enumerate(self._signals):
            values = observation.get(signal.key)
            self._blocks[-1][row, column] = MISSING if values is None else values
        if repeats is not None:
            self._blocks[-1][row][repeats] = MISSING

    def since(self, first: int, count: int) -> Ints:
        begin, end = first // _BLOCK_READINGS, (first + count - 1) // _BLOCK_READINGS + 1
        pieces = [
            block[max(0, first - begin_of_block) : first + count - begin_of_block]
            for begin_of_block, block in zip(
                range(begin * _BLOCK_READINGS, end * _BLOCK_READINGS, _BLOCK_READINGS),
                self._blocks[begin:end],
                strict=True,
            )
        ]
        return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]

    def samples(self, t_ns: Ints) -> Samples:
        columns = {}
        for column, signal in enumerate(self._signals):
            values = np.empty((len(t_ns), self._count), dtype=np.int64)
            for number, block in enumerate(self._blocks):
                rows = values[number * _BLOCK_READINGS : (number + 1) * _BLOCK_READINGS]
                rows[:] = block[: len(rows), column]
            columns[signal.name] = values
        return Samples(t_ns, columns)


def _joined(knob: str, rows: list[tuple[int, int, int, Change]]) -> ChangeRecords:
    counts = [len(change.targets) for _, _, _, change in rows]

    def spread(column: int) -> Ints:
        return np.repeat(np.array([row[column] for row in rows], dtype=np.int64), counts)

    def joined(parts: list[np.ndarray], dtype: str) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype), *parts], dtype=dtype, casting="unsafe")

    return ChangeRecords(
        observed_ns=spread(0),
        decided_ns=spread(1),
        applied_ns=spread(2),
        targets=joined([change.targets for *_, change in rows], "int64"),
        values={
            column.name: joined([change[column.name] for *_, change in rows], column.dtype)
            for column in KNOBS[knob].columns
        },
    )
