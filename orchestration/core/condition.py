"""The condition of a trial: trials under the same condition can be compared.

A condition is everything that determines a trial except its tuner, seed and repeat. Trials of one
condition differ only in the tuner and in what each repeat draws at random. A campaign gives a
trial's `cell` a label for each factor. Only the label `tuner` names the tuner, whose checkpoints
may take turns: another network in each repeat.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from orchestration.core.capabilities import capabilities
from orchestration.core.roce import FORMER_HPCC, HPCC, is_former_hpcc
from orchestration.core.trial import Scalar, TrialSpec, checkpoint_in

# The factor that every campaign has: its levels are the campaign's tuners.
TUNER = "tuner"
# What arms are called whose setting a search found, for all conditions or for each.
BEST_STATIC, ORACLE = "best-static", "oracle"
# The name of the flows' digest in the spec of imported results.
SCHEDULE = "schedule"
# Trials of a condition may differ in these. How often a tuner acts is part of the tuner. The names
# of campaigns and parents, and the labels of a cell, have no effect on a trial.
_OWN = ("campaign", "tuner", "seed", "repeat", "action_period_ns", "cell", "parent")


def factors_of(cell: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the factors of a trial's cell: every label except the tuner's."""
    return {name: level for name, level in cell.items() if name != TUNER}


def labels_of(spec: TrialSpec) -> dict[str, Scalar]:
    """Return the labels of a trial's cell, with the present name of the DCQCN set that it has.

    A trial of closloop 0.2 may call `hpcc` what is `hpcc-0.2` now; its parameters tell.
    """
    roce = spec.host.roce
    if roce is None or not is_former_hpcc(roce.parameters):
        return dict(spec.cell)
    return {name: FORMER_HPCC if level == HPCC else level for name, level in spec.cell.items()}


def factor_labels(cell: Mapping[str, Scalar], between: str = " ") -> list[str]:
    """Return the factors of a cell as texts: `load 0.6`, `size 1MB`."""
    return [f"{name}{between}{level}" for name, level in factors_of(cell).items()]


def campaign_tuner_name(spec: TrialSpec) -> str:
    """Return the name of the tuner in the trial's campaign."""
    return str(spec.cell.get(TUNER, spec.tuner.name))


def condition_settings(spec: TrialSpec) -> str:
    """Return everything that determines a trial except tuner, seed and repeat, as JSON text.

    An imported trial ends when its flows end, and its seed stands for the patterns that made them.
    So neither its duration nor the digest of its flows is part of the condition.
    """
    data = {name: value for name, value in spec.to_json().items() if name not in _OWN}
    data["files"] = dict(spec.traffic_files)
    if not capabilities(spec.backend).runs:
        del data["duration_ns"], data["drain_ns"]
        data["files"].pop(SCHEDULE, None)
    return json.dumps(data, sort_keys=True)


def condition_key(spec: TrialSpec) -> str:
    """Return a text that is equal for trials of one condition: same factors and settings."""
    return json.dumps([factors_of(spec.cell), condition_settings(spec)], sort_keys=True)


CellKey = tuple[str, str]


def cell_key(trial: TrialSpec) -> CellKey:
    """Return what names a trial's cell: its campaign, and the labels of tuner and factors."""
    return trial.campaign, json.dumps(trial.cell, sort_keys=True)


def checkpoint_rotation(trials: Iterable[TrialSpec]) -> dict[CellKey, dict[str, list[int]]]:
    """Return the cells that have several checkpoints, each with the repeats of each of them.

    Cells without labels are left out: nothing says that their trials belong together.
    """
    found: dict[CellKey, dict[str, set[int]]] = {}
    for trial in trials:
        if (name := checkpoint_in(trial)) and trial.cell:
            found.setdefault(cell_key(trial), {}).setdefault(name, set()).add(trial.repeat)
    return {
        place: {name: sorted(repeats) for name, repeats in used.items()}
        for place, used in found.items()
        if len(used) > 1
    }
