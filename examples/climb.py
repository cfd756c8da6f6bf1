"""The smallest learner of your own: it searches for the best threshold for all queues.

closloop train examples/climb.py:Climb --scenario examples/thresholds.yml --on fluid --episodes 20
"""

from dataclasses import dataclass

import numpy as np

from closloop import ECN, BaseTuner, Setup, load_checkpoint


@dataclass
class Level(BaseTuner):
    """Sets one threshold at all queues: that of its checkpoint, or one near it."""

    checkpoint: str
    explore: float = 0.0  # standard deviation of the distance from the checkpoint's, in octaves
    collect: bool = False

    observes = ("qlen_bytes",)

    def reset(self, testbed, seed):
        """Draw a threshold near the checkpoint's, and set it at all queues."""
        octave = self.explore * np.random.default_rng(seed).normal()
        self.tried = load_checkpoint(self.checkpoint).arrays["kmax"] * 2.0**octave
        self.rewards = []
        queues = np.arange(len(testbed.queues))
        kmax = int(np.clip(self.tried[0], 10_000, 1_000_000))
        return Setup((ECN.change(queues, kmax // 2, kmax, 0.5),))

    def act(self, observation):
        """Remember how long the queues are; change nothing."""
        self.rewards.append(-observation["qlen_bytes"].mean())
        return ()

    def trace(self):
        """Return arrays for the learner, with a row for each decision."""
        kmax = np.repeat(self.tried, len(self.rewards))
        return {"reward": np.array(self.rewards), "kmax": kmax}


@dataclass(frozen=True)
class Settings:
    """The settings that `--set` can change."""

    step: float = 0.5


class Climb:
    """Keeps the best threshold that was tried so far."""

    tuner = "climb.py:Level"  # a path from this file, or the name of a tuner
    settings = Settings  # the dataclass above

    def __init__(self, seed, testbed, settings, parameters=None):
        start = parameters or {"kmax": np.array([200_000.0])}
        self.step, self.best = settings.step, {**start, "reward": np.array([-1e12])}

    def parameters(self):
        """Return the parameters that are saved in a checkpoint."""
        return {"kmax": self.best["kmax"]}

    def architecture(self):
        """Return what the checkpoint's card says of the network."""
        return {"network": "a number"}

    def acting(self):
        """Return the tuner's parameters for the next episode."""
        return {"explore": self.step}

    def learn(self, trace):
        """Keep the threshold of this episode if it is the best so far."""
        reward = trace["reward"].mean()
        if reward > self.best["reward"][0]:
            self.best = {"kmax": trace["kmax"][:1], "reward": np.array([reward])}
        return {"reward": reward, "loss": 0.0, "explore": self.step}

    def state(self):
        """Return everything that is needed to resume the training."""
        return dict(self.best)

    def load(self, state):
        """Resume from what `state` returned."""
        self.best = {name: state[name] for name in ("kmax", "reward")}
