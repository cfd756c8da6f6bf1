"""What DRLet and its multi-agent variant share: reward, networks, exploration, recorded decisions.

Diao et al., equations 3 to 5 and algorithm 1; Lillicrap et al., "Continuous control with deep
reinforcement learning" (2015). An agent has one action or several, each from -1 to 1: the actor
network chooses it, the critic network values it. Equation 3 as printed is log|variance|, which
grows with the variance. But the text says "the smaller the difference in link utilisation, the
larger the reward". So the equation is negated here (decision 69). Tuners compute with NumPy,
learners (`tuners.training.ddpg`) with torch.
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
    """Return tanh: of arrays the same bits on every machine, of tensors torch's own."""
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
    rng: np.random.Generator,
    chosen: NDArray[Any],
    load_based: NDArray[Any],
    step: int,
    noise: float,
) -> NDArray[np.float64]:
    """Return the actions to try at step `step` (1, 2, …) of an episode (algorithm 1, line 8).

    `chosen` are the actor's actions. With probability 1 / (10 step), `load_based` takes their
    place: the best static timeout at the load just seen. To each action normal noise with the
    deviation `noise` is added; the paper says "random process".
    """
    action = load_based if rng.random() < 1.0 / (10.0 * step) else chosen
    tried: NDArray[np.float64] = np.clip(
        action + noise * rng.standard_normal(np.shape(chosen)), -1.0, 1.0
    )
    return tried


# Both rewards are logarithms, which must stay finite when the fabric is idle.
MIN_VARIANCE = 1e-6
MIN_BYTES = 1_500.0
MAX_RATIO = 10.0


def balance_reward(variance: ArrayLike) -> Floats:
    """Return -log of the variance of links' utilisation (equation 3, negated). Any shape."""
    return -log(np.maximum(np.asarray(variance, dtype=np.float64), MIN_VARIANCE))


def reordering_reward(traffic_bytes: ArrayLike, before_bytes: ArrayLike) -> Floats:
    """Return the log of this period's traffic over that of the period before (equation 4).

    The ratio is clipped to 1/10 to 10: beyond, flows have begun or ended.
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
    """Sets timeouts by a checkpoint's actor, at the switches that have several paths upwards.

    A subclass is a dataclass with the fields below. `alpha` and `beta` are the weights of equation
    5. `explore` is the deviation of the noise that is added to actions, which lie in -1 to 1. With
    `collect`, decisions are kept for a learner, and exploration also tries the best static
    timeouts.
    """

    checkpoint: str
    explore: float
    alpha: float
    beta: float
    collect: bool
    _checkpoint: Checkpoint
    # What `read` leaves of the last period: the variance of the links' utilisation, and the bytes
    # sent in it and in the period before.
    _variance: Any
    _sent_bytes: Any
    _before_bytes: Any

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
        """Return the initial setup: the best static timeout of the lowest load at every switch."""
        self._rng = np.random.default_rng([seed, 1])
        self._links = Uplinks(testbed)
        self._net = prepared_parameters(network_parameters("actor", self._checkpoint.arrays))
        self._rate_bps = host_rate(testbed)
        self._host_bps = self._rate_bps * len(testbed.hosts)
        self._decisions = Decisions(x=np.float32, action=np.float32, reward=np.float32)
        self._step = 0
        self._last_ns = 0
        self.start_trial(testbed)
        start_ns = np.full(len(testbed.switches), int(best_static_ns(0.0, self._rate_bps)))
        self._timeouts_ns: Ints = start_ns[self._links.switches]
        return self.setup(testbed, start_ns)

    @abstractmethod
    def start_trial(self, testbed: Testbed) -> None:
        """Forget the trial before, and prepare what `read` needs."""

    @abstractmethod
    def read(self, observation: Observation, span_s: float) -> tuple[Floats, Floats]:
        """Return the states (agents, features) and the load (agents,) of the period that ends now.

        The period took `span_s` seconds.
        """

    def rewards(self) -> Floats:
        """Return the rewards (agents,) of the period that was read last."""
        rewards: Floats = reward(
            self._variance, self._sent_bytes, self._before_bytes, self.alpha, self.beta
        )
        return rewards

    def act(self, observation: Observation) -> Action:
        """Choose the timeouts of switches with several paths upwards; return the changes."""
        span_s = max(observation.t_ns - self._last_ns, 1) / 1e9
        self._last_ns = observation.t_ns
        x, load = self.read(observation, span_s)
        action: NDArray[Any] = policy(self._net, x)
        self._step += 1
        if self.collect or self.explore > 0:
            best = action_of(best_static_ns(load, self._rate_bps))[:, None]
            load_based = np.broadcast_to(best, action.shape) if self.collect else action
            action = load_aware_exploration(self._rng, action, load_based, self._step, self.explore)
        if self.collect:
            self._decisions.add(x=x, action=action, reward=self.rewards())
        before_ns, self._timeouts_ns = self._timeouts_ns, timeout_of(action.reshape(-1))
        return changed_timeouts(self._links.switches, before_ns, self._timeouts_ns)

    def facts(self) -> Mapping[str, Any]:
        """Return the name of the checkpoint."""
        return {"checkpoint": self._checkpoint.path.name}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return states (decisions, agents, features), actions (…, actions), rewards (…)."""
        return self._decisions.trace() if self.collect else {}
