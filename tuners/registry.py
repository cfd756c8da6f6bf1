"""Tuners by name, made only when asked for: heavy libraries load with the tuner that needs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from orchestration.model.ports import Tuner
from orchestration.model.trial import Scalar, TunerSpec


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


TUNERS: dict[str, Callable[..., Tuner]] = {
    "secn1": _secn1,
    "secn2": _secn2,
    "static": _static,
    "step": _step,
}


def names() -> tuple[str, ...]:
    """Return the known tuners' names."""
    return tuple(sorted(TUNERS))


def create(spec: TunerSpec) -> Tuner:
    """Return a new tuner. Raises ValueError with a remedy for an unknown name or parameter."""
    faults = check(spec.name, spec.params)
    if faults:
        raise ValueError("; ".join(faults))
    return TUNERS[spec.name](**spec.params)


def check(name: str, params: dict[str, Scalar]) -> tuple[str, ...]:
    """Return all that is wrong with a tuner's name or parameters, each as `what: remedy`."""
    if name not in TUNERS:
        near = get_close_matches(name, TUNERS, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        return (f"unknown tuner {name!r}: {guess}known are {', '.join(names())}",)
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
    return (*faults, *_check_thresholds(params))


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
