"""The learner of DRLet's multi-agent variant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tuners.flowlet.drlet_local import FEATURES, HIDDEN, NAME, architecture
from tuners.training.ddpg import DdpgLearner, DdpgSettings

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


@dataclass(frozen=True)
class DrletLocalSettings(DdpgSettings):
    """Settings of training. A decision has a sample for every switch, so batches are larger."""

    hidden: tuple[int, ...] = HIDDEN
    batch: int = 256
    actor_rate: float = 3e-4


class DrletLocalLearner(DdpgLearner):
    """Learns the networks that all switches share. Every switch's decision is a sample."""

    tuner = NAME
    settings = DrletLocalSettings

    def __init__(
        self,
        seed: int,
        testbed: Testbed,
        settings: DrletLocalSettings = DrletLocalSettings(),
        parameters: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        about = architecture(settings.hidden)
        super().__init__(seed, (len(FEATURES), 1), settings, about, parameters)
