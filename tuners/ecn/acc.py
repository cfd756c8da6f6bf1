"""ACC: a double deep Q-network per switch that sets the ECN thresholds of the switch's queues.

Yan et al., "ACC: Automatic ECN Tuning for High-Speed Datacenter Networks", SIGCOMM 2021: sections
3 and 4, equations 3 to 6, algorithm 1. A state is the last three observations of a queue. An action
is a template: one (kmin, kmax, pmax) of a table. The part of section 3 that gives the actions, the
discount and the network's width was not available. The actions here are those of PET, which takes
them from ACC (PET, section 4.2.2). `tuners.training.acc` has the other values chosen here.

Where this implementation departs from the paper, and why:

- The value of an action is the sum of one value for its kmin, one for its kmax and one for its
  pmax: `Parts.sums`. With one output for each of the 900 actions, a training would try each of them
  only about 30 times.
- An explored action is held for some decisions, and a transition lasts as long as its action is
  held: `Explorer` and `held_returns` in `tuners.learning.q_learning`. What a threshold does to a
  queue of 25 Gbit/s does not show within the next 100 us, but after half a millisecond
  (docs/tuners.md).
- The port's rate is among the inputs: `tuners.ecn.features`.
- D(L), the reward's score of a queue, has steps from 1 KB, not from 20 KB as the templates have:
  `tuners.ecn.features`.
- A queue is idle (section 4.2) below 20 KB, the lowest kmin of all templates, and not below its own
  kmin. By its own, a queue with a high kmin would be idle for ever: `MIN_BYTES`. Idle queues are
  not learned from. A network that acts without the idle rule decides below 20 KB too, so it must
  learn there: `--set idle_rule=false` learns from all queues but empty ones of ports that send
  almost nothing (`worth_learning_from`).
- Replay memories are exchanged every 250 updates (25 ms), not every few seconds, because a training
  lasts only a few seconds of the fabric's time.
- Exploration prefers actions of high value, offline too. Section 4.3 says so of online training.
- Online, the mean error of a batch is subtracted from each error. The rewards of the present fabric
  differ from those of training by more than actions differ. A network that learned this level first
  would lower the values of the actions that it takes, and of no others. (Differential Q-learning
  moves the mean reward by the same error: Wan, Naik and Sutton, "Learning and planning in
  average-reward Markov decision processes", ICML 2021.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.records import Floats, Ints, Observation, Setup
from tuners.ecn.features import ACC_FEATURES, RATE, queue_utilisation_reward, width
from tuners.ecn.learned import HISTORY, TemplateActions, TemplateTuner, switch_of
from tuners.ecn.templates import acc_templates
from tuners.learning.checkpoint import load, load_for
from tuners.learning.networks import Arrays, init_mlp, mlp_by_group

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

FEATURES = (*ACC_FEATURES, RATE)
PARTS = acc_templates().parts()
# A queue that is not longer than the lowest kmin of all templates is idle (section 4.2), and gets
# no decision. The paper says "Kmin", but not which one. If it meant the kmin in force, a queue
# whose kmin is above all that its senders' windows hold would be idle for ever, whatever that
# costs: with random settings of 20 KB to 10 MB, most queues were. In the paper the rule saved a
# tenth of the CPU's work, so it cannot mean this. The rule's other condition, a reward that has not
# changed for three slots, has no effect: above kmin it is cancelled at once.
MIN_BYTES = int(acc_templates().kmin_bytes.min())
# Wider networks fit the noise. Trained on the same memory of 80,000 rows, a network of width 32
# with a weight decay of 1 gave 80 % of busy states a kmax of at most 160 KB; one of width 64
# without decay gave it to 51 %.
HIDDEN = (32, 32)
START_BYTES = (5_000, 200_000, 0.01)  # SECN1, until the first decision


def architecture(hidden: Sequence[int] = HIDDEN) -> dict[str, Any]:
    """Return the architecture that a checkpoint of ACC must have."""
    return {
        "network": "mlp",
        "features": list(FEATURES),
        "history": HISTORY,
        "hidden": list(hidden),
        "actions": len(acc_templates()),
        "outputs": list(PARTS.sizes),
    }


@dataclass(eq=False)
class Acc(TemplateTuner):
    """ACC: a Q-network for each queue, which continues to learn with `online`.

    `explore` is the probability of a random template, and `hold` the mean number of decisions for
    which it lasts. `idle_rule` is that of section 4.2: a queue not above the lowest kmin is idle,
    and gets no inference. `omega_1` and `omega_2` weigh utilisation and queue in the reward, which
    matters for learning only: 0.3 and 0.7 for WebSearch, 0.7 and 0.3 for DataMining (PET, section
    5.2: "ACC's recommended values"). With `collect`, all decisions are kept for a learner.
    """

    NAME = "acc"
    ACTIONS = TemplateActions(acc_templates(), START_BYTES, MIN_BYTES)
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
        hidden = [int(width) for width in card.get("architecture", {}).get("hidden", HIDDEN)]
        self._features = FEATURES
        shapes = {
            name: (-1, *values.shape[1:]) for name, values in initial_parameters(0, hidden).items()
        }
        self._checkpoint = load_for(self.checkpoint, self.NAME, architecture(hidden), shapes)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the initial setup: the template nearest to SECN1 on every queue."""
        self._switch = switch_of(testbed)
        self._inferences = self._skipped = 0
        return super().reset(testbed, seed)

    def queue_rewards(self, after: Observation, utilisation: Floats) -> Floats:
        """Return omega_1 * utilisation + omega_2 * D(L) for each queue, shape (queues,)."""
        length = after["qlen_bytes"].astype(np.float64)
        return queue_utilisation_reward(length, utilisation, self.omega_2, self.omega_1)

    def deciding_queues(self, observation: Observation) -> Ints:
        """Return the queues that are not idle; without the idle rule, all."""
        queues = self.ACTIONS.busy(observation) if self.idle_rule else self._all_queues
        self._inferences += len(queues)
        self._skipped += len(self._all_queues) - len(queues)
        return queues

    def values(self, x: NDArray[Any], queues: Ints) -> NDArray[Any]:
        """Return the values of all templates, by the network of each queue's switch."""
        outputs = mlp_by_group(self._net, "q", x[queues], self._switch[queues])
        values: NDArray[Any] = PARTS.sums(outputs)
        return values

    def facts(self) -> Mapping[str, Any]:
        """Return how many inferences were made, and how many the idle rule saved."""
        saved = {"inferences": self._inferences, "inferences_skipped": self._skipped}
        return {**super().facts(), **saved}


def initial_parameters(seed: int, hidden: Sequence[int]) -> Arrays:
    """Return the parameters of an untrained network."""
    widths = [width(FEATURES, HISTORY), *hidden, sum(PARTS.sizes)]
    return init_mlp(np.random.default_rng([seed, 0]), "q", widths, 1)
