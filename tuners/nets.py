"""Small networks whose forward pass is written once, for NumPy arrays and for torch tensors.

A tuner decides with NumPy, a learner differentiates with torch; both call the same functions on
the same parameters, a mapping from names to arrays. Torch itself is imported by learners only.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]


def init_mlp(
    rng: np.random.Generator, name: str, widths: Sequence[int], copies: int | None = None
) -> Arrays:
    """Return the parameters of a multilayer perceptron, `widths` from input to output.

    Weights are uniform in +-sqrt(6 / inputs) but for the last layer's, a tenth of it; biases are 0.
    With `copies`, each array has that many copies of the same start along a first axis.
    """
    result: Arrays = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        bound = np.sqrt(6.0 / inputs) * (0.1 if layer == len(widths) - 2 else 1.0)
        weight = rng.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)
        bias = np.zeros((1, outputs), dtype=np.float32)
        for part, values in (("weight", weight), ("bias", bias)):
            if copies is not None:
                values = np.repeat(values[None], copies, axis=0)
            result[f"{name}.{layer}.{part}"] = values
    return result


def mlp(parameters: Mapping[str, Any], name: str, x: Any) -> Any:
    """Return the perceptron's output for inputs (…, n, inputs): rectified between the layers."""
    layer = 0
    while True:
        x = x @ parameters[f"{name}.{layer}.weight"] + parameters[f"{name}.{layer}.bias"]
        layer += 1
        if f"{name}.{layer}.weight" not in parameters:
            return x
        x = x.clip(min=0.0)


def mlp_by_group(
    parameters: Mapping[str, NDArray[Any]], name: str, x: NDArray[Any], group: NDArray[Any]
) -> NDArray[Any]:
    """Return outputs (n, outputs) for inputs (n, inputs), row i by copy `group[i]` of the net."""
    copies = len(parameters[f"{name}.0.weight"])
    if copies == 1:
        shared: NDArray[Any] = mlp(parameters, name, x[None])[0]
        return shared
    own = {key: values[group] for key, values in parameters.items() if key.startswith(name + ".")}
    outputs: NDArray[Any] = mlp(own, name, x[:, None, :])
    return outputs[:, 0]


def concatenate(parts: Sequence[Any]) -> Any:
    """Join along the last axis."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis=-1)
    import torch

    return torch.cat(tuple(parts), dim=-1)


def amin(x: Any, axis: int) -> Any:
    """Minimum along an axis."""
    return x.min(axis=axis) if isinstance(x, np.ndarray) else x.amin(dim=axis)


def amax(x: Any, axis: int) -> Any:
    """Maximum along an axis."""
    return x.max(axis=axis) if isinstance(x, np.ndarray) else x.amax(dim=axis)


def softmax(logits: Any) -> Any:
    """Probabilities along the last axis."""
    if not isinstance(logits, np.ndarray):
        return logits.softmax(dim=-1)
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def finite(parameters: Mapping[str, NDArray[Any]]) -> bool:
    """True if no parameter is NaN or infinite."""
    return all(bool(np.isfinite(values).all()) for values in parameters.values())
