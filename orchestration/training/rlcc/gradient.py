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

# Of the first delta after an action, which its packets measured while they carried it out, a fifth;
# with 16 of them, 3 % of the mean's weight is cut off.
DISCOUNT, HORIZON = 0.8, 16
# What counts for at most so much, in targets, however congested a flow was: one drawn-out
# congestion would outvote everything else.
LEAST_WEIGHT = -16.0


def weights_of(
    rollout: Rollout, discount: float = DISCOUNT, horizon: int = HORIZON
) -> NDArray[np.float64]:
    """Return each decision's weight, shape (flows, steps): the discounted mean of later deltas.

    0 for decisions that have fewer than `horizon` after them.
    """
    steps = rollout.delta.shape[1]
    result = np.zeros_like(rollout.delta)
    if steps <= horizon:
        return result
    parts = discount ** np.arange(horizon)
    for back, part in enumerate(parts / parts.sum(), start=1):
        result[:, : steps - horizon] += part * rollout.delta[:, back : steps - horizon + back]
    result[:, : steps - horizon] *= rollout.valid[:, horizon:]
    return result


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
