"""A training's request (tuner, scenario, seed, settings), and the episodes that follow from it."""

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

_OF_LEARNERS = (
    *("tuner", "settings", "parameters", "architecture", "acting", "learn", "state", "load"),
)
SCENARIOS = Path(__file__).with_name("scenarios")


@dataclass(frozen=True)
class TrainRequest:
    """Everything that determines the result of a training.

    `actors` is how many episodes are played with one set of parameters before learning goes on. An
    empty `backend` stands for the scenario's. `settings` are the learner's, `params` the tuner's.
    With a `rule`, it says how long to train, and `episodes` has no meaning. `learner` is the
    reference to a user's own.
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

    @property
    def learner_reference(self) -> str:
        """The reference to the learner, which is the tuner's own name if it has one of ours."""
        return self.learner or self.tuner

    @property
    def reads(self) -> tuple[str, ...]:
        """The files that it reads: its scenarios, and the checkpoint that it begins with."""
        held_out = self.rule.held_out if self.rule else ""
        return tuple(name for name in (self.scenario, held_out, self.init) if name)

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON-ready data; a rule without its held-out scenario's path."""
        data = dataclasses.asdict(self)
        if self.learner:
            own = {plugins.file_of(one) for one in (self.learner, self.tuner) if is_file(one)}
            data["files"] = {Path(path).name: sha256_of(path) for path in sorted(own)}
        else:
            del data["learner"]
        if self.rule is None:
            del data["rule"]
        else:
            data["rule"] = self.rule.to_json()
            del data["episodes"]
        return data


class Episodes:
    """The episodes of a training: cells of its scenario, with seeds that no evaluation uses."""

    def __init__(self, request: TrainRequest) -> None:
        """Read the scenario. Raises InputError."""
        campaign = load_campaign(request.scenario, backend=request.backend or None)
        self._request = request
        self._cells = [trial for trial in campaign.trials if trial.repeat == 1]
        testbeds = {trial.testbed for trial in self._cells}
        if len(testbeds) > 1:
            raise InputError.single(
                request.scenario,
                f"has {len(testbeds)} testbeds",
                "a network is trained on one: make the testbed no factor",
            )
        self.source = campaign.source
        self.backend = self._cells[0].backend
        self.testbed: Testbed = load_testbed(testbeds.pop())
        self._check_marks()

    def _check_marks(self) -> None:
        """Refuse a tuner of ECN thresholds where none of its decisions reaches a flow."""
        request, testbed = self._request, self.testbed
        # a scenario may be looked at without its tuner, which is built and refused elsewhere
        known = request.tuner in tuner_names()
        only_marks = known and set(tuner_class(request.tuner).knobs) == {ECN.name}
        if only_marks and all(ignores_marks(testbed, cell) for cell in self._cells):
            controls = {name for cell in self._cells for name in flow_controls(testbed, cell)}
            under = ", ".join(sorted(controls))
            raise InputError.single(
                request.scenario,
                f"no flow answers ECN marks under {under}, and {request.tuner} turns ECN "
                "thresholds only: it would learn nothing",
                "use `congestion_control: dctcp`, or dcqcn, which answer them",
            )

    def __getitem__(self, number: int) -> TrialSpec:
        """Return an episode, without its tuner's checkpoint (see `with_tuner`).

        Cells come in blocks, each in a random order.
        """
        block, place = divmod(number, len(self._cells))
        order = np.random.default_rng([self._request.seed, block]).permutation(len(self._cells))
        cell = self._cells[int(order[place])]
        seed = trial_seed(self._request.seed, number, purpose="training")
        return dataclasses.replace(cell, seed=seed, repeat=number)


def learner_class(reference: str) -> Any:
    """Return the class of a learner: by its tuner's name, or `file.py:Class`.

    Raises InputError for what is none, or whose tuner cannot be trained.
    """
    known = sorted(plugins.offered(LEARNERS))
    if not is_file(reference) and reference not in known:
        what = f"{reference!r} cannot be trained"
        raise InputError.single("tuner", what, f"those that can are {', '.join(known)}")
    try:
        found = plugins.load(reference, LEARNERS)
    except plugins.PluginError as error:
        raise InputError([of_value(error, "tuner")]) from error
    lacks = [name for name in _OF_LEARNERS if not hasattr(found, name)]
    settings = getattr(found, "settings", None)
    if lacks or not isinstance(found, type) or not dataclasses.is_dataclass(settings):
        what = f"{reference} is no learner" + (f": it has no {', '.join(lacks)}" if lacks else "")
        remedy = "write one as docs/tuners.md says, with a dataclass as its settings"
        raise InputError.single("tuner", what, remedy)
    return found


