"""PET's learner: algorithm 1 (PPO), with the departures that `tuners.ecn.pet` lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.trial import Scalar
from tuners.ecn.features import width
from tuners.ecn.learned import HISTORY, switch_of
from tuners.ecn.pet import COMBINATIONS, FEATURES, HIDDEN, architecture, by_head, initial_parameters
from tuners.learning.learner import NetworkLearner, State, TrainedNet, network_parameters
from tuners.learning.networks import Arrays, exp, log, mlp, mlp_by_group
from tuners.learning.q_learning import worth_learning_from

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed
    from tuners.ecn.pet import Pet

_TINY = 1e-30  # added so that there is no logarithm of 0


@dataclass(frozen=True)
class PetSettings:
    """Settings of training. The first group's values are from section 5.2."""

    actor_rate: float = 4e-4
    critic_rate: float = 1e-3
    clip: float = 0.2
    decay_rate: float = 0.99
    decay_steps: float = 50.0
    # not in the paper
    states: str = "six"  # "four" leaves out incast degree and mice ratio (figure 9)
    hidden: tuple[int, ...] = HIDDEN
    discount: float = 0.9  # as for GraphCC here
    gae_lambda: float = 0.95  # not section 5.2's 0.01: see `tuners.ecn.pet`
    epochs: int = 10
    hold: float = 8.0  # mean decisions for which a drawn action lasts, offline
    minibatch: int = 256
    max_norm: float = 0.5
    rollout: int = 50  # decisions between two updates online


def exploration(settings: PetSettings, step: int) -> float:
    """Return epsilon of equation 13: constant until step t = T, then times decay_rate^(t/T)."""
    if step <= settings.decay_steps:
        return settings.clip
    decay = exp(step / settings.decay_steps * log(settings.decay_rate))
    return float(decay * settings.clip)


def advantages(
    reward: NDArray[Any],
    value: NDArray[Any],
    drawn: NDArray[np.bool_],
    discount: float,
    gae_lambda: float,
) -> NDArray[np.float64]:
    """Return the advantages of equations 9 and 10 over the first axis, shape (T, …).

    `reward[t]` is the reward of the action at t, shape (T, …); `value` has T + 1 rows. `drawn`,
    shape (T, …), says at which t an action was drawn anew. It lasts until the next one that was
    drawn: its delta has the rewards until then, and the value of the state at that time. At all
    other t the advantage is 0.
    """
    result = np.zeros(reward.shape, dtype=np.float64)
    rewards, next_advantage = np.zeros(reward.shape[1:]), np.zeros(reward.shape[1:])
    next_value, weight = value[-1].astype(np.float64), np.ones(reward.shape[1:])
    for t in range(len(reward) - 1, -1, -1):
        rewards = reward[t] + discount * rewards
        weight = discount * weight
        delta = rewards + weight * next_value - value[t]
        advantage = delta + weight * gae_lambda * next_advantage
        result[t] = np.where(drawn[t], advantage, 0.0)
        next_advantage = np.where(drawn[t], advantage, next_advantage)
        next_value = np.where(drawn[t], value[t], next_value)
        rewards = np.where(drawn[t], 0.0, rewards)
        weight = np.where(drawn[t], 1.0, weight)
    return result


def rewards_to_go(
    reward: NDArray[Any], last_value: NDArray[Any], discount: float
) -> NDArray[np.float64]:
    """Return R of equation 12: discounted rewards from t on, and the value of the last state."""
    result = np.zeros_like(reward, dtype=np.float64)
    running = last_value.astype(np.float64)
    for t in range(len(reward) - 1, -1, -1):
        running = reward[t] + discount * running
        result[t] = running
    return result


def clipped_loss(ratio: Any, advantage: Any, clip: float) -> Any:
    """Return the loss of equation 11, -mean(min(ratio * A, clip(ratio) * A)); tensors."""
    bounded = ratio.clip(1 - clip, 1 + clip)
    return -(ratio * advantage).minimum(bounded * advantage).mean()


