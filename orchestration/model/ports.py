"""The protocols: what the session, the runner and the tuners may rely on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from orchestration.model.records import (
    Action,
    Applied,
    Event,
    FlowRecords,
    Observation,
    Program,
    Samples,
    Schedule,
    Setup,
    TrialRecord,
)
from orchestration.model.trial import TrialSpec, TunerSpec

if TYPE_CHECKING:
    from inventory.topology import Testbed

# (virtual time reached, end of the trial) in ns. Called now and then while a trial runs.
Progress = Callable[[int, int], None]


class Observer(Protocol):
    """Is told what happens in the loop, and records it."""

    def observed(self, observation: Observation) -> None:
        """Take one reading of the fabric."""

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Take the answer to one observation: when it was made and decided, what was read back."""


@dataclass(frozen=True)
class Outcome:
    """What a rig has to say after its trial: flows, hosts' samples, events, facts for the record.

    `facts` follow those of the backend and precede those of the loop.
    """

    flows: FlowRecords
    hosts: Samples
    events: Sequence[Event]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Rig(Protocol):
    """A fabric in a known state whose trial can be started, observed and changed."""

    def start(self) -> None:
        """Start the traffic; the rig's clock reads 0 now."""

    def now_ns(self) -> int:
        """Return the rig's clock: ns since `start`."""

    def wait_until(self, t_ns: int) -> bool:
        """Let time pass until `t_ns`; return False once every flow has ended."""

    def observe(self) -> Observation:
        """Read the fabric once."""

    def apply(self, action: Action) -> Applied:
        """Make the changes and return what the devices report afterwards.

        Raises ImpossibleSetting for what is out of bounds (see `knobs.Bounds.check`), KeyError for
        a knob that the rig does not have.
        """

    def install(self, programs: Sequence[Program]) -> None:
        """Have devices run programs, before the start. Raises TrialError for what none can run."""

    def flows_done(self) -> int:
        """Return how many flows have ended by now; -1 where that is known at the end only."""

    def finish(self, observer: Observer) -> Outcome:
        """Have `observer` see what is still to come, and say what became of the trial."""


class Tuner(Protocol):
    """Decides. The same instance lives for one trial. `tuners.base.BaseTuner` has the defaults.

    `observes` names the signals that it decides by (`signals.Signal.key`), `knobs` those that it
    turns, `programs` the kinds of program that it sets up in devices. A backend that lacks one of
    them refuses the tuner before a trial.
    """

    @property
    def observes(self) -> Collection[str]:
        """Signals, by key."""

    @property
    def knobs(self) -> Collection[str]:
        """Knobs, by name."""

    @property
    def programs(self) -> Collection[str]:
        """Kinds of programs."""

    def check_testbed(self, testbed: Testbed) -> None:
        """Raise ValueError, as `what: remedy`, if the tuner cannot run on `testbed`."""

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Forget everything, and return what to start from."""

    def act(self, observation: Observation) -> Action:
        """Return what to change now that `observation` was made."""

    def facts(self) -> Mapping[str, Any]:
        """Return what the trial's record should say of the tuner, JSON-ready."""

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return what the tuner kept to learn from, by name; nothing unless it was asked to."""


@dataclass(frozen=True)
class Offer:
    """What a backend has for tuners on a testbed: signals, knobs, kinds of programs."""

    signals: Collection[str]
    knobs: Collection[str]
    programs: Collection[str] = ()

    def lacks(self, tuner: Tuner) -> list[str]:
        """Return what a tuner needs and is not here, each in words."""
        needs = (
            ("signal", tuner.observes, self.signals),
            ("knob", tuner.knobs, self.knobs),
            ("program", tuner.programs, self.programs),
        )
        return [
            f"{word} {name!r}"
            for word, wanted, have in needs
            for name in wanted
            if name not in have
        ]


class Backend(Protocol):
    """Where a trial runs."""

    name: str

    @staticmethod
    def offer(testbed: Testbed) -> Offer:
        """Return what tuners can observe, turn and set up here."""

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
