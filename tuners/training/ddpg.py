"""DRLet's learners: algorithm 1, whoever the agents are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.trial import Scalar
from tuners.flowlet.learned import initial_parameters, policy, value
from tuners.learning.learner import ReplayLearner, TrainedNet, network_parameters
from tuners.learning.q_learning import exploration
from tuners.learning.replay_buffer import ReplayBuffer


@dataclass(frozen=True)
class DdpgSettings:
    """Settings of training; the paper gives none of their values. Times are in decisions.

    Rates, tau and the batch are those of Lillicrap et al. but for tau and the discount. Equation 4
    is a difference of logarithms: with a discount of 1 the rewards of an episode would add up to
    how it begins and ends, whatever is done in between. A timeout works within a few round trips,
    long before the next decision.
    """

    hidden: tuple[int, ...] = ()
    discount: float = 0.5
    actor_rate: float = 1e-4
    critic_rate: float = 1e-3
    tau: float = 0.01
    batch: int = 64
    capacity: int = 100_000
    noise_start: float = 0.5
    noise_end: float = 0.1
    noise_decay: float = 1_500.0
    updates_per_decision: float = 4.0


class DdpgLearner(ReplayLearner):
    """Algorithm 1, lines 10 to 15, from the traces of episodes."""

    _FIRST_REWARD = 1  # the reward before is of no action

    def __init__(
        self,
        seed: int,
        widths: tuple[int, int],
        settings: DdpgSettings,
        architecture: Mapping[str, Any],
        parameters: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Begin with `parameters`, or from the seed. `widths` are those of state and action."""
        self._settings, self._architecture = settings, dict(architecture)
        hidden = tuple(architecture["hidden"])
        start = (
            dict(parameters)
            if parameters is not None
            else initial_parameters(seed, *widths, hidden)
        )
        rates = {"actor": settings.actor_rate, "critic": settings.critic_rate}
        nets = {
            name: TrainedNet(network_parameters(name, start), rate) for name, rate in rates.items()
        }
        self._memory = ReplayBuffer(settings.capacity)
        super().__init__(seed, nets, {"memory": self._memory})
        self._target = self._copy()

    def architecture(self) -> dict[str, Any]:
        """Return the architecture of this learner's checkpoints."""
        return self._architecture

    def acting(self) -> dict[str, Scalar]:
        """Return the noise of the next episode."""
        s = self._settings
        noise = exploration(s.noise_start, s.noise_end, s.noise_decay, self._decisions)
        return {"explore": noise}

    def add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Store transitions of all agents, arrays of shape (steps, agents, …)."""
        self._memory.add({name: np.concatenate(list(each)) for name, each in rows.items()})
        self._decisions += len(rows["x"])

    def update(self) -> float:
        """Draw a batch, move critic, actor and targets once; return the critic's loss."""
        import torch

        settings = self._settings
        rng = np.random.default_rng([self._seed, 2, self._updates])
        batch = self._memory.sample(rng, settings.batch)
        rows: dict[str, Any] = {name: torch.from_numpy(one) for name, one in batch.items()}
        with torch.no_grad():
            y = ddpg_target(self._target, rows["reward"], rows["next_x"], settings.discount)
        actor, critic = self._nets["actor"], self._nets["critic"]
        error = y - value(critic.tensors, rows["x"], rows["action"])
        loss = critic.step((error**2).mean(), max_norm=10.0)  # line 13
        held = {name: tensor.detach() for name, tensor in critic.tensors.items()}
        earned = value(held, rows["x"], policy(actor.tensors, rows["x"]))
        actor.step(-earned.mean(), max_norm=10.0)  # line 14
        with torch.no_grad():
            for name, tensor in self._tensors().items():  # line 15
                self._target[name].lerp_(tensor, settings.tau)
        self._updates += 1
        return loss


def ddpg_target(parameters: Mapping[str, Any], reward: Any, next_x: Any, discount: float) -> Any:
    """Return y = r + discount * Q'(s', mu'(s')) (algorithm 1, line 12), of the target networks."""
    return reward + discount * value(parameters, next_x, policy(parameters, next_x))
