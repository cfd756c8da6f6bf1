"""Checkpoints: trained networks on disk, as safetensors, each with a JSON file that describes it.

    NAME.safetensors    the network's parameters by name
    NAME.json           the card: tuner, architecture, data, seeds, versions, learning curve

Pickle is never used: a checkpoint from a stranger may hold wrong numbers, but cannot run code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.files import local_path, write_whole
from tuners.learning.networks import Arrays, all_finite

FORMAT = 1
PRETRAINED = Path(__file__).parents[1] / "pretrained"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The text reads `what: remedy`."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory: its file, the parameters by name, and the card."""

    path: Path
    arrays: Arrays
    card: dict[str, Any]


def pretrained() -> tuple[str, ...]:
    """Return the names of the checkpoints that come with the package."""
    return tuple(sorted(path.stem for path in PRETRAINED.glob("*.safetensors")))


def is_pretrained(name: str) -> bool:
    """Return whether a checkpoint of this name comes with the package."""
    return _pretrained_file(name).is_file()


def _pretrained_file(name: str) -> Path:
    return PRETRAINED / f"{name}.safetensors"


def find(name: str) -> Path:
    """Return the file of a checkpoint, given a pretrained one's name or a `.safetensors` path.

    Raises CheckpointError if there is no such file.
    """
    is_path = name.endswith(".safetensors")
    path = Path(local_path(name)) if is_path else _pretrained_file(name)
    if not path.is_file():
        known = ", ".join(_in_ranges(pretrained())) or "none"
        raise CheckpointError(
            f"no checkpoint {name!r}: name a pretrained one ({known}) or a .safetensors file"
        )
    return path


def _in_ranges(names: Sequence[str]) -> list[str]:
    """Return names that differ in their training seed as one: `a-1`, `a-2`, `a-3` as `a-1..3`."""
    seeds: dict[str, list[int]] = {}
    plain = []
    for name in names:
        family, _, seed = name.rpartition("-")
        if family and seed.isdecimal():
            seeds.setdefault(family, []).append(int(seed))
        else:
            plain.append(name)
    for family, numbers in seeds.items():
        low, high = min(numbers), max(numbers)
        is_range = 1 < len(numbers) == high - low + 1
        each = [f"{family}-{number}" for number in numbers]
        plain += [f"{family}-{low}..{high}"] if is_range else each
    return sorted(plain)


def save(path: Path, arrays: Mapping[str, NDArray[Any]], card: Mapping[str, Any]) -> None:
    """Write the parameters and the card, each file atomically: a reader sees old or new content.

    Raises ValueError, and keeps the old files, if a parameter is not finite.
    """
    from safetensors.numpy import save as serialise

    if not all_finite(arrays):
        raise ValueError("a parameter is NaN or infinite")
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
    write_whole(path, serialise(ordered, {"closloop": str(FORMAT)}))
    text = json.dumps({"format": FORMAT, **card}, indent=1) + "\n"
    write_whole(path.with_suffix(".json"), text)


def load(name: str) -> Checkpoint:
    """Read a checkpoint by name or path. Raises CheckpointError for one that cannot be read."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as deserialise

    path = find(name)
    try:
        arrays = deserialise(path.read_bytes())
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} is truncated or no safetensors file ({error}): get it again, or train anew"
        ) from error
    card = card_of(path)
    if not all_finite(arrays):
        raise CheckpointError(f"{path} holds NaN or infinite parameters: train anew")
    return Checkpoint(path, arrays, card)


def card_of(path: Path) -> dict[str, Any]:
    """Return the card beside a checkpoint's file. Raises CheckpointError if it cannot be read."""
    card_path = path.with_suffix(".json")
    try:
        card = json.loads(card_path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} has no card {card_path.name} that can be read ({error}): "
            "keep both files together"
        ) from error
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise CheckpointError(
            f"{card_path} is no card of format {FORMAT}: use the closloop that wrote it"
        )
    return card


def load_for(
    name: str, tuner: str, architecture: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Checkpoint:
    """Read a checkpoint for `tuner`, whose networks have this architecture and these shapes.

    A -1 in a shape accepts any length. Raises CheckpointError, which says what differs, for a
    checkpoint of another tuner, of another architecture, or with other shapes.
    """
    checkpoint = load(name)
    card, path = checkpoint.card, checkpoint.path
    if card.get("tuner") != tuner:
        raise CheckpointError(
            f"{path} was trained for tuner {card.get('tuner')!r}, not {tuner!r}: "
            "name a checkpoint of this tuner"
        )
    actual = card.get("architecture", {})
    if actual != dict(architecture):
        different = sorted(
            key for key in {*actual, *architecture} if actual.get(key) != architecture.get(key)
        )
        what = ", ".join(
            f"{key} {actual.get(key)!r} instead of {architecture.get(key)!r}" for key in different
        )
        raise CheckpointError(
            f"{path} is of another architecture ({what}): use the closloop that wrote it, "
            "or train anew"
        )
    _check_shapes(checkpoint, shapes)
    return checkpoint


def _check_shapes(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> None:
    arrays = checkpoint.arrays
    for name in sorted({*arrays, *shapes}):
        actual, expected = (arrays[name].shape if name in arrays else None), shapes.get(name)
        if (
            actual is None
            or expected is None
            or len(actual) != len(expected)
            or any(length not in (-1, n) for n, length in zip(actual, expected, strict=True))
        ):
            raise CheckpointError(
                f"{checkpoint.path}: array {name!r} has shape {actual}, not {expected}: "
                "it does not fit its card"
            )
