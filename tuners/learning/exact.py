"""exp and log with the same bits on every x86-64 machine.

NumPy and the C library have a version for each kind of CPU, and their results differ in the last
bit. This module uses only operations whose rounding IEEE 754 defines: sums, products, quotients and
powers of two. Errors are about two units in the last place.
"""

from __future__ import annotations

import math
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
    """Return ln(m) and n with x = m * 2^n, m between sqrt(1/2) and sqrt(2)."""
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
