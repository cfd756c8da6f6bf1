"""The report's numbers as CSV files: one per table and one per picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestration.analysis.metrics import METRICS
from orchestration.analysis.summary import Summary
from orchestration.core.errors import unwritable
from orchestration.render.csv import Data, csv_text
from orchestration.render.html import replace_file
from orchestration.render.picture import rows_of

_ESTIMATE = ("mean", "low", "high", "n")
_DIFFERENCE = ("mean", "low", "high", "relative", "relative_low", "relative_high")


def write_csv(folder: Path, summary: Summary, pictures: Mapping[str, str]) -> list[Path]:
    """Write trials, estimates, comparisons and the pictures' data; return the files' paths.

    `pictures` is file name -> text. Raises NotReadyError if the folder cannot be written.
    """
    tables = {
        "trials.csv": csv_text(_trials(summary)),
        "estimates.csv": csv_text(_estimates(summary)),
        "comparisons.csv": csv_text(_comparisons(summary)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error, "give a folder: --csv DIR") from error
    paths = []
    for name, text in {**tables, **pictures}.items():
        paths.append(folder / name)
        replace_file(paths[-1], text)
    return paths


def _trials(summary: Summary) -> Data:
    return rows_of(
        {
            "trial": trial.id,
            "condition": _label(summary, trial.id),
            "tuner": trial.tuner,
            "seed": trial.spec.seed,
            "repeat": trial.spec.repeat,
            "valid": trial.stamp.valid,
            "findings": "; ".join(reason.text for reason in trial.stamp.reasons),
            **{metric.key: trial.metrics.scalars[metric.key] for metric in METRICS.report},
        }
        for trial in summary.trials
    )


def _label(summary: Summary, trial: str) -> str:
    for condition in summary.conditions:
        if any(trial == item.id for arm in condition.arms for item in arm.trials):
            return condition.label
    return ""


def _estimates(summary: Summary) -> Data:
    return rows_of(
        {
            "condition": condition.label,
            "tuner": arm.tuner,
            "metric": metric.key,
            "unit": metric.unit,
            **{name: getattr(arm.estimates[metric.key], name) for name in _ESTIMATE},
        }
        for condition in summary.conditions
        for arm in condition.arms
        for metric in METRICS.report
    )


def _comparisons(summary: Summary) -> Data:
    return rows_of(
        {
            "condition": condition.label,
            **{name: getattr(item, name) for name in ("metric", "tuner", "baseline")},
            **{name: getattr(item.difference, name) for name in _DIFFERENCE},
            "p_t": item.difference.p_t,
            "p_holm": item.p_holm,
            "p_sign_flip": item.difference.p_sign_flip,
            "pairs": item.difference.n,
            "real": item.real,
        }
        for condition in summary.conditions
        for item in condition.comparisons
    )
