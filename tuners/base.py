"""What every tuner has, unless it says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from orchestration.model.knobs import ECN
from orchestration.model.records import Action, Observation

if TYPE_CHECKING:
    from inventory.topology import Testbed


class BaseTuner:
    """A tuner of ECN thresholds that decides by queues alone and keeps nothing to learn from.

    A subclass adds `reset(testbed, seed)`, which returns what to start from, and decides in `act`;
    it names what it observes and turns if that is something else. See
    `orchestration.model.ports.Tuner`.
    """

    observes: Collection[str] = ("qlen_bytes", "tx_bytes", "marked_packets")
    knobs: Collection[str] = (ECN.name,)
    programs: Collection[str] = ()

    def check_testbed(self, testbed: Testbed) -> None:
        """Accept every testbed. A tuner that does not raises CheckpointError."""

    def act(self, observation: Observation) -> Action:
        """Leave everything as it is."""
        return ()

    def facts(self) -> Mapping[str, Any]:
        """Return nothing."""
        return {}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return nothing."""
        return {}
