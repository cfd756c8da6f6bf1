"""The multi-agent variant of DRLet: one small network that all switches share, each by itself.

DRLet's paper names it as future work: "a distributed method using multi-agent reinforcement
learning". An agent is a switch with several paths upwards. It sees its own ports and flowlets
only, and earns equations 3 to 5 of its own links: the variance of the utilisation of its upward
ports, and the ratio of what it sent upwards in two periods in a row. So neither the network nor
what is reported grows with the fabric, and one checkpoint serves every fat tree and leaf-spine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestration.core.records import Floats, Observation
from tuners.ecn.features import size_feature
from tuners.flowlet.learned import LearnedTimeouts, initial_parameters
from tuners.flowlet.settings import PACKET_BYTES, action_of
from tuners.learning.checkpoint import load_for

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

NAME = "drlet-local"
HIDDEN = (32, 32)
FEATURES = (
    "up_utilisation",
    "up_deviation",
    "down_utilisation",
    "up_queue",
    "marked",
    "rerouted",
    "timeout",
    "edge",
)


def architecture(hidden: tuple[int, ...] = HIDDEN) -> dict[str, Any]:
    """Return the architecture that a checkpoint must have."""
    return {
        "network": "shared actor and critic mlp",
        "features": list(FEATURES),
        "hidden": list(hidden),
    }


@dataclass(eq=False)
class DrletLocal(LearnedTimeouts):
    """DRLet's variant with many agents: one small network, the same at every switch."""

    observes = (
        "qlen_mean_bytes",
        "tx_bytes",
        "marked_packets",
        "switch.reroutes",
    )

    checkpoint: str = "drlet-local-1"
    explore: float = 0.0
    alpha: float = 0.5
    beta: float = 0.5
    collect: bool = False

    def __post_init__(self) -> None:
        shapes = {n: v.shape for n, v in initial_parameters(0, len(FEATURES), 1, HIDDEN).items()}
        self._checkpoint = load_for(self.checkpoint, NAME, architecture(), shapes)

    def begin(self, testbed: Testbed) -> None:
        """Forget the trial before."""
        links = self._links
        self._edge = np.isin(
            np.array(testbed.switches)[links.switches],
            [testbed.peer_device(port).name for h in testbed.hosts for port in testbed.ports_of[h]],
        )
        down = ~links.up
        self._down = links.switch[down], np.flatnonzero(down)
        self._marked: Floats = np.zeros(len(links.up))
        self._rerouted: Floats = np.zeros(len(links.switches))
        self._sent: Floats = np.zeros(len(links.switches))
        self._before = self._variance = self._sent

    def read(self, observation: Observation, span_s: float) -> tuple[Floats, Floats]:
        """Return each switch's state and load, from its own ports and flowlets."""
        links = self._links
        utilisation = links.utilisation(observation)
        load, self._variance = links.mean(utilisation), links.variance(utilisation)
        self._before, self._sent = self._sent, links.sums(links.sent_bytes)[links.switches]
        marked = links.by_port(observation["marked_packets"])
        newly, self._marked = marked - self._marked, marked
        packets = np.maximum(links.mean(links.sent_bytes) / PACKET_BYTES, 1.0)
        queue = links.by_port(observation["qlen_mean_bytes"])
        rerouted = observation["switch.reroutes"].astype(np.float64)[links.switches]
        moved, self._rerouted = rerouted - self._rerouted, rerouted
        columns = [
            load,
            np.sqrt(self._variance),
            self._down_mean(utilisation),
            size_feature(links.mean(queue)),
            np.minimum(links.mean(newly) / packets, 1.0),
            np.clip(moved / packets, 0.0, 1.0),
            action_of(self._now_ns),
            self._edge.astype(np.float64),
        ]
        return np.stack(columns, axis=1), load

    def _down_mean(self, values: Floats) -> Floats:
        switch, ports = self._down
        maximum = int(self._links.switch.max(initial=-1)) + 1
        sums = np.bincount(switch, values[ports], maximum)
        counts = np.maximum(np.bincount(switch, minlength=maximum), 1)
        mean: Floats = (sums / counts)[self._links.switches]
        return mean
