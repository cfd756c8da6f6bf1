"""Tuners by name, by file or by entry point. Heavy libraries load only when a tuner needs them.

A tuner's class is a dataclass of its parameters (`tuners.base.BaseTuner`). Besides the names below,
a campaign can name a user's own class: `my_tuner.py:MyTuner`, or an entry point of the group
`closloop.tuners`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

from orchestration.core import plugins
from orchestration.core.errors import InputError
from orchestration.core.knobs import KNOBS
from orchestration.core.ports import Tuner
from orchestration.core.problems import Problem, of_text, of_value, suggest
from orchestration.core.trial import Scalar, TunerSpec
from tuners.base import BaseTuner

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

GROUP = "closloop.tuners"
# How 0.3 and older spelled parameters, which campaigns of today may still do.
_OLD_SPELLINGS = {"least_bytes": "min_bytes", "most_bytes": "max_bytes"}
# This tuner replays the actions of files, which its parameters name: one a knob, called as the
# knob's table is.
RECORDED = "recorded"
# This one overrules another tuner, which its parameters name, with the actions of such files.
FORCED = "forced"


def names() -> tuple[str, ...]:
    """Return the names of the installed tuners, of which closloop has some itself."""
    return tuple(sorted(entry_points()))


def entry_points() -> dict[str, str]:
    """Return the entry points of tuners, each `module:name` by its name."""
    return plugins.offered(GROUP)


def know(points: dict[str, str]) -> None:
    """Take the entry points of tuners from another process."""
    plugins.set_entry_points(GROUP, points)


def tuner_class(name: str) -> type[Any]:
    """Return the class behind a tuner's name or reference.

    Raises PluginError if there is none.
    """
    if not plugins.is_file(name) and name not in entry_points():
        remedy = f"{suggest(name, names())}known are {', '.join(names())}"
        raise plugins.PluginError(f"unknown tuner {name!r}", remedy)
    found = plugins.load(name, GROUP)
    absent = [what for what in ("reset", "act") if not callable(getattr(found, what, None))]
    if absent or not isinstance(found, type):
        lacks = f" without {' and '.join(absent)}" if absent else ""
        what, remedy = f"{name!r} is no tuner{lacks}", "derive a class from closloop.BaseTuner"
        raise plugins.PluginError(what, remedy)
    return found


def parameters(name: str) -> tuple[str, ...]:
    """Return the names of a known tuner's parameters."""
    return tuple(_parameters(tuner_class(name)))


def create(spec: TunerSpec) -> Tuner:
    """Return a new tuner. Raises ValueError with a remedy for an unknown name or parameter."""
    made, faults = _made(spec.name, spec.params)
    if made is None or faults:
        raise ValueError("; ".join(fault.in_one_sentence for fault in faults))
    made.check_testbed(None)
    tuner: Tuner = made
    return tuner


def checkpoint_of(name: str, params: Mapping[str, Scalar]) -> str | None:
    """Return the name or path of the checkpoint that a known tuner would load; None if none."""
    name, params = decider(name, params)
    parameter = _parameters(tuner_class(name)).get("checkpoint")
    return None if parameter is None else str(params.get("checkpoint", parameter.default))


def with_checkpoint(name: str, params: Mapping[str, Scalar], control: str) -> dict[str, Scalar]:
    """Return a tuner's parameters, with a network of `control`, hosts' congestion control.

    That is where none is named and the package has one that was trained under it: of several the
    first. Else the class's own stays.
    """
    from tuners.learning.checkpoint import pretrained

    own = f"{name}-{control}-1"
    if "checkpoint" in params or own not in pretrained() or "checkpoint" not in parameters(name):
        return dict(params)
    return {**params, "checkpoint": own}


def decider(name: str, params: Mapping[str, Scalar]) -> tuple[str, Mapping[str, Scalar]]:
    """Return the tuner that decides, and its parameters: the one that is overruled, if one is."""
    if name != FORCED:
        return name, params
    inner = inner_spec(params)
    return inner.name, inner.params


def inner_spec(params: Mapping[str, Scalar]) -> TunerSpec:
    """Return the tuner that is overruled, from the parameters of `forced`.

    Raises ValueError, as `what: remedy`, for parameters that are no JSON object.
    """
    text = str(params.get("parameters") or "{}")
    try:
        own = json.loads(text)
    except ValueError:
        own = None
    if not isinstance(own, dict):
        raise ValueError(f"parameters {text!r} are no JSON object: write it like {{}}")
    return TunerSpec(str(params.get("tuner", "")), own)


def actions_of(name: str, params: Mapping[str, Scalar]) -> dict[str, str]:
    """Return the paths of the actions that a tuner replays, by the parameters that name them.

    A tuner that decides by itself has none.
    """
    replays = name in (RECORDED, FORCED)
    tables = [knob.table for knob in KNOBS.values()] if replays else []
    return {table: str(params[table]) for table in tables if params.get(table)}


def check(
    name: str, params: dict[str, Scalar], testbed: Testbed | None = None
) -> tuple[Problem, ...]:
    """Return all faults of a tuner's name or parameters.

    With `testbed`, also the reasons why the tuner cannot run there.
    """
    made, faults = _made(name, params)
    if made is None or faults:
        return tuple(faults)
    try:
        made.check_testbed(testbed)
    except InputError as error:
        return error.problems
    except ValueError as error:
        return (of_value(error),)
    return ()


def _made(name: str, params: Mapping[str, Scalar]) -> tuple[Any, list[Problem]]:
    """Return a new tuner (None if it cannot be created) and the faults of its parameters."""
    try:
        kind = tuner_class(name)
    except plugins.PluginError as error:
        return None, [of_value(error)]
    accepted = _parameters(kind)
    params = _present_names(params, accepted)
    takes = ", ".join(accepted) if accepted else "no parameters"
    faults = [
        Problem("", f"tuner {name!r} has no parameter {key!r}", f"it takes {takes}")
        for key in params
        if key not in accepted
    ]
    faults += [
        Problem("", f"tuner {name!r} needs {key!r}", "write it beside the name")
        for key, one in accepted.items()
        if one.default is one.empty and key not in params
    ]
    faults += [
        Problem("", f"{key} {params[key]!r} is not {_WANTED[_kind(one.annotation)]}", "correct it")
        for key, one in accepted.items()
        if key in params and not _fits(params[key], one.annotation)
    ]
    if faults:
        return None, faults
    try:
        made = kind(**params)
    except ValueError as error:
        return None, [of_value(error)]
    return made, [of_text(text) for text in made.faults()] if isinstance(made, BaseTuner) else []


def _present_names(params: Mapping[str, Scalar], accepted: Collection[str]) -> dict[str, Scalar]:
    """Return parameters by their present names; one that is given by both names keeps both."""
    renamed = {
        old: new
        for old, new in _OLD_SPELLINGS.items()
        if old not in accepted and new in accepted and new not in params
    }
    return {renamed.get(key, key): value for key, value in params.items()}


def _parameters(kind: type[Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind, eval_str=True).parameters


_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _kind(annotation: Any) -> Any:
    """Return the type of a parameter, without the None of one that may be left out."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and NoneType in get_args(annotation) else annotation


def _fits(value: Scalar, annotation: Any) -> bool:
    wanted = _kind(annotation)
    if wanted not in _WANTED:  # a user's own class may take other types
        return True
    if wanted is float:
        wanted = int if isinstance(value, int) else float
    return isinstance(value, wanted) and isinstance(value, bool) == (wanted is bool)
