"""PET: independent PPO agents, one per switch, that set the ECN thresholds of its queues.

Cheng et al., "PET: Multi-agent Independent PPO-based Automatic ECN Tuning for High-Speed Data
Center Networks": equations 2 to 13, algorithm 1, section 4.5.2 for several queues per port. A state
is the last k readings of six factors. An action is three numbers, each from its own head: n(kmin)
and n(kmax) of E(n), and pmax. `PetSettings` has the values that the paper does not state.

Where it departs from the paper, and why:

- The reciprocal of the mean queue has a unit, and is finite for an empty queue: `pet_reward`.
- The port's rate is among the inputs: `tuners.ecn.features`.
- Offline, all switches learn one policy. The paper installs one pre-trained model on every switch
  (section 4.4), and does not say how one comes of many agents' training.
- A step t of equation 13 is one of the optimiser, which the paper leaves open. Counted in
  episodes, epsilon would still be 0.19 after 200 of them.
- Queues that are empty while their port is idle are left out of the updates: `at_work`.
- Offline, a drawn action lasts for some decisions, and so does a step of equations 9 and 10: what a
  threshold does to a queue is not seen in 100 us (docs/tuners.md).
- Lambda of equation 9 is 0.95, not section 5.2's 0.01. With that an action is judged by the next
  100 us alone, in which a mark costs utilisation and shortens no queue yet: under DCTCP policies
  then preferred thresholds that mark nothing, with a discount of 0.2 and of 0.9 (docs/tuners.md).

The mean queue of equation 8 is over all samples since the last decision. So a campaign or scenario
needs an `action_period` of several `sample_period`s, or the mean is of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.knobs import ECN
from orchestration.core.records import Action, Change, Floats, Ints, Observation, Setup
from orchestration.core.signals import FLOW_TABLE
from orchestration.core.trial import Scalar
from tuners.base import BaseTuner
from tuners.ecn.features import ACC_FEATURES, PET_FEATURES, RATE, width
from tuners.ecn.learned import HISTORY, Actions, LearnedTuner, switch_of
from tuners.ecn.rewards import pet_reward
from tuners.ecn.templates import ALPHA_KB, LEVELS, PMAX, acc_templates, exponential_bytes
from tuners.learning.checkpoint import CheckpointError, load, load_for
from tuners.learning.exact import exp, log
from tuners.learning.experience import Decisions
from tuners.learning.learner import NetworkLearner, State, TrainedNet, part_of
from tuners.learning.networks import Arrays, init_mlp, mlp, mlp_by_group, ready, softmax
from tuners.learning.q_learning import at_work

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

HEADS = (LEVELS, LEVELS, len(PMAX))  # n of kmin, n of kmax, pmax
_TINY = 1e-30  # no logarithm of 0
_ACTIONS = LEVELS * LEVELS * len(PMAX)
START_HEADS = (0, 3, 0)  # 20 KB, 160 KB, 5 %: the nearest to SECN1
FEATURES = {"six": (*PET_FEATURES, RATE), "four": (*ACC_FEATURES, RATE)}


@dataclass(frozen=True)
class PetSettings:
    """Settings of training; the values of the first group are from section 5.2."""

    actor_rate: float = 4e-4
    critic_rate: float = 1e-3
    clip: float = 0.2
    decay_rate: float = 0.99
    decay_steps: float = 50.0
    # not in the paper
    states: str = "six"  # "four" leaves out incast degree and mice ratio (figure 9)
    hidden: tuple[int, ...] = (64, 64)
    discount: float = 0.9  # as for GraphCC here
    gae_lambda: float = 0.95  # not section 5.2's 0.01: see this module
    epochs: int = 10
    hold: float = 8.0  # mean decisions for which a drawn action lasts, offline
    minibatch: int = 256
    max_norm: float = 0.5
    rollout: int = 50  # decisions between two updates online


def features(settings: PetSettings) -> tuple[str, ...]:
    """Return the names of the inputs."""
    return FEATURES[settings.states]


def architecture(settings: PetSettings) -> dict[str, Any]:
    """Return the architecture that a checkpoint of PET must have."""
    return {
        "network": "actor and critic mlp",
        "features": list(features(settings)),
        "history": HISTORY,
        "hidden": list(settings.hidden),
        "heads": list(HEADS),
    }


def _fresh(seed: int, settings: PetSettings) -> Arrays:
    rng = np.random.default_rng([seed, 0])
    inputs = width(features(settings), HISTORY)
    return init_mlp(rng, "actor", [inputs, *settings.hidden, sum(HEADS)], 1) | init_mlp(
        rng, "critic", [inputs, *settings.hidden, 1], 1
    )


class HeadActions(Actions):
    """Settings by three heads; the pair of thresholds is put in order afterwards."""

    def start(self, queues: Ints) -> Change:
        """Return the settings that queues start with."""
        return thresholds(queues, np.tile(np.array(START_HEADS), (len(queues), 1)))

    def draw(self, draws: np.random.Generator, queues: Ints) -> Change:
        """Return settings of queues, every head drawn by itself."""
        return thresholds(queues, draws.integers(HEADS, size=(len(queues), len(HEADS))))


@dataclass(eq=False)
class Pet(LearnedTuner):
    """Takes the likeliest action of a trained policy; with `online`, continues to learn.

    `beta_1` and `beta_2` weigh utilisation and delay in the reward (equation 6; 0.3 and 0.7 for
    WebSearch, 0.7 and 0.3 for DataMining: section 5.2). They affect learning only. `explore` is the
    probability of a uniform action; above 0, or with `collect`, actions are drawn from the policy,
    and a drawn one goes on with probability 1 - 1 / `hold`.
    """

    ACTIONS = HeadActions()
    TEMPLATES = acc_templates()  # whose settings its heads choose from
    WEIGHTS = ("beta_1", "beta_2")

    checkpoint: str = "pet-dctcp-1"
    explore: float = 0.0
    hold: float = 1.0
    beta_1: float = 0.3
    beta_2: float = 0.7
    online: bool = False
    collect: bool = False

    def __post_init__(self) -> None:
        self._settings = settings_of(self.checkpoint)
        self._features = features(self._settings)
        shapes = {n: (-1, *v.shape[1:]) for n, v in _fresh(0, self._settings).items()}
        self._checkpoint = load_for(self.checkpoint, "pet", architecture(self._settings), shapes)
        flows = FLOW_TABLE if self._settings.states == "six" else ()
        self.observes = (*BaseTuner.observes, "qlen_mean_bytes", *flows)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Start near SECN1, with the checkpoint's policy."""
        self._switch = switch_of(testbed)
        self._heads = np.tile(np.array(START_HEADS), (len(testbed.queues), 1))
        self._kept = Decisions(
            x=np.float32, heads=np.int16, log_probability=np.float64, reward=np.float64, drawn=bool
        )
        return super().reset(testbed, seed)

    def learner(self, seed: int, testbed: Testbed, parameters: Arrays) -> PetLearner:
        """Return the learner that goes on."""
        return PetLearner(seed, testbed, self._settings, parameters)

    def _meet(self, testbed: Testbed) -> None:
        super()._meet(testbed)
        self._port = port_of(testbed)

    def earned(self, after: Observation, utilisation: Floats) -> Floats:
        """Return equation 6 for each queue (queues,); queues of a port share the mean of theirs.

        The share is section 4.5.2's. The queue is the mean of the samples since the last decision,
        or that of the reading alone where a rig has no mean.
        """
        mean = after.get("qlen_mean_bytes")
        length = (after["qlen_bytes"] if mean is None else mean).astype(np.float64)
        own = pet_reward(length, utilisation, self.beta_1, self.beta_2)
        shared: Floats = (np.bincount(self._port, own) / np.bincount(self._port))[self._port]
        return shared

    def act(self, observation: Observation) -> Action:
        """Choose kmin, kmax and pmax of every queue."""
        x = self._window.push(observation)
        reward = self.earned(observation, self._window.utilisation)
        explore = self.explore
        if self._learner is not None:
            explore = float(self._learner.acting()["explore"])
        logits = mlp_by_group(self._net, "actor", x, self._switch)
        before = thresholds(self._all, self._heads)
        drawn = np.ones(len(logits), dtype=bool)
        if self.collect or explore > 0:
            heads, log_probability = choose(logits, explore, self._rng)
            if self.hold > 1.0:
                drawn = self._rng.random(len(logits)) * self.hold < 1.0
            self._heads = np.where(drawn[:, None], heads, self._heads)
        else:
            self._heads, log_probability = likeliest(logits), np.zeros(len(logits))
        if self.collect or self.online:
            self._kept.add(
                x=x,
                heads=self._heads,
                log_probability=log_probability,
                reward=reward,
                drawn=drawn,
            )
            self._learn_online()
        after = thresholds(self._all, self._heads)
        differs = [after[name] != before[name] for name in ECN.column_names]
        changed = np.flatnonzero(np.logical_or.reduce(differs))
        if not len(changed):
            return ()
        return (thresholds(changed, self._heads[changed]),)

    def _learn_online(self) -> None:
        if self._learner is None or len(self._kept) <= self._settings.rollout:
            return
        self._learner.learn(self._kept.trace())
        self._net = ready(self._learner.parameters())
        self._kept.forget()  # the next rollout starts from the last state


