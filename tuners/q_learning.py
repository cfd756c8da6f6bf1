"""What tuners that learn by Q-learning share: targets, exploration, and what they keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.model.records import Ints


def ddqn_target(reward: Any, next_online: Any, next_target: Any, discount: float) -> Any:
    """y = r + discount * Q(s', argmax_a Q(s', a; theta); theta') (ACC, equation 3).

    `reward` has shape (…), the networks' values of the next state (…, actions); torch tensors.
    """
    best = next_online.argmax(dim=-1, keepdim=True)
    return reward + discount * next_target.gather(-1, best).squeeze(-1)


def exploration(start: float, end: float, decay: float, decisions: int) -> float:
    """Exponential decay from `start` to `end`, with a time constant of `decay` decisions."""
    return end + (start - end) * float(np.exp(-decisions / decay))


def explore(
    rng: np.random.Generator, choice: Ints, agents: Ints, share: float, actions: int
) -> None:
    """Give some of `agents`, each with probability `share`, a random choice, in place."""
    random = agents[rng.random(len(agents)) < share]
    choice[random] = rng.integers(0, actions, len(random))


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
