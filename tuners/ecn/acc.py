"""ACC: a double deep Q-network per switch that sets the ECN thresholds of the switch's queues.

Yan et al., "ACC: Automatic ECN Tuning for High-Speed Datacenter Networks", SIGCOMM 2021: sections
3 and 4, equations 3 to 6, algorithm 1. A state is the last three readings of a queue; an action is
a template of (kmin, kmax, pmax). The part of section 3 that gives the actions, the discount and the
network's width was not available. Actions are those of PET, which takes them from ACC (PET, section
4.2.2); `AccSettings` has the other values chosen here.

Where it departs from the paper, and why:

- The value of an action is the sum of one for its kmin, one for its kmax and one for its pmax:
  `Parts.sums`. Of one output for each of 900 actions a training would try each some 30 times.
- An explored action is held for some decisions, and a transition lasts as long as its action is
  held: `Explorer` and `held_returns` in `tuners.learning.q_learning`. What a threshold does to a
  queue of 25 Gbit/s is not seen in the next 100 us; it is after half a millisecond
  (docs/tuners.md).
- The port's rate is among the inputs: `tuners.ecn.features`.
- D(L) is in steps from 1 KB, not from 20 KB as the templates are: `tuners.ecn.rewards`.
- A queue is idle (section 4.2) below 20 KB, the lowest kmin of all, and not below its own, which
  a high kmin would make idle for ever: `_LEAST_BYTES`. Idle queues are not learned from. A
  network that is to act without the idle rule decides below 20 KB too, and must learn there:
  `--set idle_rule=false` learns from every queue but those of idle ports (`at_work`).
- Memories are exchanged every 250 updates (25 ms), not every few seconds, for a training lasts a
  few seconds of the fabric's time.
- Exploration prefers actions of high value, offline too (section 4.3 says so of online training).
- Online, the batch's mean error is taken from each error: what is earned here differs from what was
  earned in training by more than actions differ, and a network that learned the level first would
  lower the actions that it takes, and no others. (Differential Q-learning moves the mean reward by
  the same error: Wan, Naik and Sutton, "Learning and planning in average-reward Markov decision
  processes", ICML 2021.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.records import Floats, Ints, Observation, Setup
from tuners.ecn.features import ACC_FEATURES, RATE, size_feature, width
from tuners.ecn.learned import HISTORY, TemplateActions, TemplateTuner, switch_of
from tuners.ecn.rewards import queue_utilisation_reward
from tuners.ecn.templates import acc_templates
from tuners.learning.checkpoint import load, load_for
from tuners.learning.experience import Replay
from tuners.learning.learner import TrainedNet
from tuners.learning.networks import Arrays, init_mlp, mlp, mlp_by_group
from tuners.learning.q_learning import QLearner, QSettings, at_work, held_returns

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

FEATURES = (*ACC_FEATURES, RATE)
PARTS = acc_templates().parts()
# A queue not above the lowest kmin that can be set is idle (section 4.2), and gets no decision. The
# paper says "Kmin" and not which. By that in force, a queue whose kmin is above all that its
# senders' windows hold would be idle for ever, whatever it then costs: with random settings of 20
# KB to 10 MB most queues were. There the rule saved a tenth of the CPU's work, so it cannot have
# been so. Its other condition, a reward that has not changed for three slots, is cancelled above
# kmin at once, and plays no part.
_LEAST_BYTES = int(acc_templates().kmin_bytes.min())
_LEAST_KMIN = size_feature(np.array(float(_LEAST_BYTES)))
START_BYTES = (5_000, 200_000, 0.01)  # SECN1, until the first decision


@dataclass(frozen=True)
class AccSettings(QSettings):
    """Settings of training. Times are in decisions."""

    # Wider, or without decay, it fits the noise (docs/decisions/0095-what-is-explored-lasts.md).
    hidden: tuple[int, ...] = (32, 32)
    weight_decay: float = 1.0
    centred: bool = True  # values are of what is earned beyond the mean
    horizon: int = 24  # decisions that an action is followed while it is held
    batch: int = 48  # per switch
    least_batch: int = 256  # over all switches that share a network
    target_every: int = 200
    local_capacity: int = 60_000  # per switch: about fifty episodes of 15 ms
    global_capacity: int = 200_000
    exchange_every: int = 250
    exchange: int = 200  # transitions each way, per switch
    relative: bool = False  # learns differences of values, not their level
    idle_rule: bool = True  # as the tuner's; without it, queues below 20 KB are learned from too


def architecture(settings: AccSettings = AccSettings()) -> dict[str, Any]:
    """Return the architecture that a checkpoint of ACC must have."""
    return {
        "network": "mlp",
        "features": list(FEATURES),
        "history": HISTORY,
        "hidden": list(settings.hidden),
        "actions": len(acc_templates()),
        "outputs": list(PARTS.sizes),
    }


@dataclass(eq=False)
class Acc(TemplateTuner):
    """Acts by a trained network; with `online`, continues to learn from its observations.

    `explore` is the probability of a random template. `idle_rule` is that of section 4.2: a queue
    not above the lowest kmin is idle, and gets no inference. `omega_1` and `omega_2`
    weigh utilisation and queue in the reward, which matters for learning only: 0.3 and 0.7 for
    WebSearch, 0.7 and 0.3 for DataMining (PET, section 5.2: "ACC's recommended values"). With
    `collect`, all decisions are kept for a learner, and no queue is idle.
    """

    ACTIONS = TemplateActions(acc_templates(), START_BYTES, _LEAST_BYTES)
    TEMPLATES = ACTIONS.templates
    WEIGHTS = ("omega_1", "omega_2")

    checkpoint: str = "acc-dctcp-1"
    explore: float = 0.0
    hold: float = 1.0
    online: bool = False
    idle_rule: bool = True
    omega_1: float = 0.3
    omega_2: float = 0.7
    collect: bool = False

    def __post_init__(self) -> None:
        card = load(self.checkpoint).card
        widths = card.get("architecture", {}).get("hidden", AccSettings.hidden)
        settings = AccSettings(hidden=tuple(int(width) for width in widths))
        self._settings, self._features = settings, FEATURES
        shapes = {name: (-1, *values.shape[1:]) for name, values in _fresh(0, settings).items()}
        self._checkpoint = load_for(self.checkpoint, "acc", architecture(settings), shapes)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Start from SECN1 and the checkpoint's network."""
        self._switch = switch_of(testbed)
        self._inferences = self._skipped = 0
        return super().reset(testbed, seed)

    def learner(self, seed: int, testbed: Testbed, parameters: Arrays) -> AccLearner:
        """Return the learner that goes on, with little exploration, which soon ends."""
        settings = dataclasses.replace(
            self._settings,
            relative=self._settings.centred,
            explore_start=max(self.explore, 0.1),
            explore_end=0.02,
            explore_decay=50.0,
        )
        return AccLearner(seed, testbed, settings, parameters)

    def earned(self, after: Observation, utilisation: Floats) -> Floats:
        """Return omega_1 * utilisation + omega_2 * D(L) of each queue (queues,)."""
        length = after["qlen_bytes"].astype(np.float64)
        return queue_utilisation_reward(length, utilisation, self.omega_2, self.omega_1)

    def deciding(self, observation: Observation) -> Ints:
        """Return the busy queues, or without the idle rule all."""
        queues = self.ACTIONS.busy(observation) if self.idle_rule else self._all
        self._inferences += len(queues)
        self._skipped += len(self._all) - len(queues)
        return queues

    def values(self, x: NDArray[Any], queues: Ints) -> NDArray[Any]:
        """Return the values of all settings, by the network of each queue's switch."""
        outputs = mlp_by_group(self._net, "q", x[queues], self._switch[queues])
        values: NDArray[Any] = PARTS.sums(outputs)
        return values

    def facts(self) -> Mapping[str, Any]:
        """Return how many inferences were made, and how many the idle rule saved."""
        saved = {"inferences": self._inferences, "inferences_skipped": self._skipped}
        return {**super().facts(), **saved}


