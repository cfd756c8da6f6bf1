"""GraphCC: a message-passing Q-network, copied to every switch port, that sets ECN thresholds.

Bernardez et al., "GraphCC: A Practical Graph Learning-based Approach to Congestion Control in
Datacenters": sections 3.2, 3.3 and 4.1. Agents exchange hidden states with their neighbours along
the fabric, K times. Then each agent chooses one of 120 settings. For other hyper-parameters, the
paper refers to a release of its code; `tuners.training.graphcc` has the values chosen here. Samples
are drawn uniformly from the replay buffer ("randomly selects a batch", section 3.3). Section 3.1.1
considers two extensions, prioritised replay and double Q-learning; only the second is used here.

The paper's hosts run DCQCN with a window of one BDP (section 4.1): `host: {congestion_control:
dcqcn, roce: {window: bdp}}` in a campaign.

Where this implementation departs from the paper, and why:

- The port's rate is among the inputs (section 4.1 has 25 and 100 Gbit/s): `tuners.ecn.features`.
- Queues that are empty while their port is idle do not count in the loss: `worth_learning_from`.
- The value of a setting is the sum of values of its kmin, of its kmax and of its pmax:
  `Parts.sums`.
- An explored setting is held for some decisions, and a target sums the rewards of several:
  `Explorer` and `multi_step_returns` in `tuners.learning.q_learning`.
- Training explores by the rank of actions, as ACC does. The paper does not say how it explores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.records import Floats, Ints, Observation, Setup
from tuners.ecn.features import PORT_FEATURES, RATE, queue_utilisation_reward
from tuners.ecn.learned import HISTORY, TemplateActions, TemplateTuner
from tuners.ecn.templates import graphcc_templates
from tuners.learning.checkpoint import load_for
from tuners.learning.networks import (
    Arrays,
    amax,
    amin,
    concatenate,
    init_mlp,
    matmul,
    mlp,
    side_by_side,
)

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

HIDDEN = 24
ROUNDS = 2  # K
LAYER = 32  # width between the two layers of each module
FEATURES = (*PORT_FEATURES, RATE)
PARTS = graphcc_templates().parts()
START = (32_000, 128_000, 0.01)  # until the first decision
_MASK = 1e9  # added to padding, so that it is never the minimum or maximum of messages


@dataclass(frozen=True)
class Graph:
    """The neighbours of each agent: those that may send traffic into it. An agent is a queue.

    Section 3.3: the ingress neighbourhood of an agent v is every link that ends at the switch where
    v begins. Only switch ports are agents and send messages; host ports do not.

    `neighbours` and `present` have shape (agents, the largest number of neighbours). `neighbours`
    has indices of agents; `present` is 1.0 for a neighbour and 0.0 for padding.
    """

    neighbours: Ints
    present: NDArray[np.float32]


def graph(testbed: Testbed) -> Graph:
    """Return the graph of a testbed's queues. Edges join queues of one traffic class only."""
    queues = testbed.queues
    into: dict[tuple[str, int], list[int]] = {}
    for index, queue in enumerate(queues):
        end = (testbed.peer_device(queue).name, getattr(queue, "klass", 0))
        into.setdefault(end, []).append(index)
    lists = [into.get((queue.device, getattr(queue, "klass", 0)), []) for queue in queues]
    maximum = max(1, *(len(indices) for indices in lists)) if lists else 1
    neighbours = np.zeros((len(queues), maximum), dtype=np.int64)
    present = np.zeros((len(queues), maximum), dtype=np.float32)
    for index, indices in enumerate(lists):
        neighbours[index, : len(indices)] = indices
        present[index, : len(indices)] = 1.0
    return Graph(neighbours, present)


def architecture(layer: int = LAYER) -> dict[str, Any]:
    """Return the architecture that a checkpoint of GraphCC must have."""
    return {
        "network": "mpnn",
        "features": list(FEATURES),
        "history": HISTORY,
        "hidden": HIDDEN,
        "rounds": ROUNDS,
        "layer": layer,
        "actions": len(graphcc_templates()),
        "outputs": list(PARTS.sizes),
    }


