"""A tuner of one's own that turns a parameter of DCQCN: how fast a NIC raises its rates.

closloop check-tuner examples/dcqcn_increase.py:Increase
closloop run examples/dcqcn_increase.yml
"""

from dataclasses import dataclass

import numpy as np

from closloop import ECN, KNOBS, BaseTuner, Setup

DCQCN = KNOBS["dcqcn"]


@dataclass
class Increase(BaseTuner):
    """Doubles a host's rpg_ai_rate while nobody tells it of congestion, else halves it."""

    kmin_bytes: int = 5_000
    kmax_bytes: int = 200_000
    min_mbps: int = 5
    max_mbps: int = 1_000

    observes = ("qlen_bytes", "host.cnps", "host.rate_bps")
    knobs = ("ecn", "dcqcn")

    def reset(self, testbed, seed):
        """Set all thresholds, and the least increase at all hosts."""
        self.hosts = np.arange(len(testbed.hosts))
        self.cnps = np.zeros(len(self.hosts), dtype=np.int64)
        queues = np.arange(len(testbed.queues))
        # ports begin without marking; of DCQCN, what is not named stays as the campaign has it
        return Setup(
            (
                ECN.change(queues, self.kmin_bytes, self.kmax_bytes, 0.01),
                DCQCN.change(self.hosts, rpg_ai_rate=self.min_mbps),
            )
        )

    def act(self, observation):
        """Change the increase of hosts that send, by what they were told since the last time."""
        told = observation["host.cnps"] > self.cnps
        sends = observation["host.rate_bps"] > 0  # it has flows that have not ended
        self.cnps = observation["host.cnps"]
        before = observation.settings["dcqcn"]["rpg_ai_rate"]
        wanted = np.clip(np.where(told, before // 2, 2 * before), self.min_mbps, self.max_mbps)
        changed = np.flatnonzero(sends & (wanted != before))
        return (DCQCN.change(changed, rpg_ai_rate=wanted[changed]),) if len(changed) else ()