def settings_of(checkpoint: str) -> PetSettings:
    """Return the settings with a checkpoint's inputs. Raises CheckpointError for other inputs."""
    found = load(checkpoint).card.get("architecture", {}).get("features")
    for states, names in FEATURES.items():
        if found == list(names):
            return PetSettings(states=states)
    raise CheckpointError(
        f"{checkpoint} was trained with features {found}, which PET does not have: train anew"
    )


def port_of(testbed: Testbed) -> NDArray[np.int64]:
    """Return each queue's port as a number, the same for all queues of a port."""
    places: dict[tuple[str, str], int] = {}
    return np.array(
        [places.setdefault((q.device, q.name), len(places)) for q in testbed.queues],
        dtype=np.int64,
    )


def thresholds(queues: NDArray[np.int64], heads: NDArray[np.int64]) -> Change:
    """Return heads (n, 3) as thresholds, with kmin always below kmax (equation 5)."""
    edges = np.array([*exponential_bytes(ALPHA_KB, LEVELS + 1)], dtype=np.int64)
    low = np.minimum(heads[:, 0], heads[:, 1])
    high = np.maximum(heads[:, 0], heads[:, 1])
    low = np.where((low == high) & (low > 0), low - 1, low)
    high = np.where(low == high, high + 1, high)
    return ECN.change(queues, edges[low], edges[high], np.array(PMAX)[heads[:, 2]])


