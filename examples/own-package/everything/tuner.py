"""A tuner: `tuners: [{name: steady, threshold_bytes: 50000}]`."""

from dataclasses import dataclass

import numpy as np

from closloop import ECN, BaseTuner, Setup


@dataclass
class Steady(BaseTuner):
    """Marks every packet above one threshold, the same on all queues."""

    threshold_bytes: int = 30_000

    def reset(self, testbed, seed):
        """Set the threshold on every queue."""
        queues = np.arange(len(testbed.queues))
        return Setup((ECN.change(queues, self.threshold_bytes, self.threshold_bytes, 1.0),))

    def act(self, observation):
        """Change nothing."""
        return ()
