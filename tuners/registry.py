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


TUNERS: dict[str, Callable[..., Tuner]] = {
    "secn1": _secn1,
    "secn2": _secn2,
    "static": _static,
}


def names() -> tuple[str, ...]:
    """Return the known tuners' names."""
    return tuple(sorted(TUNERS))


def create(spec: TunerSpec) -> Tuner:
    """Return a new tuner. Raises ValueError with a remedy for an unknown name or parameter."""
    problem = check(spec.name, spec.params)
    if problem:
        raise ValueError(problem)
    return TUNERS[spec.name](**spec.params)


def check(name: str, params: dict[str, Scalar]) -> str:
    """Return what is wrong with a tuner's name or parameters, "" if nothing is."""
    if name not in TUNERS:
        near = get_close_matches(name, TUNERS, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        return f"unknown tuner {name!r}: {guess}known are {', '.join(names())}"
    signature = inspect.signature(TUNERS[name])
    accepted = [key for key, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD]
    unknown = sorted(set(params) - set(accepted))
    if unknown:
        takes = ", ".join(accepted) if accepted else "no parameters"
        return f"tuner {name!r} has no parameter {unknown[0]!r}: it takes {takes}"
    missing = [
        key
        for key, p in signature.parameters.items()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and key not in params
    ]
    if missing:
        return f"tuner {name!r} needs {', '.join(missing)}"
    kmin, kmax, pmax = (params.get(key) for key in ("kmin_bytes", "kmax_bytes", "pmax"))
    if isinstance(kmin, int) and isinstance(kmax, int) and kmin > kmax:
        return f"kmin {kmin} B is above kmax {kmax} B: swap or correct them"
    if isinstance(pmax, (int, float)) and not 0 <= pmax <= 1:
        return f"pmax {pmax} is not a probability: use 0 to 1"
    return ""
