"""The protocols between packages: backend, rig, tuner and observer.

A backend runs trials. For each trial it builds a rig: a fabric that can be started, observed and
changed. The loop reads the rig, asks the tuner for changes, applies them and informs observers.
"""

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

# Called from time to time while a trial runs, with the time that it has reached and its end, in ns.
Progress = Callable[[int, int], None]


class Observer(Protocol):
    """Records what happens in the loop, which calls its methods."""

    def observed(self, observation: Observation) -> None:
        """Record one reading of the fabric."""

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Record the changes that a tuner made in response to the observation at `observed_ns`."""


@dataclass(frozen=True)
class Outcome:
    """What a rig returns after its trial: flows, hosts' samples, events, facts for the record.

    `sampled_flows` has samples of all flows, if the trial asks for them. `acked` is that of
    `TrialRecord`. In the trial's record, `facts` come after the backend's and before the loop's.
    """

    flows: FlowRecords
    hosts: Samples
    events: Sequence[Event]
    facts: Mapping[str, Any] = field(default_factory=dict)
    sampled_flows: Samples | None = None
    acked: Samples | None = None


class Rig(Protocol):
    """A fabric in a known state, on which one trial can be started, observed and changed."""

    def start(self) -> None:
        """Start the traffic; the rig's clock reads 0 now."""

    def now_ns(self) -> int:
        """Return the rig's clock: ns since `start`."""

    def wait_until(self, t_ns: int) -> bool:
        """Wait until the rig's clock reads `t_ns`; return False once every flow has ended."""

    def observe(self) -> Observation:
        """Read the fabric once."""

    def apply(self, action: Action) -> Applied:
        """Make the changes and return what the devices report afterwards.

        Raises ImpossibleSetting for values out of bounds (see `knobs.Bounds.check`), KeyError for a
        knob that the rig does not have.
        """

    def install(self, programs: Sequence[Program]) -> None:
        """Install programs on devices, before `start`. Raises TrialError if none can run one."""

    def flows_done(self) -> int:
        """Return how many flows have ended by now; -1 if that is known only at the end."""

    def last_hosts(self) -> HostReading | None:
        """Return the last reading of the hosts, without a new one; None before the first."""

    def finish(self, observer: Observer) -> Outcome:
        """Pass the remaining readings to `observer`, and return the trial's outcome."""


@runtime_checkable
class BatchReader(Protocol):
    """A rig that can take several readings by itself, for times without a decision."""

    def readings(self, times_ns: range) -> tuple[Sequence[Observation], bool]:
        """Read at the first of `times_ns`, or at several of them in order.

        Returns the readings, and False once every flow has ended; no reading is taken after that.
        """


class Tuner(Protocol):
    """Decides how knobs are set. One instance serves one trial.

    A backend that lacks a signal, a knob or a kind of program that the tuner needs refuses it
    before the trial. The base class `tuners.base.BaseTuner` has defaults for all members.
    """

    @property
    def observes(self) -> Collection[str]:
        """The signals that it observes, by `signals.Signal.key`."""

    @property
    def knobs(self) -> Collection[str]:
        """The knobs that it sets, by name."""

    @property
    def programs(self) -> Collection[str]:
        """The kinds of programs that it installs on devices."""

    @property
    def decides(self) -> bool:
        """False if `act` never changes anything; `act` is then not called."""

    def check_testbed(self, testbed: Testbed) -> None:
        """Raise ValueError, as `what: remedy`, if the tuner cannot run on `testbed`."""

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Forget everything, and return the initial setup."""

    def act(self, observation: Observation) -> Action:
        """Return the changes to make in response to `observation`."""

    def facts(self) -> Mapping[str, Any]:
        """Return facts about the tuner for the trial's record, JSON-ready."""

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return the tuner's training data by name; empty unless it was set to keep some."""


@dataclass(frozen=True)
class Offer:
    """What a backend offers to tuners: signals by key, knobs by name, kinds of programs."""

    signals: Collection[str]
    knobs: Collection[str]
    programs: Collection[str] = ()

    def lacks(self, tuner: Tuner) -> list[tuple[str, str]]:
        """Return what a tuner needs and the backend lacks, as (signal, knob or program; name)."""
        needs = (
            ("signal", tuner.observes, self.signals),
            ("knob", tuner.knobs, self.knobs),
            ("program", tuner.programs, self.programs),
        )
        return [
            (kind, name)
            for kind, needed, offered in needs
            for name in needed
            if name not in offered
        ]


def _no_progress(t_ns: int, end_ns: int) -> None:
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
    progress: Progress = _no_progress
    tuner: Tuner | None = None


class Backend(Protocol):
    """Where a trial runs."""

    name: str

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Raise NotReadyError if `jobs` of these trials cannot run here side by side."""

    def run(self, run: TrialRun) -> TrialRecord:
        """Run one trial; raise TrialError if it fails."""


@runtime_checkable
class HasEngines(Protocol):
    """A backend that has several engines (`core.engines`), and runs trials in one of them."""

    def engine_facts(self, trials: Sequence[TrialSpec]) -> Mapping[str, Any]:
        """Return the facts about the engine of these trials. Raises NotReadyError without it."""


@dataclass(frozen=True)
class TrialBundle:
    """The files of this machine's cache folder that trials need in order to run elsewhere.

    `files` has the path of each on this machine, by its name below $XDG_CACHE_HOME. `variables` are
    environment variables to set on the other machine; the value of each is the name of one file.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Bundled(Protocol):
    """A backend whose trials need more on another machine than Python packages and own files."""

    def memory_bytes(self, trial: TrialSpec, testbed: Testbed, flows: int) -> int:
        """Return an upper bound, for planning, of the memory of a trial with this many flows."""

    def bundle(self) -> TrialBundle:
        """Return the cached files that its trials need. Raises NotReadyError if one is missing."""
