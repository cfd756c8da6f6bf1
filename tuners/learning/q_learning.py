"""Q-learning, shared by several tuners: targets, exploration, returns and updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.records import Ints
from orchestration.core.trial import Scalar
from tuners.learning.learner import ReplayLearner, State, TrainedNet
from tuners.learning.networks import exp
from tuners.learning.replay_buffer import ReplayBuffer

# Of ACC, GraphCC and PET. None of the three papers gives it.
DISCOUNT = 0.9
_MIN_SENDING = 0.1  # a share of the port's rate


def ddqn_target(reward: Any, next_online: Any, next_target: Any, discount: Any) -> Any:
    """Return y = r + discount * Q(s', argmax_a Q(s', a; theta); theta') (ACC, equation 3).

    `reward` has shape (…). `discount` has the same shape, or is a number. `next_online` and
    `next_target` are the values of the next state by the online and by the target network, shape
    (…, actions). All are torch tensors.
    """
    best = next_online.argmax(dim=-1, keepdim=True)
    return reward + discount * next_target.gather(-1, best).squeeze(-1)


def exploration(start: float, end: float, decay: float, decisions: int) -> float:
    """Return the share of exploring decisions after so many decisions.

    It decays exponentially from `start` to `end`, and then stays. `decay` is the time constant, in
    decisions: `end` is reached after decay * ln(start / end).
    """
    return max(end, start * float(exp(-decisions / decay)))


def explore(
    rng: np.random.Generator, choice: Ints, agents: Ints, share: float, values: NDArray[Any]
) -> Ints:
    """Replace, in place, the choice of each of `agents` with probability `share`.

    Returns the agents whose choice was replaced. `values` has one row per agent. The best action is
    drawn with weight 1, the second best with 1/2, the third with 1/3 and so on: "actions resulting
    large reward will be prioritised" (ACC, section 4.3). With uniform draws, each of a hundred
    actions is tried so seldom that chance decides which looks best. With these weights, the action
    that looks best is tried again.
    """
    rows = np.flatnonzero(rng.random(len(agents)) < share)
    edges = np.cumsum(1.0 / np.arange(1, values.shape[1] + 1))
    rank = np.searchsorted(edges, rng.random(len(rows)) * edges[-1])
    order = np.argsort(-values[rows], axis=1, kind="stable")
    choice[agents[rows]] = order[np.arange(len(rows)), rank]
    return agents[rows]


class Explorer:
    """Decides which agents explore, and how long an explored action lasts.

    The effect of a setting shows over several decisions, so nothing is learned about a setting that
    is replaced at the next one. Therefore an explored action is held: at each decision it goes on
    with probability 1 - 1 / `hold`, for `hold` decisions in the mean (temporally extended
    exploration: Dabney, Ostrovski and Barreto, 2021).
    """

    def __init__(self, rng: np.random.Generator, agents: int, hold: float) -> None:
        self._rng = rng
        self._goes_on = 1.0 - 1.0 / hold
        self._exploring = np.zeros(agents, dtype=bool)

    def apply(
        self, choice: Ints, before: Ints, agents: Ints, share: float, values: NDArray[Any]
    ) -> None:
        """Replace, in place, the choice of those of `agents` that explore.

        In the long run, a `share` of all decisions explore. `before` holds the previous choices of
        all agents. `values` has one row for each of `agents`.
        """
        held = self._exploring[agents] & (self._rng.random(len(agents)) < self._goes_on)
        choice[agents[held]] = before[agents[held]]
        free = np.flatnonzero(~held)
        begins = share * (1.0 - self._goes_on) / (1.0 - share * self._goes_on) if share > 0 else 0.0
        began = explore(self._rng, choice, agents[free], begins, values[free])
        self._exploring[agents] = held
        self._exploring[began] = True


def held_returns(
    rows: Mapping[str, NDArray[Any]], discount: float, horizon: int
) -> dict[str, NDArray[Any]]:
    """Return transitions that last as long as an agent's action does, at most `horizon` decisions.

    `rows` are those of `tuners.learning.learner.transitions`. `reward` becomes the discounted sum
    of the rewards while the action was held, and `next_x` the state in which it ended. `weight`,
    shape (steps, agents), is the power of `discount` by which the value of that state counts. An
    action that is held is an option, and this is its return (Sutton, Precup and Singh, 1999,
    equation 9).
    """
    action = rows["action"]
    steps = len(action)
    total = rows["reward"].astype(np.float64)
    last = np.broadcast_to(np.arange(steps).reshape(-1, *[1] * (action.ndim - 1)), action.shape)
    last = last.copy()
    goes_on = np.ones(action.shape, dtype=bool)
    for ahead in range(1, min(horizon, steps)):
        goes_on = goes_on[:-1] & (action[ahead:] == action[:-ahead])
        total[: steps - ahead] += np.where(goes_on, discount**ahead * rows["reward"][ahead:], 0.0)
        last[: steps - ahead] += goes_on
    count = last - np.arange(steps).reshape(-1, *[1] * (action.ndim - 1)) + 1
    ends = last.reshape(*last.shape, *[1] * (rows["next_x"].ndim - last.ndim))
    return {
        "x": rows["x"],
        "action": action,
        "reward": total.astype(np.float32),
        "next_x": np.take_along_axis(rows["next_x"], ends, axis=0),
        "weight": (discount**count).astype(np.float32),
    }


def multi_step_returns(
    rows: Mapping[str, NDArray[Any]], discount: float, horizon: int
) -> dict[str, NDArray[Any]]:
    """Return transitions of `horizon` decisions. Shorter ones at the end of a trace are left out.

    `rows` are those of `tuners.learning.learner.transitions`. `reward` becomes the discounted sum
    of `horizon` rewards, and `next_x` the state after them.
    """
    steps = len(rows["x"]) - horizon + 1
    if steps < 1:
        return {name: values[:0] for name, values in rows.items()}
    total = sum(discount**k * rows["reward"][k : k + steps] for k in range(horizon))
    return {
        "x": rows["x"][:steps],
        "action": rows["action"][:steps],
        "reward": np.asarray(total, dtype=np.float32),
        "next_x": rows["next_x"][horizon - 1 :],
    }


def worth_learning_from(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return a mask of the transitions at whose beginning or end the queue was at work.

    `rows` are those of `tuners.learning.learner.transitions`. A queue is idle if it is empty and
    its port sends almost nothing: no setting would have changed its reward. Such transitions are
    frequent, and learning from them would give every action tried there the value of an empty
    queue. (ACC with its idle rule leaves out more.)
    """
    utilisation, queue = 0, 1  # columns of the newest reading: `tuners.ecn.features`
    before, after = (
        (rows[key][..., utilisation] > _MIN_SENDING) | (rows[key][..., queue] > 0.0)
        for key in ("x", "next_x")
    )
    return np.logical_or(before, after)


