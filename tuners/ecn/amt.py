"""AMT: each queue has one marking threshold, raised while its link has room, lowered while full.

Zhang et al., "Adaptive marking threshold method for delay-sensitive TCP in data center network",
Journal of Network and Computer Applications 61, 2016.

From the paper (its abstract, and section 2.2 of the PET paper): switches measure the utilisation of
their links periodically and tune the marking threshold by it alone, so that a link stays busy
with no longer a queue than it needs. There is one threshold, as in DCTCP: a packet is marked when
the queue is longer.

The paper's text was not available, so the control law and its numbers are chosen here: at each
decision, additive increase below the target utilisation, multiplicative decrease at or above it.
Where a lower threshold costs throughput, the threshold stays within one step of the lowest that
keeps the link at its target. The bounds are those of the static settings that the ACC paper
compares with (DCQCN's kmin, HPCC's kmax). All sizes are for 25 Gbit/s and scale with the rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.core.records import Action, Floats, Ints, Observation, Setup
from tuners.base import BaseTuner, negative_faults, share_faults
from tuners.ecn.static import Bounds, limit_faults, marking_at

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


@dataclass(eq=False)
class AmtEcn(BaseTuner):
    """AMT's idea: one marking threshold per queue, driven by the link's utilisation.

    A link counts as full at the utilisation `target`, framing included. In one decision the
    threshold grows by `step_bytes` or shrinks by the share `cut`. Sizes are for 25 Gbit/s, and
    scale with the port's rate.
    """

    observes = ("tx_bytes", "tx_packets")

    start_bytes: int = 100_000
    min_bytes: int = 5_000
    max_bytes: int = 100_000
    target: float = 0.95
    step_bytes: int = 5_000
    cut: float = 0.1

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from share_faults(target=self.target, cut=self.cut)
        yield from negative_faults(start_bytes=self.start_bytes)
        yield from limit_faults(self.min_bytes, self.max_bytes)
        yield from negative_faults(step_bytes=self.step_bytes)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the threshold to start from."""
        self._bounds = Bounds(testbed, self.min_bytes, self.max_bytes)
        self._step: Floats = self.step_bytes * self._bounds.scale
        self._framing_bytes = testbed.framing_bytes
        self._rates_bps = np.array([queue.rate_bps for queue in testbed.queues], dtype=np.float64)
        # the queues of a port share its link
        links = np.array([queue.index for queue in testbed.queues], dtype=np.int64)
        self._link: Ints = np.unique(links, return_inverse=True)[1]
        self._last: tuple[int, Ints] | None = None  # time in ns, bytes sent on the wire
        # not rounded, so that steps of less than a byte add up
        self._threshold: Floats = self._bounds.clip(self.start_bytes * self._bounds.scale)
        self._set: Ints = np.rint(self._threshold).astype(np.int64)
        return Setup((marking_at(np.arange(len(self._set)), self._set),))

    def act(self, observation: Observation) -> Action:
        """Return new thresholds for the queues whose threshold moves; none at the first reading."""
        wire_bytes = observation["tx_bytes"] + self._framing_bytes * observation["tx_packets"]
        before, self._last = self._last, (observation.t_ns, wire_bytes)
        if before is None or observation.t_ns <= before[0]:
            return ()
        span_s = (observation.t_ns - before[0]) / 1e9
        sent_bytes = np.bincount(self._link, weights=wire_bytes - before[1])[self._link]
        utilisation = 8.0 * sent_bytes / (self._rates_bps * span_s)
        moved = np.where(
            utilisation >= self.target,
            self._threshold * (1.0 - self.cut),
            self._threshold + self._step,
        )
        self._threshold = self._bounds.clip(moved)
        rounded: Ints = np.rint(self._threshold).astype(np.int64)
        changed: Ints = np.flatnonzero(rounded != self._set)
        self._set = rounded
        return (marking_at(changed, rounded[changed]),) if len(changed) else ()
