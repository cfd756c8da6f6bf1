"""Types of a campaign file's single fields: their readers, bounds, and where paths start."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

from inventory.strictyaml import Duration, Size
from orchestration.model import plugins
from orchestration.model.knobs import KNOBS
from orchestration.model.trial import Scalar
from orchestration.model.units import parse_duration_ns, parse_rate_bps, parse_size_bytes

_UNITS = {"_bytes": parse_size_bytes, "_ns": parse_duration_ns, "_bps": parse_rate_bps}


def beside(folder: str, name: str) -> str:
    """Return a name unchanged; resolve a file's path against `folder`."""
    return os.path.normpath(os.path.join(folder, name)) if is_path(name) else name


def is_path(name: str) -> bool:
    """Return whether the name of a testbed, workload or checkpoint is the path of a user's file."""
    return "/" in name or name.endswith((".csv", ".yml", ".yaml", ".safetensors"))


def reference_beside(folder: str, name: str) -> str:
    """Return a name unchanged; resolve the path in a reference to a class in a file.

    `folder` is where the path starts. See `orchestration.model.plugins`.
    """
    return os.path.normpath(os.path.join(folder, name)) if plugins.is_file(name) else name


def file_beside(folder: str, name: str) -> str:
    """Return a file's path resolved against `folder`, whatever its name looks like."""
    return os.path.normpath(os.path.join(folder, name))


def params_beside(folder: str, params: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return a tuner's parameters, with the paths of checkpoint and actions resolved.

    `folder` is where the paths start.
    """
    seen = dict(params)
    recordings = {knob.table: file_beside for knob in KNOBS.values()}
    for key, place in {"checkpoint": beside, **recordings}.items():
        name = params.get(key)
        if isinstance(name, str):
            seen[key] = place(folder, name)
    return seen


def read_param(name: str, value: object, unit: str = "") -> Scalar:
    """Return a parameter or option. Text is read in `unit`, or the unit that ends its name.

    `kmin_bytes` accepts 5KB, or 5000. Raises ValueError if it cannot be read.
    """
    if isinstance(value, str):
        for suffix, parse in _UNITS.items():
            if (f"_{unit}" if unit else name).endswith(suffix):
                return parse(value)
    if isinstance(value, (str, int, float)):
        return value
    raise ValueError(f"{name!r} is not a single value: give a number, text, true or false")


def _positive(value: int, info: ValidationInfo) -> int:
    if value <= 0:
        raise ValueError(f"{info.field_name!r} is {value}: use more than 0")
    return value


def _not_negative(value: int, info: ValidationInfo) -> int:
    if value < 0:
        raise ValueError(f"{info.field_name!r} is {value}: use 0 or more")
    return value


def _part_of(what: str, whole: str) -> Callable[[float], float]:
    """Return a check that a value is a share of `whole`, which ends in an example."""

    def check(value: float) -> float:
        if not 0 < value <= 1:
            raise ValueError(f"{what} {value:g} is outside (0, 1]: it is the share of {whole}")
        return value

    return check


def _sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError(f"{value!r} is no SHA-256: use the 64 digits that sha256sum prints")
    return value


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", value):
        raise ValueError(
            f"campaign {value!r} cannot name a folder: "
            "use at most 64 of a-z, 0-9 and -, a letter or digit first"
        )
    return value


def some(value: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
    """Return a tuple; raise ValueError if it is empty."""
    if not value:
        raise ValueError(f"{info.field_name!r} is empty: name at least one")
    return value


def named(value: object) -> object:
    """Return a name as a mapping that has it, and anything else as it is."""
    return {"name": value} if isinstance(value, str) else value


PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
PositiveSize = Annotated[Size, AfterValidator(_positive)]
Positive = Annotated[int, AfterValidator(_positive)]
NotNegative = Annotated[int, AfterValidator(_not_negative)]
Load = Annotated[float, AfterValidator(_part_of("load", "the hosts' line rate, 0.6 for 60 %"))]
Share = Annotated[
    float, AfterValidator(_part_of("share", "the switch-to-switch links, 0.1 for 10 %"))
]
Sha256 = Annotated[str, AfterValidator(_sha256)]
FolderName = Annotated[str, AfterValidator(_folder_name)]
