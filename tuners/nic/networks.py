"""RL-CC's networks: their shapes, first weights, and forward passes for NumPy and for torch.

Fuhrer et al., HPSR 2023, section III: 32 and 16 neurons, an LSTM of 16, one output (2,753 weights,
with one bias for the LSTM's input and state together); section V-B: one hidden layer over a window
of the past. The paper leaves open how many neurons and observations the window's network has; here
4 and 12, which are about its table I's 200 operations.

A network sees `scaled` observations, and answers an action in 1 ± SPAN: its output layer ends in
tanh. The window's network has no biases: no observation (0) is no change, so that a flow is at
rest where delta is 0, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tuners.learning.networks import Arrays, concatenate

TARGET, BETA = 0.064, 1.5
ONE = 1 << 16
MIN_DELTA = -32.0
_SHARE_BITS = 30


def delta(
    inflation: Any, share: Any, target: float = TARGET, beta: float = BETA
) -> NDArray[np.float64]:
    """Return target - max(inflation - beta, 0) * sqrt(rate), equation 4; at least -32."""
    above = np.maximum(np.asarray(inflation, dtype=np.float64) - beta, 0.0)
    result: NDArray[np.float64] = np.maximum(target - above * np.sqrt(share), MIN_DELTA)
    return result


def reward(deltas: Any) -> NDArray[np.float64]:
    """Return the reward of equation 1."""
    return -np.square(np.asarray(deltas, dtype=np.float64))


def expected_inflation(flows: float, target: float = TARGET, beta: float = BETA) -> float:
    """Return the round trip over the base round trip of so many flows at rest, equation 2."""
    return target * math.sqrt(flows) + beta


# of actions, as in Tessler et al., AAAI 2022
SPAN = 0.2
# By what a delta and an action - 1 are multiplied, and where they end. Powers of two, so that the
# integers in the NIC shift. A target of 0.064 is about 1.
DELTA_SCALE, ACTION_SCALE, MAX_INPUT = 16.0, 4.0, 16.0
FIRST, SECOND, STATE = 32, 16, 16
_FIRST_OUTPUT = 0.1


@dataclass(frozen=True)
class Architecture:
    """A network: `history` observations at once, and the MLP's hidden neurons."""

    kind: Literal["mlp", "lstm"]
    history: int = 1
    hidden: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays, in the order in which the C source has them."""
        if self.kind == "mlp":
            return {
                "hidden.weight": (2 * self.history, self.hidden),
                "out.weight": (self.hidden, 1),
            }
        return {
            "first.weight": (2, FIRST),
            "first.bias": (FIRST,),
            "second.weight": (FIRST, SECOND),
            "second.bias": (SECOND,),
            # the gates side by side: input, forget, cell, output
            "lstm.weight": (SECOND + STATE, 4 * STATE),
            "lstm.bias": (4 * STATE,),
            "out.weight": (STATE, 1),
            "out.bias": (1,),
        }

    @property
    def weights(self) -> int:
        """How many numbers are learned."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())


MLP = Architecture("mlp", history=4, hidden=12)
LSTM = Architecture("lstm")
ARCHITECTURES: Mapping[str, Architecture] = {"mlp": MLP, "lstm": LSTM}


def initial_weights(architecture: Architecture, seed: int) -> Arrays:
    """Return the weights before training: uniform in ±sqrt(3 / inputs), biases 0.

    The output's are a tenth of that: actions begin near 1, where flows come to rest, and grow.
    """
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, shape in architecture.shapes.items():
        bound = np.sqrt(3.0 / shape[0]) if name.endswith("weight") else 0.0
        arrays[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    arrays["out.weight"] *= np.float32(_FIRST_OUTPUT)
    return arrays


def scaled(deltas: Any, actions: Any) -> Any:
    """Return inputs (…, 2) from deltas and the actions before them."""
    inputs = np.stack([deltas * DELTA_SCALE, (actions - 1.0) * ACTION_SCALE], axis=-1)
    return inputs.clip(-MAX_INPUT, MAX_INPUT)


def windows(inputs: Any, history: int) -> Any:
    """Return (flows, steps, 2 * history) from (flows, steps, 2): each step's past, newest first.

    Before a flow's first step all is 0: a delta of 0, and an action of 1.
    """
    before = np.zeros((inputs.shape[0], history - 1, 2), dtype=inputs.dtype)
    padded = np.concatenate([before, inputs], axis=1)
    steps = inputs.shape[1]
    parts = [padded[:, history - 1 - back : history - 1 - back + steps] for back in range(history)]
    return np.concatenate(parts, axis=-1)


def actions(architecture: Architecture, weights: Mapping[str, Any], inputs: Any) -> Any:
    """Return the actions (flows, steps) for inputs: (flows, steps, 2 * history), or 2 for LSTMs.

    Every flow's state is 0 before its first step.
    """
    if architecture.kind == "mlp":
        hidden = (inputs @ weights["hidden.weight"]).clip(min=0.0)
        return _action(hidden @ weights["out.weight"])
    x = (inputs @ weights["first.weight"] + weights["first.bias"]).clip(min=0.0)
    x = (x @ weights["second.weight"] + weights["second.bias"]).clip(min=0.0)
    state = memory = x[:, 0] * 0.0
    out = []
    for step in range(x.shape[1]):
        gates = concatenate((x[:, step], state)) @ weights["lstm.weight"] + weights["lstm.bias"]
        take, keep, give = (_sigmoid(gates[:, at * STATE : (at + 1) * STATE]) for at in (0, 1, 3))
        memory = keep * memory + take * _tanh(gates[:, 2 * STATE : 3 * STATE])
        state = give * _tanh(memory)
        out.append(state @ weights["out.weight"] + weights["out.bias"])
    return _action(concatenate(out)[..., None])


def _action(output: Any) -> Any:
    return 1.0 + SPAN * _tanh(output[..., 0])


def _tanh(x: Any) -> Any:
    return np.tanh(x) if isinstance(x, np.ndarray) else x.tanh()


def _sigmoid(x: Any) -> Any:
    return 0.5 * (1.0 + _tanh(0.5 * x))
