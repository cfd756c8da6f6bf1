"""What learners learn from: a trial's decisions and rewards, and replay buffers of transitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from orchestration.core.records import Floats, Ints, Observation

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

Batch = dict[str, NDArray[np.generic]]


class Decisions:
    """The decisions of a trial, one row each: states, actions, rewards, and other named arrays.

    The reward in a row is that of the action in the row before. `kinds` are the dtypes that arrays
    have in `trace`.
    """

    def __init__(self, **kinds: DTypeLike) -> None:
        self._kinds = kinds
        self._rows: list[dict[str, NDArray[Any]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, **row: NDArray[Any]) -> None:
        """Keep one decision: arrays (agents, …), which the caller may not change afterwards."""
        self._rows.append(row)

    def last(self) -> dict[str, NDArray[Any]]:
        """Return the last decision; empty before the first."""
        return self._rows[-1] if self._rows else {}

    def forget(self) -> None:
        """Forget all but the last decision."""
        del self._rows[:-1]

    def trace(self) -> dict[str, NDArray[Any]]:
        """Return all decisions as arrays (decisions, agents, …); empty if there are none."""
        if not self._rows:
            return {}
        return {
            name: np.stack([row[name] for row in self._rows]).astype(kind)
            for name, kind in self._kinds.items()
        }


class ReplayBuffer:
    """A ring buffer of at most `capacity` transitions: one array per field, one row each."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._fields: Batch = {}
        self._next = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, rows: Mapping[str, NDArray[np.generic]]) -> Ints:
        """Add transitions, arrays of shape (n, …), in place of the oldest; return their indices."""
        count = len(next(iter(rows.values())))
        if not self._fields:
            self._fields = {
                name: np.zeros((self.capacity, *values.shape[1:]), dtype=values.dtype)
                for name, values in rows.items()
            }
        keep = min(count, self.capacity)
        indices = (self._next + np.arange(keep)) % self.capacity
        for name, values in rows.items():
            self._fields[name][indices] = values[count - keep :]
        self._next = int((self._next + keep) % self.capacity)
        self._size = min(self._size + keep, self.capacity)
        return indices

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        """Draw `count` transitions uniformly, with replacement."""
        indices = rng.integers(0, self._size, count)
        return {name: values[indices] for name, values in self._fields.items()}

    def field(self, name: str) -> NDArray[np.generic]:
        """Return one field of all transitions in the buffer."""
        return self._fields[name][: self._size]

    def state(self) -> Batch:
        """Return the whole content, for `load`."""
        fields = {name: values[: self._size] for name, values in self._fields.items()}
        return {**fields, "_next": np.array([self._next])}

    def load(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore what `state` returned."""
        rows = {name: values for name, values in state.items() if name != "_next"}
        self._fields, self._next, self._size = {}, 0, 0
        if rows:
            self.add(rows)
        self._next = int(state["_next"][0])


@runtime_checkable
class HasReward(Protocol):
    """A tuner of queues whose reward is a function of two successive observations."""

    @property
    def discount(self) -> float:
        """How much the next decision's reward counts in training, 0 to below 1."""

    def choices(self) -> Mapping[str, NDArray[Any]]:
        """Return the settings that the tuner chooses from: an array (actions,) per column."""

    def rewards(self, testbed: Testbed, before: Observation, after: Observation) -> Floats:
        """Return each queue's reward, shape (queues,), between two decisions' observations.

        `before` and `after` have the recorded signals of queues. `after` also has
        `qlen_mean_bytes`, the mean over the samples since `before`.
        """
