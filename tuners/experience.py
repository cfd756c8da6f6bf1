"""Experience replay: rings of transitions, drawn from uniformly or by priority."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from orchestration.model.records import Floats, Ints

Batch = dict[str, NDArray[np.generic]]


class Replay:
    """A ring of at most `capacity` transitions; a field is an array, a row a transition."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._fields: Batch = {}
        self._next = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, rows: Mapping[str, NDArray[np.generic]]) -> Ints:
        """Add transitions, arrays of shape (n, …); the oldest make room. Return their places."""
        count = len(next(iter(rows.values())))
        if not self._fields:
            self._fields = {
                name: np.zeros((self.capacity, *values.shape[1:]), dtype=values.dtype)
                for name, values in rows.items()
            }
        keep = min(count, self.capacity)
        places = (self._next + np.arange(keep)) % self.capacity
        for name, values in rows.items():
            self._fields[name][places] = values[count - keep :]
        self._next = int((self._next + keep) % self.capacity)
        self._size = min(self._size + keep, self.capacity)
        return places

    def take(self, places: Ints) -> Batch:
        """Return the transitions at `places`."""
        return {name: values[places] for name, values in self._fields.items()}

    def sample(self, rng: np.random.Generator, count: int, weights: Floats | None = None) -> Batch:
        """Draw with replacement, uniformly or in proportion to `weights` (len(self),)."""
        return self.take(draw(rng, self._size, count, weights))

    def field(self, name: str) -> NDArray[np.generic]:
        """Return one field of all transitions held."""
        return self._fields[name][: self._size]

    def state(self) -> Batch:
        """Return everything held, for `load`."""
        held = {name: values[: self._size] for name, values in self._fields.items()}
        return {**held, "_next": np.array([self._next])}

    def load(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Hold what `state` returned."""
        rows = {name: values for name, values in state.items() if name != "_next"}
        self._fields, self._next, self._size = {}, 0, 0
        if rows:
            self.add(rows)
        self._next = int(state["_next"][0])


class PrioritisedReplay(Replay):
    """Draws in proportion to priority^alpha (Schaul et al., 2016, section 3.3)."""

    def __init__(self, capacity: int, alpha: float = 0.6) -> None:
        super().__init__(capacity)
        self._alpha = alpha
        self._priority = np.zeros(capacity)

    def add(self, rows: Mapping[str, NDArray[np.generic]]) -> Ints:
        """Add transitions with the highest priority so far: each is seen at least once or so."""
        places = super().add(rows)
        self._priority[places] = max(float(self._priority.max()), 1e-3)
        return places

    def draw(self, rng: np.random.Generator, count: int, beta: float) -> tuple[Ints, Floats]:
        """Return places, and their importance weights (N * P)^-beta over the largest of them."""
        scaled = self._priority[: len(self)] ** self._alpha
        share = scaled / scaled.sum()
        places = draw(rng, len(self), count, share)
        weights = (len(self) * share[places]) ** -beta
        return places, weights / weights.max()

    def update(self, places: Ints, errors: Floats) -> None:
        """Set priorities to |TD error|, never quite 0."""
        self._priority[places] = np.abs(errors) + 1e-3

    def state(self) -> Batch:
        """Return everything held, priorities too."""
        return {**super().state(), "_priority": self._priority[: len(self)].copy()}

    def load(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Hold what `state` returned."""
        rows = dict(state)
        priority = rows.pop("_priority")
        self._priority[:] = 0.0
        super().load(rows)
        self._priority[: len(priority)] = priority


def draw(rng: np.random.Generator, size: int, count: int, weights: Floats | None) -> Ints:
    """Draw `count` of 0 .. size - 1 with replacement, uniformly or in proportion to `weights`."""
    if weights is None:
        return rng.integers(0, size, count)
    edges = np.cumsum(weights)
    places = np.searchsorted(edges, rng.random(count) * edges[-1], side="right")
    bounded: Ints = np.minimum(places, size - 1).astype(np.int64)
    return bounded
