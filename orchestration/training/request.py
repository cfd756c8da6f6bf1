"""The request of a training (tuner, scenario, seed, settings), and the episodes that it implies."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inventory.files import load_testbed
from inventory.routing import flow_controls, ignores_marks
from orchestration.campaign.expand import load_campaign, trial_seed
from orchestration.core import plugins
from orchestration.core.errors import InputError
from orchestration.core.files import sha256_of
from orchestration.core.knobs import ECN
from orchestration.core.plugins import is_file
from orchestration.core.problems import of_value
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar, TrialSpec, TunerSpec
from orchestration.training.protocol import Rule
from tuners.learning.learner import LEARNERS, Learner
from tuners.registry import names as tuner_names
from tuners.registry import parameters, tuner_class

# What the class of a learner must have: see `tuners.learning.learner.Learner`.
_LEARNER_ATTRIBUTES = (
    *("tuner", "settings", "parameters", "architecture", "acting", "learn", "state", "load"),
)
SCENARIOS = Path(__file__).with_name("scenarios")


@dataclass(frozen=True)
class TrainRequest:
    """Everything that determines the result of a training.

    `actors` is how many episodes are played with the same network before it learns again. An empty
    `backend` stands for the scenario's own. `settings` are the learner's, `params` the tuner's. A
    `rule` says how long to train; then `episodes` has no meaning. `learner` is `file.py:Class` for
    a user's own learner, else empty. `engine` is the option --in.
    """

    tuner: str
    scenario: str
    backend: str = ""
    episodes: int = 100
    actors: int = 2
    seed: int = 1
    init: str = ""
    per_switch: bool = False
    settings: dict[str, Scalar] = field(default_factory=dict)
    params: dict[str, Scalar] = field(default_factory=dict)
    rule: Rule | None = None
    learner: str = ""
    engine: str = ""

    @property
    def learner_reference(self) -> str:
        """The learner, as `file.py:Class`, or as the name of its tuner."""
        return self.learner or self.tuner

    @property
    def input_files(self) -> tuple[str, ...]:
        """The files that the training reads: scenarios, and the checkpoint that it begins with."""
        held_out = self.rule.held_out if self.rule else ""
        return tuple(name for name in (self.scenario, held_out, self.init) if name)

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON-ready data, without the path of a rule's held-out scenario."""
        data = dataclasses.asdict(self)
        del data["engine"]
        if self.learner:
            references = (self.learner, self.tuner)
            paths = {plugins.file_of(name) for name in references if is_file(name)}
            data["files"] = {Path(path).name: sha256_of(path) for path in sorted(paths)}
        else:
            del data["learner"]
        if self.rule is None:
            del data["rule"]
        else:
            data["rule"] = self.rule.to_json()
            del data["episodes"]
        return data


class Episodes:
    """The episodes of a training, by number: cells of its scenario, at seeds of its own.

    No evaluation uses these seeds.
    """

    def __init__(self, request: TrainRequest) -> None:
        """Read the scenario. Raises InputError if it is wrong or does not fit the tuner."""
        campaign = load_campaign(request.scenario, backend=request.backend or None)
        self._request = request
        self.cells = tuple(trial for trial in campaign.trials if trial.repeat == 1)
        testbeds = {trial.testbed for trial in self.cells}
        if len(testbeds) > 1:
            raise InputError.single(
                request.scenario,
                f"has {len(testbeds)} testbeds",
                "a network is trained on one: make the testbed no factor",
            )
        self.source = campaign.source
        self.backend = self.cells[0].backend
        self.testbed: Testbed = load_testbed(testbeds.pop())
        self._check_marks()

    def _check_marks(self) -> None:
        """Refuse a tuner of ECN thresholds in a scenario in which no flow responds to marks."""
        request, testbed = self._request, self.testbed
        # the tuner may be unknown here; then it is refused elsewhere
        known = request.tuner in tuner_names()
        only_marks = known and set(tuner_class(request.tuner).knobs) == {ECN.name}
        if only_marks and all(ignores_marks(testbed, cell) for cell in self.cells):
            controls = {name for cell in self.cells for name in flow_controls(testbed, cell)}
            under = ", ".join(sorted(controls))
            raise InputError.single(
                request.scenario,
                f"no flow answers ECN marks under {under}, and {request.tuner} sets ECN "
                "thresholds only: it would learn nothing",
                "use `congestion_control: dctcp`, or dcqcn, which answer them",
            )

    def __getitem__(self, number: int) -> TrialSpec:
        """Return an episode as a trial; `with_tuner` adds the tuner.

        The scenario's cells come in blocks, each block in a random order.
        """
        block, index = divmod(number, len(self.cells))
        order = np.random.default_rng([self._request.seed, block]).permutation(len(self.cells))
        cell = self.cells[int(order[index])]
        seed = trial_seed(self._request.seed, number, purpose="training")
        return dataclasses.replace(cell, seed=seed, repeat=number)


