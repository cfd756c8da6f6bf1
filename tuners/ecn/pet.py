"""PET: independent PPO agents, one per switch, that set the ECN thresholds of its queues.

Cheng et al., "PET: Multi-agent Independent PPO-based Automatic ECN Tuning for High-Speed Data
Center Networks": equations 2 to 13, algorithm 1, section 4.5.2 for several queues per port. A state
is the last k readings of six factors. An action is three numbers, each from its own output head of
the network: n(kmin) and n(kmax) of E(n), and pmax. `tuners.training.pet` has the values that the
paper does not state.

Where this implementation departs from the paper, and why:

- The reciprocal of the mean queue has a unit, and is finite for an empty queue: `pet_reward`.
- The port's rate is among the inputs: `tuners.ecn.features`.
- Offline, all switches learn one policy. The paper installs one pre-trained model on every switch
  (section 4.4), and does not say how the training of many agents results in one model.
- A step t of equation 13 is a step of the optimiser, which the paper leaves open. If t counted
  episodes, epsilon would still be 0.19 after 200 of them.
- Queues that are empty while their port is idle are left out of updates: `worth_learning_from`.
- Offline, a drawn action lasts for some decisions, and so does a step of equations 9 and 10. What a
  threshold does to a queue does not show within 100 us (docs/tuners.md).
- Lambda of equation 9 is 0.95, not 0.01 as in section 5.2. With 0.01, an action is judged by the
  next 100 us alone, in which a mark costs utilisation and does not shorten a queue yet. Under
  DCTCP, policies then preferred thresholds that mark nothing, with a discount of 0.2 and of 0.9
  (docs/tuners.md).

The mean queue of equation 8 is over all samples since the last decision. So the `action_period` of
a campaign or scenario should be several `sample_period`s; else the mean is of one sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.knobs import ECN
from orchestration.core.records import Action, Change, Floats, Ints, Observation, Setup
from orchestration.core.signals import FLOW_TABLE
from tuners.base import BaseTuner
from tuners.ecn.features import ACC_FEATURES, PET_FEATURES, RATE, pet_reward, width
from tuners.ecn.learned import HISTORY, Actions, LearnedTuner, switch_of
from tuners.ecn.templates import ALPHA_KB, LEVELS, PMAX, acc_templates, exponential_bytes
from tuners.learning.checkpoint import CheckpointError, load, load_for
from tuners.learning.networks import (
    Arrays,
    init_mlp,
    log,
    mlp_by_group,
    prepared_parameters,
    softmax,
)
from tuners.learning.replay_buffer import Decisions

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

HIDDEN = (64, 64)
HEADS = (LEVELS, LEVELS, len(PMAX))  # n of kmin, n of kmax, pmax
COMBINATIONS = LEVELS * LEVELS * len(PMAX)
START_HEADS = (0, 3, 0)  # 20 KB, 160 KB, 5 %: the setting nearest to SECN1
# "four" leaves out incast degree and mice ratio (figure 9).
FEATURES = {"six": (*PET_FEATURES, RATE), "four": (*ACC_FEATURES, RATE)}


def architecture(states: str, hidden: Sequence[int] = HIDDEN) -> dict[str, Any]:
    """Return the architecture that a checkpoint of PET must have."""
    return {
        "network": "actor and critic mlp",
        "features": list(FEATURES[states]),
        "history": HISTORY,
        "hidden": list(hidden),
        "heads": list(HEADS),
    }


def initial_parameters(seed: int, states: str, hidden: Sequence[int] = HIDDEN) -> Arrays:
    """Return the parameters of an untrained actor and critic."""
    rng = np.random.default_rng([seed, 0])
    inputs = width(FEATURES[states], HISTORY)
    return init_mlp(rng, "actor", [inputs, *hidden, sum(HEADS)], 1) | init_mlp(
        rng, "critic", [inputs, *hidden, 1], 1
    )


class HeadActions(Actions):
    """Settings as choices of three heads. Afterwards kmin and kmax are put in order."""

    def start(self, queues: Ints) -> Change:
        """Return the settings that queues start with."""
        return thresholds(queues, np.tile(np.array(START_HEADS), (len(queues), 1)))

    def draw(self, draws: np.random.Generator, queues: Ints) -> Change:
        """Return settings of queues, each head drawn independently."""
        return thresholds(queues, draws.integers(HEADS, size=(len(queues), len(HEADS))))


@dataclass(eq=False)
class Pet(LearnedTuner):
    """PET: a policy for each queue, which also sees incast and the mix of flows.

    It takes the likeliest action of the trained policy. With `online`, it continues to learn.

    `beta_1` and `beta_2` weigh utilisation and delay in the reward (equation 6; 0.3 and 0.7 for
    WebSearch, 0.7 and 0.3 for DataMining: section 5.2). They affect learning only. `explore` is the
    probability of a uniform action. If it is above 0, or with `collect`, actions are drawn from the
    policy, and a drawn action goes on at the next decision with probability 1 - 1 / `hold`.
    """

    NAME = "pet"
    ACTIONS = HeadActions()
    TEMPLATES = acc_templates()  # what its heads choose from
    WEIGHTS = ("beta_1", "beta_2")

    checkpoint: str = "pet-dctcp-1"
    explore: float = 0.0
    hold: float = 1.0
    beta_1: float = 0.3
    beta_2: float = 0.7
    online: bool = False
    collect: bool = False

    def __post_init__(self) -> None:
        states = states_of(self.checkpoint)
        self._features = FEATURES[states]
        shapes = {n: (-1, *v.shape[1:]) for n, v in initial_parameters(0, states).items()}
        self._checkpoint = load_for(self.checkpoint, self.NAME, architecture(states), shapes)
        flows = FLOW_TABLE if states == "six" else ()
        self.observes = (*BaseTuner.observes, "qlen_mean_bytes", *flows)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the initial setup: the setting nearest to SECN1 on every queue."""
        self._switch = switch_of(testbed)
        self._heads = np.tile(np.array(START_HEADS), (len(testbed.queues), 1))
        self._decisions = Decisions(
            x=np.float32, heads=np.int16, log_probability=np.float64, reward=np.float64, drawn=bool
        )
        return super().reset(testbed, seed)

    def _prepare_rewards(self, testbed: Testbed) -> None:
        super()._prepare_rewards(testbed)
        self._port = port_of(testbed)

    def queue_rewards(self, after: Observation, utilisation: Floats) -> Floats:
        """Return equation 6 for each queue, shape (queues,).

        All queues of a port get the mean of their rewards (section 4.5.2). The queue length is the
        mean of the samples since the last decision. Where a backend does not measure this mean, it
        is the length at the observation.
        """
        mean = after.get("qlen_mean_bytes")
        length = (after["qlen_bytes"] if mean is None else mean).astype(np.float64)
        rewards = pet_reward(length, utilisation, self.beta_1, self.beta_2)
        shared: Floats = (np.bincount(self._port, rewards) / np.bincount(self._port))[self._port]
        return shared

    def act(self, observation: Observation) -> Action:
        """Choose kmin, kmax and pmax of every queue; return the settings that changed."""
        x = self._window.push(observation)
        reward = self.queue_rewards(observation, self._window.utilisation)
        explore = self.explore
        if self._learner is not None:
            explore = float(self._learner.acting()["explore"])
        logits = mlp_by_group(self._net, "actor", x, self._switch)
        before = thresholds(self._all_queues, self._heads)
        drawn = np.ones(len(logits), dtype=bool)
        if self.collect or explore > 0:
            heads, log_probability = choose(logits, explore, self._rng)
            if self.hold > 1.0:
                drawn = self._rng.random(len(logits)) * self.hold < 1.0
            self._heads = np.where(drawn[:, None], heads, self._heads)
        else:
            self._heads, log_probability = likeliest(logits), np.zeros(len(logits))
        if self.collect or self.online:
            self._decisions.add(
                x=x,
                heads=self._heads,
                log_probability=log_probability,
                reward=reward,
                drawn=drawn,
            )
            self._learn_online()
        after = thresholds(self._all_queues, self._heads)
        differs = [after[name] != before[name] for name in ECN.column_names]
        changed = np.flatnonzero(np.logical_or.reduce(differs))
        if not len(changed):
            return ()
        return (thresholds(changed, self._heads[changed]),)

    def _learn_online(self) -> None:
        if self._learner is None or len(self._decisions) <= self._learner.rollout:
            return
        self._learner.learn(self._decisions.trace())
        self._net = prepared_parameters(self._learner.parameters())
        self._decisions.forget()  # the next rollout starts from the last state


