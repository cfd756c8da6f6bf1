"""Episodes on a fabric, as arrays over all agents: what both environments share.

An episode is a trial that is stepped: in each step every agent chooses a setting, and one action
period passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.errors import InputError, TrialError
from orchestration.core.knobs import ECN, KNOBS, Knob
from orchestration.core.records import (
    UNFINISHED,
    ChangeRecords,
    Floats,
    Ints,
    Observation,
    TrialRecord,
)
from orchestration.core.signals import Scope, targets
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.environment.action_space import ActionSpace, grid, knob_named
from orchestration.environment.episode import Episode, EpisodeSource, Terminated
from orchestration.run import backend_factory
from traffic.schedule import make_schedule
from tuners import registry
from tuners.ecn.features import ACC_FEATURES, FeatureWindow, observed_by, queue_utilisation_reward
from tuners.ecn.templates import graphcc_templates


class Agents:
    """The agents of an environment: each queue, or each switch for all of its queues."""

    def __init__(self, testbed: Testbed, scope: Scope) -> None:
        self._switch: Ints | None = None
        if scope == "switch":
            index = {name: number for number, name in enumerate(testbed.switches)}
            self._switch = np.array([index[queue.device] for queue in testbed.queues])
            self._queue_counts = np.bincount(self._switch, minlength=len(index))

    def from_queues(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of agents, given those of queues: a switch has its queues' mean."""
        if self._switch is None:
            return values
        sums = np.zeros((len(self._queue_counts), *values.shape[1:]))
        np.add.at(sums, self._switch, values)
        counts = np.maximum(self._queue_counts, 1).reshape(-1, *[1] * (values.ndim - 1))
        return (sums / counts).astype(values.dtype if values.dtype.kind == "f" else np.float64)


# A reward function: (reading, utilisation of each queue's port, 0 to 1) -> reward of each queue.
# The arrays have shape (queues,).
Reward = Callable[[Observation, Floats], Floats]

# Features are clipped to this. They are shares and logarithms: 2 stands for a queue of a gigabyte,
# or for twice the line rate.
FEATURE_LIMIT = 2.0


def default_reward(reading: Observation, utilisation: Floats) -> Floats:
    """Return GraphCC's reward (section 3.3): 0.7 x a score of short queues + 0.3 x utilisation."""
    return queue_utilisation_reward(reading.qlen_bytes.astype(np.float64), utilisation)


@dataclass(frozen=True)
class Settings:
    """The settings of an environment. The defaults are GraphCC's actions and ACC's observations.

    Agents set `knob`. There is one agent for each of the knob's targets: for each queue, or for
    each switch, which observes the mean of its queues. An action is the number of a setting in
    `templates`. By default these are GraphCC's for the knob ECN, and a grid within the bounds of
    any other knob. An observation has the `features`, by their names in `tuners.ecn.features`, of
    the last `history` readings. `reward` is the reward function. `start` is the tuner whose initial
    setup starts an episode (default: secn1); targets that no agent decides on keep it.
    """

    knob: str = ECN.name
    templates: ActionSpace | None = None
    features: Sequence[str] = ACC_FEATURES
    history: int = 3
    reward: Reward = default_reward
    start: TunerSpec | None = None


@dataclass(frozen=True)
class Step:
    """The result of a step. Arrays have a row per agent; those of `reading` a row per queue."""

    features: NDArray[np.float32]
    rewards: Floats
    terminated: bool
    truncated: bool
    reading: Observation
    infos: dict[str, NDArray[Any]]