def acting_tuner(reference: str) -> str:
    """Return the name of a learner's tuner, whose path starts at the learner's file.

    Raises InputError for one that cannot act with a network and keep what it sees.
    """
    name = str(learner_class(reference).tuner)
    if is_file(reference) and is_file(name):
        folder = os.path.dirname(plugins.file_of(reference))
        name = os.path.normpath(os.path.join(folder, name))
    try:
        takes = parameters(name)
    except plugins.PluginError as error:
        raise InputError([of_value(error, f"tuner of {reference}")]) from error
    lacks = [repr(one) for one in ("checkpoint", "collect") if one not in takes]
    if lacks:
        what = f"tuner {name!r} has no {', '.join(lacks)}, by which it is trained"
        raise InputError.single(f"tuner of {reference}", what, "add it: docs/tuners.md")
    return name


def split_settings(
    learner: str, given: Mapping[str, Scalar]
) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """Split the settings given into the learner's settings and the acting tuner's parameters.

    Raises InputError for an unknown learner, or a setting that neither has.
    """
    fields = {field.name: field for field in dataclasses.fields(learner_class(learner).settings)}
    played = ("checkpoint", "explore", "hold", "collect")
    acts = [name for name in parameters(acting_tuner(learner)) if name not in played]
    learns: dict[str, Scalar] = {}
    acting: dict[str, Scalar] = {}
    for name, value in given.items():
        if name in fields and not isinstance(fields[name].default, tuple):
            kind: Any = type(fields[name].default)
            if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
                what = f"{value!r} is no {kind.__name__}"
                raise InputError.single(f"--set {name}", what, "correct it")
            learns[name] = kind(value)
        if name in acts:
            acting[name] = value
        elif name not in learns:
            known = ", ".join(sorted({*fields, *acts} - {"hidden"}))
            what = f"{learner} has no such setting"
            raise InputError.single(f"--set {name}", what, f"known are {known}")
    return learns, acting


def make_learner(
    reference: str,
    seed: int,
    testbed: Testbed,
    settings: Mapping[str, Scalar],
    start: Mapping[str, NDArray[Any]] | None = None,
) -> Learner:
    """Return a new learner, which starts from these parameters if given, else from its seed."""
    kind = learner_class(reference)
    made: Learner = kind(seed, testbed, kind.settings(**settings), start)
    return made


def with_exploration(
    learner: str, settings: Mapping[str, Scalar], readings: float
) -> dict[str, Scalar]:
    """Return the settings, with exploration that decays over `readings`, its time constant.

    A learner whose settings have no `explore_decay`, or for which it is given, keeps its own.
    """
    fields = dataclasses.fields(learner_class(learner).settings)
    has = any(field.name == "explore_decay" for field in fields)
    return {"explore_decay": readings, **settings} if has else dict(settings)


def with_tuner(
    episode: TrialSpec, request: TrainRequest, checkpoint: Path, acting: dict[str, Scalar]
) -> TrialSpec:
    """Return the episode with the tuner that plays it and records what it sees."""
    params: dict[str, Scalar] = {
        **request.params,
        **acting,
        "checkpoint": str(checkpoint.absolute()),
        "collect": True,
    }
    return dataclasses.replace(episode, tuner=TunerSpec(request.tuner, params))


def digest(request: TrainRequest, source: str, held_out: str = "") -> str:
    """Return a hash of a request and its scenarios' texts, without the scenarios' names.

    The number of episodes is left out too, so that a training can be extended.
    """
    data = {**request.to_json(), "source": source} | ({"held_out": held_out} if held_out else {})
    data.pop("episodes", None)
    del data["scenario"]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def find_scenario(name: str) -> str:
    """Return the path of the package's scenario of this name, or `name` itself if it is a path.

    Raises InputError if there is neither.
    """
    if name.endswith((".yml", ".yaml")):
        return name
    path = SCENARIOS / f"{name}.yml"
    if not path.is_file():
        known = ", ".join(sorted(item.stem for item in SCENARIOS.glob("*.yml")))
        raise InputError.single(
            "scenario", f"no scenario is called {name!r}", f"known are {known}, or a file's path"
        )
    return str(path)
