"""RL-CC's networks in fixed point, bit for bit as policy_rlcc_network.h computes them in a NIC.

Activations are integers in units of 2^-16. Weights are 16-bit integers in units of 2^-12. Sums have
64 bits, and are rounded down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuners.nic.networks import ONE, SPAN, STATE, Architecture

Ints = NDArray[np.int64]
WEIGHT_BITS = 12
TANH_STEPS = 256
_MAX_INPUT, _MAX_MEMORY, _MAX_OUTPUT = 16 * ONE, 64 * ONE, 1 << 30
TANH_TABLE: Ints = np.array([round(ONE * math.tanh(i / 32)) for i in range(TANH_STEPS + 1)])
SPAN_Q16 = round(SPAN * ONE)


def quantised(architecture: Architecture, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Ints]:
    """Return the weights in 2^-12. Raises ValueError for one that 16 bits cannot hold (±8)."""
    result = {
        name: np.rint(arrays[name].astype(np.float64) * (1 << WEIGHT_BITS)).astype(np.int64)
        for name in architecture.shapes
    }
    for name, values in result.items():
        if np.abs(values).max() > 0x7FFF:
            raise ValueError(f"{name} has a weight beyond ±8, which 16 bits do not hold")
    return result


def inputs(window: Ints) -> Ints:
    """Return the inputs for windows (…, 2 * history) of deltas and actions: scaled and clipped."""
    result = np.empty_like(window)
    result[..., 0::2] = window[..., 0::2] * 16
    result[..., 1::2] = (window[..., 1::2] - ONE) * 4
    return result.clip(-_MAX_INPUT, _MAX_INPUT)


def tanh(x: Ints) -> Ints:
    """Return tanh by linear interpolation between the entries of the table."""
    size = np.abs(x)
    step = np.minimum(size >> 11, TANH_STEPS - 1)
    rise = TANH_TABLE[step + 1] - TANH_TABLE[step]
    value = np.where(size >> 11 < TANH_STEPS, TANH_TABLE[step] + (rise * (size & 2047) >> 11), ONE)
    return np.where(x < 0, -value, value)


def sigmoid(x: Ints) -> Ints:
    """Return 1 / (1 + e^-x)."""
    return (ONE + tanh(x >> 1)) >> 1


def mlp(weights: Mapping[str, Ints], window: Ints) -> Ints:
    """Return the MLP's actions for windows (…, 2 * history)."""
    hidden = _layer(weights, "hidden", inputs(window)).clip(min=0)
    return _action(_layer(weights, "out", hidden)[..., 0])


def lstm(weights: Mapping[str, Ints], window: Ints, memory: Ints) -> Ints:
    """Return the LSTM's actions for windows (flows, 2).

    `memory`, shape (flows, 32), has each flow's hidden state, then its cell state. It is changed.
    """
    x = _layer(weights, "first", inputs(window)).clip(min=0)
    x = _layer(weights, "second", x).clip(min=0)
    hidden, cell = memory[:, :STATE], memory[:, STATE:]
    gates = _layer(weights, "lstm", np.concatenate([x, hidden], axis=-1))
    input_gate, forget_gate, candidate, output_gate = np.split(gates, 4, axis=-1)
    new = (sigmoid(forget_gate) * cell >> 16) + (sigmoid(input_gate) * tanh(candidate) >> 16)
    cell[:] = new.clip(-_MAX_MEMORY, _MAX_MEMORY)
    hidden[:] = sigmoid(output_gate) * tanh(cell) >> 16
    return _action(_layer(weights, "out", hidden)[..., 0])


def _layer(weights: Mapping[str, Ints], name: str, x: Ints) -> Ints:
    total = x @ weights[f"{name}.weight"]
    if f"{name}.bias" in weights:
        total = total + (weights[f"{name}.bias"] << 16)
    return (total >> WEIGHT_BITS).clip(-_MAX_OUTPUT, _MAX_OUTPUT)


def _action(output: Ints) -> Ints:
    return ONE + (tanh(output) * SPAN_Q16 >> 16)
