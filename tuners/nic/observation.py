"""What a flow under RL-CC observes: Fuhrer et al., HPSR 2023, section III, equations 1 to 4.

Rates are shares of the line rate, round trips are divided by the base round trip. Fixed-point
numbers are integers in 2^-16, as in policy_rlcc.h: `delta_q16` has its bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

TARGET, BETA = 0.064, 1.5
ONE = 1 << 16
LEAST_DELTA = -32.0
_SHARE_BITS = 30


def delta(
    inflation: Any, share: Any, target: float = TARGET, beta: float = BETA
) -> NDArray[np.float64]:
    """Return target - max(inflation - beta, 0) * sqrt(rate), equation 4; at least -32."""
    above = np.maximum(np.asarray(inflation, dtype=np.float64) - beta, 0.0)
    result: NDArray[np.float64] = np.maximum(target - above * np.sqrt(share), LEAST_DELTA)
    return result


def reward(deltas: Any) -> NDArray[np.float64]:
    """Return the reward of equation 1."""
    return -np.square(np.asarray(deltas, dtype=np.float64))


def expected_inflation(flows: float, target: float = TARGET, beta: float = BETA) -> float:
    """Return the round trip over the base round trip of so many flows at rest, equation 2."""
    return target * math.sqrt(flows) + beta


def delta_q16(rtt_ns: int, base_ns: int, share_q30: int, target: int = 64, beta: int = 1500) -> int:
    """Return equation 4 in integers; `target` and `beta` in thousandths, the share in 2^-30."""
    whole, tolerated = target * ONE // 1000, beta * ONE // 1000
    inflation = rtt_ns * ONE // base_ns
    if inflation <= tolerated:
        return whole
    above = min(inflation - tolerated, 1 << 40)
    root = math.isqrt(share_q30 << (32 - _SHARE_BITS))
    return max(whole - above * root // ONE, int(LEAST_DELTA) * ONE)
