"""Types of single fields of a campaign file: how they are read, their bounds, and their paths.

Relative paths in a campaign file start in the file's own folder, not where a command is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator

from inventory.strictyaml import Duration, Size, matching, must
from inventory.variant import LIKE, relative_to, variant_name
from orchestration.core import plugins
from orchestration.core.knobs import KNOBS
from orchestration.core.problems import WrongValue
from orchestration.core.trial import Scalar
from orchestration.core.units import parse_duration_ns, parse_rate_bps, parse_size_bytes

_UNITS = {"_bytes": parse_size_bytes, "_ns": parse_duration_ns, "_bps": parse_rate_bps}


def resolve_path(folder: str, name: str) -> str:
    """Return a workload's name unchanged, and a path resolved against `folder`."""
    return os.path.normpath(os.path.join(folder, name)) if is_path(name) else name


def testbed_name(folder: str, value: object) -> str:
    """Return the name of the testbed that a file's field `testbed` describes, "" if it is wrong.

    It is a name, a path, or a mapping of replaced fields (`inventory.variant`); paths start in
    `folder`.
    """
    if isinstance(value, dict):
        value = variant_name(value) if isinstance(value.get(LIKE), str) else ""
    return relative_to(folder, value) if isinstance(value, str) else ""


def like_as_mapping(value: object) -> object:
    """Return `{"like": value}` for a testbed's name, and anything else unchanged."""
    return {LIKE: value} if isinstance(value, str) else value


def is_path(name: str) -> bool:
    """Return whether the name of a workload or checkpoint is the path of a user's file."""
    return "/" in name or name.endswith((".csv", ".yml", ".yaml", ".safetensors"))


def resolve_reference(folder: str, name: str) -> str:
    """Return a plugin's name unchanged, and `file.py:Class` with its path resolved.

    `folder` is where the path starts. See `orchestration.core.plugins`.
    """
    return os.path.normpath(os.path.join(folder, name)) if plugins.is_file(name) else name


def class_files(references: Iterable[str]) -> list[str]:
    """Return the files of those references that are of the form `file.py:Class`, sorted."""
    return sorted({plugins.file_of(name) for name in references if plugins.is_file(name)})


def resolve_file(folder: str, name: str) -> str:
    """Return a file's path resolved against `folder`, also if it looks like a plain name."""
    return os.path.normpath(os.path.join(folder, name))


def resolve_params(folder: str, params: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return a tuner's parameters, with the paths of its checkpoint and traces of actions resolved.

    `folder` is where the paths start.
    """
    resolved = dict(params)
    traces = {knob.table: resolve_file for knob in KNOBS.values()}
    for key, resolve in {"checkpoint": resolve_path, **traces}.items():
        name = params.get(key)
        if isinstance(name, str):
            resolved[key] = resolve(folder, name)
    return resolved


def read_param(name: str, value: object, unit: str = "") -> Scalar:
    """Return the value of a parameter or option in its base unit: bytes, ns or bit/s.

    The unit is `unit`, or else the end of the name: `kmin_bytes` accepts 5KB, or 5000. Raises
    ValueError if it cannot be read.
    """
    if isinstance(value, str):
        for suffix, parse in _UNITS.items():
            if (f"_{unit}" if unit else name).endswith(suffix):
                return parse(value)
    if isinstance(value, (str, int, float)):
        return value
    raise WrongValue(f"{name!r} is not a single value", "give a number, text, true or false")


def name_as_mapping(value: object) -> object:
    """Return `{"name": value}` for a text, and anything else unchanged."""
    return {"name": value} if isinstance(value, str) else value


def text_as_list(value: object) -> object:
    """Return a list of one for a text, and anything else unchanged."""
    return (
        (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    )


def _share_of(what: str, whole: str) -> AfterValidator:
    """Return a validator of shares of `whole`, a text for its message that ends in an example."""
    is_share = f"{what} {{:g}} is outside (0, 1]"
    return must(lambda value: 0 < value <= 1, is_share, f"it is the share of {whole}")


POSITIVE = must(lambda value: value > 0, "{field!r} is {}", "use more than 0")
NOT_EMPTY = must(bool, "{field!r} is empty", "name at least one")
PositiveDuration = Annotated[Duration, POSITIVE]
PositiveSize = Annotated[Size, POSITIVE]
Positive = Annotated[int, POSITIVE]
NotNegative = Annotated[int, must(lambda value: value >= 0, "{field!r} is {}", "use 0 or more")]
Load = Annotated[float, _share_of("load", "the hosts' line rate, 0.6 for 60 %")]
Share = Annotated[float, _share_of("share", "the switch-to-switch links, 0.1 for 10 %")]
Sha256 = Annotated[
    str,
    matching(r"[0-9a-f]{64}", "{!r} is no SHA-256", "use the 64 digits that sha256sum prints"),
]
FolderName = Annotated[
    str,
    matching(
        r"[a-z0-9][a-z0-9-]{0,63}",
        "campaign {!r} cannot name a folder",
        "use at most 64 of a-z, 0-9 and -, a letter or digit first",
    ),
]
