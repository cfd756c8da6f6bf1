"""The protocols: what the loop, the runner and the tuners may rely on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from orchestration.model.records import Action, Applied, Observation, Schedule, TrialRecord
from orchestration.model.trial import TrialSpec, TunerSpec

if TYPE_CHECKING:
    from inventory.topology import Testbed

# (virtual time reached, end of the trial) in ns. Called now and then while a trial runs.
Progress = Callable[[int, int], None]


class Rig(Protocol):
    """A fabric in a known state whose trial can be started, observed and changed."""

    def start(self) -> None:
        """Start the traffic; the rig's clock reads 0 now."""

    def now_ns(self) -> int:
        """Return the rig's clock: ns since `start`."""

    def wait_until(self, t_ns: int) -> bool:
        """Let time pass until `t_ns`; return False once every flow has ended."""

    def observe(self) -> Observation:
        """Read every queue once."""

    def apply(self, action: Action) -> Applied:
        """Make the change and return what the devices report afterwards.

        Raises ValueError for thresholds that are out of bounds (see `check_thresholds`).
        """


class Tuner(Protocol):
    """Decides. The same instance lives for one trial. `tuners.base.EcnTuner` has the defaults.

    `observes_flows` asks the backend to keep a flow table: see `Observation.incast_degree`.
    `observes` names the fields of an Observation that it decides by: a backend that cannot offer
    one of them refuses the tuner.
    """

    observes_flows: bool

    @property
    def observes(self) -> Sequence[str]:
        """Fields of an Observation, by name."""

    def check_testbed(self, testbed: Testbed) -> None:
        """Raise ValueError, as `what: remedy`, if the tuner cannot run on `testbed`."""

    def reset(self, testbed: Testbed, seed: int) -> Action:
        """Forget everything, and return the setting to start from."""

    def act(self, observation: Observation) -> Action:
        """Return what to change now that `observation` was made."""

    def facts(self) -> Mapping[str, Any]:
        """Return what the trial's record should say of the tuner, JSON-ready."""

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return what the tuner kept to learn from, by name; nothing unless it was asked to."""


class Backend(Protocol):
    """Where a trial runs."""

    name: str

    def check(self, testbed: Testbed, jobs: int, tuners: Sequence[TunerSpec] = ()) -> None:
        """Raise NotReadyError if `jobs` trials side by side, with these tuners, cannot run here."""

    def run(
        self,
        trial: TrialSpec,
        testbed: Testbed,
        schedule: Schedule,
        folder: Path,
        progress: Progress,
        tuner: Tuner | None = None,
    ) -> TrialRecord:
        """Run one trial, with `folder` for temporary files; raise TrialError if it fails.

        With `tuner`, that object decides, in this process, in place of the one of the trial's spec.
        """
