"""The one place that maps a tuner's name to its learner. Each loads on demand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from numpy.typing import NDArray

from orchestration.core.errors import InputError
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar
from tuners.learning.learner import Learner

Parameters = Mapping[str, NDArray[Any]]


# Where each learner's settings and class are, which load when they are needed.
_LEARNERS: Mapping[str, tuple[str, str]] = {
    "acc": ("tuners.ecn.acc:AccSettings", "tuners.ecn.acc:AccLearner"),
    "drlet": ("tuners.flowlet.drlet:DrletSettings", "tuners.flowlet.drlet:DrletLearner"),
    "drlet-local": (
        "tuners.flowlet.drlet_local:DrletLocalSettings",
        "tuners.flowlet.drlet_local:DrletLocalLearner",
    ),
    "graphcc": ("tuners.ecn.graphcc:GraphccSettings", "tuners.ecn.graphcc:GraphccLearner"),
    "pet": ("tuners.ecn.pet:PetSettings", "tuners.ecn.pet:PetLearner"),
}


def names() -> tuple[str, ...]:
    """Return the names of the tuners that can be trained."""
    return tuple(_LEARNERS)


def split_settings(
    tuner: str, given: Mapping[str, Scalar]
) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """Split the settings given into the learner's settings and the acting tuner's parameters.

    Raises InputError for an unknown tuner, or a setting that neither has.
    """
    from tuners.registry import parameters

    fields = {field.name: field for field in dataclasses.fields(_classes(tuner)[0])}
    acts = [
        name
        for name in parameters(tuner)
        if name not in ("checkpoint", "explore", "hold", "collect")
    ]
    learns: dict[str, Scalar] = {}
    acting: dict[str, Scalar] = {}
    for name, value in given.items():
        if name in fields and not isinstance(fields[name].default, tuple):
            kind: Any = type(fields[name].default)
            if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
                raise InputError.single(
                    f"--set {name}", f"{value!r} is no {kind.__name__}", "correct it"
                )
            learns[name] = kind(value)
        if name in acts:
            acting[name] = value
        elif name not in learns:
            known = ", ".join(sorted({*fields, *acts} - {"hidden"}))
            raise InputError.single(
                f"--set {name}", f"{tuner} has no such setting", f"known are {known}"
            )
    return learns, acting


def make_learner(
    tuner: str,
    seed: int,
    testbed: Testbed,
    settings: Mapping[str, Scalar],
    parameters: Parameters | None = None,
) -> Learner:
    """Return a new learner, which starts from `parameters` if given, else from its seed."""
    fields, learner = _classes(tuner)
    made: Learner = learner(seed, testbed, fields(**settings), parameters)
    return made


def with_exploration(
    tuner: str, settings: Mapping[str, Scalar], readings: float
) -> dict[str, Scalar]:
    """Return the settings, with exploration that decays over `readings`, its time constant.

    A learner whose settings have no `explore_decay`, or for which it is given, keeps its own.
    """
    has = any(field.name == "explore_decay" for field in dataclasses.fields(_classes(tuner)[0]))
    return {"explore_decay": readings, **settings} if has else dict(settings)


def _classes(tuner: str) -> tuple[Any, Any]:
    """Return a learner's settings and class. Raises InputError for a tuner without one."""
    if tuner not in _LEARNERS:
        raise InputError.single(
            "tuner", f"{tuner!r} cannot be trained", f"those that can are {', '.join(names())}"
        )
    settings, learner = _LEARNERS[tuner]
    return resolve_name(settings), resolve_name(learner)
