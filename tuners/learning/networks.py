"""Small networks whose forward pass is written once, for NumPy arrays and for torch tensors.

Tuners compute with NumPy, learners with torch, which differentiates. Both call the same functions
with the same parameters, a mapping from names to arrays. Only learners import torch.

With NumPy, an output has the same bits on every x86-64 machine: see `matmul`. The functions exp and
log of NumPy and of the C library have a version for each kind of CPU, and these differ in the last
bit. The functions exp and log here use only operations whose rounding IEEE 754 defines: sums,
products, quotients and powers of two. Their errors are about two units in the last place.
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

_LN2 = 0.6931471805599453
# The first 32 bits of ln(2), so that its product with a small integer is exact, and the rest.
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
_EXP_TERMS = [1.0 / math.factorial(n) for n in range(13, -1, -1)]
_LOG_TERMS = [1.0 / (2 * n + 1) for n in range(11, -1, -1)]


def exp(x: Any) -> NDArray[np.float64]:
    """Return e^x, any shape."""
    x = np.clip(np.asarray(x, dtype=np.float64), -745.0, 709.0)
    power = np.rint(x / _LN2)
    rest = (x - power * _LN2_HIGH) - power * _LN2_LOW  # within +-ln(2) / 2
    return np.asarray(np.ldexp(_polynomial(_EXP_TERMS, rest), power.astype(np.int32)))


def log(x: Any) -> NDArray[np.float64]:
    """Return the natural logarithm of positive numbers, any shape."""
    ratio, power = _log_parts(x)
    return np.asarray(power * _LN2_HIGH + (power * _LN2_LOW + ratio))


def log2(x: Any) -> NDArray[np.float64]:
    """Return the logarithm to base 2 of positive numbers, any shape; exact for powers of two."""
    ratio, power = _log_parts(x)
    return np.asarray(power + ratio / _LN2)


def ceil_log2(x: Any) -> NDArray[np.int64]:
    """Return the smallest n with x <= 2^n, exactly, for positive numbers of any shape."""
    part, power = np.frexp(np.asarray(x, dtype=np.float64))
    return np.asarray(power.astype(np.int64) - (part == 0.5))


def _log_parts(x: Any) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Return ln(m) and n such that x = m * 2^n, with m between sqrt(1/2) and sqrt(2)."""
    part, power = np.frexp(np.asarray(x, dtype=np.float64))
    low = part < math.sqrt(0.5)
    part, power = np.where(low, 2.0 * part, part), power - low
    s = (part - 1.0) / (part + 1.0)  # ln(m) = 2 (s + s^3/3 + s^5/5 + ...)
    return 2.0 * s * _polynomial(_LOG_TERMS, s * s), power


def _polynomial(terms: list[float], x: NDArray[np.float64]) -> NDArray[np.float64]:
    result = np.full_like(x, terms[0])
    for term in terms[1:]:
        result *= x
        result += term
    return result


Arrays = dict[str, NDArray[np.float32]]

_SUM_BITS = 53  # up to 2^53 a double represents every integer
_WEIGHT_BITS = 23


@dataclass(frozen=True)
class Weight:
    """A matrix (…, inputs, outputs) as the integers `whole` times `unit`, a power of two.

    `matmul` explains why. The error of an entry is at most 2^-24 of the largest entry, as for a
    float32 of that size.
    """

    whole: NDArray[np.float64]
    unit: float

    @staticmethod
    def of(values: NDArray[Any]) -> Weight:
        """Return a matrix, rounded to such integers."""
        exponent = int(np.frexp(np.abs(values).max())[1])
        unit = math.ldexp(1.0, exponent - _WEIGHT_BITS)
        return Weight(np.rint(values.astype(np.float64) / unit), unit)

    def __getitem__(self, key: Any) -> Weight:
        return Weight(self.whole[key], self.unit)

    def __len__(self) -> int:
        return len(self.whole)


def prepared_parameters(parameters: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return a network's parameters for many calls of `mlp` with NumPy.

    Matrices are rounded once, and not at every decision.
    """
    _warm_up_blas()
    return {
        name: Weight.of(values) if name.endswith(".weight") else values.astype(np.float64)
        for name, values in parameters.items()
    }


@cache
def _warm_up_blas() -> None:
    """Make the BLAS allocate its memory now, before a trial begins.

    Otherwise it does so at its first large product, on some CPUs in ways that the kernel refuses.
    In virtual time a refusal takes a microsecond, so the first decision would take longer than when
    it is repeated in the same process.
    """
    np.ones((512, 72)) @ np.ones((72, 64))


def matmul(x: Any, weight: Any) -> Any:
    """Return x @ weight for x (…, inputs) and weight (…, inputs, outputs), arrays or tensors.

    For arrays, the result has the same bits on every machine. The order in which a BLAS adds, and
    whether it fuses multiplications, depends on the CPU. So each row of `x` and the matrix are
    rounded to integers of so few bits that no sum exceeds 2^53. Then every partial sum is exact, in
    any order. The rounding error is about that of float32.
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


def side_by_side(weight: Any, inputs: int) -> Any:
    """Return a matrix (2 inputs, outputs) as (inputs, 2 outputs): its two halves side by side."""
    if isinstance(weight, Weight):
        return Weight(side_by_side(weight.whole, inputs), weight.unit)
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
    0. With `copies`, each array has a first axis of that many identical copies. The default `last`
    makes a network's first outputs small. A module whose output is the input of others needs
    `last` 1; otherwise what passes through it fades.
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
        x = matmul(x, parameters[f"{name}.{layer}.weight"]) + parameters[f"{name}.{layer}.bias"]
        layer += 1
        if f"{name}.{layer}.weight" not in parameters:
            return x
        x = x.clip(min=0.0)


def mlp_by_group(
    parameters: Mapping[str, Any], name: str, x: NDArray[Any], group: NDArray[Any]
) -> NDArray[Any]:
    """Return outputs (n, outputs) for inputs (n, inputs). Row i uses copy `group[i]`."""
    if len(parameters[f"{name}.0.weight"]) == 1:
        shared: NDArray[Any] = mlp(parameters, name, x[None])[0]
        return shared
    net = {key: values for key, values in parameters.items() if key.startswith(name + ".")}
    order = np.argsort(group, kind="stable")
    copies, first = np.unique(group[order], return_index=True)
    parts = [
        mlp({key: values[copy] for key, values in net.items()}, name, x[rows])
        for copy, rows in zip(copies, np.split(order, first[1:]), strict=True)
    ]
    outputs: NDArray[Any] = np.concatenate(parts)[np.argsort(order, kind="stable")]
    return outputs


def concatenate(parts: Sequence[Any]) -> Any:
    """Join arrays or tensors along the last axis."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis=-1)
    import torch

    return torch.cat(tuple(parts), dim=-1)


def amin(x: Any, axis: int) -> Any:
    """Return the minimum along an axis, of an array or tensor."""
    return x.min(axis=axis) if isinstance(x, np.ndarray) else x.amin(dim=axis)


def amax(x: Any, axis: int) -> Any:
    """Return the maximum along an axis, of an array or tensor."""
    return x.max(axis=axis) if isinstance(x, np.ndarray) else x.amax(dim=axis)


def softmax(logits: Any) -> Any:
    """Return the softmax of an array or tensor along the last axis."""
    if not isinstance(logits, np.ndarray):
        return logits.softmax(dim=-1)
    shifted = exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def all_finite(parameters: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether no parameter is NaN or infinite."""
    return all(bool(np.isfinite(values).all()) for values in parameters.values())
