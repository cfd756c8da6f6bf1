"""Trials to learn on, one after the other, and an episode: a trial that its caller steps.

The episode's backend runs in a thread, and waits there at each decision. It is a thread and not a
process, so that observations and actions are passed without copies. A guest (the emulated kernel)
dies with the thread that started it, so nothing outlives the environment's process.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from inventory.files import load_testbed
from orchestration.campaign.expand import load_campaign, trial_seed
from orchestration.core.capabilities import capabilities, mode_of
from orchestration.core.condition import factors_of
from orchestration.core.errors import InputError
from orchestration.core.ports import Backend, TrialRun
from orchestration.core.records import Action, Observation, Schedule, Setup, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar, TrialSpec
from orchestration.run.backend_factory import engine_for
from tuners.base import BaseTuner


class EpisodeSource:
    """A sequence of trials to learn on, which follows from a seed.

    A campaign's cells are taken in rotation; its tuners are ignored. An episode ends with the
    trial's duration: there is no drain time.
    """

    def __init__(self, source: str | Path | TrialSpec, backend: str | None, seed: int) -> None:
        """Read `source`. Raises InputError if it is faulty, or if its cells' fabrics differ."""
        where = source.campaign if isinstance(source, TrialSpec) else str(source)
        trials = _trials(source, backend)
        self._trials = [replace(trial, drain_ns=0) for trial in trials]
        first = self._trials[0]
        self.backend: str = first.backend
        self.mode = mode_of(first)
        self.deterministic = self.mode.deterministic
        self.testbed: Testbed = load_testbed(first.testbed)
        if any(trial.testbed != first.testbed for trial in trials):
            raise InputError.single(
                where,
                "its cells have different testbeds, and an environment has one",
                "name one testbed, and make another environment for each of the others",
            )
        for trial in trials:
            if trial.duration_ns < 2 * trial.action_period_ns:
                raise InputError.single(
                    where,
                    f"{trial.duration_ns} ns have no room for two decisions that are "
                    f"{trial.action_period_ns} ns apart",
                    "make `duration` longer or `action_period` shorter",
                )
        self.reseed(seed)

    def engine(self, observes: Collection[str], knobs: Collection[str]) -> str:
        """Return the engine of its trials (`core.engines`), given what agents observe and set."""
        testbeds = {self._trials[0].testbed: self.testbed}
        return engine_for(self._trials, testbeds, tuner=_Bridge(Setup(), observes, knobs)).engine

    def reseed(self, seed: int) -> None:
        """Start the sequence of episodes anew, as it follows from `seed`."""
        self._seed = seed
        self._episode = 0

    def next(self) -> TrialSpec:
        """Return the trial of the next episode. Its seed is of the random stream `training`."""
        trial = self._trials[self._episode % len(self._trials)]
        self._episode += 1
        seed = trial_seed(self._seed, self._episode, purpose="training")
        return replace(trial, seed=seed, repeat=self._episode)


def _trials(source: str | Path | TrialSpec, backend: str | None) -> list[TrialSpec]:
    """Return one trial for each cell of a campaign, leaving out its tuners; or the one trial."""
    if isinstance(source, TrialSpec):
        name = backend or source.backend
        clock = source.clock if capabilities(name).on(source.clock) else ""
        return [replace(source, backend=name, clock=clock)]
    campaign = load_campaign(source, backend=backend)
    trials: list[TrialSpec] = []
    conditions: list[dict[str, Scalar]] = []
    for condition in map(factors_of, campaign.cells):
        if condition not in conditions:
            conditions.append(condition)
            trials.append(next(t for t in campaign.trials if factors_of(t.cell) == condition))
    return trials


class _Closed(BaseException):
    """Raised inside the backend when the episode is closed, so that the trial ends."""


@dataclass(frozen=True)
class Terminated:
    """What an episode returns after its last reading: the trial has ended by itself."""

    record: TrialRecord


class Episode:
    """A running trial. Call `close`; an episode that is dropped, or open at exit, closes itself."""

    def __init__(
        self,
        backend: Backend,
        trial: TrialSpec,
        testbed: Testbed,
        schedule: Schedule,
        start: Setup,
        observes: Collection[str],
        knobs: Collection[str],
    ) -> None:
        """Start the trial with the initial setup `start`. `observes`, `knobs`: as in `Tuner`."""
        self._bridge = _Bridge(start, observes, knobs)
        # Neither the thread nor the finalizer references this object, so that it can be dropped.
        thread = threading.Thread(
            target=_run,
            args=(backend, trial, testbed, schedule, self._bridge),
            name=f"closloop {trial.id}",
            daemon=True,
        )
        self._finalizer = weakref.finalize(self, _close, self._bridge, thread)
        thread.start()

    def first(self) -> Observation | Terminated:
        """Return the first reading that needs a decision. Raises what the backend raises."""
        return self._next()

    def step(self, action: Action) -> Observation | Terminated:
        """Decide on the last reading, and return the next. Raises what the backend raises."""
        self._bridge.actions.put(action)
        return self._next()

    def close(self) -> None:
        """End the trial at once. When this returns, nothing of it runs."""
        self._finalizer()

    def _next(self) -> Observation | Terminated:
        message = self._bridge.messages.get()
        if isinstance(message, BaseException):
            raise message
        return message


class _Bridge(BaseTuner):
    """The backend's tuner: it passes readings to the caller's thread, and waits for actions."""

    def __init__(self, start: Setup, observes: Collection[str], knobs: Collection[str]) -> None:
        self.observes, self.knobs = observes, knobs
        self.messages: SimpleQueue[Observation | Terminated | BaseException] = SimpleQueue()
        self.actions: SimpleQueue[Action | None] = SimpleQueue()
        self.closed = False
        self._start = start

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the initial setup."""
        return self._start

    def act(self, observation: Observation) -> Action:
        """Pass a reading on, and wait for the decision of the caller's thread."""
        self.messages.put(observation)
        action = self.actions.get()
        if action is None:
            raise _Closed
        return action

    def progress(self, t_ns: int, end_ns: int) -> None:
        """Let the backend continue, unless the episode was closed."""
        if self.closed:
            raise _Closed


def _run(
    backend: Backend, trial: TrialSpec, testbed: Testbed, schedule: Schedule, bridge: _Bridge
) -> None:
    """Run the trial, in a thread of its own; leave its record or its error as the last message."""
    try:
        with tempfile.TemporaryDirectory(prefix="closloop-episode-") as folder:
            record = backend.run(
                TrialRun(trial, testbed, schedule, Path(folder), bridge.progress, bridge)
            )
        bridge.messages.put(Terminated(record))
    except _Closed:
        pass
    except BaseException as error:
        bridge.messages.put(error)


def _close(bridge: _Bridge, thread: threading.Thread) -> None:
    bridge.closed = True
    bridge.actions.put(None)
    # The garbage collector may call this in the trial's own thread, which ends at its next
    # decision.
    if thread is not threading.current_thread():
        thread.join()
