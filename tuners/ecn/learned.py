"""The base classes of tuners with a trained network.

`LearnedTuner` loads a checkpoint, computes rewards and keeps decisions for a learner. A subclass of
`TemplateTuner` chooses from a table of settings, its templates, by their values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from orchestration.core.plugins import load
from orchestration.core.records import Action, Change, Floats, Ints, Observation, Setup
from tuners.base import BaseTuner, probability_faults
from tuners.ecn.features import FeatureWindow, utilisation, weight_faults
from tuners.ecn.templates import Templates
from tuners.learning.checkpoint import Checkpoint, CheckpointError
from tuners.learning.learner import LEARNERS
from tuners.learning.networks import Arrays, prepared_parameters
from tuners.learning.q_learning import DISCOUNT, Explorer
from tuners.learning.replay_buffer import Decisions

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

HISTORY = 3  # readings that a network sees: in ACC (section 4.1), in GraphCC, and here in PET


class Actions(ABC):
    """The settings that a learned tuner can choose from. Its placebo draws from them at random."""

    # A queue that is not longer than this is idle, and keeps its setting. None: no queue is idle.
    idle_bytes: int | None = None

    @abstractmethod
    def start(self, queues: Ints) -> Change:
        """Return the settings that queues start with."""

    @abstractmethod
    def draw(self, draws: np.random.Generator, queues: Ints) -> Change:
        """Return settings of queues, each of the choices with equal probability."""

    def busy(self, observation: Observation) -> Ints:
        """Return the queues that are not idle."""
        return np.flatnonzero(observation["qlen_bytes"] > (self.idle_bytes or -1))


class TemplateActions(Actions):
    """A table of settings. Queues start with the one nearest to `start` = (kmin, kmax, pmax)."""

    def __init__(
        self,
        templates: Templates,
        start: tuple[float, float, float],
        idle_bytes: int | None = None,
    ) -> None:
        self.templates, self.idle_bytes = templates, idle_bytes
        self.first = templates.nearest(*start)

    def start(self, queues: Ints) -> Change:
        """Return the settings that queues start with."""
        return self.templates.settings(queues, np.full(len(queues), self.first))

    def draw(self, draws: np.random.Generator, queues: Ints) -> Change:
        """Return settings of queues, each of the choices with equal probability."""
        choice = draws.integers(len(self.templates), size=len(queues))
        return self.templates.settings(queues, choice)


class LearnedTuner(BaseTuner, ABC):
    """A tuner that acts by the network of a checkpoint. With `online`, it continues to learn.

    Creating one raises CheckpointError if its checkpoint cannot be used. A subclass is a dataclass
    with the fields below, and sets the constants in capitals.
    """

    NAME: ClassVar[str]  # the entry point of its learner
    ACTIONS: ClassVar[Actions]
    TEMPLATES: ClassVar[Templates]  # all settings that it chooses from
    WEIGHTS: ClassVar[tuple[str, str]]  # the parameters that weigh the two terms of its reward

    discount: ClassVar[float] = DISCOUNT

    explore: float
    hold: float
    collect: bool
    online: bool = False
    _checkpoint: Checkpoint
    _features: tuple[str, ...]
    _decisions: Decisions

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from probability_faults("explore", self.explore)
        if self.online and find_spec("torch") is None:
            yield "the tuner learns online with torch: pip install 'closloop[learn]'"
        yield from weight_faults(**{name: getattr(self, name) for name in self.WEIGHTS})

    def check_testbed(self, testbed: Testbed | None) -> None:
        """Refuse a testbed whose switches do not match the networks of the checkpoint."""
        if testbed is not None:
            parameters_for(self._checkpoint, testbed)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Load the checkpoint's network, and return the initial setting of every queue."""
        self._prepare_rewards(testbed)
        self._rng = np.random.default_rng([seed, 1])
        self._window = FeatureWindow(testbed, HISTORY, self._features)
        self._all_queues = np.arange(len(testbed.queues), dtype=np.int64)
        parameters = parameters_for(self._checkpoint, testbed, per_switch=self.online)
        self._net = prepared_parameters(parameters)
        self._learner: Any = None
        if self.online:
            kind = load(self.NAME, LEARNERS)
            self._learner = kind.online(self, seed, testbed, parameters)
        return Setup((self.ACTIONS.start(self._all_queues),))

    def rewards(self, testbed: Testbed, before: Observation, after: Observation) -> Floats:
        """Return the reward of each queue between two observations, shape (queues,).

        If `before` and `after` are the observations of two successive decisions, this is what the
        tuner's learner maximises. The reward of no paper has a term for the change of a setting.
        """
        self._prepare_rewards(testbed)
        return self.queue_rewards(after, utilisation(before, after, self._rate_bps))

    @abstractmethod
    def queue_rewards(self, after: Observation, utilisation: Floats) -> Floats:
        """Return the reward of each queue (queues,), given its port's utilisation until `after`."""

    def _prepare_rewards(self, testbed: Testbed) -> None:
        """Keep what rewards need of a testbed: the rate of each queue's port, in bit/s."""
        self._rate_bps = np.array([queue.rate_bps for queue in testbed.queues], dtype=np.float64)

    def choices(self) -> Mapping[str, NDArray[Any]]:
        """Return the settings that the tuner chooses from: an array (actions,) per column."""
        return dict(vars(self.TEMPLATES))

    def facts(self) -> Mapping[str, Any]:
        """Return the name of the checkpoint."""
        return {"checkpoint": self._checkpoint.path.name}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return all decisions, arrays (decisions, queues, …) by name. None without `collect`."""
        return self._decisions.trace() if self.collect else {}


class TemplateTuner(LearnedTuner):
    """Gives each queue the template of highest value, or explores."""

    ACTIONS: ClassVar[TemplateActions]

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Load the checkpoint's network, and return the initial template of every queue."""
        setup = super().reset(testbed, seed)
        self._choice = np.full(len(self._all_queues), self.ACTIONS.first)
        self._explorer = Explorer(self._rng, len(self._all_queues), self.hold)
        self._decisions = Decisions(x=np.float32, action=np.int16, reward=np.float32)
        return setup

    def deciding_queues(self, observation: Observation) -> Ints:
        """Return the queues that get a decision."""
        return self._all_queues

    @abstractmethod
    def values(self, x: NDArray[Any], queues: Ints) -> NDArray[Any]:
        """Return the values of all templates for `queues`, shape (len(queues), actions).

        `x` has the inputs of all queues, shape (all queues, inputs).
        """

    def act(self, observation: Observation) -> Action:
        """Choose a template for each queue that gets a decision; return those that changed."""
        x = self._window.push(observation)
        reward = self.queue_rewards(observation, self._window.utilisation)
        share = self.explore
        if self._learner is not None:
            self._learn_online(x, reward)
            share = float(self._learner.acting()["explore"])
        queues = self.deciding_queues(observation)
        before, self._choice = self._choice, self._choice.copy()
        if len(queues):
            values = self.values(x, queues)
            self._choice[queues] = values.argmax(axis=1)
            self._explorer.apply(self._choice, before, queues, share, values)
        if self.collect or self.online:
            self._decisions.add(x=x, action=self._choice, reward=reward)
        changed = np.flatnonzero(self._choice != before)
        if not len(changed):
            return ()
        return (self.TEMPLATES.settings(changed, self._choice[changed]),)

    def _learn_online(self, x: NDArray[Any], reward: Floats) -> None:
        last = self._decisions.last()
        if last:
            rows = {**last, "reward": reward, "next_x": x}
            self._learner.add({name: row[None] for name, row in rows.items()})
            self._learner.update()
            self._net = prepared_parameters(self._learner.parameters())