@dataclass(frozen=True)
class QSettings:
    """Settings of all Q-learners. Times are in decisions."""

    discount: float = DISCOUNT
    learning_rate: float = 1e-3
    explore_start: float = 1.0
    explore_end: float = 0.05
    explore_decay: float = 4_000.0  # time constant; the end is reached after 12,000
    hold: float = 8.0  # mean decisions for which an explored action lasts
    updates_per_decision: float = 1.0


class QLearner(ReplayLearner):
    """Double Q-learning, for any network and any replay memory."""

    def __init__(
        self, seed: int, settings: QSettings, net: TrainedNet, memories: Mapping[str, ReplayBuffer]
    ) -> None:
        super().__init__(seed, {"online": net}, memories)
        self._settings, self._net = settings, net
        self._target = self._copy_of_networks()
        self._rewards = np.zeros(2)  # their sum and their number

    @abstractmethod
    def values(self, parameters: Mapping[str, Any], x: Any) -> Any:
        """Return the values of all actions (…, actions) in states; tensors."""

    def acting(self) -> dict[str, Scalar]:
        """Return the share of exploring decisions, and how long an explored action lasts."""
        s = self._settings
        share = exploration(s.explore_start, s.explore_end, s.explore_decay, self._decisions)
        return {"explore": share, "hold": s.hold}

    def _errors(self, rows: Mapping[str, Any], weight: Any) -> Any:
        """Return by how much the values of a batch's actions are below their targets, shape (…).

        `weight` is the discount of the next state's value. Where `rows` have the column `idle`, an
        agent that is idle in the next state keeps its action there, so that action's value counts.
        """
        import torch

        chosen = rows["action"][..., None]
        with torch.no_grad():
            reward = self._centred(rows["reward"], weight, self._settings.discount)
            later = self.values(self._target, rows["next_x"])
            now = self.values(self._net.tensors, rows["next_x"])
            y = ddqn_target(reward, now, later, weight)
            if "idle" in rows:
                same = later.gather(-1, chosen).squeeze(-1)
                y = torch.where(rows["idle"] > 0, reward + weight * same, y)
        return y - self.values(self._net.tensors, rows["x"]).gather(-1, chosen).squeeze(-1)

    def _step(self, loss: Any, target_every: int) -> float:
        """Make one step down the gradient; return the loss. The target is renewed now and then.

        The network is copied to the target after every `target_every` updates.
        """
        value = self._net.step(loss, max_norm=10.0)
        self._updates += 1
        if self._updates % target_every == 0:
            self._target = self._copy_of_networks()
        return value

    def _count_rewards(self, rewards: NDArray[Any]) -> None:
        """Add rewards of single decisions, any shape, to the mean that `_centred` subtracts."""
        self._rewards += (float(rewards.sum(dtype=np.float64)), rewards.size)

    def _centred(self, reward: Any, weight: Any, discount: float) -> Any:
        """Return discounted sums of rewards, minus the same sums of the mean reward.

        `weight` is the discount of what follows the sum. Without this, values are near 1 / (1 -
        discount) times the reward, while a network's outputs begin near 0, so an action looks bad
        only because it is seldom tried (reward centring: Naik, Wan, Tomar and Sutton, 2024).
        """
        mean = self._rewards[0] / max(self._rewards[1], 1.0)
        return reward - float(mean) * (1.0 - weight) / (1.0 - discount)

    def _counters(self) -> State:
        return super()._counters() | {"rewards": self._rewards.copy()}

    def _load_counters(self, state: Mapping[str, NDArray[Any]]) -> None:
        super()._load_counters(state)
        self._rewards = state["rewards"].astype(np.float64)
