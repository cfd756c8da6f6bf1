"""Trained networks on disk: arrays as safetensors, with a JSON file that describes them.

    NAME.safetensors    parameters by name
    NAME.json           the card: tuner, architecture, data, seeds, versions, curve

Never pickle: a checkpoint from a stranger may hold wrong numbers, but cannot run code.
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
from tuners.learning.networks import Arrays, finite

FORMAT = 1
PRETRAINED = Path(__file__).parents[1] / "pretrained"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The text reads `what: remedy`."""


@dataclass(frozen=True)
class Checkpoint:
    """What is on disk: arrays by name, and the card."""

    path: Path
    arrays: Arrays
    card: dict[str, Any]


def pretrained() -> tuple[str, ...]:
    """Return the names of the checkpoints that come with the package."""
    return tuple(sorted(path.stem for path in PRETRAINED.glob("*.safetensors")))


def find(name: str) -> Path:
    """Return the file of a checkpoint, given a pretrained one's name or a `.safetensors` path.

    Raises CheckpointError if there is none.
    """
    own = name.endswith(".safetensors")
    path = Path(local_path(name)) if own else PRETRAINED / f"{name}.safetensors"
    if not path.is_file():
        known = ", ".join(_in_ranges(pretrained())) or "none"
        raise CheckpointError(
            f"no checkpoint {name!r}: name a pretrained one ({known}) or a .safetensors file"
        )
    return path


def _in_ranges(names: Sequence[str]) -> list[str]:
    """Return the names with `a-1`, `a-2`, `a-3` as `a-1..3`: a family's training seeds."""
    seeds: dict[str, list[int]] = {}
    plain = []
    for name in names:
        family, _, seed = name.rpartition("-")
        if family and seed.isdecimal():
            seeds.setdefault(family, []).append(int(seed))
        else:
            plain.append(name)
    for family, found in seeds.items():
        low, high = min(found), max(found)
        whole = len(found) > 1 and len(found) == high - low + 1
        plain += [f"{family}-{low}..{high}"] if whole else [f"{family}-{seed}" for seed in found]
    return sorted(plain)


def save(path: Path, arrays: Mapping[str, NDArray[Any]], card: Mapping[str, Any]) -> None:
    """Write both files, each atomically: a reader sees either the old or the new content.

    Raises ValueError, and keeps the old files, if a parameter is not finite.
    """
    from safetensors.numpy import save as serialise

    if not finite(arrays):
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
    if not finite(arrays):
        raise CheckpointError(f"{path} holds NaN or infinite parameters: train anew")
    return Checkpoint(path, arrays, card)


def card_of(path: Path) -> dict[str, Any]:
    """Return the card beside a checkpoint's file. Raises CheckpointError if it cannot be read."""
    beside = path.with_suffix(".json")
    try:
        card = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} has no card {beside.name} that can be read ({error}): keep both files together"
        ) from error
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise CheckpointError(
            f"{beside} is no card of format {FORMAT}: use the closloop that wrote it"
        )
    return card


def load_for(
    name: str, tuner: str, architecture: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Checkpoint:
    """Read a checkpoint and require that it belongs to `tuner` and has arrays of these shapes.

    An entry -1 in a shape accepts any length. Raises CheckpointError that says what differs.
    """
    checkpoint = load(name)
    card, path = checkpoint.card, checkpoint.path
    if card.get("tuner") != tuner:
        raise CheckpointError(
            f"{path} was trained for tuner {card.get('tuner')!r}, not {tuner!r}: "
            "name a checkpoint of this tuner"
        )
    found = card.get("architecture", {})
    if found != dict(architecture):
        wrong = sorted(
            key for key in {*found, *architecture} if found.get(key) != architecture.get(key)
        )
        what = ", ".join(
            f"{key} {found.get(key)!r} instead of {architecture.get(key)!r}" for key in wrong
        )
        raise CheckpointError(
            f"{path} is of another architecture ({what}): use the closloop that wrote it, "
            "or train anew"
        )
    arrays = checkpoint.arrays
    for key in sorted({*arrays, *shapes}):
        have, want = (arrays[key].shape if key in arrays else None), shapes.get(key)
        if (
            have is None
            or want is None
            or len(have) != len(want)
            or any(w not in (-1, h) for h, w in zip(have, want, strict=True))
        ):
            raise CheckpointError(
                f"{path}: array {key!r} has shape {have}, not {want}: it does not fit its card"
            )
    return checkpoint
