"""What DRLet and its multi-agent variant share: reward, networks, exploration, what is kept.

Diao et al., equations 3 to 5 and algorithm 1; Lillicrap et al., "Continuous control with deep
reinforcement learning" (2015). An agent has one action or several, each from -1 to 1. Equation 3 as
printed is log|variance|: it grows with the variance, while the text says "the smaller the
difference in link utilisation, the larger the reward". So it is negated here (decision 69). Actors
decide with NumPy, learners (`tuners.training.ddpg`) differentiate with torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestration.core.records import Action, Floats, Ints, Observation, Setup
from tuners.flowlet.settings import (
    FlowletTuner,
    Uplinks,
    action_of,
    best_static_ns,
    changed_timeouts,
    host_rate,
    timeout_of,
)
from tuners.learning.checkpoint import Checkpoint
from tuners.learning.learner import network_parameters
from tuners.learning.networks import (
    Arrays,
    concatenate,
    exp,
    init_mlp,
    log,
    mlp,
    prepared_parameters,
)
from tuners.learning.replay_buffer import Decisions

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


def squash(x: Any) -> Any:
    """Return tanh, for arrays the same bits everywhere, for tensors torch's."""
    if not isinstance(x, np.ndarray):
        return x.tanh()
    return 1.0 - 2.0 / (exp(2.0 * x) + 1.0)


def policy(parameters: Mapping[str, Any], x: Any) -> Any:
    """Return the actor's actions (…, n, actions) for states (…, n, features)."""
    return squash(mlp(parameters, "actor", x))


def value(parameters: Mapping[str, Any], x: Any, action: Any) -> Any:
    """Return the critic's values (…, n) of actions in states."""
    return mlp(parameters, "critic", concatenate((x, action)))[..., 0]


def initial_parameters(seed: int, features: int, actions: int, hidden: tuple[int, ...]) -> Arrays:
    """Return the parameters of an untrained actor and critic."""
    rng = np.random.default_rng([seed, 0])
    actor = init_mlp(rng, "actor", [features, *hidden, actions])
    return actor | init_mlp(rng, "critic", [features + actions, *hidden, 1])


def load_aware_exploration(
    rng: np.random.Generator, wanted: NDArray[Any], base: NDArray[Any], step: int, noise: float
) -> NDArray[np.float64]:
    """Return the actions to try at step `step` (1, 2, …) of an episode (algorithm 1, line 8).

    `wanted` are the actor's. With probability 1 / (10 step) they give way to `base`, the best
    static timeout at the load just seen. Noise is normal, of its own for each action; the paper
    says "random process".
    """
    chosen = base if rng.random() < 1.0 / (10.0 * step) else wanted
    tried: NDArray[np.float64] = np.clip(
        chosen + noise * rng.standard_normal(np.shape(wanted)), -1.0, 1.0
    )
    return tried


# An idle fabric has no variance, and a silent one no ratio; neither logarithm may be infinite.
MIN_VARIANCE = 1e-6
MIN_BYTES = 1_500.0
MAX_RATIO = 10.0


def balance_reward(variance: ArrayLike) -> Floats:
    """Return -log of the variance of links' utilisation (equation 3, negated), any shape."""
    return -log(np.maximum(np.asarray(variance, dtype=np.float64), MIN_VARIANCE))


def reordering_reward(traffic_bytes: ArrayLike, before_bytes: ArrayLike) -> Floats:
    """Return the log of this period's traffic by that of the period before (equation 4).

    The ratio counts from 1/10 to 10: beyond, flows have begun or ended.
    """
    now = np.maximum(np.asarray(traffic_bytes, dtype=np.float64), MIN_BYTES)
    before = np.maximum(np.asarray(before_bytes, dtype=np.float64), MIN_BYTES)
    return log(np.clip(now / before, 1.0 / MAX_RATIO, MAX_RATIO))


