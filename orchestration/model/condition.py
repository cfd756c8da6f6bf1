"""What makes trials comparable: the condition that they ran under.

A condition is everything that decides a trial but its tuner, its seed and its repeat. Trials of one
condition differ in who acts on the fabric, and in what each repeat draws anew. A campaign gives a
trial's `cell` a label for each factor; the one called `tuner` names the tuner, and no other does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from orchestration.model.trial import Scalar, TrialSpec

# The factor that every campaign has: its levels are the campaign's tuners.
TUNER = "tuner"
# The backend of others' results, and what their spec calls the digest of their flows.
IMPORTED, SCHEDULE = "imported", "schedule"
# What the trials of a condition may differ in. How often a tuner acts is its own affair; names of
# campaigns and of parents, and the labels of a cell, decide nothing.
_OWN = ("campaign", "tuner", "seed", "repeat", "action_period_ns", "cell", "parent")


def factors_of(cell: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the factors of a trial's cell: every label but the tuner's."""
    return {name: level for name, level in cell.items() if name != TUNER}


def in_words(cell: Mapping[str, Scalar], between: str = " ") -> list[str]:
    """Return the factors of a cell as texts: `load 0.6`, `size 1MB`."""
    return [f"{name}{between}{level}" for name, level in factors_of(cell).items()]


def tuner_called(spec: TrialSpec) -> str:
    """Return what a trial's campaign calls its tuner."""
    return str(spec.cell.get(TUNER, spec.tuner.name))


def settings(spec: TrialSpec) -> str:
    """Return everything that decides a trial but tuner, seed and repeat, as JSON to compare.

    An imported trial ends with its own flows, and its seed stands for the patterns that made them:
    neither its length nor the digest of its flows is part of the condition.
    """
    data = {name: value for name, value in spec.to_json().items() if name not in _OWN}
    data["files"] = dict(spec.traffic_files)
    if spec.backend == IMPORTED:
        del data["duration_ns"], data["drain_ns"]
        data["files"].pop(SCHEDULE, None)
    return json.dumps(data, sort_keys=True)


def condition_key(spec: TrialSpec) -> str:
    """Return the same text for trials of one condition: of the same factors and settings."""
    return json.dumps([factors_of(spec.cell), settings(spec)], sort_keys=True)