def states_of(checkpoint: str) -> str:
    """Return which of `FEATURES` a checkpoint has. Raises CheckpointError if it has others."""
    features = load(checkpoint).card.get("architecture", {}).get("features")
    for states, names in FEATURES.items():
        if features == list(names):
            return states
    raise CheckpointError(
        f"{checkpoint} was trained with features {features}, which PET does not have: train anew"
    )


def port_of(testbed: Testbed) -> NDArray[np.int64]:
    """Return the number of each queue's port, shape (queues,)."""
    numbers: dict[tuple[str, str], int] = {}
    return np.array(
        [numbers.setdefault((q.device, q.name), len(numbers)) for q in testbed.queues],
        dtype=np.int64,
    )


def thresholds(queues: NDArray[np.int64], heads: NDArray[np.int64]) -> Change:
    """Return the heads' choices (n, 3) as settings, kmin always below kmax (equation 5)."""
    edges = np.array([*exponential_bytes(ALPHA_KB, LEVELS + 1)], dtype=np.int64)
    low = np.minimum(heads[:, 0], heads[:, 1])
    high = np.maximum(heads[:, 0], heads[:, 1])
    low = np.where((low == high) & (low > 0), low - 1, low)
    high = np.where(low == high, high + 1, high)
    return ECN.change(queues, edges[low], edges[high], np.array(PMAX)[heads[:, 2]])


def choose(
    logits: NDArray[Any], explore: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw the heads' choices (n, 3), and return them with their log probabilities (n,).

    With probability `explore`, all three choices of a row are drawn uniformly: the joint action
    explores. Its probability is that of the mixture, (1 - explore) * policy + explore / actions.
    """
    uniform = rng.random(len(logits)) < explore
    heads, policy = [], np.ones(len(logits))
    for part_logits, size in zip(by_head(logits), HEADS, strict=True):
        share = softmax(part_logits)
        edges = share.cumsum(axis=1)
        drawn = rng.random((len(share), 1))
        head = np.where(
            uniform, (drawn[:, 0] * size).astype(np.int64), (drawn * edges[:, -1:] > edges).sum(1)
        )
        head = np.minimum(head, size - 1)
        heads.append(head)
        policy = policy * share[np.arange(len(share)), head]
    return np.stack(heads, axis=1), log((1 - explore) * policy + explore / COMBINATIONS)


def likeliest(logits: NDArray[Any]) -> NDArray[np.int64]:
    """Return the choices (n, 3) of highest probability."""
    return np.stack([part_logits.argmax(axis=1) for part_logits in by_head(logits)], axis=1)


def by_head(logits: Any) -> list[Any]:
    """Return the logits of each head, NumPy or torch."""
    first, second = HEADS[0], HEADS[0] + HEADS[1]
    return [logits[..., :first], logits[..., first:second], logits[..., second:]]
