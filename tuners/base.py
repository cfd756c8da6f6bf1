"""What every tuner of ECN thresholds has, unless it says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from orchestration.model.records import Action, NoAction, Observation

if TYPE_CHECKING:
    from inventory.topology import Testbed


# What a queue tells of itself, and a tuner may decide by.
QUEUE_COUNTERS = ("qlen_bytes", "tx_bytes", "marked_packets")


class EcnTuner:
    """A tuner that decides by queues alone, keeps nothing to learn from, and has nothing to tell.

    A subclass adds `reset(testbed, seed)`, which returns the setting to start from: see
    `orchestration.model.ports.Tuner`.
    """

    observes_flows = False
    observes: Sequence[str] = QUEUE_COUNTERS

    def check_testbed(self, testbed: Testbed) -> None:
        """Accept every testbed. A tuner that does not raises CheckpointError."""

    def act(self, observation: Observation) -> Action:
        """Leave the setting as it is."""
        return NoAction()

    def facts(self) -> Mapping[str, Any]:
        """Return nothing."""
        return {}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return nothing."""
        return {}
