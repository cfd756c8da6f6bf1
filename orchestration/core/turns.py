"""Which checkpoints take turns: a campaign's tuner may have another network in each repeat."""

from __future__ import annotations

import json
from collections.abc import Iterable

from orchestration.core.trial import TrialSpec, checkpoint_in

Place = tuple[str, str]


def place_of(trial: TrialSpec) -> Place:
    """Return what names a trial's cell: its campaign, and the labels of tuner and factors."""
    return trial.campaign, json.dumps(trial.cell, sort_keys=True)


def turns(trials: Iterable[TrialSpec]) -> dict[Place, dict[str, list[int]]]:
    """Return the cells that have several checkpoints, each with the repeats of each of them.

    Cells without labels are left out: nothing says that their trials belong together.
    """
    found: dict[Place, dict[str, set[int]]] = {}
    for trial in trials:
        if (name := checkpoint_in(trial)) and trial.cell:
            found.setdefault(place_of(trial), {}).setdefault(name, set()).add(trial.repeat)
    return {
        place: {name: sorted(repeats) for name, repeats in used.items()}
        for place, used in found.items()
        if len(used) > 1
    }
