"""GraphCC's learner: double Q-learning, with the departures that `tuners.ecn.graphcc` lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuners.ecn.graphcc import LAYER, architecture, graph, initial_parameters, q_values
from tuners.learning.learner import TrainedNet, load_torch
from tuners.learning.q_learning import QLearner, QSettings, multi_step_returns, worth_learning_from
from tuners.learning.replay_buffer import ReplayBuffer

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


@dataclass(frozen=True)
class GraphccSettings(QSettings):
    """Settings of training. A sample is the whole fabric at one time."""

    layer: int = LAYER
    # A mark lowers a flow's rate at once, but shortens the queue only over several decisions.
    horizon: int = 4  # a target sums the rewards of so many decisions
    weight_decay: float = 0.3
    batch: int = 16
    min_agents: int = 192  # in a batch: of a small fabric, a batch has more samples
    target_every: int = 100
    capacity: int = 10_000


class GraphccLearner(QLearner):
    """Double Q-learning on samples of the whole fabric, drawn uniformly (section 3.3)."""

    tuner = "graphcc"
    settings = GraphccSettings

    def __init__(
        self,
        seed: int,
        testbed: Testbed,
        settings: GraphccSettings = GraphccSettings(),
        parameters: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._graph = graph(testbed)
        self._memory = ReplayBuffer(settings.capacity)
        start = (
            dict(parameters) if parameters is not None else initial_parameters(seed, settings.layer)
        )
        net = TrainedNet(start, settings.learning_rate, settings.weight_decay)
        super().__init__(seed, settings, net, {"memory": self._memory})
        self._settings: GraphccSettings = settings
        self._present = load_torch().from_numpy(self._graph.present[..., None])

    def architecture(self) -> dict[str, Any]:
        """Return the architecture of this learner's checkpoints."""
        return architecture(self._settings.layer)

    def add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Store samples of the whole fabric, arrays of shape (steps, agents, …)."""
        self._decisions += len(rows["x"])
        busy = worth_learning_from(rows).astype(np.float32)
        self._count_rewards(rows["reward"][busy > 0])
        rows = multi_step_returns(rows, self._settings.discount, self._settings.horizon)
        rows["action"] = rows["action"].astype(np.int64)
        self._memory.add({**rows, "busy": busy[: len(rows["x"])]})

    def values(self, parameters: Mapping[str, Any], x: Any) -> Any:
        """Return the values of all settings (…, actions) of every agent; tensors."""
        return q_values(parameters, x, self._graph, self._present)

    def update(self) -> float:
        """Draw a batch, move the network towards the double Q-learning target; return the loss."""
        import torch

        settings = self._settings
        rng = np.random.default_rng([self._seed, 2, self._updates])
        size = max(settings.batch, settings.min_agents // len(self._graph.neighbours))
        batch = self._memory.sample(rng, size)
        rows: dict[str, Any] = {name: torch.from_numpy(values) for name, values in batch.items()}
        error, busy = self._errors(rows, settings.discount**settings.horizon), rows["busy"]
        loss = (busy * error**2).sum() / busy.sum().clip(min=1.0)
        return self._step(loss, settings.target_every)
