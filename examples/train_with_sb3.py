"""Train a DQN of Stable-Baselines3 to set the ECN thresholds of one switch queue.

    pip install 'closloop[learn]' stable-baselines3
    python examples/train_with_sb3.py                    # the fluid model: about half a minute
    python examples/train_with_sb3.py --on emulated      # Linux in virtual time: some minutes

It prints the progress of the training, and the mean reward of a decision before the training
(random choices) and after it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from orchestration.environment import FabricEnv, Settings
from tuners.ecn.templates import KB, product

CAMPAIGN = Path(__file__).with_name("learning.yml")
# The queue of the switch port to which five hosts send at the same time.
QUEUE = "switch1:eth0"
# The settings to choose from. The default would be the 120 settings of GraphCC.
TEMPLATES = product(
    [4 * KB, 32 * KB, 256 * KB], [32 * KB, 256 * KB, 1024 * KB], [0.01, 1.0], equal=True
)
# The seed of the traffic for the test, from which it does not learn.
TEST_SEED = 1_000_000


class Progress(BaseCallback):
    """Prints the mean reward of the last episodes' decisions."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._every = max(1, steps // 10)
        self._begin = time.monotonic()

    def _on_step(self) -> bool:
        episodes = self.model.ep_info_buffer
        if self.num_timesteps % self._every == 0 and episodes:
            reward = sum(e["r"] for e in episodes) / sum(e["l"] for e in episodes)
            wall_s = time.monotonic() - self._begin
            print(f"{self.num_timesteps:7} steps {wall_s:6.1f} s   mean reward {reward:.3f}")
        return True


def mean_reward(choose: Callable[[np.ndarray], int], env: FabricEnv, episodes: int) -> float:
    """Return the mean reward of a decision over some episodes with the traffic of the test."""
    rewards = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=TEST_SEED if episode == 0 else None)
        done = False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(choose(observation))
            rewards.append(reward)
            done = terminated or truncated
    return float(np.mean(rewards))


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Train; return the mean rewards of random choices and of the trained network's choices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", choices=["fluid", "emulated"], default="fluid")
    parser.add_argument("--campaign", default=CAMPAIGN, help="what to learn on")
    parser.add_argument("--queue", default=QUEUE, help="whose thresholds to learn")
    parser.add_argument("--steps", type=int, default=3_000, help="decisions to learn from")
    parser.add_argument("--test-episodes", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    settings = Settings(templates=TEMPLATES)
    env = FabricEnv(options.campaign, options.on, queue=options.queue, settings=settings)
    model = DQN(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        learning_starts=min(500, options.steps // 4),
        gamma=0.5,  # a queue forgets within a few decisions
        exploration_fraction=0.5,
        target_update_interval=200,
        stats_window_size=10,
        seed=options.seed,
        device="cpu",
    )
    try:
        env.action_space.seed(options.seed)
        before = mean_reward(lambda _: env.action_space.sample(), env, options.test_episodes)
        model.learn(options.steps, callback=Progress(options.steps))
        after = mean_reward(
            lambda observation: model.predict(observation, deterministic=True)[0],
            env,
            options.test_episodes,
        )
    finally:
        env.close()
    print(f"mean reward of random choices {before:.3f}, after training {after:.3f}")
    return before, after


if __name__ == "__main__":
    main()
