"""A learner, and the tuner that acts with what was learned: `closloop train trained`."""

from dataclasses import dataclass

import numpy as np

from closloop import ECN, BaseTuner, Setup, load_checkpoint

THRESHOLDS = (10_000, 30_000, 100_000, 300_000)


@dataclass
class Trained(BaseTuner):
    """Marks above one of `THRESHOLDS`: the one that is `tried`, or else the checkpoint's."""

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
        """Note how long queues are, and change nothing."""
        self.rewards.append(-observation["qlen_bytes"].mean())
        return ()

    def trace(self):
        """Return what the learner gets of an episode."""
        return {"reward": np.array(self.rewards), "choice": np.array([self.choice])}


@dataclass(frozen=True)
class Settings:
    """What `closloop train --set` can change."""

    optimism: float = 0.0


class Trials:
    """Tries the thresholds in turn, and takes the one with the shortest queues."""

    tuner = "trained"
    settings = Settings

    def __init__(self, seed, testbed, settings, parameters=None):
        self.sums = np.full(len(THRESHOLDS), settings.optimism)
        self.counts = np.zeros(len(THRESHOLDS))

    def parameters(self):
        """Return what a checkpoint holds."""
        means = self.sums / np.maximum(self.counts, 1)
        return {"best": np.array([np.where(self.counts, means, -np.inf).argmax()], float)}

    def architecture(self):
        """Return what the checkpoint's card says."""
        return {"thresholds": len(THRESHOLDS)}

    def acting(self):
        """Return the tuner's parameters in the next episode."""
        return {"tried": int(self.counts.argmin())}

    def learn(self, trace):
        """Learn from an episode; return figures of the curve."""
        reward, choice = trace["reward"].mean(), int(trace["choice"][0])
        self.sums[choice] += reward
        self.counts[choice] += 1
        return {"reward": reward, "loss": 0.0, "explore": 1.0}

    def state(self):
        """Return all that is needed to go on."""
        return {"sums": self.sums, "counts": self.counts}

    def load(self, state):
        """Go on from a state."""
        self.sums, self.counts = state["sums"].copy(), state["counts"].copy()
