"""The one place that maps a tuner's name to its learner. Each loads on demand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from inventory.topology import Testbed
from orchestration.model.errors import InputError
from orchestration.model.trial import Scalar
from tuners.learning import Learner

Parameters = Mapping[str, NDArray[Any]]


def _acc() -> tuple[type, Any]:
    from tuners.ecn.acc import AccLearner, AccSettings

    return AccSettings, AccLearner


def _pet() -> tuple[type, Any]:
    from tuners.ecn.pet import PetLearner, PetSettings

    return PetSettings, PetLearner


def _graphcc() -> tuple[type, Any]:
    from tuners.ecn.graphcc import GraphccLearner, GraphccSettings

    return GraphccSettings, GraphccLearner


def _drlet() -> tuple[type, Any]:
    from tuners.flowlet.drlet import DrletLearner, DrletSettings

    return DrletSettings, DrletLearner


def _drlet_local() -> tuple[type, Any]:
    from tuners.flowlet.drlet_local import DrletLocalLearner, DrletLocalSettings

    return DrletLocalSettings, DrletLocalLearner


_LEARNERS = {
    "acc": _acc,
    "drlet": _drlet,
    "drlet-local": _drlet_local,
    "graphcc": _graphcc,
    "pet": _pet,
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

    _check_name(tuner)
    fields = {field.name: field for field in dataclasses.fields(_LEARNERS[tuner]()[0])}
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
    _check_name(tuner)
    fields, learner = _LEARNERS[tuner]()
    made: Learner = learner(seed, testbed, fields(**settings), parameters)
    return made


def with_exploration(
    tuner: str, settings: Mapping[str, Scalar], readings: float
) -> dict[str, Scalar]:
    """Return the settings, with exploration that decays over `readings`, its time constant.

    A learner whose settings have no `explore_decay`, or for which it is given, keeps its own.
    """
    _check_name(tuner)
    has = any(field.name == "explore_decay" for field in dataclasses.fields(_LEARNERS[tuner]()[0]))
    return {"explore_decay": readings, **settings} if has else dict(settings)


def _check_name(tuner: str) -> None:
    if tuner not in _LEARNERS:
        raise InputError.single(
            "tuner", f"{tuner!r} cannot be trained", f"those that can are {', '.join(names())}"
        )