def switch_of(testbed: Testbed) -> Ints:
    """Return each queue's switch, as an index into `Testbed.switches`."""
    index = {name: number for number, name in enumerate(testbed.switches)}
    return np.array([index[queue.device] for queue in testbed.queues], dtype=np.int64)


def parameters_for(checkpoint: Checkpoint, testbed: Testbed, *, per_switch: bool = False) -> Arrays:
    """Return a checkpoint's parameters for `testbed`.

    A network whose arrays have two axes, or a first axis of length 1, is shared by all switches;
    `per_switch` gives each switch a copy of it. Raises CheckpointError if the checkpoint has one
    network per switch, but for other switches than the testbed's.
    """
    arrays = checkpoint.arrays
    first = next(iter(arrays.values()))
    copies = len(first) if first.ndim > 2 else 1
    count = len(testbed.switches)
    if copies == 1:
        if not per_switch:
            return arrays
        return {name: np.repeat(values, count, axis=0) for name, values in arrays.items()}
    switches = tuple(checkpoint.card.get("switches", ()))
    if switches != testbed.switches:
        raise CheckpointError(
            f"{checkpoint.path} has a network for each of {copies} switches "
            f"({', '.join(switches[:3])}…), which are not those of testbed {testbed.name!r}: "
            "run it there, or train one that all switches share"
        )
    return arrays
