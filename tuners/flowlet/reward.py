"""DRLet's reward, equations 3 to 5.

Equation 3 as printed is log|variance|: it grows with the variance, while the text says "the smaller
the difference in link utilisation, the larger the reward". So it is negated here (decision 69).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from orchestration.core.records import Floats
from tuners.learning.exact import log

# An idle fabric has no variance, and a silent one no ratio; neither logarithm may be infinite.
LEAST_VARIANCE = 1e-6
LEAST_BYTES = 1_500.0
MOST_RATIO = 10.0


def balance_reward(variance: ArrayLike) -> Floats:
    """Return -log of the variance of links' utilisation (equation 3, negated), any shape."""
    return -log(np.maximum(np.asarray(variance, dtype=np.float64), LEAST_VARIANCE))


def reordering_reward(traffic_bytes: ArrayLike, before_bytes: ArrayLike) -> Floats:
    """Return the log of this period's traffic by that of the period before (equation 4).

    The ratio counts from 1/10 to 10: beyond, flows have begun or ended.
    """
    now = np.maximum(np.asarray(traffic_bytes, dtype=np.float64), LEAST_BYTES)
    before = np.maximum(np.asarray(before_bytes, dtype=np.float64), LEAST_BYTES)
    return log(np.clip(now / before, 1.0 / MOST_RATIO, MOST_RATIO))


def reward(
    variance: ArrayLike, traffic: ArrayLike, before: ArrayLike, alpha: float, beta: float
) -> Any:
    """Return alpha * r_LB + beta * r_reordering (equation 5), any one shape."""
    return alpha * balance_reward(variance) + beta * reordering_reward(traffic, before)
