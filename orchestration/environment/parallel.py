"""The environments: a PettingZoo `ParallelEnv` with many agents, and a Gymnasium `Env` with one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from orchestration.core.errors import InputError
from orchestration.core.trial import TrialSpec
from orchestration.environment.fabric_episodes import (
    FEATURE_LIMIT,
    FabricEpisodes,
    Settings,
    Step,
)

Features = NDArray[np.float32]


class FabricParallelEnv(ParallelEnv[str, Features, int]):  # type: ignore[misc]  # untyped
    """Each switch queue is an agent, named by the queue's label, and chooses its ECN setting.

    With another knob in the settings, each of the knob's targets is an agent.

    An observation has the queue's features, shape (history x features,), newest first. An action is
    the number of a template. `step` lets one action period pass. The episode ends for all agents at
    the same time: it is truncated at the trial's duration, and terminated when every flow has
    ended. Infos have the queue's raw readings, with cumulative counters, and the time `t_ns`.
    """

    metadata = {"name": "closloop_fabric_v0", "render_modes": []}  # noqa: RUF012 (the API's form)
    render_mode = None

    def __init__(
        self,
        source: str | Path | TrialSpec,
        backend: str | None = None,
        *,
        seed: int = 1,
        settings: Settings = Settings(),  # noqa: B008 (frozen)
    ) -> None:
        """Prepare episodes: of a campaign file's cells in rotation, or of one trial.

        `backend` overrides the file's backend. The seeds of the traffic are derived from `seed`,
        until `reset` gets another one. They are never the seeds of a campaign's trials. Raises
        InputError for a faulty campaign or setting.
        """
        self._episodes = FabricEpisodes(source, backend, seed, settings)
        labels = self._episodes.labels
        self._number = {label: number for number, label in enumerate(labels)}
        shape = (self._episodes.width,)
        actions = len(self._episodes.templates)
        self.observation_spaces: dict[str, Space[Features]] = {
            label: Box(0.0, FEATURE_LIMIT, shape, np.float32) for label in labels
        }
        self.action_spaces: dict[str, Space[Any]] = {label: Discrete(actions) for label in labels}
        self.possible_agents = list(labels)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space[Features]:
        """Return the agent's observation space, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """Return the agent's action space, always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Features], dict[str, dict[str, Any]]]:
        """Start an episode, and return observations and infos. `options` are ignored."""
        step = self._episodes.reset(seed)
        self.agents = list(self.possible_agents)
        return self._by_agent(step.features), self._infos(step)

    def step(
        self, actions: Mapping[str, int]
    ) -> tuple[
        dict[str, Features],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Apply one action per agent, let one period pass, and return the results.

        Raises InputError if an agent has no action, or if an action is for no agent.
        """
        if not self.agents:
            return {}, {}, {}, {}, {}
        if actions.keys() != self._number.keys():
            name = min(actions.keys() ^ self._number.keys())
            raise InputError.single(
                name,
                "has no action" if name in self._number else "is no agent",
                "give one action for each of env.agents",
            )
        targets = np.fromiter((self._number[name] for name in actions), dtype=np.int64)
        choice = np.fromiter(actions.values(), dtype=np.int64)
        step = self._episodes.step(targets, choice)
        agents = self.agents
        if step.terminated or step.truncated:
            self.agents = []
        return (
            self._by_agent(step.features),
            dict(zip(agents, step.rewards.tolist(), strict=True)),
            dict.fromkeys(agents, step.terminated),
            dict.fromkeys(agents, step.truncated),
            self._infos(step),
        )

    def close(self) -> None:
        """End the running episode; `reset` starts another."""
        self._episodes.close()
        self.agents = []

    def _by_agent(self, features: Features) -> dict[str, Features]:
        return dict(zip(self.possible_agents, features, strict=True))

    def _infos(self, step: Step) -> dict[str, dict[str, Any]]:
        columns = {name: values.tolist() for name, values in step.infos.items()}
        t_ns = step.reading.t_ns
        return {
            label: {"t_ns": t_ns, **{name: values[number] for name, values in columns.items()}}
            for label, number in self._number.items()
        }


class FabricEnv(gymnasium.Env[Features, Any]):
    """One agent chooses the ECN settings of all queues, or, if `queue` is given, of that queue.

    For all queues, an observation has shape (queues, history x features). An action has the number
    of a template for each queue, in the order of `Testbed.queues`. The reward is the mean over
    queues. For one queue, an observation has shape (history x features,), an action is one number,
    and all other queues keep their initial setting. Episodes end as in `FabricParallelEnv`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (the API's form)

    def __init__(
        self,
        source: str | Path | TrialSpec,
        backend: str | None = None,
        *,
        queue: str | None = None,
        seed: int = 1,
        settings: Settings = Settings(),  # noqa: B008 (frozen)
    ) -> None:
        """Prepare episodes as `FabricParallelEnv` does; `queue` is a queue's label.

        Raises InputError for a faulty campaign or an unknown queue.
        """
        self._episodes = FabricEpisodes(source, backend, seed, settings)
        labels = self._episodes.labels
        actions = len(self._episodes.templates)
        if queue is None:
            self._rows: int | slice = slice(None)
            self._queues = np.arange(len(labels), dtype=np.int64)
            self.action_space = MultiDiscrete([actions] * len(labels))
            shape: tuple[int, ...] = (len(labels), self._episodes.width)
        elif queue in labels:
            self._rows = labels.index(queue)
            self._queues = np.array([self._rows], dtype=np.int64)
            self.action_space = Discrete(actions)
            shape = (self._episodes.width,)
        else:
            raise InputError.single(
                "queue",
                f"{self._episodes.testbed.name} has no queue {queue!r}",
                f"they are {labels[0]} to {labels[-1]}",
            )
        self.observation_space = Box(0.0, FEATURE_LIMIT, shape, np.float32)
        self.spec = EnvSpec(
            "closloop/Fabric-v0",
            entry_point="orchestration.environment:FabricEnv",
            nondeterministic=not self._episodes.deterministic,
            kwargs={
                "source": source,
                "backend": backend,
                "queue": queue,
                "seed": seed,
                "settings": settings,
            },
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Features, dict[str, Any]]:
        """Start an episode, and return observation and info. `options` are ignored."""
        super().reset(seed=seed)
        step = self._episodes.reset(seed)
        return step.features[self._rows], self._info(step)

    def step(self, action: Any) -> tuple[Features, float, bool, bool, dict[str, Any]]:
        """Apply an action, let one period pass, and return the results."""
        choice = np.asarray(action, dtype=np.int64).reshape(self._queues.shape)
        step = self._episodes.step(self._queues, choice)
        reward = float(np.mean(step.rewards[self._rows]))
        features = step.features[self._rows]
        return features, reward, step.terminated, step.truncated, self._info(step)

    def close(self) -> None:
        """End the running episode; `reset` starts another."""
        self._episodes.close()

    def _info(self, step: Step) -> dict[str, Any]:
        arrays = {name: values[self._rows] for name, values in step.infos.items()}
        return {"t_ns": step.reading.t_ns, **arrays}
