"""QAECN: each queue's marking threshold follows that queue's own length.

Kang et al., "QAECN: Dynamically tuning ECN threshold with micro-burst in multi-queue data centers",
IEEE CSCWD 2019.

From the paper (its title, section 2.2 of the PET paper, and the abstract of the authors' later
MBECN+): every queue of a port has its own threshold, set by its instantaneous length alone, so
that a passing micro-burst is not marked where there is no congestion.

The paper's text was not available, so the control law is chosen here: the threshold is a share of
the queue length just read, within bounds. With a share below 1, a standing queue stays above its
threshold and is marked until it is short. A draining burst is no longer marked once it has shrunk
to that share of the length read. A threshold at the lower bound would mark it to its end. The
bounds are
those of the static settings that the ACC paper compares with (DCQCN's kmin, HPCC's kmax), and scale
with the rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.core.records import Action, Floats, Ints, Observation, Setup
from tuners.base import BaseTuner, share_faults
from tuners.ecn.static import Bounds, limit_faults, marking_at

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


@dataclass(eq=False)
class QueueAwareEcn(BaseTuner):
    """QAECN's idea: each queue's marking threshold is a share of its length as just read.

    `share` is the ratio of the threshold to the queue's length. The bounds `min_bytes` and
    `max_bytes` are for 25 Gbit/s, and scale with the port's rate. Changes of less than a full
    packet are left out: they would mark the same packets.
    """

    observes = ("qlen_bytes",)

    min_bytes: int = 5_000
    max_bytes: int = 400_000
    share: float = 0.5

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from share_faults(share=self.share)
        yield from limit_faults(self.min_bytes, self.max_bytes)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the threshold of an empty queue."""
        self._bounds = Bounds(testbed, self.min_bytes, self.max_bytes)
        self._packet_bytes = testbed.mtu_bytes
        self._set: Ints = np.rint(self._bounds.minimum).astype(np.int64)
        return Setup((marking_at(np.arange(len(self._set)), self._set.copy()),))

    def act(self, observation: Observation) -> Action:
        """Return new thresholds for the queues whose threshold moves by a packet or more."""
        length: Floats = observation["qlen_bytes"].astype(np.float64)
        thresholds: Ints = np.rint(self._bounds.clip(self.share * length)).astype(np.int64)
        changed: Ints = np.flatnonzero(np.abs(thresholds - self._set) >= self._packet_bytes)
        self._set[changed] = thresholds[changed]
        return (marking_at(changed, thresholds[changed]),) if len(changed) else ()
