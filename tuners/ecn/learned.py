"""The base of tuners with a trained network, and of those that choose from a table of settings."""

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

HISTORY = 3  # readings that a network sees: ACC's (section 4.1), GraphCC's, and here PET's


class Actions(ABC):
    """What a learned tuner can do to queues. Its placebo does the same at random."""

    # A queue that is not longer than this is idle, and keeps its setting; None: no queue is.
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
    """Settings of a table. Queues start with the one nearest to `start` (kmin, kmax, pmax)."""

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
    """A tuner that acts by the network of a checkpoint; with `online`, it continues to learn.

    Creating one raises CheckpointError if its checkpoint cannot be used. A subclass is a dataclass
    with these fields, and has the constants in capitals.
    """

    NAME: ClassVar[str]  # under which its learner is offered
    ACTIONS: ClassVar[Actions]
    TEMPLATES: ClassVar[Templates]  # all settings that it chooses from
    WEIGHTS: ClassVar[tuple[str, str]]  # the parameters that weigh its reward's two terms

    discount: ClassVar[float] = DISCOUNT

    explore: float
    hold: float
    collect: bool
    online: bool = False
    _checkpoint: Checkpoint
    _features: tuple[str, ...]
    _kept: Decisions

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
        """Start from the checkpoint's network, and from the tuner's own first settings."""
        self._meet(testbed)
        self._rng = np.random.default_rng([seed, 1])
        self._window = FeatureWindow(testbed, HISTORY, self._features)
        self._all = np.arange(len(testbed.queues), dtype=np.int64)
        own = parameters_for(self._checkpoint, testbed, per_switch=self.online)
        self._net = prepared_parameters(own)
        self._learner: Any = None
        if self.online:
            kind = load(self.NAME, LEARNERS)
            self._learner = kind.online(self, seed, testbed, own)
        return Setup((self.ACTIONS.start(self._all),))

    def rewards(self, testbed: Testbed, before: Observation, after: Observation) -> Floats:
        """Return what each queue earned between two observations, shape (queues,).

        This is what the tuner's learner maximises, if `after` is what the decision after the one on
        `before` would see. No paper's reward charges for the change itself: see
        `tuners.learning.replay_buffer`.
        """
        self._meet(testbed)
        return self.earned(after, utilisation(before, after, self._rate_bps))

    @abstractmethod
    def earned(self, after: Observation, utilisation: Floats) -> Floats:
        """Return the reward of each queue (queues,), given its port's utilisation until `after`."""

    def _meet(self, testbed: Testbed) -> None:
        """Note what `reward` needs of a testbed."""
        self._rate_bps = np.array([queue.rate_bps for queue in testbed.queues], dtype=np.float64)

    def choices(self) -> Mapping[str, NDArray[Any]]:
        """Return the settings that it chooses from, an array (actions,) for each column."""
        return dict(vars(self.TEMPLATES))

    def facts(self) -> Mapping[str, Any]:
        """Return the name of the checkpoint."""
        return {"checkpoint": self._checkpoint.path.name}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return all decisions, arrays (decisions, queues, …) by name; none without `collect`."""
        return self._kept.trace() if self.collect else {}


class TemplateTuner(LearnedTuner):
    """Gives each queue the setting of highest value in a table, or explores."""

    ACTIONS: ClassVar[TemplateActions]

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Start from the checkpoint's network, and from the tuner's own first settings."""
        setup = super().reset(testbed, seed)
        self._choice = np.full(len(self._all), self.ACTIONS.first)
        self._explorer = Explorer(self._rng, len(self._all), self.hold)
        self._kept = Decisions(x=np.float32, action=np.int16, reward=np.float32)
        return setup

    def deciding(self, observation: Observation) -> Ints:
        """Return the queues that get a decision."""
        return self._all

    @abstractmethod
    def values(self, x: NDArray[Any], queues: Ints) -> NDArray[Any]:
        """Return the values of all settings (len(queues), actions), given all queues' inputs."""

    def act(self, observation: Observation) -> Action:
        """Choose a setting for each queue that gets a decision."""
        x = self._window.push(observation)
        reward = self.earned(observation, self._window.utilisation)
        share = self.explore
        if self._learner is not None:
            self._learn_online(x, reward)
            share = float(self._learner.acting()["explore"])
        queues = self.deciding(observation)
        before, self._choice = self._choice, self._choice.copy()
        if len(queues):
            values = self.values(x, queues)
            self._choice[queues] = values.argmax(axis=1)
            self._explorer.apply(self._choice, before, queues, share, values)
        if self.collect or self.online:
            self._kept.add(x=x, action=self._choice, reward=reward)
        changed = np.flatnonzero(self._choice != before)
        if not len(changed):
            return ()
        return (self.TEMPLATES.settings(changed, self._choice[changed]),)

    def _learn_online(self, x: NDArray[Any], reward: Floats) -> None:
        last = self._kept.last()
        if last:
            rows = {**last, "reward": reward, "next_x": x}
            self._learner.add({name: row[None] for name, row in rows.items()})
            self._learner.update()
            self._net = prepared_parameters(self._learner.parameters())


def switch_of(testbed: Testbed) -> Ints:
    """Return each queue's switch, as an index into `Testbed.switches`."""
    place = {name: index for index, name in enumerate(testbed.switches)}
    return np.array([place[queue.device] for queue in testbed.queues], dtype=np.int64)


def parameters_for(checkpoint: Checkpoint, testbed: Testbed, *, per_switch: bool = False) -> Arrays:
    """Return a checkpoint's parameters for `testbed`.

    All switches share a network whose arrays have two axes, or a first one of length 1;
    `per_switch` gives each a copy of it. Raises CheckpointError if the checkpoint has one network
    per switch, but for other switches.
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
