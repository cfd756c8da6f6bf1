"""Checkpoints in rotation: several trained networks of one tuner, one in each repeat.

    tuners:
      - {name: acc, checkpoint: [acc-1, acc-2, acc-3, acc-4, acc-5]}

Of n checkpoints, repeat k uses number ((k - 1) mod n) + 1, in all cells. They share one label, so
that a tuner's results cover its training seeds as well as the seeds of the traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestration.core.condition import campaign_tuner_name, cell_key, checkpoint_rotation
from orchestration.core.trial import CHECKPOINT_PARAM, TrialSpec


def checkpoint_of_repeat(names: Sequence[str], repeat: int) -> str:
    """Return the checkpoint that a repeat uses; repeats count from 1."""
    return names[(repeat - 1) % len(names)]


def rotates_checkpoints(params: Mapping[str, Any]) -> bool:
    """Return whether a tuner's parameters have a list of checkpoints."""
    return isinstance(params.get(CHECKPOINT_PARAM), list)


def params_of_repeat(params: Mapping[str, Any], repeat: int) -> dict[str, Any]:
    """Return a tuner's parameters in a repeat, with one checkpoint instead of a list."""
    if not rotates_checkpoints(params):
        return dict(params)
    return {**params, CHECKPOINT_PARAM: checkpoint_of_repeat(params[CHECKPOINT_PARAM], repeat)}


def faults(names: Sequence[object]) -> Iterator[str]:
    """Yield the problems of a list of checkpoints, each as the text `what: remedy`.

    Whether each checkpoint fits its tuner is checked elsewhere.
    """
    if not names:
        yield "the list of checkpoints is empty: name at least one"
    for name in names:
        if not isinstance(name, str):
            yield f"{name!r} names no checkpoint: use a pretrained one's name, or a file's path"
    duplicates = [name for index, name in enumerate(names) if name in names[:index]]
    for name in dict.fromkeys(map(str, duplicates)):
        yield f"checkpoint {name!r} is listed twice: list one for each training seed"


def variants(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a tuner's parameters once for each checkpoint that is listed; else once, unchanged."""
    if not rotates_checkpoints(params):
        return [dict(params)]
    return [{**params, CHECKPOINT_PARAM: name} for name in params[CHECKPOINT_PARAM]]


def describe_rotation(trials: Sequence[TrialSpec]) -> list[str]:
    """Return a line for each tuner with checkpoints in rotation: which repeats use which.

    If some checkpoints have more repeats than others, the line says so: they have more weight in
    the tuner's results.
    """
    labels = {cell_key(trial): campaign_tuner_name(trial) for trial in trials}
    by_label = {labels[key]: used for key, used in checkpoint_rotation(trials).items()}
    lines = []
    for label, used in by_label.items():
        ordered = sorted(used.items(), key=lambda item: item[1])
        listed = ", ".join(f"{name} (repeats {_listed(repeats)})" for name, repeats in ordered)
        counts = {len(repeats) for repeats in used.values()}
        share = "some have more repeats and more weight" if len(counts) > 1 else "equally often"
        lines.append(f"{label}: {len(used)} checkpoints in rotation, {share}: {listed}")
    return lines


def _listed(repeats: Sequence[int]) -> str:
    return ", ".join(map(str, repeats))