class FabricEpisodes:
    """Episodes on a fabric, one after the other. Nothing runs before `reset` or after `close`."""

    def __init__(
        self,
        source: str | Path | TrialSpec,
        backend: str | None,
        seed: int,
        settings: Settings,
    ) -> None:
        if settings.history < 1:
            raise InputError.single(
                "history", f"{settings.history} readings are nothing to observe", "use 1 or more"
            )
        self._source = EpisodeSource(source, backend, seed)
        self._settings = settings
        self._episode: Episode | None = None
        self.deterministic = self._source.deterministic
        self.testbed = self._source.testbed
        knob = self._knob = knob_named(settings.knob)
        if knob.name not in self._source.mode.knobs:
            raise InputError.single(
                "knob", f"{self._source.backend} has no {knob.name!r}", "choose another backend"
            )
        self._start = registry.create(settings.start or TunerSpec("secn1"))
        self._observes = observed_by(settings.features)
        self._knobs = {*self._start.knobs, knob.name}
        engine = self._source.engine(self._observes, self._knobs)
        self._backend = backend_factory.backend(self._source.backend, engine=engine)
        default = graphcc_templates() if knob is ECN else grid(knob, self.testbed)
        self.templates: ActionSpace = settings.templates or default
        self.labels = targets(self.testbed, knob.scope)
        self._agents = Agents(self.testbed, knob.scope)
        self.width = self._new_window().width

    def reset(self, seed: int | None) -> Step:
        """Start an episode, and return its first reading. Its rewards have no meaning yet.

        With `seed`, the sequence of episodes starts again. Raises NotReadyError if the backend
        cannot run here, and TrialError if the trial fails.
        """
        self.close()
        if seed is not None:
            self._source.reseed(seed)
        trial = self._source.next()
        self._backend.check(self.testbed, 1)
        self._window = self._new_window()
        self._period_ns = trial.action_period_ns
        self._decisions_left = trial.duration_ns // trial.action_period_ns
        self._last_reading: Observation | None = None
        self._episode = Episode(
            self._backend,
            trial,
            self.testbed,
            make_schedule(trial, self.testbed),
            self._start.reset(self.testbed, trial.seed),
            observes=self._observes,
            knobs=self._knobs,
        )
        step = self._advance(self._episode.first)
        if step.terminated:
            raise TrialError(
                f"the traffic of seed {trial.seed} ended before the first decision",
                "give the environment more load, or a shorter action_period",
            )
        return step

    def step(self, agents: Ints, choice: Ints) -> Step:
        """Give `agents` the templates `choice`, both of the same shape, and let a period pass."""
        if self._episode is None:
            raise InputError.single("step", "no episode is running", "call reset first")
        if len(choice) and not (choice.min() >= 0 and choice.max() < len(self.templates)):
            raise InputError.single(
                "step",
                f"actions are 0 to {len(self.templates) - 1}, not {choice.min()}..{choice.max()}",
                "take them from action_space",
            )
        action = (self.templates.settings(agents, choice),)
        return self._advance(partial(self._episode.step, action))

    def close(self) -> None:
        """End the running episode, if there is one."""
        if self._episode is not None:
            self._episode.close()
            self._episode = None

    def _new_window(self) -> FeatureWindow:
        return FeatureWindow(self.testbed, self._settings.history, tuple(self._settings.features))

    def _advance(self, wait: Callable[[], Observation | Terminated]) -> Step:
        """Wait for the next reading, or for the trial's end, and return it as a step."""
        try:
            reading = wait()
        except BaseException:  # also when Ctrl-C interrupts the wait
            self.close()
            raise
        self._decisions_left -= 1
        terminated, truncated = False, self._decisions_left <= 0
        if isinstance(reading, Terminated):
            terminated = bool((reading.record.flows.status != UNFINISHED).all())
            truncated = not terminated
            reading = final_reading(reading.record, self._last_reading, self.testbed)
        features = np.clip(self._window.push(reading), 0.0, FEATURE_LIMIT)
        self._last_reading = reading
        if terminated or truncated:
            self.close()
        utilisation = np.clip(self._window.utilisation, 0.0, 1.0)
        rewards = self._agents.from_queues(self._settings.reward(reading, utilisation))
        infos = self._infos(reading, utilisation)
        observations = self._agents.from_queues(features)
        return Step(observations, rewards, terminated, truncated, reading, infos)

    def _infos(self, reading: Observation, utilisation: Floats) -> dict[str, NDArray[Any]]:
        """Return the reading's values by name, one entry per agent."""
        times = {"age_ns": reading.age_ns, "taken_ns": reading.taken_ns}
        known = {name: values for name, values in times.items() if values is not None}
        of_queues = {**known, **reading.values, "utilisation": utilisation}
        arrays = {name: self._agents.from_queues(values) for name, values in of_queues.items()}
        for name, columns in reading.settings.items():
            if KNOBS[name].scope == self._knob.scope:
                arrays |= columns
            elif KNOBS[name].scope == "queue":
                arrays |= {
                    column: self._agents.from_queues(values) for column, values in columns.items()
                }
        return arrays


def final_reading(record: TrialRecord, before: Observation | None, testbed: Testbed) -> Observation:
    """Return the last sample, as a reading, of a trial that ended before its next decision.

    Values that samples do not have (those of the flow table) are taken from `before`, the reading
    of the last decision.
    """
    ports, queues = record.ports, len(record.ports["qlen_bytes"][0])
    since = ports.t_ns > (before.t_ns if before else -1)
    values = {name: array[-1] for name, array in ports.values.items()}
    values["qlen_mean_bytes"] = ports["qlen_bytes"][since].mean(axis=0)
    if before is not None:
        values = {**before.values, **values}
    settings = {
        name: _last_settings(KNOBS[name], changes, testbed)
        for name, changes in record.changes.items()
    }
    ages = np.zeros(queues, dtype=np.int64)
    return Observation(int(ports.t_ns[-1]), ages, values, settings)


def _last_settings(knob: Knob, changes: ChangeRecords, testbed: Testbed) -> dict[str, NDArray[Any]]:
    """Return the last setting of each of a knob's targets. `changes` are ordered by time."""
    columns = {}
    for column in knob.columns:
        values = np.zeros(len(targets(testbed, knob.scope)), dtype=column.dtype)
        values[changes.targets] = changes[column.name]
        columns[column.name] = values
    return columns
