"""A learner of one's own, the smallest: it looks for one threshold for all queues.

closloop train examples/climb.py:Climb --scenario examples/thresholds.yml --on fluid --episodes 20
"""

from dataclasses import dataclass

import numpy as np

from closloop import ECN, BaseTuner, Setup, load_checkpoint


@dataclass
class Level(BaseTuner):
    """One threshold for all queues: that of its checkpoint, or one near it."""

    checkpoint: str
    explore: float = 0.0  # octaves
    collect: bool = False

    observes = ("qlen_bytes",)

    def reset(self, testbed, seed):
        """Draw a threshold near the checkpoint's, and set it at all queues."""
        octave = self.explore * np.random.default_rng(seed).normal()
        self.tried = load_checkpoint(self.checkpoint).arrays["kmax"] * 2.0**octave
        self.seen = []
        queues = np.arange(len(testbed.queues))
        kmax = int(np.clip(self.tried[0], 10_000, 1_000_000))
        return Setup((ECN.change(queues, kmax // 2, kmax, 0.5),))

    def act(self, observation):
        """Remember how long queues are; change nothing."""
        self.seen.append(-observation["qlen_bytes"].mean())
        return ()

    def trace(self):
        """Return arrays for the learner, with a row for each decision."""
        return {"reward": np.array(self.seen), "kmax": np.repeat(self.tried, len(self.seen))}


@dataclass(frozen=True)
class Settings:
    """What `--set` can change."""

    step: float = 0.5


class Climb:
    """Goes to the best threshold that was tried."""

    tuner = "climb.py:Level"  # as seen from this file; or a tuner's name
    settings = Settings  # what --set can change

    def __init__(self, seed, testbed, settings, parameters=None):
        start = parameters or {"kmax": np.array([200_000.0])}
        self.step, self.best = settings.step, {**start, "reward": np.array([-1e12])}

    def parameters(self):
        """Return what a checkpoint holds."""
        return {"kmax": self.best["kmax"]}

    def architecture(self):
        """Return what the model card says, and what a tuner that loads it must agree with."""
        return {"network": "a number"}

    def acting(self):
        """Return the parameters of the tuner in the next episode."""
        return {"explore": self.step}

    def learn(self, trace):
        """Keep the threshold of this episode if it is the best so far."""
        reward = trace["reward"].mean()
        if reward > self.best["reward"][0]:
            self.best = {"kmax": trace["kmax"][:1], "reward": np.array([reward])}
        return {"reward": reward, "loss": 0.0, "explore": self.step}

    def state(self):
        """Return everything that is needed to go on."""
        return dict(self.best)

    def load(self, state):
        """Go on from what `state` returned."""
        self.best = {name: state[name] for name in ("kmax", "reward")}
