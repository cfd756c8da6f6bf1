"""DRLet: one central agent sets the flowlet timeout of every switch that has several paths upwards.

A flowlet is a burst of a flow. After a gap longer than the flowlet timeout, the flow may take
another path. Diao et al., "Deep Reinforcement Learning Based Dynamic Flowlet Switching for DCN":
equations 1 to 5, algorithm 1. The state is the traffic between each ordered pair of edge switches
in the last period. An action is the timeout of each edge and aggregation switch. What the paper
leaves open is chosen in `tuners.training.ddpg`, `tuners.flowlet.learned` and
`tuners.flowlet.settings`, and listed in decision 69.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestration.core.records import Floats, Observation
from orchestration.core.signals import PAIRS, targets
from tuners.flowlet.learned import LearnedTimeouts, initial_parameters
from tuners.flowlet.settings import Uplinks
from tuners.learning.checkpoint import CheckpointError, load_for
from tuners.learning.checkpoint import load as load_checkpoint

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

NAME = "drlet"


def architecture(pairs: int, switches: int, hidden: tuple[int, ...]) -> dict[str, Any]:
    """Return the architecture of a checkpoint for so many pairs of edge switches, and switches."""
    return {"network": "actor and critic mlp", "pairs": pairs, "switches": switches} | {
        "hidden": list(hidden or (pairs, switches))
    }


def sizes(testbed: Testbed) -> tuple[int, int]:
    """Return the numbers of ordered pairs of edge switches, and of switches with several paths."""
    return len(targets(testbed, "pair")), len(Uplinks(testbed).switches)


@dataclass(eq=False)
class Drlet(LearnedTimeouts):
    """DRLet: one agent for the whole fabric decides by the traffic between edge switches.

    A checkpoint is for one shape of fabric, at any rates.
    """

    observes = ("tx_bytes", PAIRS)

    checkpoint: str = "drlet-k4-1"
    explore: float = 0.0
    alpha: float = 0.5
    beta: float = 0.5
    collect: bool = False

    def __post_init__(self) -> None:
        known = load_checkpoint(self.checkpoint).card.get("architecture", {})
        pairs, switches = int(known.get("pairs", 0)), int(known.get("switches", 0))
        expected = architecture(pairs, switches, _hidden(known))
        start = initial_parameters(0, pairs, switches, _hidden(expected))
        shapes = {name: values.shape for name, values in start.items()}
        self._checkpoint = load_for(self.checkpoint, NAME, expected, shapes)
        self._sizes = pairs, switches

    def check_testbed(self, testbed: Testbed | None) -> None:
        """Refuse a testbed of another shape than the checkpoint's."""
        super().check_testbed(testbed)
        if testbed is not None and sizes(testbed) != self._sizes:
            text = "{} pairs of edge switches and {} switches with several paths"
            raise CheckpointError(
                f"{self._checkpoint.path} is for {text.format(*self._sizes)}, testbed "
                f"{testbed.name!r} has {text.format(*sizes(testbed))}: name a checkpoint that was "
                "trained there, or train one with closloop train drlet"
            )

    def start_trial(self, testbed: Testbed) -> None:
        """Begin with no traffic seen."""
        self._pair_bytes: Floats = np.zeros(self._sizes[0])
        self._sent_bytes = self._before_bytes = 0.0

    def read(self, observation: Observation, span_s: float) -> tuple[Floats, Floats]:
        """Return the state (1, pairs), traffic as shares of a host's rate, and the load (1,)."""
        total_bytes = observation[PAIRS].astype(np.float64)
        traffic_bytes, self._pair_bytes = total_bytes - self._pair_bytes, total_bytes
        # of all links between switches
        self._variance = [self._links.utilisation(observation)[self._links.between].var()]
        self._before_bytes, self._sent_bytes = self._sent_bytes, float(traffic_bytes.sum())
        x = (8.0 * traffic_bytes / (self._rate_bps * span_s))[None]
        return x, np.array([8.0 * self._sent_bytes / (self._host_bps * span_s)])


def _hidden(known: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(width) for width in known.get("hidden", ()))
