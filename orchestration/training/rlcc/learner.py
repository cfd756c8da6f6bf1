"""Learns RL-CC's network from rollouts: equation 3 by torch, Adam, a rate that falls to nothing.

Fuhrer et al., HPSR 2023, equation 3 says what a rollout teaches a network.
The reward's derivative is known: for an action it has the sign of delta. So the gradient is that of
the actions themselves, each weighted with the mean of the flow's later deltas. The paper takes the
mean without end. Here later deltas are discounted, because a rollout ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.training.rlcc.rollout import Rollout
from tuners.learning.learner import NotANumberError, load_torch
from tuners.learning.networks import Arrays
from tuners.nic.networks import (
    TARGET,
    Architecture,
    actions,
    initial_weights,
    reward,
    scaled,
    windows,
)

# Longer than the swings of few flows, some 16 round trips: a mean over less of them asks for larger
# actions the larger the swings are. After 48 deltas 9 % of the mean's weight are left.
DISCOUNT, HORIZON = 0.95, 48
# A decision with fewer later deltas than these teaches nothing.
MIN_LATER = 16
# What counts for at most so much, in targets, however congested a flow was: one drawn-out
# congestion would outvote everything else.
_MIN_WEIGHT = -16.0
# What 16 bits hold of a weight in 2^-12 is ±8.
_MAX_WEIGHT = 7.9
_FLOWS_AT_ONCE = 128
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Figures:
    """An update's means over all decisions in the steady half of its rollouts."""

    reward: float
    delta: float
    inflation: float


class RlccLearner:
    """A network, and the state of its optimiser."""

    def __init__(self, architecture: Architecture, seed: int, learning_rate: float) -> None:
        self._torch = load_torch()
        self._architecture = architecture
        self._rate = learning_rate
        first = initial_weights(architecture, seed)
        self._weights = {name: self._tensor(values) for name, values in first.items()}
        self._optimiser = self._torch.optim.Adam(
            list(self._weights.values()), lr=learning_rate, betas=_BETAS, eps=_EPSILON
        )

    def _tensor(self, values: NDArray[Any]) -> Any:
        return self._torch.tensor(values, dtype=self._torch.float64, requires_grad=True)

    def arrays(self) -> Arrays:
        """Return the network's weights."""
        return {
            name: values.detach().numpy().astype(np.float32)
            for name, values in self._weights.items()
        }

    def learn(self, rollouts: Sequence[Rollout], done: float) -> Figures:
        """Take one step; `done` is the share of the training that is over.

        Every rollout counts the same, however many flows it has. Raises NotANumberError.
        """
        torch = self._torch
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate * max(0.05, 1.0 - done)
        self._optimiser.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for inputs, given in _batches(self._architecture, rollouts):
            of = torch.tensor(inputs), torch.tensor(given)
            total = total + objective(self._architecture, self._weights, *of)
        if not bool(torch.isfinite(total)):
            raise NotANumberError("the objective is no number")
        (-total).backward()
        self._optimiser.step()
        with torch.no_grad():
            for values in self._weights.values():
                values.clamp_(-_MAX_WEIGHT, _MAX_WEIGHT)
        return _figures(rollouts)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is needed to go on, in float64."""
        kept = {f"weight.{name}": values.detach().numpy() for name, values in self._weights.items()}
        for name, values in self._weights.items():
            own = self._optimiser.state.get(values, {})
            kept |= {f"adam.{key}.{name}": np.asarray(part) for key, part in own.items()}
        return kept

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        torch = self._torch
        with torch.no_grad():
            for name, values in self._weights.items():
                values.copy_(torch.tensor(state[f"weight.{name}"]))
                for key in ("step", "exp_avg", "exp_avg_sq"):
                    if f"adam.{key}.{name}" in state:
                        part = torch.tensor(state[f"adam.{key}.{name}"])
                        self._optimiser.state[values][key] = part


def _batches(
    architecture: Architecture, rollouts: Sequence[Rollout]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield inputs (flows, steps, ...) and what their actions are weighted with.

    An LSTM takes one step after the other, so its rollouts are put side by side, with at most
    `_FLOWS_AT_ONCE` flows of each.
    """
    each = []
    for rollout in rollouts:
        inputs = inputs_of(architecture, rollout)
        given = normalised(decision_weights(rollout))
        count = rollout.valid.sum()
        if architecture.kind == "lstm" and len(given) > _FLOWS_AT_ONCE:
            chosen = np.linspace(0, len(given) - 1, _FLOWS_AT_ONCE).astype(np.int64)
            inputs, given, count = inputs[chosen], given[chosen], rollout.valid[chosen].sum()
        each.append((inputs, given / max(1, count)))
    if architecture.kind == "mlp":
        yield from each
        return
    steps = max(given.shape[1] for _, given in each)
    padded = [
        (
            np.pad(inputs, ((0, 0), (0, steps - given.shape[1]), (0, 0))),
            np.pad(given, ((0, 0), (0, steps - given.shape[1]))),
        )
        for inputs, given in each
    ]
    yield np.concatenate([one for one, _ in padded]), np.concatenate([one for _, one in padded])


def _figures(rollouts: Sequence[Rollout]) -> Figures:
    steady = [rollout for rollout in rollouts if rollout.steady.any()]
    deltas = [rollout.delta[rollout.steady] for rollout in steady]
    return Figures(
        float(np.mean([reward(part).mean() for part in deltas])),
        float(np.mean([part.mean() for part in deltas])),
        float(np.mean([rollout.inflation[rollout.steady].mean() for rollout in steady])),
    )


def decision_weights(
    rollout: Rollout, discount: float = DISCOUNT, horizon: int = HORIZON
) -> NDArray[np.float64]:
    """Return each decision's weight, shape (flows, steps): the discounted mean of later deltas.

    0 for decisions that have fewer than `MIN_LATER` after them.
    """
    steps = rollout.delta.shape[1]
    sums, parts = np.zeros_like(rollout.delta), np.zeros_like(rollout.delta)
    deltas = np.where(rollout.valid, rollout.delta, 0.0)
    for back in range(1, min(horizon + 1, steps)):
        part = discount ** (back - 1)
        sums[:, : steps - back] += part * deltas[:, back:]
        parts[:, : steps - back] += part * rollout.valid[:, back:]
    later = rollout.valid.sum(axis=1)[:, None] - 1 - np.arange(steps)
    return np.where(later >= MIN_LATER, sums / np.maximum(parts, 1e-9), 0.0)


def normalised(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a rollout's weights divided by their root mean square.

    Deltas of many flows are large and those of few small: each scenario is to teach as much.
    """
    counted = (weights / TARGET).clip(min=_MIN_WEIGHT)
    size = float(np.sqrt((counted**2).sum() / max(1, np.count_nonzero(counted))))
    return counted / size if size else counted


def inputs_of(architecture: Architecture, rollout: Rollout) -> NDArray[np.float64]:
    """Return what the network saw at each decision, shape (flows, steps, inputs)."""
    seen = scaled(rollout.delta, np.where(rollout.valid, rollout.before, 1.0))
    result: NDArray[np.float64] = windows(seen, architecture.history)
    return result


def objective(
    architecture: Architecture, weights: Mapping[str, Any], inputs: Any, given: Any
) -> Any:
    """Return the sum of the actions times the numbers `given`; its gradient is equation 3."""
    return (actions(architecture, weights, inputs) * given).sum()
