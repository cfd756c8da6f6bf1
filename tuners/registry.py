"""The registry of tuners: by name, by file or by entry point.

A campaign names an entry point of the group `closloop.tuners`, closloop's own or another package's,
or a class in a file: `my_tuner.py:MyTuner`. A tuner's class is a dataclass of its parameters
(`tuners.base.BaseTuner`). It is imported when it is asked for, so torch loads only if it is needed.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
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
# Parameters as 0.2 and older spelled them. Campaigns may still do so.
_OLD_SPELLINGS = {"least_bytes": "min_bytes", "most_bytes": "max_bytes"}
# The tuner that replays recorded actions. Each knob has a parameter with the path of a file, which
# has the name of the knob's table.
RECORDED = "recorded"
# The tuner that overrides another one, named in its parameters, with actions of such files.
INTERVENTION = "forced"


def names() -> tuple[str, ...]:
    """Return the names of the installed tuners, closloop's own and those of other packages."""
    return tuple(sorted(entry_points()))


def entry_points() -> dict[str, str]:
    """Return the entry points of tuners: `module:class` by the tuner's name."""
    return plugins.offered(GROUP)


def set_entry_points(points: dict[str, str]) -> None:
    """Use the entry points that another process has found, rather than those installed here."""
    plugins.set_entry_points(GROUP, points)


def tuner_class(name: str) -> type[Any]:
    """Return the class of a tuner, given its name or `file.py:Class`.

    Raises PluginError if there is none, or if it has no `reset` or `act`.
    """
    if not plugins.is_file(name) and name not in entry_points():
        remedy = f"{suggest(name, names())}known are {', '.join(names())}"
        raise plugins.PluginError(f"unknown tuner {name!r}", remedy)
    kind = plugins.load(name, GROUP)
    absent = [method for method in ("reset", "act") if not callable(getattr(kind, method, None))]
    if absent or not isinstance(kind, type):
        lacks = f" without {' and '.join(absent)}" if absent else ""
        what, remedy = f"{name!r} is no tuner{lacks}", "derive a class from closloop.BaseTuner"
        raise plugins.PluginError(what, remedy)
    return kind


def parameters(name: str) -> tuple[str, ...]:
    """Return the names of a known tuner's parameters."""
    return tuple(_parameters(tuner_class(name)))


def create(spec: TunerSpec) -> Tuner:
    """Return a new tuner. Raises ValueError with a remedy for an unknown name or parameter."""
    built, problems = _build(spec.name, spec.params)
    if built is None or problems:
        raise ValueError("; ".join(problem.in_one_sentence for problem in problems))
    built.check_testbed(None)
    tuner: Tuner = built
    return tuner


def checkpoint_of(name: str, params: Mapping[str, Scalar]) -> str | None:
    """Return the name or path of the checkpoint that a known tuner loads; None if it has none."""
    name, params = decider(name, params)
    parameter = _parameters(tuner_class(name)).get("checkpoint")
    return None if parameter is None else str(params.get("checkpoint", parameter.default))


def with_checkpoint(name: str, params: Mapping[str, Scalar], control: str) -> dict[str, Scalar]:
    """Return a tuner's parameters, with a checkpoint that was trained under `control`.

    `control` is the hosts' congestion control. A checkpoint that `params` name stays. If closloop
    comes with several trained under `control`, the first is taken; if with none, the parameters
    stay as they are, and the tuner loads its class's default.
    """
    from tuners.learning.checkpoint import is_pretrained

    trained = f"{name}-{control}-1"
    known = is_pretrained(trained) and "checkpoint" in parameters(name)
    return {**params, "checkpoint": trained} if known and "checkpoint" not in params else {**params}


def decider(name: str, params: Mapping[str, Scalar]) -> tuple[str, Mapping[str, Scalar]]:
    """Return the name and parameters of the tuner that decides: of `forced`, the inner one."""
    if name != INTERVENTION:
        return name, params
    inner = inner_spec(params)
    return inner.name, inner.params


