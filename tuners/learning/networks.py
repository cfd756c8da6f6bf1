"""Small networks whose forward pass is written once, for NumPy arrays and for torch tensors.

Tuners decide with NumPy, learners differentiate with torch. Both call the same functions on the
same parameters, a mapping from names to arrays. Only learners import torch.

With NumPy, an output has the same bits on every x86-64 machine: see `product`, and
`tuners.learning.exact` for exp and log.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuners.learning.exact import exp

Arrays = dict[str, NDArray[np.float32]]

_SUM_BITS = 53  # up to 2^53 a double represents every integer
_WEIGHT_BITS = 23


@dataclass(frozen=True)
class Weight:
    """A matrix (…, inputs, outputs) as integers times `unit`, a power of two; see `product`.

    The error of an entry is at most 2^-24 of the largest entry, as for a float32 of that size.
    """

    whole: NDArray[np.float64]
    unit: float

    @staticmethod
    def of(values: NDArray[Any]) -> Weight:
        """Round a matrix."""
        exponent = int(np.frexp(np.abs(values).max())[1])
        unit = math.ldexp(1.0, exponent - _WEIGHT_BITS)
        return Weight(np.rint(values.astype(np.float64) / unit), unit)

    def __getitem__(self, key: Any) -> Weight:
        return Weight(self.whole[key], self.unit)

    def __len__(self) -> int:
        return len(self.whole)


def ready(parameters: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the parameters with their matrices rounded, once rather than at every decision."""
    _first_product()
    return {
        name: Weight.of(values) if name.endswith(".weight") else values.astype(np.float64)
        for name, values in parameters.items()
    }


@cache
def _first_product() -> None:
    """Let the BLAS take its memory before a trial begins.

    It asks for it at its first large product, on some CPUs in ways that the kernel refuses, and in
    virtual time a refusal takes a microsecond: of the first decision, and of no repeated one.
    """
    np.ones((512, 72)) @ np.ones((72, 64))


def product(x: Any, weight: Any) -> Any:
    """Return x @ weight, (…, inputs) by (…, inputs, outputs); for arrays the same bits everywhere.

    The order in which a BLAS adds, and whether it fuses multiplications, depends on the CPU. So
    each row of `x` and the matrix are rounded to integers of so few bits that no sum exceeds 2^53.
    Every partial sum is then exact, in any order. The rounding error is about that of float32.
    """
    if not isinstance(x, np.ndarray):
        return x @ weight
    if not isinstance(weight, Weight):
        weight = Weight.of(weight)
    bits = _SUM_BITS - _WEIGHT_BITS - math.ceil(math.log2(x.shape[-1]))
    exponent = np.frexp(np.abs(x).max(axis=-1, keepdims=True))[1]
    rows = np.rint(x * np.ldexp(1.0, bits - exponent))
    if weight.whole.ndim == 2:  # one product for all leading axes
        sums = (rows.reshape(-1, x.shape[-1]) @ weight.whole).reshape(*x.shape[:-1], -1)
    else:
        sums = rows @ weight.whole
    sums *= np.ldexp(weight.unit, exponent - bits)
    return sums


def beside(weight: Any, inputs: int) -> Any:
    """Return a matrix (2 inputs, outputs) as (inputs, 2 outputs): its two halves side by side."""
    if isinstance(weight, Weight):
        return Weight(beside(weight.whole, inputs), weight.unit)
    return concatenate((weight[:inputs], weight[inputs:]))


def init_mlp(
    rng: np.random.Generator,
    name: str,
    widths: Sequence[int],
    copies: int | None = None,
    last: float = 0.1,
) -> Arrays:
    """Return the parameters of a multilayer perceptron, `widths` from input to output.

    Weights are uniform in +-sqrt(6 / inputs), those of the last layer `last` times that; biases are
    0. With `copies`, each array has a first axis of that many identical copies. Small outputs are
    for a network's end: a module whose output others take needs `last` 1, or its inputs fade.
    """
    result: Arrays = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        bound = np.sqrt(6.0 / inputs) * (last if layer == len(widths) - 2 else 1.0)
        weight = rng.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)
        bias = np.zeros((1, outputs), dtype=np.float32)
        for part, values in (("weight", weight), ("bias", bias)):
            if copies is not None:
                values = np.repeat(values[None], copies, axis=0)
            result[f"{name}.{layer}.{part}"] = values
    return result


def mlp(parameters: Mapping[str, Any], name: str, x: Any) -> Any:
    """Return the perceptron's output for inputs (…, n, inputs), with ReLU between the layers."""
    layer = 0
    while True:
        x = product(x, parameters[f"{name}.{layer}.weight"]) + parameters[f"{name}.{layer}.bias"]
        layer += 1
        if f"{name}.{layer}.weight" not in parameters:
            return x
        x = x.clip(min=0.0)


def mlp_by_group(
    parameters: Mapping[str, Any], name: str, x: NDArray[Any], group: NDArray[Any]
) -> NDArray[Any]:
    """Return outputs (n, outputs) for inputs (n, inputs); row i uses copy `group[i]` of the net."""
    if len(parameters[f"{name}.0.weight"]) == 1:
        shared: NDArray[Any] = mlp(parameters, name, x[None])[0]
        return shared
    mine = {key: values for key, values in parameters.items() if key.startswith(name + ".")}
    order = np.argsort(group, kind="stable")
    copies, first = np.unique(group[order], return_index=True)
    parts = [
        mlp({key: values[copy] for key, values in mine.items()}, name, x[rows])
        for copy, rows in zip(copies, np.split(order, first[1:]), strict=True)
    ]
    outputs: NDArray[Any] = np.concatenate(parts)[np.argsort(order, kind="stable")]
    return outputs


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
    shifted = exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def finite(parameters: Mapping[str, NDArray[Any]]) -> bool:
    """True if no parameter is NaN or infinite."""
    return all(bool(np.isfinite(values).all()) for values in parameters.values())
