"""The part that both environments share: choices, agents, and arrays over all queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from orchestration.core.errors import InputError, TrialError, check_known
from orchestration.core.knobs import ECN, KNOBS, Column, Knob
from orchestration.core.records import (
    UNFINISHED,
    Change,
    ChangeRecords,
    Floats,
    Ints,
    Observation,
    TrialRecord,
)
from orchestration.core.signals import Scope, targets
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.environment.episode import Episode, EpisodeSource, Terminated
from orchestration.run import backend_factory
from traffic.schedule import make_schedule
from tuners import registry
from tuners.ecn.features import ACC_FEATURES, FeatureWindow, observed_by, queue_utilisation_reward
from tuners.ecn.templates import graphcc_templates

LEVELS = 8


class ActionSpace(Protocol):
    """Settings that can be chosen by number."""

    def __len__(self) -> int:
        """Return the number of settings."""

    def settings(self, targets: Ints, choice: Ints) -> Change:
        """Return the change that gives `targets` the settings `choice`, both of the same shape."""


@dataclass(frozen=True)
class Grid:
    """Settings of a knob: one array of shape (actions,) for each column."""

    knob: Knob
    values: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def settings(self, targets: Ints, choice: Ints) -> Change:
        """Return the change that gives `targets` the settings `choice`, both of the same shape."""
        return self.knob.change(targets, *(self.values[name][choice] for name in self.values))


def grid(knob: Knob, testbed: Testbed, levels: int = LEVELS) -> Grid:
    """Return `levels` values of each column within its bounds, in all combinations.

    Shares are spaced evenly, other values by equal factors.
    """
    capacity = None if knob.capacity is None else int(knob.capacity(testbed).min())
    columns = [_levels(column, capacity, levels) for column in knob.columns]
    ascending = [place for place, one in enumerate(knob.columns) if one.name in knob.ascending]
    rows = [
        row for row in product(*columns) if all(row[a] <= row[b] for a, b in pairwise(ascending))
    ]
    arrays = zip(knob.columns, zip(*rows, strict=True), strict=True)
    return Grid(knob, {one.name: np.array(values, dtype=one.dtype) for one, values in arrays})


def _levels(column: Column, capacity: int | None, levels: int) -> list[float]:
    maximum = column.maximum if column.maximum is not None else capacity
    if maximum is None:
        raise InputError.single(
            column.name, "has no upper bound to make a grid of", "give settings of your own"
        )
    if column.unit == "1":
        return list(np.linspace(column.minimum, maximum, levels))
    values = np.geomspace(max(column.minimum, 1), maximum, levels)
    return list(np.rint(values) if column.dtype == "int64" else values)


def knob_named(name: str) -> Knob:
    """Return a knob. Raises InputError if it is not declared, or has no agents."""
    check_known("knob", "{!r} is not declared", [name], KNOBS, "use ")
    if KNOBS[name].scope not in ("queue", "switch"):
        raise InputError.single(
            "knob",
            f"{name!r} is turned at each {KNOBS[name].scope}, and agents are queues or switches",
            "use another knob",
        )
    return KNOBS[name]


class Agents:
    """The agents: each queue is one, or each switch for all of its queues."""

    def __init__(self, testbed: Testbed, scope: Scope) -> None:
        self._switch: Ints | None = None
        if scope == "switch":
            place = {name: number for number, name in enumerate(testbed.switches)}
            self._switch = np.array([place[queue.device] for queue in testbed.queues])
            self._queues = np.bincount(self._switch, minlength=len(place))

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert values of queues to values of agents: a switch gets the mean of its queues."""
        if self._switch is None:
            return values
        sums = np.zeros((len(self._queues), *values.shape[1:]))
        np.add.at(sums, self._switch, values)
        counts = np.maximum(self._queues, 1).reshape(-1, *[1] * (values.ndim - 1))
        return (sums / counts).astype(values.dtype if values.dtype.kind == "f" else np.float64)


# (reading, utilisation of every queue's port 0..1) -> reward of every queue, shapes (queues,).
Reward = Callable[[Observation, Floats], Floats]

# Features are shares and logarithms: 2 means a queue of a gigabyte, or twice the line rate.
FEATURE_LIMIT = 2.0


def default_reward(reading: Observation, utilisation: Floats) -> Floats:
    """Return 0.7 x a score of short queues + 0.3 x utilisation (GraphCC, section 3.3)."""
    return queue_utilisation_reward(reading.qlen_bytes.astype(np.float64), utilisation)


@dataclass(frozen=True)
class Settings:
    """The settings of an environment; the defaults are GraphCC's actions and ACC's observations.

    Agents turn `knob`, each at one target of its scope: a queue, or a switch, which sees the mean
    of its queues. An action chooses from `templates`; for a knob other than ECN, the default is a
    grid within its bounds. `features` are names of `tuners.ecn.features`, given for the last
    `history` readings. `reward` is a function of a reading. `start` is the tuner whose initial
    setup starts an episode; targets that no agent decides on keep it.
    """

    knob: str = ECN.name
    templates: ActionSpace | None = None
    features: Sequence[str] = ACC_FEATURES
    history: int = 3
    reward: Reward = default_reward
    start: TunerSpec | None = None


@dataclass(frozen=True)
class Step:
    """The result of a step. Arrays have a row per agent, those of the reading a row per queue."""

    features: NDArray[np.float32]
    rewards: Floats
    terminated: bool
    truncated: bool
    reading: Observation
    infos: dict[str, NDArray[Any]]


