"""The report's numbers as CSV files: one per table and one per picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestration.analysis.document import csv_text, replace_file
from orchestration.analysis.figure_style import Data
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.summary import Summary
from orchestration.model.errors import NotReadyError


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
        raise NotReadyError(
            f"{folder} cannot be made: {error.strerror}", "give a folder: --csv DIR"
        ) from error
    paths = []
    for name, text in {**tables, **pictures}.items():
        paths.append(folder / name)
        replace_file(paths[-1], text)
    return paths


def _trials(summary: Summary) -> Data:
    trials = summary.trials
    return {
        "trial": [trial.id for trial in trials],
        "condition": [_label(summary, trial.id) for trial in trials],
        "tuner": [trial.tuner for trial in trials],
        "seed": [trial.spec.seed for trial in trials],
        "repeat": [trial.spec.repeat for trial in trials],
        "valid": [trial.stamp.valid for trial in trials],
        "findings": ["; ".join(reason.text for reason in trial.stamp.reasons) for trial in trials],
        **{
            metric.key: [trial.metrics.scalars[metric.key] for trial in trials]
            for metric in METRICS
        },
    }


def _label(summary: Summary, trial: str) -> str:
    for condition in summary.conditions:
        if any(trial == item.id for arm in condition.arms for item in arm.trials):
            return condition.label
    return ""


def _estimates(summary: Summary) -> Data:
    rows = [
        (condition.label, arm.tuner, metric, arm.estimates[metric.key])
        for condition in summary.conditions
        for arm in condition.arms
        for metric in METRICS
    ]
    return {
        "condition": [label for label, _, _, _ in rows],
        "tuner": [tuner for _, tuner, _, _ in rows],
        "metric": [metric.key for _, _, metric, _ in rows],
        "unit": [metric.unit for _, _, metric, _ in rows],
        **{
            name: [getattr(estimate, name) for _, _, _, estimate in rows]
            for name in ("mean", "low", "high", "n")
        },
    }


def _comparisons(summary: Summary) -> Data:
    rows = [
        (condition.label, item)
        for condition in summary.conditions
        for item in condition.comparisons
    ]
    figures = ("mean", "low", "high", "relative", "relative_low", "relative_high")
    return {
        "condition": [label for label, _ in rows],
        "metric": [item.metric for _, item in rows],
        "tuner": [item.tuner for _, item in rows],
        "baseline": [item.baseline for _, item in rows],
        **{name: [getattr(item.difference, name) for _, item in rows] for name in figures},
        "p_t": [item.difference.p_t for _, item in rows],
        "p_holm": [item.p_holm for _, item in rows],
        "p_sign_flip": [item.difference.p_sign_flip for _, item in rows],
        "pairs": [item.difference.n for _, item in rows],
        "real": [item.real for _, item in rows],
    }
