"""The summary as JSON-ready data, for programs: `closloop report --json`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from orchestration.analysis.answer import answers, standing
from orchestration.analysis.metrics import METRICS, QUANTILES
from orchestration.analysis.summary import Arm, Condition, Summary, Trial

EXPORT_FORMAT = 1


def summary_to_json(summary: Summary) -> dict[str, Any]:
    """Return the report as JSON-ready data; what is not a number is null. Units are in the keys."""
    return {
        "format": EXPORT_FORMAT,
        "campaign": summary.campaign,
        "baseline": summary.baseline,
        "standing": standing(summary),
        "answers": answers(summary),
        "metrics": plain(METRICS),
        "conditions": plain([_condition(condition) for condition in summary.conditions]),
        "trials": plain([_trial(trial) for trial in summary.trials]),
    }


def _condition(condition: Condition) -> dict[str, Any]:
    return {
        "label": condition.label,
        "factors": condition.factors,
        "tuners": [_arm(arm) for arm in condition.arms],
        "comparisons": condition.comparisons,
    }


def _arm(arm: Arm) -> dict[str, Any]:
    return {
        "tuner": arm.tuner,
        "trials": len(arm.trials),
        "valid": len(arm.valid),
        "flows": arm.flows,
        "estimates": arm.estimates,
        "slowdown_by_size": {"quantiles": QUANTILES, **vars(arm.by_size)},
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "id": trial.id,
        "tuner": trial.tuner,
        "seed": trial.spec.seed,
        "repeat": trial.spec.repeat,
        "parent": trial.spec.parent,
        "stamp": trial.stamp.to_json(),
        "metrics": trial.metrics.scalars,
    }


def plain(value: Any) -> Any:
    """Return nested data as JSON has it: objects for dataclasses, None for what is no number."""
    if dataclasses.is_dataclass(value):
        return plain(vars(value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
