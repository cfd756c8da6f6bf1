"""The base of tuners with a trained network: checkpoint, reward, and checks of their parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from orchestration.model.records import Floats, Observation
from tuners.base import BaseTuner, not_a_probability
from tuners.checkpoint import Checkpoint
from tuners.ecn.features import FeatureWindow
from tuners.ecn.rewards import utilisation
from tuners.ecn.switches import own_parameters
from tuners.ecn.templates import Templates
from tuners.experience import Kept

if TYPE_CHECKING:
    from inventory.topology import Testbed


HISTORY = 3  # readings that all of them see: ACC, section 4.1; PET's k; GraphCC's p = 2 and this


class LearnedTuner(BaseTuner, ABC):
    """A tuner that acts by the network of a checkpoint.

    Creating one raises CheckpointError if its checkpoint cannot be used.
    """

    explore: float
    online: bool = False
    collect: bool
    _checkpoint: Checkpoint
    _settings: Any  # of its learner, with `discount`
    _templates: Templates
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

    @property
    def discount(self) -> float:
        """That of training."""
        return float(self._settings.discount)

    def choices(self) -> Mapping[str, NDArray[Any]]:
        """Return the settings that it chooses from, an array (actions,) for each column."""
        return dict(vars(self._templates))

    def facts(self) -> Mapping[str, Any]:
        """Return the name of the checkpoint."""
        return {"checkpoint": self._checkpoint.path.name}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return what was kept of all decisions: see `tuners.experience.Kept`."""
        return self._kept.trace() if self.collect else {}

    def _meet(self, testbed: Testbed) -> None:
        """Note what `reward` needs of a testbed."""
        self._rate_bps = np.array([queue.rate_bps for queue in testbed.queues], dtype=np.float64)

    def _begin(
        self, testbed: Testbed, seed: int, features: tuple[str, ...], **kinds: DTypeLike
    ) -> None:
        """Forget the trial before, and see the last `HISTORY` readings of these features.

        `kinds` are types of columns in the trace.
        """
        self._meet(testbed)
        self._rng = np.random.default_rng([seed, 1])
        self._window = FeatureWindow(testbed, HISTORY, features)
        self._all = np.arange(len(testbed.queues), dtype=np.int64)
        self._kept = Kept(**kinds)
