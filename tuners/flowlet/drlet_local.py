"""DRLet's multi-agent variant: all switches share one small network, and each decides for itself.

DRLet's paper names it as future work: "a distributed method using multi-agent reinforcement
learning". An agent is a switch with several paths upwards. It sees its own ports and flowlets only.
Its reward is that of equations 3 to 5, for its own links: the variance of the utilisation of its
upward ports, and the ratio of what it sent upwards in two successive periods. So neither the
network nor the signals that a switch reports grow with the fabric, and one checkpoint serves every
fat tree and leaf-spine fabric.
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
    """DRLet's multi-agent variant: the same small network decides at every switch."""

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
        start = initial_parameters(0, len(FEATURES), 1, HIDDEN)
        shapes = {name: values.shape for name, values in start.items()}
        self._checkpoint = load_for(self.checkpoint, NAME, architecture(), shapes)

    def start_trial(self, testbed: Testbed) -> None:
        """Find the edge switches and the downward ports; begin with no traffic seen."""
        links = self._links
        self._is_edge = np.isin(
            np.array(testbed.switches)[links.switches],
            [testbed.peer_device(p).name for host in testbed.hosts for p in testbed.ports_of[host]],
        )
        down = ~links.up
        self._down = links.switch[down], np.flatnonzero(down)
        self._marked: Floats = np.zeros(len(links.up))
        self._rerouted: Floats = np.zeros(len(links.switches))
        self._sent_bytes: Floats = np.zeros(len(links.switches))
        self._before_bytes = self._variance = self._sent_bytes

    def read(self, observation: Observation, span_s: float) -> tuple[Floats, Floats]:
        """Return states (switches, features) and loads (switches,), of each one's own ports."""
        links = self._links
        utilisation = links.utilisation(observation)
        load, self._variance = links.mean(utilisation), links.variance(utilisation)
        sent_bytes = links.sums(links.sent_bytes)[links.switches]
        self._before_bytes, self._sent_bytes = self._sent_bytes, sent_bytes
        marked = links.by_port(observation["marked_packets"])
        newly_marked, self._marked = marked - self._marked, marked
        packets = np.maximum(links.mean(links.sent_bytes) / PACKET_BYTES, 1.0)
        queue_bytes = links.by_port(observation["qlen_mean_bytes"])
        rerouted = observation["switch.reroutes"].astype(np.float64)[links.switches]
        newly_rerouted, self._rerouted = rerouted - self._rerouted, rerouted
        columns = [
            load,
            np.sqrt(self._variance),
            self._down_mean(utilisation),
            size_feature(links.mean(queue_bytes)),
            np.minimum(links.mean(newly_marked) / packets, 1.0),
            np.clip(newly_rerouted / packets, 0.0, 1.0),
            action_of(self._timeouts_ns),
            self._is_edge.astype(np.float64),
        ]
        return np.stack(columns, axis=1), load

    def _down_mean(self, values: Floats) -> Floats:
        """Return the mean of values (ports,) over the downward ports of each deciding switch."""
        switch, ports = self._down
        count = int(self._links.switch.max(initial=-1)) + 1
        sums = np.bincount(switch, values[ports], count)
        counts = np.maximum(np.bincount(switch, minlength=count), 1)
        mean: Floats = (sums / counts)[self._links.switches]
        return mean
