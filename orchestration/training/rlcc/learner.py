"""Learns RL-CC's network from rollouts: the gradient of equation 3, by torch, with Adam.

Fuhrer et al., HPSR 2023, equation 3: the derivative of the reward by an action is known, and has
the sign of delta. So the gradient is that of the actions themselves, each weighted with the mean of
the flow's later deltas. The paper's mean has no end. Here later deltas are discounted, because a
rollout ends. The learning rate falls during the training.
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

# The mean must span more than the oscillation of few flows, which takes about 16 round trips. A
# mean over less asks for the larger actions, the larger the oscillation is. After 48 deltas, 9 % of
# the mean's weight are left.
DISCOUNT, HORIZON = 0.95, 48
# A decision with fewer later deltas than these has weight 0.
MIN_LATER = 16
# A decision's weight in targets is not below this, however congested its flow was afterwards.
# Otherwise one long congestion would outweigh everything else.
_MIN_WEIGHT = -16.0
# A weight of the network, which has 16 bits in units of 2^-12, must be within ±8.
_MAX_WEIGHT = 7.9
_FLOWS_AT_ONCE = 128
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Figures:
    """The figures of an update: means over decisions in the steady halves of its rollouts."""

    reward: float
    delta: float
    inflation: float


class RlccLearner:
    """RL-CC's network in training, and its optimiser."""

    def __init__(self, architecture: Architecture, seed: int, learning_rate: float) -> None:
        self._torch = load_torch()
        self._architecture = architecture
        self._rate = learning_rate
        initial = initial_weights(architecture, seed)
        self._weights = {name: self._tensor(values) for name, values in initial.items()}
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
        """Make one step up the gradient. `done` is the share of the training that is over.

        Every rollout counts the same, however many flows it has. Raises NotANumberError if the
        objective is not finite.
        """
        torch = self._torch
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate * max(0.05, 1.0 - done)
        self._optimiser.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for inputs, coefficients in _batches(self._architecture, rollouts):
            batch = torch.tensor(inputs), torch.tensor(coefficients)
            total = total + objective(self._architecture, self._weights, *batch)
        if not bool(torch.isfinite(total)):
            raise NotANumberError("the objective is not a number")
        (-total).backward()
        self._optimiser.step()
        with torch.no_grad():
            for values in self._weights.values():
                values.clamp_(-_MAX_WEIGHT, _MAX_WEIGHT)
        return _figures(rollouts)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is needed to resume, in float64."""
        result = {
            f"weight.{name}": values.detach().numpy() for name, values in self._weights.items()
        }
        for name, values in self._weights.items():
            moments = self._optimiser.state.get(values, {})
            result |= {f"adam.{key}.{name}": np.asarray(part) for key, part in moments.items()}
        return result

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what `state` returned."""
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
    """Yield inputs (flows, steps, …) and the coefficients (flows, steps) of their actions.

    An LSTM computes one step after the other, so its rollouts are joined to one batch, with at most
    `_FLOWS_AT_ONCE` flows of each.
    """
    batches = []
    for rollout in rollouts:
        inputs = inputs_of(architecture, rollout)
        weights, valid = normalised(decision_weights(rollout)), rollout.valid
        if architecture.kind == "lstm" and len(weights) > _FLOWS_AT_ONCE:
            chosen = np.linspace(0, len(weights) - 1, _FLOWS_AT_ONCE).astype(np.int64)
            inputs, weights, valid = inputs[chosen], weights[chosen], valid[chosen]
        batches.append((inputs, weights / max(1, valid.sum())))
    if architecture.kind == "mlp":
        yield from batches
        return
    steps = max(weights.shape[1] for _, weights in batches)
    padded = [
        (
            np.pad(inputs, ((0, 0), (0, steps - weights.shape[1]), (0, 0))),
            np.pad(weights, ((0, 0), (0, steps - weights.shape[1]))),
        )
        for inputs, weights in batches
    ]
    all_inputs, all_weights = zip(*padded, strict=True)
    yield np.concatenate(all_inputs), np.concatenate(all_weights)


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

    Decisions with fewer than `MIN_LATER` decisions after them have weight 0.
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

    Deltas are large with many flows and small with few. So each scenario counts as much.
    """
    counted = (weights / TARGET).clip(min=_MIN_WEIGHT)
    size = float(np.sqrt((counted**2).sum() / max(1, np.count_nonzero(counted))))
    return counted / size if size else counted


def inputs_of(architecture: Architecture, rollout: Rollout) -> NDArray[np.float64]:
    """Return the network's inputs at each decision, shape (flows, steps, inputs)."""
    inputs = scaled(rollout.delta, np.where(rollout.valid, rollout.before, 1.0))
    result: NDArray[np.float64] = windows(inputs, architecture.history)
    return result


def objective(
    architecture: Architecture, weights: Mapping[str, Any], inputs: Any, coefficients: Any
) -> Any:
    """Return the sum of the actions times their coefficients. Its gradient is equation 3."""
    return (actions(architecture, weights, inputs) * coefficients).sum()
