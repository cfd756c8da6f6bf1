"""Tuners by name, made only when asked for: heavy libraries load with the tuner that needs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from orchestration.model.errors import InputError
from orchestration.model.ports import Tuner
from orchestration.model.trial import Scalar, TunerSpec
from tuners.checkpoint import CheckpointError

if TYPE_CHECKING:
    from inventory.topology import Testbed


# Repeats the actions of a file, which its parameter `actions` names.
RECORDED = "recorded"


def _secn1(**params: Any) -> Tuner:
    from tuners.ecn.static import secn1

    return secn1(**params)


def _secn2(**params: Any) -> Tuner:
    from tuners.ecn.static import secn2

    return secn2(**params)


def _static(kmin_bytes: int, kmax_bytes: int, pmax: float = 0.01, per_25g: bool = False) -> Tuner:
    from tuners.ecn.static import StaticEcn

    return StaticEcn(kmin_bytes, kmax_bytes, pmax, per_25g=per_25g)


def _step(
    at_ns: int,
    kmin_bytes: int,
    kmax_bytes: int,
    then_kmin_bytes: int,
    then_kmax_bytes: int,
    pmax: float = 0.01,
    then_pmax: float = 0.01,
) -> Tuner:
    from tuners.ecn.static import StaticEcn
    from tuners.ecn.step import StepEcn

    before = StaticEcn(kmin_bytes, kmax_bytes, pmax)
    return StepEcn(at_ns, before, StaticEcn(then_kmin_bytes, then_kmax_bytes, then_pmax))


def _amt(
    start_bytes: int = 100_000,
    least_bytes: int = 5_000,
    most_bytes: int = 100_000,
    target: float = 0.95,
    step_bytes: int = 5_000,
    cut: float = 0.1,
) -> Tuner:
    from tuners.ecn.amt import AmtEcn

    return AmtEcn(start_bytes, least_bytes, most_bytes, target, step_bytes, cut)


def _qaecn(least_bytes: int = 5_000, most_bytes: int = 400_000, share: float = 0.5) -> Tuner:
    from tuners.ecn.qaecn import QueueAwareEcn

    return QueueAwareEcn(least_bytes, most_bytes, share)


def _random(templates: str = "graphcc") -> Tuner:
    from tuners.ecn.placebo import TEMPLATES, RandomEcn

    return RandomEcn(TEMPLATES[templates]())


def _acc(
    checkpoint: str = "acc",
    explore: float = 0.0,
    online: bool = False,
    idle_rule: bool = True,
    collect: bool = False,
) -> Tuner:
    from tuners.ecn.acc import Acc

    return Acc(checkpoint, explore, online=online, idle_rule=idle_rule, collect=collect)


def _pet(
    checkpoint: str = "pet",
    explore: float = 0.0,
    beta_1: float = 0.3,
    beta_2: float = 0.7,
    online: bool = False,
    collect: bool = False,
) -> Tuner:
    from tuners.ecn.pet import Pet

    return Pet(checkpoint, explore, beta_1, beta_2, online=online, collect=collect)


def _graphcc(checkpoint: str = "graphcc", explore: float = 0.0, collect: bool = False) -> Tuner:
    from tuners.ecn.graphcc import Graphcc

    return Graphcc(checkpoint, explore, collect=collect)


def _recorded(actions: str) -> Tuner:
    from tuners.recorded import RecordedTuner

    return RecordedTuner(actions)


TUNERS: dict[str, Callable[..., Tuner]] = {
    "acc": _acc,
    "amt": _amt,
    "graphcc": _graphcc,
    "pet": _pet,
    "qaecn": _qaecn,
    "random": _random,
    RECORDED: _recorded,
    "secn1": _secn1,
    "secn2": _secn2,
    "static": _static,
    "step": _step,
}


def names() -> tuple[str, ...]:
    """Return the known tuners' names."""
    return tuple(sorted(TUNERS))


def parameters(name: str) -> tuple[str, ...]:
    """Return the names of a known tuner's parameters."""
    return tuple(inspect.signature(TUNERS[name]).parameters)


def create(spec: TunerSpec) -> Tuner:
    """Return a new tuner. Raises ValueError with a remedy for an unknown name or parameter."""
    faults = _check_params(spec.name, spec.params)
    if faults:
        raise ValueError("; ".join(faults))
    return TUNERS[spec.name](**spec.params)


def checkpoint_of(name: str, params: Mapping[str, Scalar]) -> str | None:
    """Return the checkpoint that a known tuner would load, by name or path; None if it has none."""
    parameter = inspect.signature(TUNERS[name]).parameters.get("checkpoint")
    return None if parameter is None else str(params.get("checkpoint", parameter.default))


def actions_of(name: str, params: Mapping[str, Scalar]) -> str | None:
    """Return the path of the actions that a tuner repeats; None for a tuner that decides itself."""
    return str(params["actions"]) if name == RECORDED and "actions" in params else None


