"""The learner of DRLet's central agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tuners.flowlet.drlet import NAME, architecture, sizes
from tuners.training.ddpg import DdpgLearner, DdpgSettings

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


@dataclass(frozen=True)
class DrletSettings(DdpgSettings):
    """Settings of training.

    Without `hidden`, the two hidden layers are as wide as a state and an action: "992 and 64
    neurons in the first and second layer" at k = 8 (section VI-A).
    """


class DrletLearner(DdpgLearner):
    """Learns the central agent's networks."""

    tuner = NAME
    settings = DrletSettings

    def __init__(
        self,
        seed: int,
        testbed: Testbed,
        settings: DrletSettings = DrletSettings(),
        parameters: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        about = architecture(*sizes(testbed), settings.hidden)
        super().__init__(seed, sizes(testbed), settings, about, parameters)
