"""The base of tuners with a trained network: checkpoint, reward, and checks of their parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from orchestration.model.records import Floats, Observation
from tuners.base import BaseTuner, not_a_probability
from tuners.checkpoint import Checkpoint
from tuners.ecn.rewards import utilisation
from tuners.ecn.switches import own_parameters

if TYPE_CHECKING:
    from inventory.topology import Testbed


class LearnedTuner(BaseTuner, ABC):
    """A tuner that acts by the network of a checkpoint.

    Creating one raises CheckpointError if its checkpoint cannot be used.
    """

    explore: float
    online: bool = False
    _checkpoint: Checkpoint
    _rate_bps: Floats  # of every queue's port

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from not_a_probability("explore", self.explore)
        if self.online and find_spec("torch") is None:
            yield "the tuner learns online with torch: pip install 'closloop[learn]'"

    def check_testbed(self, testbed: Testbed | None) -> None:
        """Refuse a testbed whose switches do not match the networks of the checkpoint."""
        if testbed is not None:
            own_parameters(self._checkpoint, testbed)

    def rewards(self, testbed: Testbed, before: Observation, after: Observation) -> Floats:
        """Return what each queue earned between two observations, shape (queues,).

        This is what the tuner's learner maximises, if `after` is what the decision after the one on
        `before` would see. No paper's reward charges for the change itself: see `tuners.rewarded`.
        """
        self._meet(testbed)
        return self.earned(after, utilisation(before, after, self._rate_bps))

    @abstractmethod
    def earned(self, after: Observation, utilisation: Floats) -> Floats:
        """Return the reward of each queue (queues,), given its port's utilisation until `after`."""

    def _meet(self, testbed: Testbed) -> None:
        """Note what `reward` needs of a testbed."""
        self._rate_bps = np.array([queue.rate_bps for queue in testbed.queues], dtype=np.float64)