def choose(
    logits: NDArray[Any], explore: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw heads (n, 3), and return them with their log probabilities (n,).

    With probability `explore` a row's heads are all uniform: one step of exploration for the joint
    action. Its probability is that of the mixture, (1 - explore) * policy + explore / actions.
    """
    uniform = rng.random(len(logits)) < explore
    heads, policy = [], np.ones(len(logits))
    for part_logits, size in zip(_split(logits), HEADS, strict=True):
        share = softmax(part_logits)
        edges = share.cumsum(axis=1)
        drawn = rng.random((len(share), 1))
        head = np.where(
            uniform, (drawn[:, 0] * size).astype(np.int64), (drawn * edges[:, -1:] > edges).sum(1)
        )
        head = np.minimum(head, size - 1)
        heads.append(head)
        policy = policy * share[np.arange(len(share)), head]
    return np.stack(heads, axis=1), log((1 - explore) * policy + explore / _ACTIONS)


def likeliest(logits: NDArray[Any]) -> NDArray[np.int64]:
    """Return the heads (n, 3) of highest probability."""
    return np.stack([part_logits.argmax(axis=1) for part_logits in _split(logits)], axis=1)


def _split(logits: Any) -> list[Any]:
    first, second = HEADS[0], HEADS[0] + HEADS[1]
    return [logits[..., :first], logits[..., first:second], logits[..., second:]]


def exploration(settings: PetSettings, step: int) -> float:
    """Return epsilon of equation 13: constant until t = T, then times decay_rate^(t/T)."""
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

    `reward[t]` is the reward of the action at t, shape (T, …); `value` has T + 1 rows. An action
    that was `drawn` at t, shape (T, …), lasts until the next one that was: delta has its rewards
    until then, and the value of the state then. Others have an advantage of 0.
    """
    result = np.zeros(reward.shape, dtype=np.float64)
    earned, following = np.zeros(reward.shape[1:]), np.zeros(reward.shape[1:])
    later, weight = value[-1].astype(np.float64), np.ones(reward.shape[1:])
    for t in range(len(reward) - 1, -1, -1):
        earned = reward[t] + discount * earned
        weight = discount * weight
        whole = earned + weight * later - value[t] + weight * gae_lambda * following
        result[t] = np.where(drawn[t], whole, 0.0)
        following = np.where(drawn[t], whole, following)
        later = np.where(drawn[t], value[t], later)
        earned = np.where(drawn[t], 0.0, earned)
        weight = np.where(drawn[t], 1.0, weight)
    return result


def rewards_to_go(
    reward: NDArray[Any], last_value: NDArray[Any], discount: float
) -> NDArray[np.float64]:
    """Return R of equation 12: discounted rewards from t on, plus the value of the last state."""
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

    def __init__(
        self,
        seed: int,
        testbed: Testbed,
        settings: PetSettings = PetSettings(),
        parameters: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._switch = switch_of(testbed)
        start = dict(parameters) if parameters is not None else _fresh(seed, settings)
        self._copies, inputs = start["actor.0.weight"].shape[:2]
        # a network that training goes on with says which states it takes
        states = next(name for name in FEATURES if width(FEATURES[name], HISTORY) == inputs)
        self._settings = dataclasses.replace(settings, states=states)
        rates = {"actor": settings.actor_rate, "critic": settings.critic_rate}
        nets = {name: TrainedNet(part_of(name, start), rate) for name, rate in rates.items()}
        super().__init__(seed, nets)
        self._steps = 0  # calls of `learn`; `_updates` are the optimiser's: t of equation 13

    def parameters(self) -> Arrays:
        """Return the parameters of actor and critic."""
        return self._nets["actor"].arrays() | self._nets["critic"].arrays()

    def architecture(self) -> dict[str, Any]:
        """Return the architecture of this learner's checkpoints."""
        return architecture(self._settings)

    def acting(self) -> dict[str, Scalar]:
        """Return epsilon of equation 13: the share of exploring actions, and the clip range."""
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
        busy = at_work({"x": x[:-1], "next_x": x[1:]}) & drawn
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
        losses: list[tuple[float, float]] = []
        count = rows["x"].shape[1]
        for epoch in range(settings.epochs):
            rng = np.random.default_rng([self._seed, 2, self._steps, epoch])
            order = rng.permutation(count)
            for first in range(0, count, settings.minibatch):
                batch = torch.from_numpy(order[first : first + settings.minibatch])
                losses.append(self._minibatch({n: p[:, batch] for n, p in rows.items()}, explore))
        self._steps += 1
        actor, value_loss = np.mean(losses, axis=0)
        return {
            "loss": float(actor),
            "value_loss": float(value_loss),
            "reward": float(trace["reward"].mean()),
            "explore": explore,
        }

    def _by_agent(self, values: NDArray[Any], busy: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the busy samples of (steps, queues, …) as (copies, samples, …).

        There is one copy per switch, or one for all. A switch with fewer samples than another
        repeats some of its own. A switch with none uses its idle samples instead.
        """
        if self._copies == 1:
            return values[busy][None]
        own = []
        for switch in range(self._copies):
            mine = np.broadcast_to(self._switch == switch, busy.shape)
            own.append(values[mine & busy] if (mine & busy).any() else values[mine])
        most = max(len(rows) for rows in own)
        return np.stack([rows[np.arange(most) % len(rows)] for rows in own])

    def _minibatch(self, rows: Mapping[str, Any], explore: float) -> tuple[float, float]:
        actor, critic = self._nets["actor"], self._nets["critic"]
        policy: Any = 0.0
        for place, logits in enumerate(_split(mlp(actor.tensors, "actor", rows["x"]))):
            head = rows["heads"][..., place : place + 1]
            policy = policy + logits.log_softmax(dim=-1).gather(-1, head).squeeze(-1)
        total = ((1 - explore) * policy.exp() + explore / _ACTIONS + _TINY).log()
        ratio = (total - rows["old"]).exp()
        self._updates += 1
        norm = self._settings.max_norm
        loss = actor.step(clipped_loss(ratio, rows["advantage"], explore), norm)
        value = mlp(critic.tensors, "critic", rows["x"]).squeeze(-1)
        return loss, critic.step(((value - rows["target"]) ** 2).mean(), norm)  # equation 12

    def _counters(self) -> State:
        return {"steps": np.array([self._steps, self._updates])}

    def _load_counters(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps, self._updates = (int(value) for value in state["steps"])
