"""The condition of a trial: trials under the same condition can be compared.

A condition is everything that determines a trial except its tuner, seed and repeat. Trials of one
condition differ only in the tuner and in what each repeat draws at random. A campaign gives a
trial's `cell` a label for each factor; the label `tuner` is the tuner's. A tuner may have several
checkpoints that are used in rotation: each repeat then loads another network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from orchestration.core.capabilities import capabilities
from orchestration.core.roce import FORMER_HPCC, HPCC, is_former_hpcc
from orchestration.core.trial import Scalar, TrialSpec, checkpoint_in

# The factor that every campaign has: its levels are the campaign's tuners.
TUNER = "tuner"
# The factor whose levels are a campaign's `arms`: named sets of fields.
ARM = "arm"
# The names of arms whose setting a search found: one setting for all conditions, or one for each.
BEST_STATIC, ORACLE = "best-static", "oracle"
# The name of the flows' digest in the spec of imported results.
SCHEDULE = "schedule"
# Fields in which trials of one condition may differ. How often a tuner acts is part of the tuner.
# The names of campaigns and parents, and the labels of a cell, have no effect on a trial.
_MAY_DIFFER = ("campaign", "tuner", "seed", "repeat", "action_period_ns", "cell", "parent")


def factors_of(cell: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the factors of a trial's cell: every label except the tuner's."""
    return {name: level for name, level in cell.items() if name != TUNER}


def labels_of(spec: TrialSpec) -> dict[str, Scalar]:
    """Return the labels of a trial's cell, with the present name of its DCQCN parameter set.

    In a trial of closloop 0.2, the label `hpcc` may stand for the set that is now called
    `hpcc-0.2`. Its parameters show which of the two it is.
    """
    roce = spec.host.roce
    if roce is None or not is_former_hpcc(roce.parameters):
        return dict(spec.cell)
    return {name: FORMER_HPCC if level == HPCC else level for name, level in spec.cell.items()}


def factor_labels(cell: Mapping[str, Scalar], between: str = " ") -> list[str]:
    """Return each factor of a cell with its level, such as `load 0.6` and `size 1MB`."""
    return [f"{name}{between}{level}" for name, level in factors_of(cell).items()]


def campaign_tuner_name(spec: TrialSpec) -> str:
    """Return the name that the trial's campaign gives to its tuner."""
    return str(spec.cell.get(TUNER, spec.tuner.name))


def condition_settings(spec: TrialSpec) -> str:
    """Return everything that determines a trial except tuner, seed and repeat, as JSON text.

    An imported trial ends when its flows end, and its seed represents the patterns that made them.
    So neither its duration nor the digest of its flows is part of the condition.
    """
    data = {name: value for name, value in spec.to_json().items() if name not in _MAY_DIFFER}
    data["files"] = dict(spec.traffic_files)
    if not capabilities(spec.backend).runs:
        del data["duration_ns"], data["drain_ns"]
        data["files"].pop(SCHEDULE, None)
    return json.dumps(data, sort_keys=True)


def condition_key(spec: TrialSpec) -> str:
    """Return a text that is the same for all trials with the same factors and settings."""
    return json.dumps([factors_of(spec.cell), condition_settings(spec)], sort_keys=True)


CellKey = tuple[str, str]


def cell_key(trial: TrialSpec) -> CellKey:
    """Return the key of a trial's cell: its campaign, and the labels of tuner and factors."""
    return trial.campaign, json.dumps(trial.cell, sort_keys=True)


def checkpoint_rotation(trials: Iterable[TrialSpec]) -> dict[CellKey, dict[str, list[int]]]:
    """Return the repeats of each checkpoint, for every cell that has several checkpoints.

    Cells without labels are left out, because nothing says that their trials belong together.
    """
    checkpoints: dict[CellKey, dict[str, set[int]]] = {}
    for trial in trials:
        if (name := checkpoint_in(trial)) and trial.cell:
            checkpoints.setdefault(cell_key(trial), {}).setdefault(name, set()).add(trial.repeat)
    return {
        key: {name: sorted(repeats) for name, repeats in by_name.items()}
        for key, by_name in checkpoints.items()
        if len(by_name) > 1
    }
