"""ACC's learner: the paper's algorithm 1, with the departures that `tuners.ecn.acc` lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuners.ecn.acc import FEATURES, HIDDEN, MIN_BYTES, PARTS, architecture, initial_parameters
from tuners.ecn.features import size_feature
from tuners.ecn.learned import switch_of
from tuners.learning.learner import TrainedNet
from tuners.learning.networks import Arrays, mlp
from tuners.learning.q_learning import QLearner, QSettings, held_returns, worth_learning_from
from tuners.learning.replay_buffer import Batch, ReplayBuffer

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed
    from tuners.ecn.acc import Acc

_MIN_KMIN = size_feature(np.array(float(MIN_BYTES)))


@dataclass(frozen=True)
class AccSettings(QSettings):
    """Settings of training. Times are in decisions."""

    hidden: tuple[int, ...] = HIDDEN
    weight_decay: float = 1.0  # without it, the network fits the noise: see HIDDEN
    centred: bool = True  # values are of rewards minus the mean reward
    horizon: int = 24  # a transition lasts at most so many decisions
    batch: int = 48  # per switch
    min_batch: int = 256  # over all switches that share a network
    target_every: int = 200
    local_capacity: int = 60_000  # per switch: about fifty episodes of 15 ms
    global_capacity: int = 200_000
    exchange_every: int = 250
    exchange: int = 200  # transitions each way, per switch
    relative: bool = False  # learn differences of values, not their level
    idle_rule: bool = True  # as the tuner's; without it, learn from queues below 20 KB too


def busy(x: NDArray[Any]) -> NDArray[Any]:
    """Return which queues exceed the lowest kmin of all templates, given inputs (…, inputs).

    Below it, no action would have changed anything.
    """
    exceeds: NDArray[Any] = x[..., FEATURES.index("queue")] > _MIN_KMIN
    return exceeds


class AccLearner(QLearner):
    """Algorithm 1, with the exchange between local and global replay memories (section 3).

    All switches share one copy of the parameters (offline: "the same offline training model for
    network switches"), or each has its own (online). Each switch has its own memory.
    """

    tuner = "acc"
    settings = AccSettings
    per_switch = True

    def __init__(
        self,
        seed: int,
        testbed: Testbed,
        settings: AccSettings = AccSettings(),
        parameters: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._switch = switch_of(testbed)
        start = (
            dict(parameters)
            if parameters is not None
            else initial_parameters(seed, settings.hidden)
        )
        self._copies = len(start["q.0.weight"])
        self._local = [ReplayBuffer(settings.local_capacity) for _ in testbed.switches]
        self._global = ReplayBuffer(settings.global_capacity)
        buffers = (*self._local, self._global)
        memories = {f"memory{number}": buffer for number, buffer in enumerate(buffers)}
        net = TrainedNet(start, settings.learning_rate, settings.weight_decay)
        super().__init__(seed, settings, net, memories)
        self._settings: AccSettings = settings

    @classmethod
    def online(cls, tuner: Acc, seed: int, testbed: Testbed, parameters: Arrays) -> AccLearner:
        """Return the learner that goes on while a tuner acts. It explores little, and soon less."""
        settings = AccSettings(
            relative=True,
            explore_start=max(tuner.explore, 0.1),
            explore_end=0.02,
            explore_decay=50.0,
        )
        return cls(seed, testbed, settings, parameters)

    def architecture(self) -> dict[str, Any]:
        """Return the architecture of this learner's checkpoints."""
        return architecture(self._settings.hidden)

    def add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Store transitions, arrays of shape (steps, queues, …), in the memory of each switch.

        Decisions of idle queues are left out: see `tuners.ecn.acc`.
        """
        self._decisions += len(rows["x"])
        rewards = rows["reward"]
        rows = held_returns(rows, self._settings.discount, self._settings.horizon)
        if self._settings.idle_rule:
            learned = busy(rows["x"])
            idle = ~busy(rows["next_x"])
        else:  # every queue gets a decision, so none keeps its setting because it is idle
            learned = worth_learning_from(rows)
            idle = np.zeros_like(learned)
        rows = {**rows, "idle": idle}
        self._count_rewards(rewards[learned])
        for switch, memory in enumerate(self._local):
            of_switch = learned & (self._switch == switch)
            memory.add(
                {
                    name: values[of_switch].astype(np.int64 if name == "action" else np.float32)
                    for name, values in rows.items()
                }
            )

    def values(self, parameters: Mapping[str, Any], x: Any) -> Any:
        """Return the values of all settings (…, actions) in states; tensors."""
        return PARTS.sums(mlp(parameters, "q", x))

    def update(self) -> float:
        """Make one step of algorithm 1 (lines 6 to 9), and return the loss.

        As long as no queue has been busy, it makes no step and returns 0.
        """
        import torch

        settings = self._settings
        rng = np.random.default_rng([self._seed, 2, self._updates])
        if not any(map(len, self._local)):
            return 0.0
        batches, weight = self._batches(rng)
        join = np.concatenate if self._copies == 1 else np.stack
        rows: dict[str, Any] = {
            name: torch.from_numpy(join([batch[name] for batch in batches])) for name in batches[0]
        }
        if self._copies == 1:
            rows = {name: values[None] for name, values in rows.items()}
        error = self._errors(rows, rows["weight"])
        if settings.relative:
            error = error - error.detach().mean(-1, keepdim=True)
        weights = torch.from_numpy(weight.astype(np.float32))[:, None]
        loss = (weights * error**2).mean() / weights.mean()  # equation 4
        value = self._step(loss, settings.target_every)
        if self._updates % settings.exchange_every == 0:
            self._exchange(rng)
        return value

    def _batches(self, rng: np.random.Generator) -> tuple[list[Batch], NDArray[np.float64]]:
        """Draw a batch from each switch's memory; return them, and the weight of each network.

        If each switch has its own network, one whose queues were all idle so far learns nothing:
        it gets a batch of another switch, with weight 0.
        """
        settings = self._settings
        filled = [memory for memory in self._local if len(memory)]
        if self._copies == 1:
            size = max(settings.batch, settings.min_batch // len(filled))
            return [memory.sample(rng, size) for memory in filled], np.ones(1)
        weight = np.array([float(len(memory) > 0) for memory in self._local])
        sources = [memory if len(memory) else filled[0] for memory in self._local]
        return [memory.sample(rng, settings.batch) for memory in sources], weight

    def _centred(self, reward: Any, weight: Any, discount: float) -> Any:
        if not self._settings.centred:
            return reward
        return super()._centred(reward, weight, discount)

    def _exchange(self, rng: np.random.Generator) -> None:
        """Let each switch give a sample to the global memory and take one from it (section 3).

        The paper says that tuples are "periodically sampled", and does not say how. Here they are
        drawn uniformly. If large rewards were preferred, every action would be overestimated, and
        actions with noisy rewards most.
        """
        if len(self._local) == 1:
            return  # the switch would only take back its own samples
        count = self._settings.exchange
        for memory in self._local:
            if len(memory):
                self._global.add(memory.sample(rng, count))
        for memory in self._local:
            memory.add(self._global.sample(rng, count))
