"""A tuner of your own that sets a parameter of DCQCN: how fast a NIC raises its rates.

closloop check-tuner examples/dcqcn_increase.py:Increase
closloop run examples/dcqcn_increase.yml
"""

from dataclasses import dataclass

import numpy as np

from closloop import ECN, KNOBS, BaseTuner, Setup

DCQCN = KNOBS["dcqcn"]


@dataclass
class Increase(BaseTuner):
    """Doubles a host's rpg_ai_rate while no CNPs arrive there, and halves it when some do."""

    kmin_bytes: int = 5_000
    kmax_bytes: int = 200_000
    min_mbps: int = 5
    max_mbps: int = 1_000

    observes = ("qlen_bytes", "host.cnps", "host.rate_bps")
    knobs = ("ecn", "dcqcn")

    def reset(self, testbed, seed):
        """Set all thresholds, and the smallest increase at all hosts."""
        self.hosts = np.arange(len(testbed.hosts))
        self.cnps = np.zeros(len(self.hosts), dtype=np.int64)
        queues = np.arange(len(testbed.queues))
        # without the first change, ports would not mark; DCQCN's other parameters stay as they are
        return Setup(
            (
                ECN.change(queues, self.kmin_bytes, self.kmax_bytes, 0.01),
                DCQCN.change(self.hosts, rpg_ai_rate=self.min_mbps),
            )
        )

    def act(self, observation):
        """Change the increase of sending hosts, by whether CNPs arrived since the last decision."""
        congested = observation["host.cnps"] > self.cnps
        sends = observation["host.rate_bps"] > 0  # it has flows that have not ended
        self.cnps = observation["host.cnps"]
        before = observation.settings["dcqcn"]["rpg_ai_rate"]
        increase = np.where(congested, before // 2, 2 * before)
        increase = np.clip(increase, self.min_mbps, self.max_mbps)
        changed = np.flatnonzero(sends & (increase != before))
        return (DCQCN.change(changed, rpg_ai_rate=increase[changed]),) if len(changed) else ()
