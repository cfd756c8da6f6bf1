"""Several observers of one loop."""

from __future__ import annotations

from typing import Protocol

from orchestration.model.records import Applied, Observation


class LoopObserver(Protocol):
    """What `orchestration.loop.Observer` asks of an observer."""

    def observed(self, observation: Observation) -> None:
        """Take one reading of all queues."""

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Take one change."""


class Tee:
    """Tells each of `observers`, in their order."""

    def __init__(self, *observers: LoopObserver) -> None:
        self._observers = observers

    def observed(self, observation: Observation) -> None:
        """Pass on one reading of all queues."""
        for observer in self._observers:
            observer.observed(observation)

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Pass on one change of thresholds."""
        for observer in self._observers:
            observer.applied(observed_ns, decided_ns, applied)
