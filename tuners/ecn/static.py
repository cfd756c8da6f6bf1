"""Static ECN settings: set once, before the traffic starts, and left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from orchestration.model.knobs import ECN
from orchestration.model.records import Setup
from tuners.base import BaseTuner

if TYPE_CHECKING:
    from inventory.topology import Testbed

REFERENCE_RATE_BPS = 25_000_000_000


class StaticEcn(BaseTuner):
    """The same (kmin, kmax, pmax) on every queue, or scaled with the port's rate.

    With `per_25g`, kmin and kmax are meant at 25 Gbit/s and grow in proportion to the rate.
    """

    observes = ()

    def __init__(
        self, kmin_bytes: int, kmax_bytes: int, pmax: float, *, per_25g: bool = False
    ) -> None:
        self._kmin_bytes = kmin_bytes
        self._kmax_bytes = kmax_bytes
        self._pmax = pmax
        self._per_25g = per_25g

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the setting of every queue."""
        rates = np.array([port.rate_bps for port in testbed.queues], dtype=np.float64)
        scale = rates / REFERENCE_RATE_BPS if self._per_25g else np.ones_like(rates)
        kmin, kmax = (
            np.rint(size * scale).astype(np.int64) for size in (self._kmin_bytes, self._kmax_bytes)
        )
        return Setup((ECN.change(np.arange(len(rates)), kmin, kmax, self._pmax),))


def secn1() -> StaticEcn:
    """SECN1 of the ACC paper (section 5.1): DCQCN's 5 KB and 200 KB, pmax 1 % (Zhu et al. 2015)."""
    return StaticEcn(5_000, 200_000, 0.01)


def secn2() -> StaticEcn:
    """SECN2 of the ACC paper: HPCC's 100 KB and 400 KB per 25 Gbit/s, pmax 20 % (Li et al. 2019).

    The ACC paper does not state pmax; 0.2 is the setting published with HPCC's simulator.
    """
    return StaticEcn(100_000, 400_000, 0.2, per_25g=True)