def inner_spec(params: Mapping[str, Scalar]) -> TunerSpec:
    """Return the tuner that `forced` overrides, given the parameters of `forced`.

    Raises ValueError, as `what: remedy`, for parameters that are no JSON object.
    """
    text = str(params.get("parameters") or "{}")
    try:
        inner_params = json.loads(text)
    except ValueError:
        inner_params = None
    if not isinstance(inner_params, dict):
        raise ValueError(f"parameters {text!r} are no JSON object: write it like {{}}")
    return TunerSpec(str(params.get("tuner", "")), inner_params)


def recording_paths(name: str, params: Mapping[str, Scalar]) -> dict[str, str]:
    """Return the paths of the recorded actions that a tuner replays, by parameter name.

    A tuner that decides by itself has none.
    """
    replays = name in (RECORDED, INTERVENTION)
    tables = [knob.table for knob in KNOBS.values()] if replays else []
    return {table: str(params[table]) for table in tables if params.get(table)}


def check(
    name: str, params: dict[str, Scalar], testbed: Testbed | None = None
) -> tuple[Problem, ...]:
    """Return all problems of a tuner's name or parameters.

    With `testbed`, also the reasons why the tuner cannot run there.
    """
    tuner, problems = _build(name, params)
    if tuner is None or problems:
        return tuple(problems)
    try:
        tuner.check_testbed(testbed)
    except InputError as error:
        return error.problems
    except ValueError as error:
        return (of_value(error),)
    return ()


def _build(name: str, params: Mapping[str, Scalar]) -> tuple[Any, list[Problem]]:
    """Return a new tuner (None if it cannot be created) and the problems of its parameters."""
    try:
        kind = tuner_class(name)
    except plugins.PluginError as error:
        return None, [of_value(error)]
    accepted = _parameters(kind)
    params = _with_present_spelling(params, accepted)
    if problems := [*_parameter_problems(name, params, accepted)]:
        return None, problems
    try:
        tuner = kind(**params)
    except ValueError as error:
        return None, [of_value(error)]
    return tuner, [of_text(text) for text in tuner.faults()] if isinstance(tuner, BaseTuner) else []


def _parameter_problems(
    name: str, params: Mapping[str, Scalar], accepted: Mapping[str, inspect.Parameter]
) -> Iterator[Problem]:
    """Yield the unknown parameters, then the missing ones, then those of a wrong type."""
    takes = ", ".join(accepted) if accepted else "no parameters"
    for key in params:
        if key not in accepted:
            yield Problem("", f"tuner {name!r} has no parameter {key!r}", f"it takes {takes}")
    for key, parameter in accepted.items():
        if parameter.default is parameter.empty and key not in params:
            yield Problem("", f"tuner {name!r} needs {key!r}", "write it next to the tuner's name")
    for key, parameter in accepted.items():
        if key in params and not _has_type(params[key], parameter.annotation):
            type_name = _TYPE_NAMES[_scalar_type(parameter.annotation)]
            yield Problem("", f"{key} {params[key]!r} is not {type_name}", "correct it")


def _with_present_spelling(
    params: Mapping[str, Scalar], accepted: Collection[str]
) -> dict[str, Scalar]:
    """Return the parameters with old names replaced. A parameter given by both names keeps both."""
    renamed = {
        old: new
        for old, new in _OLD_SPELLINGS.items()
        if old not in accepted and new in accepted and new not in params
    }
    return {renamed.get(key, key): value for key, value in params.items()}


def _parameters(kind: type[Any]) -> Mapping[str, inspect.Parameter]:
    return _signature(kind).parameters


_signature: Callable[[Any], inspect.Signature] = cache(partial(inspect.signature, eval_str=True))


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _scalar_type(annotation: Any) -> Any:
    """Return the type of a parameter: of `int | None`, int."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and NoneType in get_args(annotation) else annotation


def _has_type(value: Scalar, annotation: Any) -> bool:
    """Whether a value has a parameter's type. Whole numbers are floats too; booleans no numbers."""
    expected = _scalar_type(annotation)
    if expected not in _TYPE_NAMES:  # a user's own class may take other types
        return True
    if expected is float:
        expected = int if isinstance(value, int) else float
    return isinstance(value, expected) and isinstance(value, bool) == (expected is bool)