def learner_class(reference: str) -> Any:
    """Return the class of a learner, given its tuner's name or `file.py:Class`.

    Raises InputError for a tuner that has no learner, and for a class that is no learner.
    """
    known = sorted(plugins.offered(LEARNERS))
    if not is_file(reference) and reference not in known:
        what = f"{reference!r} cannot be trained"
        raise InputError.single("tuner", what, f"those that can are {', '.join(known)}")
    try:
        learner = plugins.load(reference, LEARNERS)
    except plugins.PluginError as error:
        raise InputError([of_value(error, "tuner")]) from error
    lacks = [name for name in _LEARNER_ATTRIBUTES if not hasattr(learner, name)]
    settings = getattr(learner, "settings", None)
    if lacks or not isinstance(learner, type) or not dataclasses.is_dataclass(settings):
        what = f"{reference} is no learner" + (f": it has no {', '.join(lacks)}" if lacks else "")
        remedy = "write one as docs/tuners.md says, with a dataclass as its settings"
        raise InputError.single("tuner", what, remedy)
    return learner


def acting_tuner(reference: str) -> str:
    """Return the tuner of a learner: its name, or `file.py:Class` with the path from here.

    Raises InputError for a tuner that is unknown, or that lacks the parameters for training.
    """
    name = str(learner_class(reference).tuner)
    if is_file(reference) and is_file(name):
        folder = os.path.dirname(plugins.file_of(reference))
        name = os.path.normpath(os.path.join(folder, name))
    try:
        accepted = parameters(name)
    except plugins.PluginError as error:
        raise InputError([of_value(error, f"tuner of {reference}")]) from error
    lacks = [repr(key) for key in ("checkpoint", "collect") if key not in accepted]
    if lacks:
        what = f"tuner {name!r} has no parameter {', '.join(lacks)}, which training needs"
        raise InputError.single(f"tuner of {reference}", what, "add it: docs/tuners.md")
    return name


def split_settings(
    learner: str, given: Mapping[str, Scalar]
) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """Split the settings of `--set` into the learner's settings and the tuner's parameters.

    A name that both have goes to both. Raises InputError for an unknown learner, for a setting that
    neither has, and for a value of a wrong type.
    """
    fields = {field.name: field for field in dataclasses.fields(learner_class(learner).settings)}
    set_by_training = ("checkpoint", "explore", "hold", "collect")
    of_tuner = [name for name in parameters(acting_tuner(learner)) if name not in set_by_training]
    settings: dict[str, Scalar] = {}
    params: dict[str, Scalar] = {}
    for name, value in given.items():
        if name in fields and not isinstance(fields[name].default, tuple):
            kind: Any = type(fields[name].default)
            if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
                what = f"{value!r} is no {kind.__name__}"
                raise InputError.single(f"--set {name}", what, "correct it")
            settings[name] = kind(value)
        if name in of_tuner:
            params[name] = value
        elif name not in settings:
            known = ", ".join(sorted({*fields, *of_tuner} - {"hidden"}))
            what = f"{learner} has no such setting"
            raise InputError.single(f"--set {name}", what, f"known are {known}")
    return settings, params


def make_learner(
    reference: str,
    seed: int,
    testbed: Testbed,
    settings: Mapping[str, Scalar],
    start: Mapping[str, NDArray[Any]] | None = None,
) -> Learner:
    """Return a new learner. Its network begins with the parameters `start`, or from the seed."""
    kind = learner_class(reference)
    learner: Learner = kind(seed, testbed, kind.settings(**settings), start)
    return learner


def with_exploration(
    learner: str, settings: Mapping[str, Scalar], decay: float
) -> dict[str, Scalar]:
    """Return the settings with an `explore_decay` of `decay` decisions, a time constant.

    If `settings` give it, or the learner has no such setting, they stay as they are.
    """
    fields = dataclasses.fields(learner_class(learner).settings)
    explores = any(field.name == "explore_decay" for field in fields)
    return {"explore_decay": decay, **settings} if explores else dict(settings)


def with_tuner(
    episode: TrialSpec, request: TrainRequest, checkpoint: Path, acting: dict[str, Scalar]
) -> TrialSpec:
    """Return the episode with the tuner that plays it by `checkpoint` and records its decisions."""
    params: dict[str, Scalar] = {
        **request.params,
        **acting,
        "checkpoint": str(checkpoint.absolute()),
        "collect": True,
    }
    return dataclasses.replace(episode, tuner=TunerSpec(request.tuner, params))


def digest(request: TrainRequest, source: str, held_out: str = "") -> str:
    """Return a hash of a request and of the texts of its scenarios, by which trainings are resumed.

    The scenarios' names do not count. The number of episodes does not count either, so that a
    training can be extended.
    """
    data = {**request.to_json(), "source": source} | ({"held_out": held_out} if held_out else {})
    data.pop("episodes", None)
    del data["scenario"]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def find_scenario(name: str) -> str:
    """Return the path of closloop's scenario of this name, or `name` itself if it is a path.

    Raises InputError for an unknown name.
    """
    if name.endswith((".yml", ".yaml")):
        return name
    path = SCENARIOS / f"{name}.yml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in SCENARIOS.glob("*.yml")))
        raise InputError.single(
            "scenario", f"no scenario is called {name!r}", f"known are {known}, or a file's path"
        )
    return str(path)
