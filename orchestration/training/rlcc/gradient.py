"""The gradient of Fuhrer et al., HPSR 2023, equation 3: what a rollout teaches a network.

The reward's derivative is known: for an action it has the sign of delta. So the gradient is that of
the actions themselves, each weighted with the mean of the flow's later deltas. The paper takes the
mean without end. Here later deltas are discounted, because a rollout ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.training.rlcc.rollout import Rollout
from tuners.nic.networks import Architecture, actions, scaled, windows
from tuners.nic.observation import TARGET

# Longer than the swings of few flows, some 16 round trips: a mean over less of them asks for larger
# actions the larger the swings are. After 48 deltas 9 % of the mean's weight are left.
DISCOUNT, HORIZON = 0.95, 48
# A decision with fewer later deltas than these teaches nothing.
LEAST_LATER = 16
# What counts for at most so much, in targets, however congested a flow was: one drawn-out
# congestion would outvote everything else.
_LEAST_WEIGHT = -16.0


def weights_of(
    rollout: Rollout, discount: float = DISCOUNT, horizon: int = HORIZON
) -> NDArray[np.float64]:
    """Return each decision's weight, shape (flows, steps): the discounted mean of later deltas.

    0 for decisions that have fewer than `LEAST_LATER` after them.
    """
    steps = rollout.delta.shape[1]
    sums, parts = np.zeros_like(rollout.delta), np.zeros_like(rollout.delta)
    deltas = np.where(rollout.valid, rollout.delta, 0.0)
    for back in range(1, min(horizon + 1, steps)):
        part = discount ** (back - 1)
        sums[:, : steps - back] += part * deltas[:, back:]
        parts[:, : steps - back] += part * rollout.valid[:, back:]
    later = rollout.valid.sum(axis=1)[:, None] - 1 - np.arange(steps)
    return np.where(later >= LEAST_LATER, sums / np.maximum(parts, 1e-9), 0.0)


def evened(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a rollout's weights divided by their root mean square.

    Deltas of many flows are large and those of few small: each scenario is to teach as much.
    """
    counted = (weights / TARGET).clip(min=_LEAST_WEIGHT)
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