def check(name: str, params: dict[str, Scalar], testbed: Testbed | None = None) -> tuple[str, ...]:
    """Return all that is wrong with a tuner's name or parameters, each as `what: remedy`.

    With `testbed`, also what keeps the tuner from running there.
    """
    faults = _check_params(name, params)
    if not faults and checkpoint_of(name, params) is not None:
        faults = _check_checkpoint(name, params, testbed)
    elif not faults and actions_of(name, params) is not None:
        faults = _check_actions(str(params["actions"]), testbed)
    return tuple(faults)


def _check_params(name: str, params: dict[str, Scalar]) -> list[str]:
    if name not in TUNERS:
        near = get_close_matches(name, TUNERS, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        return [f"unknown tuner {name!r}: {guess}known are {', '.join(names())}"]
    signature = inspect.signature(TUNERS[name], eval_str=True)
    accepted = {key: p for key, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
    takes = ", ".join(accepted) if accepted else "no parameters"
    faults = [
        f"tuner {name!r} has no parameter {key!r}: it takes {takes}"
        for key in params
        if key not in accepted
    ]
    faults += [
        f"tuner {name!r} needs {key!r}: write it beside the name"
        for key, p in accepted.items()
        if p.default is p.empty and key not in params
    ]
    faults += [
        f"{key} {params[key]!r} is not {_WANTED[p.annotation]}: correct it"
        for key, p in accepted.items()
        if key in params and not _fits(params[key], p.annotation)
    ]
    defaults = {key: p.default for key, p in accepted.items() if p.default is not p.empty}
    return [*faults, *_check_thresholds(params), *_check_rules({**defaults, **params})]


def _check_checkpoint(name: str, params: dict[str, Scalar], testbed: Testbed | None) -> list[str]:
    """Load a learned tuner as the trial will, and ask it whether it fits the testbed."""
    if params.get("online") and find_spec("torch") is None:
        return [f"tuner {name!r} learns online with torch: pip install 'closloop[learn]'"]
    try:
        tuner = TUNERS[name](**params)
        if testbed is not None:
            tuner.check_testbed(testbed)
    except CheckpointError as error:
        return [str(error)]
    return []


def _check_actions(path: str, testbed: Testbed | None) -> list[str]:
    from tuners.recorded import read_actions

    try:
        read_actions(path, testbed)
    except InputError as error:
        # what is before the first colon is what is wrong
        return [
            f"{item.what.replace(': ', ', ')} (in {item.where}): {item.remedy}"
            for item in error.problems
        ]
    return []


_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _fits(value: Scalar, wanted: type) -> bool:
    if wanted is float:
        wanted = int if isinstance(value, int) else float
    return isinstance(value, wanted) and isinstance(value, bool) == (wanted is bool)


def _check_thresholds(params: dict[str, Scalar]) -> list[str]:
    """Check each setting: the parameters without a prefix, and those of `step`'s second one."""
    faults = []
    for prefix in ("", "then_"):
        kmin, kmax, pmax = (
            params.get(prefix + key) for key in ("kmin_bytes", "kmax_bytes", "pmax")
        )
        if isinstance(kmin, int) and kmin < 0:
            faults.append(f"{prefix}kmin {kmin} B is below 0: use 0 or more")
        if isinstance(kmin, int) and isinstance(kmax, int) and kmin > kmax:
            faults.append(
                f"{prefix}kmin {kmin} B is above {prefix}kmax {kmax} B: swap or correct them"
            )
        if isinstance(pmax, (int, float)) and not 0 <= pmax <= 1:
            faults.append(f"{prefix}pmax {pmax} is not a probability: use 0 to 1")
    return faults


def _check_rules(params: dict[str, Scalar]) -> list[str]:
    """Check what AMT, QAECN, the placebo and the learned tuners take."""
    faults = []
    explore = params.get("explore")
    if isinstance(explore, (int, float)) and not 0 <= explore <= 1:
        faults.append(f"explore {explore} is not a probability: use 0 to 1")
    for key in ("target", "cut", "share"):
        value = params.get(key)
        if isinstance(value, (int, float)) and not 0 < value <= 1:
            faults.append(f"{key} {value} is not a share: use more than 0, at most 1")
    for key in ("start_bytes", "least_bytes", "most_bytes", "step_bytes"):
        value = params.get(key)
        if isinstance(value, int) and value < 0:
            faults.append(f"{key} {value} is below 0: use 0 or more")
    least, most = params.get("least_bytes"), params.get("most_bytes")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        faults.append(f"least_bytes {least} is above most_bytes {most}: swap or correct them")
    templates = params.get("templates")
    if isinstance(templates, str):
        from tuners.ecn.placebo import TEMPLATES

        if templates not in TEMPLATES:
            faults.append(f"no templates are called {templates!r}: use {', '.join(TEMPLATES)}")
    return faults
