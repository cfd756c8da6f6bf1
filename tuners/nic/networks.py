"""RL-CC's networks: their shapes, initial weights, and forward passes for NumPy and for torch.

RL-CC is a congestion control in NICs: after each round trip, a network multiplies a flow's rate by
an action. It observes past actions and `delta` (equation 4): above 0, the flow may send faster;
below 0, it should send slower.

Fuhrer et al., HPSR 2023, section III: layers of 32 and 16 neurons, an LSTM of 16, one output (2,753
weights, with one bias for the LSTM's input and state together). Section V-B: an MLP with one hidden
layer over a window of the past. The paper leaves open how many observations the window has, and how
many neurons the layer. Here they are 4 and 12, which is about the 200 operations of its table I.

A network gets `scaled` observations. Its action lies in 1 ± SPAN, because its output layer ends in
tanh. The MLP has no biases, so inputs of 0 give the action 1: a flow is at rest where delta is 0,
and nowhere else.
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


def delta(
    inflation: Any, share: Any, target: float = TARGET, beta: float = BETA
) -> NDArray[np.float64]:
    """Return target - max(inflation - beta, 0) * sqrt(share), equation 4; at least -32.

    `inflation` is the round trip over the base round trip, `share` the flow's share of the line.
    """
    above = np.maximum(np.asarray(inflation, dtype=np.float64) - beta, 0.0)
    result: NDArray[np.float64] = np.maximum(target - above * np.sqrt(share), MIN_DELTA)
    return result


def reward(deltas: Any) -> NDArray[np.float64]:
    """Return the rewards of equation 1, -delta^2. Any shape."""
    return -np.square(np.asarray(deltas, dtype=np.float64))


def expected_inflation(flows: float, target: float = TARGET, beta: float = BETA) -> float:
    """Return the inflation, RTT over base RTT, when so many flows are at rest (equation 2)."""
    return target * math.sqrt(flows) + beta


# Actions lie in 1 ± SPAN, as in Tessler et al., AAAI 2022.
SPAN = 0.2
# Inputs are a delta and an action - 1, multiplied by these scales and clipped to ±MAX_INPUT. The
# scales are powers of two, so that the NIC's integers are shifted. A target of 0.064 becomes about
# 1.
DELTA_SCALE, ACTION_SCALE, MAX_INPUT = 16.0, 4.0, 16.0
FIRST, SECOND, STATE = 32, 16, 16  # widths of the LSTM network: two layers, and the state
_OUTPUT_SCALE = 0.1


@dataclass(frozen=True)
class Architecture:
    """A network's kind, how many observations it gets at once, and the MLP's hidden neurons."""

    kind: Literal["mlp", "lstm"]
    history: int = 1
    hidden: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights by name, in the order of the C source."""
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
        """The number of learned weights."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())


MLP = Architecture("mlp", history=4, hidden=12)
LSTM = Architecture("lstm")
ARCHITECTURES: Mapping[str, Architecture] = {"mlp": MLP, "lstm": LSTM}


def initial_weights(architecture: Architecture, seed: int) -> Arrays:
    """Return the weights before training: uniform in ±sqrt(3 / inputs), biases 0.

    The output layer's weights are a tenth of that, so actions are near 1 at first, where flows come
    to rest.
    """
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, shape in architecture.shapes.items():
        bound = np.sqrt(3.0 / shape[0]) if name.endswith("weight") else 0.0
        arrays[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    arrays["out.weight"] *= np.float32(_OUTPUT_SCALE)
    return arrays


def scaled(deltas: Any, actions: Any) -> Any:
    """Return inputs (…, 2) from deltas and the actions before them, both of any one shape."""
    inputs = np.stack([deltas * DELTA_SCALE, (actions - 1.0) * ACTION_SCALE], axis=-1)
    return inputs.clip(-MAX_INPUT, MAX_INPUT)


def windows(inputs: Any, history: int) -> Any:
    """Return (flows, steps, 2 * history) from (flows, steps, 2): each step's past, newest first.

    Before a flow's first step, inputs are 0: a delta of 0 and an action of 1.
    """
    before = np.zeros((inputs.shape[0], history - 1, 2), dtype=inputs.dtype)
    padded = np.concatenate([before, inputs], axis=1)
    steps = inputs.shape[1]
    parts = [padded[:, history - 1 - back : history - 1 - back + steps] for back in range(history)]
    return np.concatenate(parts, axis=-1)


def actions(architecture: Architecture, weights: Mapping[str, Any], inputs: Any) -> Any:
    """Return the actions (flows, steps) for inputs (flows, steps, 2 * history).

    An LSTM's history is 1, and its state is 0 before a flow's first step.
    """
    if architecture.kind == "mlp":
        hidden = (inputs @ weights["hidden.weight"]).clip(min=0.0)
        return _action(hidden @ weights["out.weight"])
    x = (inputs @ weights["first.weight"] + weights["first.bias"]).clip(min=0.0)
    x = (x @ weights["second.weight"] + weights["second.bias"]).clip(min=0.0)
    hidden = cell = x[:, 0] * 0.0
    outputs = []
    for step in range(x.shape[1]):
        gates = concatenate((x[:, step], hidden)) @ weights["lstm.weight"] + weights["lstm.bias"]
        input_gate, forget_gate, candidate, output_gate = (
            gates[:, gate * STATE : (gate + 1) * STATE] for gate in range(4)
        )
        cell = _sigmoid(forget_gate) * cell + _sigmoid(input_gate) * _tanh(candidate)
        hidden = _sigmoid(output_gate) * _tanh(cell)
        outputs.append(hidden @ weights["out.weight"] + weights["out.bias"])
    return _action(concatenate(outputs)[..., None])


def _action(output: Any) -> Any:
    return 1.0 + SPAN * _tanh(output[..., 0])


def _tanh(x: Any) -> Any:
    return np.tanh(x) if isinstance(x, np.ndarray) else x.tanh()


def _sigmoid(x: Any) -> Any:
    return 0.5 * (1.0 + _tanh(0.5 * x))