def _fresh(seed: int, settings: AccSettings = AccSettings()) -> Arrays:
    widths = [width(FEATURES, HISTORY), *settings.hidden, sum(PARTS.sizes)]
    return init_mlp(np.random.default_rng([seed, 0]), "q", widths, 1)


def busy(x: NDArray[Any]) -> NDArray[Any]:
    """Return which queues exceed the lowest kmin that can be set, given inputs (…, inputs).

    Below it no action would have changed anything.
    """
    exceeds: NDArray[Any] = x[..., FEATURES.index("queue")] > _LEAST_KMIN
    return exceeds


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
        self._switch = switch_of(testbed)
        start = dict(parameters) if parameters is not None else _fresh(seed, settings)
        self._copies = len(start["q.0.weight"])
        self._local = [Replay(settings.local_capacity) for _ in testbed.switches]
        self._global = Replay(settings.global_capacity)
        memories = {f"memory{n}": one for n, one in enumerate((*self._local, self._global))}
        net = TrainedNet(start, settings.learning_rate, settings.weight_decay)
        super().__init__(seed, settings, net, memories)
        self._settings: AccSettings = settings

    def architecture(self) -> dict[str, Any]:
        """Return the architecture of this learner's checkpoints."""
        return architecture(self._settings)

    def add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Store transitions, arrays of shape (steps, queues, …), in the memory of each switch.

        A queue that was idle when its action was chosen is left out: see this module.
        """
        self._decisions += len(rows["x"])
        earned = rows["reward"]
        rows = held_returns(rows, self._settings.discount, self._settings.horizon)
        if self._settings.idle_rule:
            learned = busy(rows["x"])
            idle = ~busy(rows["next_x"])
        else:  # every queue gets a decision, so none keeps its setting because it is idle
            learned = at_work(rows)
            idle = np.zeros_like(learned)
        rows = {**rows, "idle": idle}
        self._note_rewards(earned[learned])
        for switch, memory in enumerate(self._local):
            own = learned & (self._switch == switch)
            memory.add(
                {
                    name: values[own].astype(np.int64 if name == "action" else np.float32)
                    for name, values in rows.items()
                }
            )

    def values(self, parameters: Mapping[str, Any], x: Any) -> Any:
        """Return the values of all settings (…, actions) in states; tensors."""
        return PARTS.sums(mlp(parameters, "q", x))

    def update(self) -> float:
        """Make one step of algorithm 1 (lines 6 to 9) and return the loss.

        0, and no step, as long as no queue has been busy.
        """
        import torch

        settings = self._settings
        rng = np.random.default_rng([self._seed, 2, self._updates])
        held = [memory for memory in self._local if len(memory)]
        if not held:
            return 0.0
        if self._copies == 1:
            size = max(settings.batch, settings.least_batch // len(held))
            batches, weight = [memory.sample(rng, size) for memory in held], np.ones(1)
        else:  # a switch whose queues were all idle so far learns nothing
            weight = np.array([float(len(memory) > 0) for memory in self._local])
            batches = [
                (memory if len(memory) else held[0]).sample(rng, settings.batch)
                for memory in self._local
            ]
        axis = np.concatenate if self._copies == 1 else np.stack
        rows: dict[str, Any] = {
            name: torch.from_numpy(axis([batch[name] for batch in batches])) for name in batches[0]
        }
        if self._copies == 1:
            rows = {name: values[None] for name, values in rows.items()}
        error = self._errors(rows, rows["weight"])
        if settings.relative:
            error = error - error.detach().mean(-1, keepdim=True)
        mine = torch.from_numpy(weight.astype(np.float32))[:, None]
        loss = (mine * error**2).mean() / mine.mean()  # equation 4
        value = self._step(loss, settings.target_every)
        if self._updates % settings.exchange_every == 0:
            self._exchange(rng)
        return value

    def _centred(self, reward: Any, weight: Any, discount: float) -> Any:
        if not self._settings.centred:
            return reward
        return super()._centred(reward, weight, discount)

    def _exchange(self, rng: np.random.Generator) -> None:
        """Let each switch give a sample to the global memory and take one from it (section 3).

        The paper says that tuples are "periodically sampled", and not by what: evenly here.
        Preferring large rewards would overestimate every action, and noisy ones most.
        """
        if len(self._local) == 1:
            return  # it would take back its own samples
        count = self._settings.exchange
        for memory in self._local:
            if len(memory):
                self._global.add(memory.sample(rng, count))
        for memory in self._local:
            memory.add(self._global.sample(rng, count))
