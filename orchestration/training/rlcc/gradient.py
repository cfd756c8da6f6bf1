"""The gradient of Fuhrer et al., HPSR 2023, equation 3: what a rollout teaches a network.

The reward's derivative is known: for an action it has the sign of delta. So the gradient is that of
the actions themselves, each weighted with the mean delta of the flow's decisions after it. The
paper takes the mean without end; here it is cut off after `HORIZON` decisions, because in a rollout
that ends, late actions would have none, and early ones would be blamed for all that came later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.training.rlcc.rollout import Rollout
from tuners.learning import load_torch
from tuners.nets import Arrays
from tuners.nic.networks import Architecture, actions, scaled, windows

# The first delta after an action was measured by a packet that left with it: it shows the rate, but
# no queue that came of it. The second one does.
HORIZON, DISCOUNT = 16, 0.8


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
    share = discount ** np.arange(horizon)
    share /= share.sum()
    for back, part in enumerate(share, start=1):
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
    """Return the sum of actions times the weights `given`: its gradient is equation 3."""
    return (actions(architecture, weights, inputs) * given).sum()
