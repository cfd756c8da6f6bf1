"""Static ECN settings: set before the traffic starts and left alone, or set once more (`step`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.core.knobs import ECN
from orchestration.core.records import Action, Observation, Setup
from tuners.base import BaseTuner, impossible_thresholds
from tuners.ecn.dcqcn import WithDcqcn

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

REFERENCE_RATE_BPS = 25_000_000_000


@dataclass(eq=False)
class StaticEcn(WithDcqcn):
    """The same (kmin, kmax, pmax) on every queue, or scaled with the port's rate.

    With `per_25g`, kmin and kmax are for 25 Gbit/s and scale in proportion to the rate. With
    parameters of DCQCN, every host gets those too.
    """

    observes = ()

    kmin_bytes: int
    kmax_bytes: int
    pmax: float = 0.01
    per_25g: bool = False

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from super().faults()
        yield from impossible_thresholds(self.kmin_bytes, self.kmax_bytes, self.pmax)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the setting of every queue, and the parameters of every host's DCQCN."""
        rates = np.array([port.rate_bps for port in testbed.queues], dtype=np.float64)
        scale = rates / REFERENCE_RATE_BPS if self.per_25g else np.ones_like(rates)
        kmin, kmax = (
            np.rint(size * scale).astype(np.int64) for size in (self.kmin_bytes, self.kmax_bytes)
        )
        thresholds = ECN.change(np.arange(len(rates)), kmin, kmax, self.pmax)
        return Setup((thresholds, *self.dcqcn_change(testbed)))


class Secn1(StaticEcn):
    """SECN1 of the ACC paper (section 5.1): DCQCN's 5 KB and 200 KB, pmax 1 % (Zhu et al. 2015)."""

    def __init__(self) -> None:
        super().__init__(5_000, 200_000, 0.01)


class Secn2(StaticEcn):
    """SECN2 of the ACC paper: HPCC's 100 KB and 400 KB per 25 Gbit/s, pmax 20 % (Li et al. 2019).

    The ACC paper does not state pmax; 0.2 is the setting published with HPCC's simulator.
    """

    def __init__(self) -> None:
        super().__init__(100_000, 400_000, 0.2, per_25g=True)


@dataclass(eq=False)
class StepEcn(BaseTuner):
    """Holds one setting until an observation at or after `at_ns`, then sets another, once.

    It measures a fabric's step response.
    """

    observes = ()

    at_ns: int
    kmin_bytes: int
    kmax_bytes: int
    then_kmin_bytes: int
    then_kmax_bytes: int
    pmax: float = 0.01
    then_pmax: float = 0.01

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from impossible_thresholds(self.kmin_bytes, self.kmax_bytes, self.pmax)
        later = (self.then_kmin_bytes, self.then_kmax_bytes, self.then_pmax)
        yield from impossible_thresholds(*later, prefix="then_")

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the first setting."""
        later = StaticEcn(self.then_kmin_bytes, self.then_kmax_bytes, self.then_pmax)
        self._next: Action = later.reset(testbed, seed).action
        return StaticEcn(self.kmin_bytes, self.kmax_bytes, self.pmax).reset(testbed, seed)

    def act(self, observation: Observation) -> Action:
        """Return the second setting when its time has come."""
        if observation.t_ns < self.at_ns:
            return ()
        action, self._next = self._next, ()
        return action
