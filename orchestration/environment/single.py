"""The fabric as a Gymnasium `Env`: one agent for all queues, or for one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

from orchestration.core.errors import InputError
from orchestration.core.trial import TrialSpec
from orchestration.environment.core import (
    FEATURE_LIMIT,
    FabricEpisodes,
    Settings,
    Step,
)

Features = NDArray[np.float32]


class FabricEnv(gymnasium.Env[Features, Any]):
    """One agent chooses the ECN settings of every queue, or, with `queue`, of that queue.

    For all queues, an observation has shape (queues, history x features), an action has the number
    of a template for each queue, in the order of `Testbed.queues`, and the reward is the queues'
    mean. For one queue, an observation has shape (history x features,), an action is one number,
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
        """Start an episode; return observation and info. `options` are ignored."""
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
