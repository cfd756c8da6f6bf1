"""DRW: flowlet timeouts by each switch's own load.

Fan et al., "Roulette Wheel Balancing Algorithm With Dynamic Flowlet Switching for Multipath
Data-Center Networks", ToN 2021. DRLet's paper says of it: "setting a small flowlet timeout value
for high-load scenarios and a large timeout value for low-load scenarios", each "a fixed static
value". DRW's routing is not implemented: new flowlets are routed by the campaign's `route_by`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.core.records import Action, Observation, Setup
from tuners.base import share_faults
from tuners.flowlet.settings import FlowletTuner, Uplinks, changed_timeouts, timeout_faults

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


@dataclass(eq=False)
class Drw(FlowletTuner):
    """DRW's idea: a switch has one of three timeouts, by the load of its upward links.

    DRLet's paper gives no values for DRW. Chosen here are 4 ms, 400 us and 100 us, which are among
    those of its figure 3, at loads below 0.3, from 0.3 to 0.6, and above.
    """

    observes = ("tx_bytes",)

    low_ns: int = 4_000_000
    middle_ns: int = 400_000
    high_ns: int = 100_000
    middle_from: float = 0.3
    high_from: float = 0.6

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from timeout_faults(
            low_ns=self.low_ns, middle_ns=self.middle_ns, high_ns=self.high_ns
        )
        yield from share_faults(middle_from=self.middle_from, high_from=self.high_from)
        if self.middle_from > self.high_from:
            yield f"middle_from {self.middle_from} is above high_from {self.high_from}: swap them"

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the initial setup: the timeout of a low load at every switch."""
        self._uplinks = Uplinks(testbed)
        self._timeouts_ns = np.full(len(testbed.switches), self.low_ns, dtype=np.int64)
        return self.setup(testbed, self._timeouts_ns)

    def act(self, observation: Observation) -> Action:
        """Choose each switch's timeout by its load since the last decision."""
        load = self._uplinks.mean(self._uplinks.utilisation(observation))
        level = (load >= self.middle_from).astype(np.int64) + (load >= self.high_from)
        after_ns = np.array([self.low_ns, self.middle_ns, self.high_ns])[level]
        switches, before_ns = self._uplinks.switches, self._timeouts_ns[self._uplinks.switches]
        self._timeouts_ns[switches] = after_ns
        return changed_timeouts(switches, before_ns, after_ns)
