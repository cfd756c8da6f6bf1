"""The protocols: what the session, the runner and the tuners may rely on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from orchestration.core.records import (
    Action,
    Applied,
    Event,
    FlowRecords,
    HostReading,
    Observation,
    Program,
    Samples,
    Schedule,
    Setup,
    TrialRecord,
)
from orchestration.core.trial import TrialSpec

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

# (virtual time reached, end of the trial) in ns. Called now and then while a trial runs.
Progress = Callable[[int, int], None]


class Observer(Protocol):
    """Is told what happens in the loop, and records it."""

    def observed(self, observation: Observation) -> None:
        """Take one reading of the fabric."""

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Take the answer to one observation: its times, and what was read back."""


@dataclass(frozen=True)
class Outcome:
    """What a rig returns after its trial: flows, hosts' samples, events, facts for the record.

    `sampled_flows` has samples of all flows, if the trial asks for them; `acked` as in
    `TrialRecord`. `facts` follow those of the backend and precede those of the loop.
    """

    flows: FlowRecords
    hosts: Samples
    events: Sequence[Event]
    facts: Mapping[str, Any] = field(default_factory=dict)
    sampled_flows: Samples | None = None
    acked: Samples | None = None


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
        """Install programs on devices, before `start`. Raises TrialError if none can run one."""

    def flows_done(self) -> int:
        """Return how many flows have ended by now; -1 if that is known only at the end."""

    def last_hosts(self) -> HostReading | None:
        """Return the last reading of the hosts, without a new one; None before the first."""

    def finish(self, observer: Observer) -> Outcome:
        """Give `observer` the remaining readings, and return the trial's outcome."""


@runtime_checkable
class BatchReader(Protocol):
    """A rig that takes several readings by itself, while nobody decides."""

    def readings(self, times_ns: range) -> tuple[Sequence[Observation], bool]:
        """Read at the first of `times_ns`, or at several of them in order.

        Returns the readings, and False once every flow has ended: then nothing was read later.
        """


class Tuner(Protocol):
    """Decides. One instance serves one trial. `tuners.base.BaseTuner` has the defaults.

    `observes` names the signals that it observes (`signals.Signal.key`), `knobs` the knobs that it
    turns, `programs` the kinds of program that it installs on devices. A backend that lacks one of
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

    @property
    def decides(self) -> bool:
        """False if `act` never changes anything: then it is not asked."""

    def check_testbed(self, testbed: Testbed) -> None:
        """Raise ValueError, as `what: remedy`, if the tuner cannot run on `testbed`."""

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Forget everything, and return the initial setup."""

    def act(self, observation: Observation) -> Action:
        """Return the changes to make in answer to `observation`."""

    def facts(self) -> Mapping[str, Any]:
        """Return facts about the tuner for the trial's record, JSON-ready."""

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return the tuner's training data by name; empty unless it was asked to keep some."""


@dataclass(frozen=True)
class Offer:
    """What a backend offers to tuners: signals, knobs, kinds of programs."""

    signals: Collection[str]
    knobs: Collection[str]
    programs: Collection[str] = ()

    def lacks(self, tuner: Tuner) -> list[tuple[str, str]]:
        """Return each thing that a tuner needs and the backend lacks: its kind, and its name."""
        needs = (
            ("signal", tuner.observes, self.signals),
            ("knob", tuner.knobs, self.knobs),
            ("program", tuner.programs, self.programs),
        )
        return [(kind, name) for kind, want, have in needs for name in want if name not in have]


def _nobody(t_ns: int, end_ns: int) -> None:
    pass


@dataclass(frozen=True)
class TrialRun:
    """A trial to run, with its flows. `folder` is for temporary files.

    If a `tuner` is given, it decides, in this process, instead of the tuner of the trial's spec.
    """

    trial: TrialSpec
    testbed: Testbed
    schedule: Schedule
    folder: Path
    progress: Progress = _nobody
    tuner: Tuner | None = None


class Backend(Protocol):
    """Where a trial runs."""

    name: str

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Raise NotReadyError if `jobs` of these trials cannot run here side by side."""

    def run(self, run: TrialRun) -> TrialRecord:
        """Run one trial; raise TrialError if it fails."""


@dataclass(frozen=True)
class TrialBundle:
    """What trials need of this machine's cache folder ($XDG_CACHE_HOME), to run on another one.

    `files` are their paths by their names below such a folder. `variables` are environment
    variables that name one of these files each, by its name.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Bundled(Protocol):
    """A backend whose trials take more to another machine than Python packages and their files."""

    def memory_bytes(self, trial: TrialSpec, testbed: Testbed, flows: int) -> int:
        """Return the memory that a trial of so many flows is planned to take at most."""

    def bundle(self) -> TrialBundle:
        """Return what its trials need of the cache. Raises NotReadyError without it."""
