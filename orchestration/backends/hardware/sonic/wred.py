"""How thresholds become WRED profiles, and what an ASIC makes of them."""

from __future__ import annotations

import numpy as np

from orchestration.backends.hardware.sonic.tables import MOST_BYTES
from orchestration.model.records import Floats, Ints


def percents(pmax: Floats) -> Ints:
    """Return the drop probabilities, in whole percent, that come nearest to shares `pmax`."""
    return np.floor(np.asarray(pmax, dtype=np.float64) * 100 + 0.5).astype(np.int64)


def shares(percent: Ints) -> Floats:
    """Return drop probabilities in percent as shares."""
    return np.asarray(percent, dtype=np.float64) / 100


def rounded(threshold_bytes: Ints, grid_bytes: int) -> Ints:
    """Return thresholds as an ASIC has them: up to its next cell, and never 0.

    0 is no threshold to SAI: it stands for the whole buffer. `grid_bytes` is 0 where the ASIC does
    not round, or where it is not known yet.
    """
    least = np.clip(threshold_bytes, 1, MOST_BYTES)
    if grid_bytes <= 1:
        return np.asarray(least, dtype=np.int64)
    return np.asarray(-(-least // grid_bytes) * grid_bytes, dtype=np.int64)