def reward(
    variance: ArrayLike, traffic: ArrayLike, before: ArrayLike, alpha: float, beta: float
) -> Any:
    """Return alpha * r_LB + beta * r_reordering (equation 5), any one shape."""
    return alpha * balance_reward(variance) + beta * reordering_reward(traffic, before)


class LearnedTimeouts(FlowletTuner):
    """Acts by the actor of a checkpoint, at the switches that have several paths upwards.

    A subclass is a dataclass with these fields. `alpha` and `beta` are the weights of equation 5,
    `explore` the deviation of the noise, in actions from -1 to 1. With `collect`, decisions are
    kept for a learner, and the best static timeouts take part in exploration.
    """

    checkpoint: str
    explore: float
    alpha: float
    beta: float
    collect: bool
    _checkpoint: Checkpoint
    # Of the period that was read last: the variance of links' utilisation, and the traffic in it
    # and in the one before.
    _variance: Any
    _sent: Any
    _before: Any

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        if not 0 <= self.explore <= 1:
            yield f"explore {self.explore} is not from 0 to 1: it is the deviation of the noise"
        if self.alpha < 0 or self.beta < 0:
            yield f"weights {self.alpha} and {self.beta}: use 0 or more"

    def check_testbed(self, testbed: Testbed | None) -> None:
        """Refuse a testbed without a choice of paths."""
        if testbed is not None and not len(Uplinks(testbed).switches):
            raise ValueError(
                f"testbed {testbed.name!r} has one path between any two hosts: use one with "
                "several spines, like drlet-k4"
            )

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Start from the best static timeout of the lowest load."""
        self._rng = np.random.default_rng([seed, 1])
        self._links = Uplinks(testbed)
        self._net = prepared_parameters(network_parameters("actor", self._checkpoint.arrays))
        self._rate_bps = host_rate(testbed)
        self._host_bps = self._rate_bps * len(testbed.hosts)
        self._kept = Decisions(x=np.float32, action=np.float32, reward=np.float32)
        self._step = 0
        self._last_ns = 0
        self.begin(testbed)
        start_ns = np.full(len(testbed.switches), int(best_static_ns(0.0, self._rate_bps)))
        self._now_ns: Ints = start_ns[self._links.switches]
        return self.setup(testbed, start_ns)

    @abstractmethod
    def begin(self, testbed: Testbed) -> None:
        """Forget the trial before."""

    @abstractmethod
    def read(self, observation: Observation, span_s: float) -> tuple[Floats, Floats]:
        """Return states (agents, features) and the load at each agent.

        They are of the period that ends now, which took `span_s`.
        """

    def earned(self) -> Floats:
        """Return the rewards (agents,) of the period that was read last."""
        made: Floats = reward(self._variance, self._sent, self._before, self.alpha, self.beta)
        return made

    def act(self, observation: Observation) -> Action:
        """Choose the timeouts of all switches that have several paths upwards."""
        span_s = max(observation.t_ns - self._last_ns, 1) / 1e9
        self._last_ns = observation.t_ns
        x, load = self.read(observation, span_s)
        action: NDArray[Any] = policy(self._net, x)
        self._step += 1
        if self.collect or self.explore > 0:
            best = action_of(best_static_ns(load, self._rate_bps))[:, None]
            base = np.broadcast_to(best, action.shape) if self.collect else action
            action = load_aware_exploration(self._rng, action, base, self._step, self.explore)
        if self.collect:
            self._kept.add(x=x, action=action, reward=self.earned())
        before_ns, self._now_ns = self._now_ns, timeout_of(action.reshape(-1))
        return changed_timeouts(self._links.switches, before_ns, self._now_ns)

    def facts(self) -> Mapping[str, Any]:
        """Return the name of the checkpoint."""
        return {"checkpoint": self._checkpoint.path.name}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return states (decisions, agents, features), actions (…, actions), rewards (…)."""
        return self._kept.trace() if self.collect else {}
