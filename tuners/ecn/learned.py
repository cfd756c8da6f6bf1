"""The base of tuners with a trained network: their checkpoint, and checks of their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tuners.base import BaseTuner, not_a_probability
from tuners.checkpoint import Checkpoint
from tuners.ecn.switches import own_parameters

if TYPE_CHECKING:
    from inventory.topology import Testbed


class LearnedTuner(BaseTuner):
    """A tuner that acts by the network of a checkpoint.

    Creating one raises CheckpointError if its checkpoint cannot be used.
    """

    explore: float
    online: bool = False
    _checkpoint: Checkpoint

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from not_a_probability("explore", self.explore)
        if self.online and find_spec("torch") is None:
            yield "the tuner learns online with torch: pip install 'closloop[learn]'"

    def check_testbed(self, testbed: Testbed | None) -> None:
        """Refuse a testbed whose switches do not match the networks of the checkpoint."""
        if testbed is not None:
            own_parameters(self._checkpoint, testbed)
