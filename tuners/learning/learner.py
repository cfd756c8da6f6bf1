"""The protocol of learners, what closloop's learners share, and networks that torch trains.

A learner improves a network from what a tuner recorded while it acted by that network.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from orchestration.core.trial import Scalar
from tuners.learning.networks import Arrays
from tuners.learning.replay_buffer import ReplayBuffer

LEARNERS = "closloop.learners"
State = dict[str, NDArray[Any]]
_AVERAGING_POWER = 3  # step i of a training has a weight that grows like i^3: `TrainedNet.mean`
# Adam divides a step by the root of the mean squared gradient, which is tiny for an action that is
# seldom tried. With Adam's usual 1e-8, one lucky sample would move the action's value thirty times
# as far as the learning rate says, and make it look best. 1.5e-4 is from Rainbow (Hessel et al.,
# 2018).
_EPSILON = 1.5e-4


class NotANumberError(ArithmeticError):
    """A loss, an observation or a parameter is NaN or infinite, so training must stop."""


class Learner(Protocol):
    """Learns from the traces of tuners. The result depends only on the seed and the traces.

    `tuner` is the tuner that acts with the learned networks: a name, or `file.py:Class`, with the
    path relative to the learner's file. `settings` is a dataclass whose fields all have defaults.
    A learner is created with `(seed, testbed, settings, parameters)`, where `parameters` are the
    network's to begin with, or None. With `per_switch = True`, it can train one network per switch.
    With a class method `online(tuner, seed, testbed, parameters)`, which returns a learner, the
    tuner can continue to learn while it acts.
    """

    tuner: ClassVar[str]
    settings: ClassVar[type[Any]]

    def parameters(self) -> Arrays:
        """Return the parameters that a checkpoint holds."""

    def architecture(self) -> dict[str, Any]:
        """Return what the tuner that loads a checkpoint compares with its own architecture."""

    def acting(self) -> dict[str, Scalar]:
        """Return the tuner's parameters for the next episode, such as how much to explore."""

    def learn(self, trace: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Learn from one episode; return figures for the learning curve. Raises NotANumberError."""

    def state(self) -> State:
        """Return everything that is needed to continue learning."""

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what `state` returned."""


def request_reproducible_kernels() -> None:
    """Make torch use AVX2, and MKL the code that runs on every vendor's CPU.

    Otherwise both choose their kernels by the CPU, and results would differ in the last bits. They
    read these environment variables only once: torch at the first tensor, MKL at the first product
    of matrices. So call this before both.
    """
    if "avx2" in Path("/proc/cpuinfo").read_text():
        os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
    os.environ.setdefault("MKL_CBWR", "COMPATIBLE")


def load_torch() -> Any:
    """Import torch and return it, set up to compute the same bits on every CPU with AVX2."""
    request_reproducible_kernels()
    import torch

    torch.set_num_threads(1)  # more threads do not help small networks, and make results vary
    return torch


class TrainedNet:
    """Named parameters as torch tensors, with the Adam optimiser that changes them.

    `weight_decay` is AdamW's (Loshchilov and Hutter, 2019). It shrinks matrices, not biases: what a
    few noisy samples say about single states then counts less, and what all states share counts as
    much as before.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        learning_rate: float,
        weight_decay: float = 0.0,
    ) -> None:
        torch = self._torch = load_torch()
        self.tensors = {
            name: torch.tensor(np.asarray(values), requires_grad=True)
            for name, values in sorted(arrays.items())
        }
        matrices = [tensor for name, tensor in self.tensors.items() if name.endswith(".weight")]
        others = [tensor for name, tensor in self.tensors.items() if not name.endswith(".weight")]
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=learning_rate,
            eps=_EPSILON,
            fused=True,
        )
        self._mean = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
        self._steps = 0

    def step(self, loss: Any, max_norm: float | None = None) -> float:
        """Move the parameters down the gradient of `loss`, and return it as a number.

        Raises NotANumberError, and leaves the parameters unchanged, if the loss is not finite.
        """
        value = float(loss.detach())
        if not np.isfinite(value):
            raise NotANumberError(f"the loss is {value}")
        self._adam.zero_grad()
        loss.backward()
        if max_norm is not None:
            self._torch.nn.utils.clip_grad_norm_(list(self.tensors.values()), max_norm)
        self._adam.step()
        self._steps += 1
        share = (_AVERAGING_POWER + 1) / (_AVERAGING_POWER + self._steps)
        with self._torch.no_grad():
            for name, tensor in self.tensors.items():
                self._mean[name].lerp_(tensor, share)
        return value

    def arrays(self) -> Arrays:
        """Return copies of the parameters."""
        return {name: tensor.detach().numpy().copy() for name, tensor in self.tensors.items()}

    def mean(self) -> Arrays:
        """Return the mean of the parameters over all steps so far. Late steps weigh most.

        Single steps of stochastic descent scatter about a good network; their mean is closer to it.
        The weight of step i of n grows like i^3, so the last quarter has two thirds of the weight
        (polynomial-decay averaging: Shamir and Zhang, 2013).
        """
        return {name: tensor.numpy().copy() for name, tensor in self._mean.items()}

    def state(self) -> State:
        """Return parameters, their mean, and the optimiser's moments."""
        result: State = {f"net.{name}": values for name, values in self.arrays().items()}
        result |= {f"mean.{name}": values for name, values in self.mean().items()}
        result["steps"] = np.array([self._steps])
        for name, tensor in self.tensors.items():
            for key, value in self._adam.state.get(tensor, {}).items():
                result[f"adam.{key}.{name}"] = np.atleast_1d(value.numpy().copy())
        return result

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `state`."""
        torch = self._torch
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(torch.tensor(state[f"net.{name}"]))
                self._mean[name] = torch.tensor(state[f"mean.{name}"])
        self._steps = int(state["steps"][0])
        for name, tensor in self.tensors.items():
            moments = {
                key: torch.tensor(state[f"adam.{key}.{name}"])
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"adam.{key}.{name}" in state
            }
            if moments:
                moments["step"] = moments["step"][0]
                self._adam.state[tensor] = moments


class NetworkLearner(ABC):
    """What learners share: networks, a target network, replay memories and counters.

    All of them are part of `state`, so that a training can be resumed. `nets` and `memories` are
    given by their names there.
    """

    def __init__(
        self,
        seed: int,
        nets: Mapping[str, TrainedNet],
        memories: Mapping[str, ReplayBuffer] | None = None,
    ) -> None:
        self._seed, self._nets, self._memories = seed, nets, memories or {}
        self._target: dict[str, Any] = {}
        self._updates = self._decisions = 0

    @abstractmethod
    def architecture(self) -> dict[str, Any]:
        """Return the architecture of this learner's checkpoints."""

    def parameters(self) -> Arrays:
        """Return the networks' parameters, averaged over their updates (`TrainedNet.mean`)."""
        return {name: mean for net in self._nets.values() for name, mean in net.mean().items()}

    def _tensors(self) -> dict[str, Any]:
        nets = self._nets.values()
        return {name: tensor for net in nets for name, tensor in net.tensors.items()}

    def _copy_of_networks(self) -> dict[str, Any]:
        """Return a copy of the networks as they are now, for a target network."""
        return {name: tensor.detach().clone() for name, tensor in self._tensors().items()}

    def _parts(self) -> dict[str, TrainedNet | ReplayBuffer]:
        return {**self._nets, **self._memories}

    def _counters(self) -> State:
        return {"counters": np.array([self._updates, self._decisions])}

    def _load_counters(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._updates, self._decisions = (int(number) for number in state["counters"])

    def state(self) -> State:
        """Return networks, optimisers, target, memories and counters."""
        target = {name: tensor.numpy().copy() for name, tensor in self._target.items()}
        result = self._counters() | with_prefix("target", target)
        for name, part in self._parts().items():
            result |= with_prefix(name, part.state())
        return result

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `state`."""
        torch = load_torch()
        self._target = {
            name: torch.tensor(values) for name, values in without_prefix("target", state).items()
        }
        for name, part in self._parts().items():
            part.load(without_prefix(name, state))
        self._load_counters(state)


class ReplayLearner(NetworkLearner):
    """A learner that draws batches from replay memories of all episodes so far."""

    _FIRST_REWARD = 0  # the first decision whose reward counts in the learning curve
    _settings: Any

    @abstractmethod
    def acting(self) -> dict[str, Scalar]:
        """Return the tuner's parameters for the next episode, `explore` among them."""

    @abstractmethod
    def add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Store transitions (see `transitions`)."""

    @abstractmethod
    def update(self) -> float:
        """Draw a batch, move the networks once, and return the loss."""

    def learn(self, trace: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Store an episode, and update the networks for each of its decisions."""
        steps = len(trace["x"]) - 1
        if steps < 1:
            return {}
        explored = float(self.acting()["explore"])
        self.add(transitions(trace))
        count = max(1, round(steps * self._settings.updates_per_decision))
        losses = [self.update() for _ in range(count)]
        return {
            "loss": float(np.mean(losses)),
            "reward": float(trace["reward"][self._FIRST_REWARD :].mean()),
            "explore": explored,
        }


def transitions(trace: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return a trace as (s, a, r, s'), arrays of (decisions - 1, agents, …)."""
    x = trace["x"].astype(np.float32)
    reward = trace["reward"][1:].astype(np.float32)
    return {"x": x[:-1], "action": trace["action"][:-1], "reward": reward, "next_x": x[1:]}


def with_prefix(prefix: str, state: Mapping[str, NDArray[Any]]) -> State:
    """Return `state` with `prefix.` before every name."""
    return {f"{prefix}.{name}": values for name, values in state.items()}


def without_prefix(prefix: str, state: Mapping[str, NDArray[Any]]) -> State:
    """Return the entries whose names begin with `prefix.`, by the rest of their names."""
    start = prefix + "."
    return {name[len(start) :]: value for name, value in state.items() if name.startswith(start)}


def network_parameters(name: str, parameters: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the parameters of the network `name`, by their full names."""
    return {key: values for key, values in parameters.items() if key.startswith(f"{name}.")}
