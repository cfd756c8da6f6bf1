"""A learner, and the tuner that acts by what was learned: `closloop train trained`."""

from dataclasses import dataclass

import numpy as np

from closloop import ECN, BaseTuner, Setup, load_checkpoint

THRESHOLDS = (10_000, 30_000, 100_000, 300_000)


@dataclass
class Trained(BaseTuner):
    """Marks above one of `THRESHOLDS`: number `tried`, or by default the checkpoint's."""

    checkpoint: str
    tried: int = -1
    collect: bool = False

    observes = ("qlen_bytes",)

    def reset(self, testbed, seed):
        """Set the threshold on every queue."""
        best = load_checkpoint(self.checkpoint).arrays["best"][0]
        self.choice = self.tried if self.tried >= 0 else int(best)
        self.rewards = []
        queues, bytes_ = np.arange(len(testbed.queues)), THRESHOLDS[self.choice]
        return Setup((ECN.change(queues, bytes_, bytes_, 1.0),))

    def act(self, observation):
        """Remember how long the queues are; change nothing."""
        self.rewards.append(-observation["qlen_bytes"].mean())
        return ()

    def trace(self):
        """Return the arrays of an episode for the learner."""
        return {"reward": np.array(self.rewards), "choice": np.array([self.choice])}


@dataclass(frozen=True)
class Settings:
    """The settings that `closloop train --set` can change."""

    optimism: float = 0.0


class Trials:
    """Tries each threshold equally often, and keeps the one with the shortest queues."""

    tuner = "trained"
    settings = Settings

    def __init__(self, seed, testbed, settings, parameters=None):
        self.sums = np.full(len(THRESHOLDS), settings.optimism)
        self.counts = np.zeros(len(THRESHOLDS))

    def parameters(self):
        """Return the parameters that are saved in a checkpoint."""
        means = self.sums / np.maximum(self.counts, 1)
        return {"best": np.array([np.where(self.counts, means, -np.inf).argmax()], float)}

    def architecture(self):
        """Return what the checkpoint's card says of the network."""
        return {"thresholds": len(THRESHOLDS)}

    def acting(self):
        """Return the tuner's parameters for the next episode."""
        return {"tried": int(self.counts.argmin())}

    def learn(self, trace):
        """Learn from an episode; return figures for the learning curve."""
        reward, choice = trace["reward"].mean(), int(trace["choice"][0])
        self.sums[choice] += reward
        self.counts[choice] += 1
        return {"reward": reward, "loss": 0.0, "explore": 1.0}

    def state(self):
        """Return everything that is needed to resume the training."""
        return {"sums": self.sums, "counts": self.counts}

    def load(self, state):
        """Resume from what `state` returned."""
        self.sums, self.counts = state["sums"].copy(), state["counts"].copy()
