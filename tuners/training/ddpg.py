"""The learner of DRLet and of its multi-agent variant: the paper's algorithm 1, which is DDPG."""

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
    """Settings of training. The paper gives none of their values. Times are in decisions.

    Learning rates and the batch are those of Lillicrap et al.; tau and the discount are not.
    Equation 4 is a difference of logarithms: with a discount of 1, the rewards of an episode would
    add up to a value of its beginning and end, whatever is done in between. A small discount is
    enough, because a timeout takes effect within a few round trips, long before the next decision.
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
    """Learns from the traces of episodes by lines 10 to 15 of algorithm 1."""

    _FIRST_REWARD = 1  # the first decision's reward is of no action

    def __init__(
        self,
        seed: int,
        widths: tuple[int, int],
        settings: DdpgSettings,
        architecture: Mapping[str, Any],
        parameters: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Begin with `parameters`, or from the seed. `widths` are of a state and an action."""
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
        self._target = self._copy_of_networks()

    def architecture(self) -> dict[str, Any]:
        """Return the architecture of this learner's checkpoints."""
        return self._architecture

    def acting(self) -> dict[str, Scalar]:
        """Return the tuner's `explore` in the next episode: the deviation of the noise."""
        s = self._settings
        noise = exploration(s.noise_start, s.noise_end, s.noise_decay, self._decisions)
        return {"explore": noise}

    def add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Store transitions of all agents, arrays of shape (steps, agents, …)."""
        self._memory.add({name: np.concatenate(list(steps)) for name, steps in rows.items()})
        self._decisions += len(rows["x"])

    def update(self) -> float:
        """Draw a batch; move critic, actor and target networks once. Return the critic's loss."""
        import torch

        settings = self._settings
        rng = np.random.default_rng([self._seed, 2, self._updates])
        batch = self._memory.sample(rng, settings.batch)
        rows: dict[str, Any] = {name: torch.from_numpy(values) for name, values in batch.items()}
        with torch.no_grad():
            y = ddpg_target(self._target, rows["reward"], rows["next_x"], settings.discount)
        actor, critic = self._nets["actor"], self._nets["critic"]
        error = y - value(critic.tensors, rows["x"], rows["action"])
        loss = critic.step((error**2).mean(), max_norm=10.0)  # line 13
        fixed_critic = {name: tensor.detach() for name, tensor in critic.tensors.items()}
        values = value(fixed_critic, rows["x"], policy(actor.tensors, rows["x"]))
        actor.step(-values.mean(), max_norm=10.0)  # line 14
        with torch.no_grad():
            for name, tensor in self._tensors().items():  # line 15
                self._target[name].lerp_(tensor, settings.tau)
        self._updates += 1
        return loss


def ddpg_target(parameters: Mapping[str, Any], reward: Any, next_x: Any, discount: float) -> Any:
    """Return y = r + discount * Q'(s', mu'(s')) by the target networks (algorithm 1, line 12)."""
    return reward + discount * value(parameters, next_x, policy(parameters, next_x))