def initial_parameters(seed: int, layer: int = LAYER) -> Arrays:
    """Return the parameters of an untrained network."""
    rng = np.random.default_rng([seed, 0])
    return (
        init_mlp(rng, "message", [2 * HIDDEN, layer, HIDDEN], last=1.0)
        | init_mlp(rng, "update", [3 * HIDDEN, layer, HIDDEN], last=1.0)
        | init_mlp(rng, "readout", [HIDDEN, layer, sum(PARTS.sizes)])
    )


def q_values(parameters: Mapping[str, Any], x: Any, fabric: Graph, present: Any) -> Any:
    """Return the value of every action of every agent (sections 3.1.2 and 3.3).

    Args:
        parameters: those of the modules `message`, `update` and `readout`.
        x: features, shape (…, agents, features), NumPy or torch.
        fabric: who sends messages to whom.
        present: `fabric.present` as (agents, neighbours, 1), NumPy or torch as `x` is.

    Returns:
        Shape (…, agents, actions).
    """
    padding = x[..., :1] * 0.0
    h = concatenate([x, *[padding] * (HIDDEN - x.shape[-1])])  # h0: features, then zeros
    absent = 1.0 - present
    has_neighbour = amax(present, -2)
    for _ in range(ROUNDS):
        messages = _messages(parameters, h, fabric)
        smallest = amin(messages + _MASK * absent, -2)
        largest = amax(messages - _MASK * absent, -2)
        received = [smallest * has_neighbour, largest * has_neighbour]
        h = mlp(parameters, "update", concatenate([h, *received]))
    return PARTS.sums(mlp(parameters, "readout", h))


def _messages(parameters: Mapping[str, Any], h: Any, fabric: Graph) -> Any:
    """Return m(h_v, h_u) for each agent v and ingress neighbour u, (…, agents, neighbours, HIDDEN).

    The message module's first layer is linear in both states. So each agent's state is multiplied
    once, by both halves of the weight together, and not once for every neighbour.
    """
    both = matmul(h, side_by_side(parameters["message.0.weight"], HIDDEN))
    width = both.shape[-1] // 2
    of_agent = both[..., :width] + parameters["message.0.bias"]
    of_neighbour = both[..., width:]
    inner = of_agent[..., :, None, :] + of_neighbour[..., fabric.neighbours, :]
    messages = matmul(inner.clip(min=0.0), parameters["message.1.weight"])
    return messages + parameters["message.1.bias"]


@dataclass(eq=False)
class Graphcc(TemplateTuner):
    """GraphCC: the same network at every port, which exchanges messages along the fabric.

    The network fits any fabric. It does not learn once deployed.

    `explore` is the probability of a random setting, and `hold` the mean number of decisions for
    which it lasts. `w_1` and `w_2` weigh queue and utilisation in the reward (section 3.3: 0.7 and
    0.3), which matters for learning only. With `collect`, all decisions are kept for a learner.
    """

    NAME = "graphcc"
    ACTIONS = TemplateActions(graphcc_templates(), START)
    TEMPLATES = ACTIONS.templates
    WEIGHTS = ("w_1", "w_2")

    checkpoint: str = "graphcc-dctcp-1"
    explore: float = 0.0
    hold: float = 1.0
    w_1: float = 0.7
    w_2: float = 0.3
    collect: bool = False

    def __post_init__(self) -> None:
        self._features = FEATURES
        shapes = {name: values.shape for name, values in initial_parameters(0).items()}
        self._checkpoint = load_for(self.checkpoint, self.NAME, architecture(), shapes)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the initial setup: 32 KB, 128 KB and 1 % on every queue."""
        self._graph = graph(testbed)
        self._present = self._graph.present[..., None]
        return super().reset(testbed, seed)

    def queue_rewards(self, after: Observation, utilisation: Floats) -> Floats:
        """Return w_1 * f(queue) + w_2 * utilisation for each queue, shape (queues,)."""
        length = after["qlen_bytes"].astype(np.float64)
        return queue_utilisation_reward(length, utilisation, self.w_1, self.w_2)

    def values(self, x: NDArray[Any], queues: Ints) -> NDArray[Any]:
        """Let the agents exchange messages, and return the values of all settings."""
        values: NDArray[Any] = q_values(self._net, x, self._graph, self._present)
        return values