class PetLearner(NetworkLearner):
    """Algorithm 1, with one policy for all switches (offline) or one per switch (online)."""

    tuner = "pet"
    settings = PetSettings
    per_switch = True

    def __init__(
        self,
        seed: int,
        testbed: Testbed,
        settings: PetSettings = PetSettings(),
        parameters: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._switch = switch_of(testbed)
        start = (
            dict(parameters)
            if parameters is not None
            else initial_parameters(seed, settings.states, settings.hidden)
        )
        self._copies, inputs = start["actor.0.weight"].shape[:2]
        # if `parameters` are given, their shape says which states the network takes
        states = next(name for name in FEATURES if width(FEATURES[name], HISTORY) == inputs)
        self._settings = dataclasses.replace(settings, states=states)
        rates = {"actor": settings.actor_rate, "critic": settings.critic_rate}
        nets = {
            name: TrainedNet(network_parameters(name, start), rate) for name, rate in rates.items()
        }
        super().__init__(seed, nets)
        self._steps = 0  # calls of `learn`; `_updates` are the optimiser's: t of equation 13

    @classmethod
    def online(cls, tuner: Pet, seed: int, testbed: Testbed, parameters: Arrays) -> PetLearner:
        """Return the learner that goes on while a tuner acts, from its network's parameters."""
        return cls(seed, testbed, PetSettings(), parameters)

    @property
    def rollout(self) -> int:
        """The number of decisions between two updates online."""
        return self._settings.rollout

    def parameters(self) -> Arrays:
        """Return the parameters of actor and critic."""
        return self._nets["actor"].arrays() | self._nets["critic"].arrays()

    def architecture(self) -> dict[str, Any]:
        """Return the architecture of this learner's checkpoints."""
        return architecture(self._settings.states, self._settings.hidden)

    def acting(self) -> dict[str, Scalar]:
        """Return the tuner's parameters: `explore` is epsilon of equation 13.

        Epsilon is the share of exploring actions, and also the clip range.
        """
        explore = exploration(self._settings, self._updates)
        return {"explore": explore, "hold": self._settings.hold}

    def learn(self, trace: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Learn N epochs from an episode, or part of one (algorithm 1, lines 5 to 12)."""
        import torch

        settings = self._settings
        steps = len(trace["x"]) - 1
        if steps < 1:
            return {}
        explore = float(self.acting()["explore"])
        x = trace["x"].astype(np.float32)
        critic = {name: t.detach().numpy() for name, t in self._nets["critic"].tensors.items()}
        value = np.stack([mlp_by_group(critic, "critic", row, self._switch)[:, 0] for row in x])
        reward = trace["reward"][1:]
        drawn = trace["drawn"][:-1]
        advantage = advantages(reward, value, drawn, settings.discount, settings.gae_lambda)
        busy = worth_learning_from({"x": x[:-1], "next_x": x[1:]}) & drawn
        if not busy.any():
            return {}
        advantage = (advantage - advantage[busy].mean()) / (advantage[busy].std() + 1e-8)
        arrays = {
            "x": x[:-1],
            "heads": trace["heads"][:-1].astype(np.int64),
            "old": trace["log_probability"][:-1].astype(np.float32),
            "advantage": advantage.astype(np.float32),
            "target": rewards_to_go(reward, value[-1], settings.discount).astype(np.float32),
        }
        rows: dict[str, Any] = {
            name: torch.from_numpy(self._by_agent(values, busy)) for name, values in arrays.items()
        }
        losses = list(self._minibatches(rows, explore))
        self._steps += 1
        actor, value_loss = np.mean(losses, axis=0)
        return {
            "loss": float(actor),
            "value_loss": float(value_loss),
            "reward": float(trace["reward"].mean()),
            "explore": explore,
        }

    def _minibatches(
        self, rows: Mapping[str, Any], explore: float
    ) -> Iterator[tuple[float, float]]:
        """Learn from all samples, in a random order in each epoch; yield the losses."""
        settings, count = self._settings, rows["x"].shape[1]
        for epoch in range(settings.epochs):
            rng = np.random.default_rng([self._seed, 2, self._steps, epoch])
            order = rng.permutation(count)
            for first in range(0, count, settings.minibatch):
                batch = order[first : first + settings.minibatch]
                yield self._minibatch({n: part[:, batch] for n, part in rows.items()}, explore)

    def _by_agent(self, values: NDArray[Any], busy: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the busy samples of `values`, (steps, queues, …), as (copies, samples, …).

        There is one copy of the network per switch, or one for all. A switch with fewer samples
        than another repeats some of its own. A switch without busy samples uses its idle ones.
        """
        if self._copies == 1:
            return values[busy][None]
        samples = []
        for switch in range(self._copies):
            of_switch = np.broadcast_to(self._switch == switch, busy.shape)
            chosen = of_switch & busy
            samples.append(values[chosen] if chosen.any() else values[of_switch])
        maximum = max(len(rows) for rows in samples)
        return np.stack([rows[np.arange(maximum) % len(rows)] for rows in samples])

    def _minibatch(self, rows: Mapping[str, Any], explore: float) -> tuple[float, float]:
        """Move actor and critic once; return their losses."""
        actor, critic = self._nets["actor"], self._nets["critic"]
        log_policy: Any = 0.0
        for head, logits in enumerate(by_head(mlp(actor.tensors, "actor", rows["x"]))):
            choice = rows["heads"][..., head : head + 1]
            log_policy = log_policy + logits.log_softmax(dim=-1).gather(-1, choice).squeeze(-1)
        mixture = (1 - explore) * log_policy.exp() + explore / COMBINATIONS + _TINY
        ratio = (mixture.log() - rows["old"]).exp()
        self._updates += 1
        norm = self._settings.max_norm
        loss = actor.step(clipped_loss(ratio, rows["advantage"], explore), norm)
        value = mlp(critic.tensors, "critic", rows["x"]).squeeze(-1)
        return loss, critic.step(((value - rows["target"]) ** 2).mean(), norm)  # equation 12

    def _counters(self) -> State:
        return {"steps": np.array([self._steps, self._updates])}

    def _load_counters(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps, self._updates = (int(value) for value in state["steps"])
