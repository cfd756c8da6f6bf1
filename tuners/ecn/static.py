"""Static ECN settings: set before the traffic starts, and then left alone or changed once (`step`).

The module also has what other tuners need: parameters of the hosts' DCQCN, and bounds of thresholds
that scale with a port's rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestration.core.knobs import DCQCN, ECN
from orchestration.core.records import Action, Change, Floats, Ints, Observation, Setup
from orchestration.core.roce import DCQCN_PARAMETERS
from tuners.base import BaseTuner, negative_faults, threshold_faults

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

# One field for each DCQCN parameter of a NIC. None stands for one that is left out.
_Parameters: Any = make_dataclass(
    "_Parameters",
    [(name, int | None, None) for name in DCQCN_PARAMETERS],
    bases=(BaseTuner,),
    eq=False,
    kw_only=True,
)


@dataclass(eq=False, kw_only=True)
class WithDcqcn(_Parameters):  # type: ignore[misc] # its fields are not known before
    """Parameters of DCQCN in the hosts' NICs, by mlx5's names: see `DCQCN_PARAMETERS`.

    Parameters that are left out stay as the campaign has them. With no parameter at all, the tuner
    does not set the knob, and hosts can have any congestion control.
    """

    def __post_init__(self) -> None:
        if self.dcqcn:
            self.knobs = (ECN.name, DCQCN.name)

    @property
    def dcqcn(self) -> dict[str, int]:
        """The given parameters, by name."""
        given = {name: getattr(self, name) for name in DCQCN_PARAMETERS}
        return {name: value for name, value in given.items() if value is not None}

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        for name, value in self.dcqcn.items():
            low, high = DCQCN_PARAMETERS[name].minimum, DCQCN_PARAMETERS[name].maximum
            if not low <= value <= high:
                yield f"{name} {value} is outside {low}..{high}: use a value that a NIC takes"

    def dcqcn_change(self, testbed: Testbed) -> tuple[Change, ...]:
        """Return the change that sets the parameters at every host; none if none are given."""
        if not self.dcqcn:
            return ()
        return (DCQCN.change(np.arange(len(testbed.hosts)), **self.dcqcn),)


REFERENCE_RATE_BPS = 25_000_000_000


@dataclass(eq=False)
class StaticEcn(WithDcqcn):
    """The same (kmin, kmax, pmax) on every queue, or scaled with the port's rate.

    With `per_25g`, kmin and kmax are for 25 Gbit/s and scale in proportion to the rate. DCQCN's
    parameters, if any are given, are set at every host.
    """

    observes = ()

    kmin_bytes: int
    kmax_bytes: int
    pmax: float = 0.01
    per_25g: bool = False

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from super().faults()
        yield from threshold_faults(self.kmin_bytes, self.kmax_bytes, self.pmax)

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

    With it a fabric's step response is measured.
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
        yield from threshold_faults(self.kmin_bytes, self.kmax_bytes, self.pmax)
        later = (self.then_kmin_bytes, self.then_kmax_bytes, self.then_pmax)
        yield from threshold_faults(*later, prefix="then_")

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the first setting."""
        later = StaticEcn(self.then_kmin_bytes, self.then_kmax_bytes, self.then_pmax)
        self._next: Action = later.reset(testbed, seed).action
        return StaticEcn(self.kmin_bytes, self.kmax_bytes, self.pmax).reset(testbed, seed)

    def act(self, observation: Observation) -> Action:
        """Return the second setting at the first observation at or after `at_ns`."""
        if observation.t_ns < self.at_ns:
            return ()
        action, self._next = self._next, ()
        return action


class Bounds:
    """The lowest and highest threshold of every queue; `scale` is the port's rate over 25 Gbit/s.

    No bound is above the queue's buffer, or below two full packets: there DCTCP would stop sending.
    """

    def __init__(self, testbed: Testbed, min_bytes: int, max_bytes: int) -> None:
        rates = np.array([queue.rate_bps for queue in testbed.queues], dtype=np.float64)
        buffers = np.array([queue.buffer_bytes for queue in testbed.queues], dtype=np.float64)
        self.scale: Floats = rates / REFERENCE_RATE_BPS
        floor = np.minimum(2.0 * testbed.mtu_bytes, buffers)
        self.minimum: Floats = np.clip(min_bytes * self.scale, floor, buffers)
        self.maximum: Floats = np.clip(max_bytes * self.scale, floor, buffers)

    def clip(self, threshold_bytes: Floats) -> Floats:
        """Bring a threshold of every queue within its bounds."""
        clipped: Floats = np.clip(threshold_bytes, self.minimum, self.maximum)
        return clipped


def limit_faults(min_bytes: int, max_bytes: int) -> Iterator[str]:
    """Yield what is wrong with the lowest and highest threshold, each as `what: remedy`."""
    yield from negative_faults(min_bytes=min_bytes, max_bytes=max_bytes)
    if min_bytes > max_bytes:
        yield f"min_bytes {min_bytes} is above max_bytes {max_bytes}: swap or correct them"


def marking_at(queues: Ints, threshold_bytes: Ints) -> Change:
    """Return the change that makes `queues` mark exactly the packets above their threshold."""
    return ECN.change(queues, threshold_bytes, threshold_bytes.copy(), 1.0)
