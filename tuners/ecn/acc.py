"""ACC: a double deep Q-network per switch that sets the ECN thresholds of the switch's queues.

Yan et al., "ACC: Automatic ECN Tuning for High-Speed Datacenter Networks", SIGCOMM 2021: sections
3 and 4, equations 3 to 6, algorithm 1. A state is the last three readings of a queue; an action is
a template of (kmin, kmax, pmax). The parts of section 3 that give the network's width, the discount
and the templates' probabilities were not available; `AccSettings` has the values chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestration.model.records import Action, Observation, Setup
from tuners.checkpoint import load_for
from tuners.ecn.features import ACC_FEATURES, FeatureWindow
from tuners.ecn.idle import IdleRule
from tuners.ecn.learned import LearnedTuner
from tuners.ecn.rewards import queue_utilisation_reward
from tuners.ecn.switches import own_parameters, switch_of
from tuners.ecn.templates import acc_templates
from tuners.experience import Replay
from tuners.learning import State, TrainedNet, named, part
from tuners.nets import Arrays, init_mlp, mlp, mlp_by_group, ready
from tuners.q_learning import Kept, QLearner, at_work, ddqn_target, explore

if TYPE_CHECKING:
    from inventory.topology import Testbed

HISTORY = 3  # section 4.1: QS(t-2), QS(t-1), QS(t)
START_BYTES = (5_000, 200_000, 0.01)  # SECN1, until the first decision


@dataclass(frozen=True)
class AccSettings:
    """Settings of training. Times are in decisions."""

    hidden: tuple[int, ...] = (64, 64)
    # The effect of a template ends after a few round trips, long before the next decision.
    discount: float = 0.2
    learning_rate: float = 1e-3
    batch: int = 48  # per switch
    least_batch: int = 256  # over all switches that share a network
    target_every: int = 200
    local_capacity: int = 60_000  # per switch: about fifty episodes of 15 ms
    global_capacity: int = 200_000
    exchange_every: int = 250
    exchange: int = 200  # transitions each way, per switch
    explore_start: float = 1.0
    explore_end: float = 0.2
    explore_decay: float = 8_000.0  # time constant
    updates_per_decision: float = 1.0


def architecture(settings: AccSettings = AccSettings()) -> dict[str, Any]:
    """Return the architecture that a checkpoint of ACC must have."""
    return {
        "network": "mlp",
        "features": list(ACC_FEATURES),
        "history": HISTORY,
        "hidden": list(settings.hidden),
        "actions": len(acc_templates()),
    }


def _widths(settings: AccSettings) -> list[int]:
    return [HISTORY * len(ACC_FEATURES), *settings.hidden, len(acc_templates())]


@dataclass(eq=False)
class Acc(LearnedTuner):
    """Acts by a trained network; with `online`, continues to learn from its observations.

    `explore` is the probability of a random template. `idle_rule` is that of section 4.2: a queue
    below its kmin is idle, and gets no inference until it exceeds kmin. With `collect`, all
    decisions are kept for a learner, and no queue is idle.
    """

    checkpoint: str = "acc"
    explore: float = 0.0
    online: bool = False
    idle_rule: bool = True
    collect: bool = False

    def __post_init__(self) -> None:
        shapes = {name: (-1, *values.shape[1:]) for name, values in _fresh(0).items()}
        self._checkpoint = load_for(self.checkpoint, "acc", architecture(), shapes)
        self._templates = acc_templates()

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Start from SECN1 and the checkpoint's network."""
        queues = testbed.queues
        self._rng = np.random.default_rng([seed, 1])
        self._window = FeatureWindow(testbed, HISTORY, ACC_FEATURES)
        self._switch = switch_of(testbed)
        self._net = ready(own_parameters(self._checkpoint, testbed))
        self._all = np.arange(len(queues), dtype=np.int64)
        self._choice = np.full(len(queues), self._templates.nearest(*START_BYTES))
        self._idle = IdleRule(len(queues))
        self._kept = Kept()
        self._inferences = self._skipped = 0
        self._learner: AccLearner | None = None
        if self.online:
            own = own_parameters(self._checkpoint, testbed, per_switch=True)
            # online learning starts with the exploration that offline training ended with
            settings = AccSettings(
                explore_start=max(self.explore, 0.1), explore_end=0.05, explore_decay=500.0
            )
            self._learner = AccLearner(seed, testbed, settings, own)
            self._net = ready(own)
        return Setup((self._templates.settings(self._all, self._choice),))

    def act(self, observation: Observation) -> Action:
        """Choose a template for each busy queue: its network's best, or a random one."""
        x = self._window.push(observation)
        reward = queue_utilisation_reward(self._window.queue_bytes, self._window.utilisation)
        share = self.explore
        if self._learner is not None:
            self._learn_online(self._learner, x, reward)
            share = float(self._learner.acting()["explore"])
        busy = self._all if self.collect or not self.idle_rule else self._idle.busy(observation)
        self._inferences += len(busy)
        self._skipped += len(self._all) - len(busy)
        before = self._choice.copy()
        if len(busy):
            values = mlp_by_group(self._net, "q", x[busy], self._switch[busy])
            self._choice[busy] = values.argmax(axis=1)
            explore(self._rng, self._choice, busy, share, values)
        if self.collect or self.online:
            self._kept.add(x, self._choice, reward)
        changed = np.flatnonzero(self._choice != before)
        if not len(changed):
            return ()
        return (self._templates.settings(changed, self._choice[changed]),)

    def _learn_online(
        self, learner: AccLearner, x: NDArray[np.float32], reward: NDArray[np.float64]
    ) -> None:
        last = self._kept.last()
        if last is None:
            return
        before = {"x": last[0], "action": last[1], "reward": reward, "next_x": x}
        learner.add({name: row[None] for name, row in before.items()})
        learner.update()
        self._net = ready(learner.parameters())

    def facts(self) -> Mapping[str, Any]:
        """Return how many inferences were made, and how many the idle rule saved."""
        return {
            "checkpoint": str(self._checkpoint.path.name),
            "inferences": self._inferences,
            "inferences_skipped": self._skipped,
        }

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return states (decisions, queues, features), actions and rewards (decisions, queues)."""
        return self._kept.trace() if self.collect else {}


def _fresh(seed: int, settings: AccSettings = AccSettings(), copies: int = 1) -> Arrays:
    return init_mlp(np.random.default_rng([seed, 0]), "q", _widths(settings), copies)


class AccLearner(QLearner):
    """Algorithm 1, with the exchange between local and global replay memories (section 3).

    All switches share one copy of the parameters (offline: "the same offline training model for
    network switches"), or each has its own (online). Each switch has its own memory.
    """

    def __init__(
        self,
        seed: int,
        testbed: Testbed,
        settings: AccSettings = AccSettings(),
        parameters: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._settings = settings
        self._seed = seed
        self._switch = switch_of(testbed)
        start = dict(parameters) if parameters is not None else _fresh(seed, settings)
        self._copies = len(start["q.0.weight"])
        super().__init__(settings, TrainedNet(start, settings.learning_rate), dict(start))
        self._local = [Replay(settings.local_capacity) for _ in testbed.switches]
        self._global = Replay(settings.global_capacity)

    def architecture(self) -> dict[str, Any]:
        """Return the architecture of this learner's checkpoints."""
        return architecture(self._settings)

    def add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Store transitions, arrays of shape (steps, queues, …), in the memory of each switch."""
        self._decisions += len(rows["x"])
        kinds = {"x": np.float32, "action": np.int64, "reward": np.float32, "next_x": np.float32}
        busy = at_work(rows)
        for switch, memory in enumerate(self._local):
            own = busy & (self._switch == switch)
            memory.add({name: rows[name][own].astype(kind) for name, kind in kinds.items()})

    def update(self) -> float:
        """Make one step of algorithm 1 (lines 6 to 9) and return the loss."""
        import torch

        settings = self._settings
        rng = np.random.default_rng([self._seed, 2, self._updates])
        batch = settings.batch
        if self._copies == 1:
            batch = max(batch, settings.least_batch // len(self._local))
        batches = [memory.sample(rng, batch) for memory in self._local]
        axis = np.concatenate if self._copies == 1 else np.stack
        rows: dict[str, Any] = {
            name: torch.from_numpy(axis([batch[name] for batch in batches]))
            for name in ("x", "action", "reward", "next_x")
        }
        if self._copies == 1:
            rows = {name: values[None] for name, values in rows.items()}
        online = self._net.tensors
        target = {name: torch.from_numpy(values) for name, values in self._target.items()}
        with torch.no_grad():
            y = ddqn_target(
                rows["reward"],
                mlp(online, "q", rows["next_x"]),
                mlp(target, "q", rows["next_x"]),
                settings.discount,
            )
        value = mlp(online, "q", rows["x"]).gather(-1, rows["action"][..., None]).squeeze(-1)
        loss = self._net.step(((y - value) ** 2).mean(), max_norm=10.0)  # equation 4
        self._updated(settings.target_every)
        if self._updates % settings.exchange_every == 0:
            self._exchange(rng)
        return loss

    def _exchange(self, rng: np.random.Generator) -> None:
        """Let each switch give a sample to the global memory and take one from it (section 3).

        Samples are uniform. Preferring large rewards would overestimate the value of every action,
        and that of noisy actions most.
        """
        if len(self._local) == 1:
            return  # it would take back its own samples
        count = self._settings.exchange
        for memory in self._local:
            self._global.add(memory.sample(rng, count))
        for memory in self._local:
            memory.add(self._global.sample(rng, count))

    def state(self) -> State:
        """Return networks, optimiser, memories and counters."""
        result = named("online", self._net.state()) | named("target", self._target)
        for place, memory in enumerate((*self._local, self._global)):
            result |= named(f"memory{place}", memory.state())
        return result | {"counters": np.array([self._updates, self._decisions])}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `state`."""
        self._net.load(part("online", state))
        self._target = part("target", state)
        for place, memory in enumerate((*self._local, self._global)):
            memory.load(part(f"memory{place}", state))
        self._updates, self._decisions = (int(value) for value in state["counters"])