class FabricEpisodes:
    """Episodes on a fabric, one after another. Nothing runs before `reset` or after `close`."""

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
        self._backend = backend_factory.backend(self._source.backend)
        self._settings = settings
        self._episode: Episode | None = None
        self.deterministic = self._source.deterministic
        self.testbed = self._source.testbed
        knob = self._knob = knob_named(settings.knob)
        if knob.name not in self._source.mode.knobs:
            raise InputError.single(
                "knob", f"{self._backend.name} has no {knob.name!r}", "choose another backend"
            )
        default = graphcc_templates() if knob is ECN else grid(knob, self.testbed)
        self.templates: ActionSpace = settings.templates or default
        self.labels = targets(self.testbed, knob.scope)
        self._agents = Agents(self.testbed, knob.scope)
        self.width = self._new_window().width

    def reset(self, seed: int | None) -> Step:
        """Start an episode and return its first reading; the rewards mean nothing yet.

        With `seed`, the sequence of episodes starts again. Raises NotReadyError if the backend
        cannot run here, and TrialError if the trial fails.
        """
        self.close()
        if seed is not None:
            self._source.reseed(seed)
        trial = self._source.next()
        self._backend.check(self.testbed, 1)
        start = registry.create(self._settings.start or TunerSpec("secn1"))
        self._window = self._new_window()
        self._period_ns = trial.action_period_ns
        self._decisions_left = trial.duration_ns // trial.action_period_ns
        self._last: Observation | None = None
        self._episode = Episode(
            self._backend,
            trial,
            self.testbed,
            make_schedule(trial, self.testbed),
            start.reset(self.testbed, trial.seed),
            observes=observed_by(self._settings.features),
            knobs={*start.knobs, self._knob.name},
        )
        step = self._take(self._episode.first)
        if step.terminated:
            raise TrialError(
                f"the traffic of seed {trial.seed} ended before the first decision",
                "give the environment more load, or a shorter action_period",
            )
        return step

    def step(self, agents: Ints, choice: Ints) -> Step:
        """Give `agents` the templates `choice`, both of the same shape; let one period pass."""
        if self._episode is None:
            raise InputError.single("step", "no episode is running", "call reset first")
        if len(choice) and not (choice.min() >= 0 and choice.max() < len(self.templates)):
            raise InputError.single(
                "step",
                f"actions are 0 to {len(self.templates) - 1}, not {choice.min()}..{choice.max()}",
                "take them from action_space",
            )
        action = (self.templates.settings(agents, choice),)
        return self._take(partial(self._episode.step, action))

    def close(self) -> None:
        """End the running episode, if there is one."""
        if self._episode is not None:
            self._episode.close()
            self._episode = None

    def _new_window(self) -> FeatureWindow:
        return FeatureWindow(self.testbed, self._settings.history, tuple(self._settings.features))

    def _take(self, ask: Callable[[], Observation | Terminated]) -> Step:
        try:
            said = ask()
        except BaseException:  # also when Ctrl-C interrupts the wait
            self.close()
            raise
        self._decisions_left -= 1
        terminated, truncated = False, self._decisions_left <= 0
        if isinstance(said, Terminated):
            done = bool((said.record.flows.status != UNFINISHED).all())
            terminated, truncated = done, not done
            said = final_reading(said.record, self._last, self.testbed)
        features = np.clip(self._window.push(said), 0.0, FEATURE_LIMIT)
        self._last = said
        if terminated or truncated:
            self.close()
        utilisation = np.clip(self._window.utilisation, 0.0, 1.0)
        rewards = self._agents.of(self._settings.reward(said, utilisation))
        infos = self._infos(said, utilisation)
        return Step(self._agents.of(features), rewards, terminated, truncated, said, infos)

    def _infos(self, reading: Observation, utilisation: Floats) -> dict[str, NDArray[Any]]:
        """Return the reading's values by name, one entry per agent."""
        times = {"age_ns": reading.age_ns, "taken_ns": reading.taken_ns}
        known = {name: values for name, values in times.items() if values is not None}
        of_queues = {**known, **reading.values, "utilisation": utilisation}
        arrays = {name: self._agents.of(values) for name, values in of_queues.items()}
        for name, columns in reading.settings.items():
            if KNOBS[name].scope == self._knob.scope:
                arrays |= columns
            elif KNOBS[name].scope == "queue":
                arrays |= {column: self._agents.of(values) for column, values in columns.items()}
        return arrays


def final_reading(record: TrialRecord, before: Observation | None, testbed: Testbed) -> Observation:
    """Return the last sample of a trial that ended before its next decision, as a reading.

    Values that samples lack (the flow table) are those of `before`.
    """
    ports, queues = record.ports, len(record.ports["qlen_bytes"][0])
    since = ports.t_ns > (before.t_ns if before else -1)
    values = {name: array[-1] for name, array in ports.values.items()}
    values["qlen_mean_bytes"] = ports["qlen_bytes"][since].mean(axis=0)
    if before is not None:
        values = {**before.values, **values}
    settings = {
        name: _last(KNOBS[name], changes, testbed) for name, changes in record.changes.items()
    }
    none = np.zeros(queues, dtype=np.int64)
    return Observation(int(ports.t_ns[-1]), none, values, settings)


def _last(knob: Knob, changes: ChangeRecords, testbed: Testbed) -> dict[str, NDArray[Any]]:
    """Return the last setting of each target of a knob; changes are ordered by time."""
    columns = {}
    for column in knob.columns:
        values = np.zeros(len(targets(testbed, knob.scope)), dtype=column.dtype)
        values[changes.targets] = changes[column.name]
        columns[column.name] = values
    return columns
