"""The interface of tuners that say which reward they learn from, and among what they choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from orchestration.core.records import Floats, Observation

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


@runtime_checkable
class Rewarded(Protocol):
    """A tuner of queues whose reward is a function of two successive readings."""

    @property
    def discount(self) -> float:
        """How much the next decision's reward counts in training, 0 to below 1."""

    def choices(self) -> Mapping[str, NDArray[Any]]:
        """Return the settings that the tuner chooses from: an array (actions,) for each column."""

    def rewards(self, testbed: Testbed, before: Observation, after: Observation) -> Floats:
        """Return each queue's reward (queues,) for the time between two decisions' readings.

        `before` and `after` have the recorded signals of queues; `after` has `qlen_mean_bytes`, the
        mean over the samples since `before`, too.
        """
