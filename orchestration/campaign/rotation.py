"""Checkpoints that take turns: several networks of one tuner, one a repeat.

    tuners:
      - {name: acc, checkpoint: [acc-1, acc-2, acc-3, acc-4, acc-5]}

Repeat k has the ((k - 1) mod n)-th of n, in all cells alike. The label is one, so that a tuner's
figures are over its training seeds as well as over the draws of the traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestration.core.condition import cell_key, checkpoint_rotation, tuner_called
from orchestration.core.trial import CHECKPOINT_PARAM, TrialSpec


def checkpoint_of_repeat(names: Sequence[str], repeat: int) -> str:
    """Return the checkpoint of a repeat, which counts from 1."""
    return names[(repeat - 1) % len(names)]


def rotates_checkpoints(params: Mapping[str, Any]) -> bool:
    """Return whether a tuner's parameters have a list of checkpoints."""
    return isinstance(params.get(CHECKPOINT_PARAM), list)


def params_of_repeat(params: Mapping[str, Any], repeat: int) -> dict[str, Any]:
    """Return a tuner's parameters in a repeat: one checkpoint in place of a list of them."""
    if not rotates_checkpoints(params):
        return dict(params)
    return {**params, CHECKPOINT_PARAM: checkpoint_of_repeat(params[CHECKPOINT_PARAM], repeat)}


def faults(names: Sequence[object]) -> Iterator[str]:
    """Yield what is wrong with a list of checkpoints itself, each as `what: remedy`."""
    if not names:
        yield "a list of no checkpoints: name at least one"
    for name in names:
        if not isinstance(name, str):
            yield f"{name!r} names no checkpoint: use a pretrained one's name, or a file's"
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    for name in dict.fromkeys(map(str, twice)):
        yield f"checkpoint {name!r} is listed twice: each stands for a training seed of its own"


def variants(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a tuner's parameters with each of its checkpoints in turn; without a list, as is."""
    if not rotates_checkpoints(params):
        return [dict(params)]
    return [{**params, CHECKPOINT_PARAM: name} for name in params[CHECKPOINT_PARAM]]


def describe_rotation(trials: Sequence[TrialSpec]) -> list[str]:
    """Return a line for each tuner whose checkpoints take turns, saying which repeat has which.

    If some have more repeats than others, the line says so: they weigh more in its figures.
    """
    labels = {cell_key(trial): tuner_called(trial) for trial in trials}
    by_label = {labels[place]: used for place, used in checkpoint_rotation(trials).items()}
    lines = []
    for label, used in by_label.items():
        ordered = sorted(used.items(), key=lambda item: item[1])
        said = ", ".join(f"{name} (repeat {_listed(repeats)})" for name, repeats in ordered)
        counts = {len(repeats) for repeats in used.values()}
        uneven = "unevenly, so that some weigh more" if len(counts) > 1 else "evenly"
        lines.append(f"{label}: {len(used)} checkpoints take turns, {uneven}: {said}")
    return lines


def _listed(repeats: Sequence[int]) -> str:
    return " ".join(map(str, repeats))
