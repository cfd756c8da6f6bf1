"""What tuners that learn by Q-learning share: targets, exploration, and what they keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from orchestration.model.records import Ints
from orchestration.model.trial import Scalar
from tuners.exact import exp
from tuners.learning import TrainedNet
from tuners.nets import Arrays

_SENDING = 0.1  # of the port's rate


def ddqn_target(reward: Any, next_online: Any, next_target: Any, discount: float) -> Any:
    """y = r + discount * Q(s', argmax_a Q(s', a; theta); theta') (ACC, equation 3).

    `reward` has shape (…), the networks' values of the next state (…, actions); torch tensors.
    """
    best = next_online.argmax(dim=-1, keepdim=True)
    return reward + discount * next_target.gather(-1, best).squeeze(-1)


def exploration(start: float, end: float, decay: float, decisions: int) -> float:
    """Exponential decay from `start` to `end`, with a time constant of `decay` decisions."""
    return end + (start - end) * float(exp(-decisions / decay))


def explore(
    rng: np.random.Generator, choice: Ints, agents: Ints, share: float, values: NDArray[Any]
) -> None:
    """Give some of `agents`, each with probability `share`, another choice, in place.

    `values` has a row an agent. Its best action is drawn in proportion to 1, its second best to
    1/2, the third to 1/3 and so on: "actions resulting large reward will be prioritised" (ACC,
    section 4.3). Tried evenly, each of a hundred actions is tried so seldom that chance decides
    which of them looks best; this way what looks best is tried again.
    """
    places = np.flatnonzero(rng.random(len(agents)) < share)
    edges = np.cumsum(1.0 / np.arange(1, values.shape[1] + 1))
    rank = np.searchsorted(edges, rng.random(len(places)) * edges[-1])
    order = np.argsort(-values[places], axis=1, kind="stable")
    choice[agents[places]] = order[np.arange(len(places)), rank]


class Kept:
    """States, actions and rewards of a trial, a row a decision.

    A reward is what came before the state it stands beside: of the action one row earlier.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[NDArray[Any], Ints, NDArray[Any]]] = []

    def add(self, x: NDArray[Any], action: Ints, reward: NDArray[Any]) -> None:
        """Keep one decision: (agents, features), (agents,), (agents,)."""
        self._rows.append((x, action.copy(), reward))

    def last(self) -> tuple[NDArray[Any], Ints] | None:
        """Return the last state and action, if there is one."""
        return self._rows[-1][:2] if self._rows else None

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return all, arrays of (decisions, agents, …); nothing if there is none."""
        if not self._rows:
            return {}
        x, action, reward = (np.stack(column) for column in zip(*self._rows, strict=True))
        return {"x": x, "action": action.astype(np.int16), "reward": reward.astype(np.float32)}


def transitions(trace: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return a trace as (s, a, r, s'), arrays of (decisions - 1, agents, …)."""
    x = trace["x"].astype(np.float32)
    return {
        "x": x[:-1],
        "action": trace["action"][:-1].astype(np.int64),
        "reward": trace["reward"][1:].astype(np.float32),
        "next_x": x[1:],
    }


def at_work(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Say which transitions (see `transitions`) can teach anything.

    A queue is idle that was empty at both readings while its port sent next to nothing: no setting
    would have changed what it earned. Of such transitions there are many, and learning from them
    gives each action that was tried there the value of an empty queue. (ACC's section 4.2 skips
    idle queues too. Its rule, below kmin, would leave out what low thresholds earn.)
    """
    seen = [(rows[key][..., 0] > _SENDING) | (rows[key][..., 1] > 0.0) for key in ("x", "next_x")]
    return np.logical_or(*seen)


class QSettings(Protocol):
    """What all Q-learners are set to; `explore_decay` is a time constant in decisions."""

    @property
    def explore_start(self) -> float:
        """Probability of a random action at first."""

    @property
    def explore_end(self) -> float:
        """And in the end."""

    @property
    def explore_decay(self) -> float:
        """How many decisions it takes to fall to a third."""

    @property
    def updates_per_decision(self) -> float:
        """How many steps of gradient descent follow each decision."""


class QLearner(ABC):
    """The part of a learner that does not depend on its network and its memory."""

    def __init__(self, settings: QSettings, net: TrainedNet, start: Arrays) -> None:
        self._exploring = settings
        self._net = net
        self._target = start
        self._updates = self._decisions = 0

    @abstractmethod
    def add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Store transitions (see `transitions`)."""

    @abstractmethod
    def update(self) -> float:
        """Draw a batch, move the network towards its target, and return the loss."""

    def parameters(self) -> Arrays:
        """Return the mean of the evaluation network over its last updates."""
        return self._net.mean()

    def acting(self) -> dict[str, Scalar]:
        """Exploration decays exponentially."""
        s = self._exploring
        share = exploration(s.explore_start, s.explore_end, s.explore_decay, self._decisions)
        return {"explore": share}

    def learn(self, trace: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Store an episode, and make updates for each of its decisions."""
        steps = len(trace["x"]) - 1
        if steps < 1:
            return {}
        explored = float(self.acting()["explore"])
        self.add(transitions(trace))
        count = max(1, round(steps * self._exploring.updates_per_decision))
        losses = [self.update() for _ in range(count)]
        return {
            "loss": float(np.mean(losses)),
            "reward": float(trace["reward"].mean()),
            "explore": explored,
        }

    def _updated(self, target_every: int) -> None:
        """Count an update, and renew the target network after each `target_every` of them."""
        self._updates += 1
        if self._updates % target_every == 0:
            self._target = self._net.arrays()
