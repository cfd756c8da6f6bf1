"""The output of `closloop report` besides its page: for a terminal, as JSON, CSV files and PDF."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestration.analysis.answer import validity_text
from orchestration.analysis.load import to_json as load_to_json
from orchestration.analysis.metrics import METRICS, QUANTILES
from orchestration.analysis.report.explanation import (
    explanation_table,
    explanation_title,
    goodput_table,
)
from orchestration.analysis.report.first_screen import answer_to_json, first_screen
from orchestration.analysis.report.report_tables import (
    comparison_table,
    fabric_table,
    findings_table,
    flow_table,
    load_table,
    marking_text,
    placebo_table,
)
from orchestration.analysis.summary import Arm, Condition, Summary, Trial
from orchestration.core.errors import NotReadyError, unwritable
from orchestration.core.files import whole_file
from orchestration.render.csv import Data, csv_text
from orchestration.render.html import replace_file
from orchestration.render.json import plain
from orchestration.render.page import Block, Fold, Paragraph, rows_of

EXPORT_FORMAT = 2
_INTERIM_FIELDS = ("repeats", "number", "of", "level")


def report_blocks(summary: Summary) -> list[Block]:
    """Return the output of `closloop report`: its first screen, and folds with all tables."""
    blocks: list[Block] = [Paragraph(f"replays {parent}") for parent in summary.parents]
    blocks += first_screen(summary)
    for condition in summary.conditions:
        where = f", {condition.label}" if len(summary.conditions) > 1 else ""
        for title, parts in _details(condition, summary):
            if parts := [part for part in parts if part not in (None, Paragraph(""))]:
                blocks.append(Fold(f"{title}{where}", parts))
    problems = findings_table(summary)
    if problems and len(summary.invalid) == len(summary.trials):
        return [*blocks, problems]  # why there is no answer
    return [*blocks, Fold("Can it be trusted?", [problems])] if problems else blocks


def _details(condition: Condition, summary: Summary) -> list[tuple[str, list[Block | None]]]:
    """Return the tables of a condition, each group with its title."""
    fabric, missing = fabric_table(condition)
    compared = comparison_table(condition) if condition.comparisons else None
    return [
        (
            explanation_title(condition, summary),
            [explanation_table(condition), goodput_table(condition), load_table(condition)],
        ),
        (
            "All metrics, with tests",
            [Paragraph(condition.interim.in_words), compared, placebo_table(condition)],
        ),
        ("Flows by size", [flow_table(condition)]),
        (
            "Queues, buffers and links",
            [fabric, Paragraph(missing), Paragraph(marking_text(condition)) if fabric else None],
        ),
    ]


def summary_to_json(summary: Summary) -> dict[str, Any]:
    """Return the report as JSON-ready data. NaN becomes null; keys include units."""
    return {
        "answer": plain(answer_to_json(summary)),
        "format": EXPORT_FORMAT,
        "campaign": summary.campaign,
        "baseline": summary.baseline,
        "standing": validity_text(summary),
        "metrics": [
            {name: getattr(metric, name) for name in ("key", "label", "unit", "compared")}
            for metric in METRICS.report
        ],
        "conditions": plain([_condition(condition) for condition in summary.conditions]),
        "trials": plain([_trial(trial) for trial in summary.trials]),
    }


def _condition(condition: Condition) -> dict[str, Any]:
    interim = condition.interim
    return {
        "label": condition.label,
        "factors": condition.factors,
        "queue_spans": condition.queue_spans,
        "arms": [_arm(arm) for arm in condition.arms],
        "comparisons": condition.comparisons,
        "look": {name: getattr(interim, name) for name in _INTERIM_FIELDS}
        if interim.planned
        else None,
    }


def _arm(arm: Arm) -> dict[str, Any]:
    return {
        "arm": arm.name,
        "trials": len(arm.trials),
        "valid": len(arm.valid),
        "flows": arm.flows,
        "estimates": arm.estimates,
        "slowdown_by_size": {"quantiles": QUANTILES, **vars(arm.by_size)},
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "id": trial.id,
        "arm": trial.arm,
        "tuner": trial.tuner,
        "seed": trial.spec.seed,
        "repeat": trial.spec.repeat,
        "parent": trial.spec.parent,
        "stamp": trial.stamp.to_json(),
        "metrics": trial.metrics.scalars,
        "load": load_to_json(trial.metrics.load),
    }


_ESTIMATE = ("mean", "low", "high", "n")
_DIFFERENCE = ("mean", "low", "high", "relative", "relative_low", "relative_high")


def write_csv(folder: Path, summary: Summary, figures: Mapping[str, str]) -> list[Path]:
    """Write trials, estimates, comparisons and the data of figures; return the files' paths.

    `figures` is file name -> CSV text. Raises NotReadyError if the folder cannot be written.
    """
    data = {"trials": _trials, "estimates": _estimates, "comparisons": _comparisons}
    tables = {f"{name}.csv": csv_text(rows(summary)) for name, rows in data.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error, "give a folder: --csv DIR") from error
    paths = []
    for name, text in {**tables, **figures}.items():
        paths.append(folder / name)
        replace_file(paths[-1], text)
    return paths


def _trials(summary: Summary) -> Data:
    labels = {
        trial.id: condition.label
        for condition in reversed(summary.conditions)
        for arm in condition.arms
        for trial in arm.trials
    }
    return rows_of(
        {
            "trial": trial.id,
            "condition": labels.get(trial.id, ""),
            "arm": trial.arm,
            "seed": trial.spec.seed,
            "repeat": trial.spec.repeat,
            "valid": trial.stamp.valid,
            "findings": "; ".join(reason.text for reason in trial.stamp.reasons),
            **{metric.key: trial.metrics.scalars[metric.key] for metric in METRICS.report},
        }
        for trial in summary.trials
    )


def _estimates(summary: Summary) -> Data:
    return rows_of(
        {
            "condition": condition.label,
            "arm": arm.name,
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
            **{name: getattr(item, name) for name in ("metric", "arm", "baseline")},
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


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_INSTALL = "sudo apt-get install chromium, then give the same command again"
_LIMIT_S = 300


def find_browser() -> str:
    """Return the path of Chromium. Raises NotReadyError if there is none."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise NotReadyError("a PDF is printed by Chromium, which is not installed here", _INSTALL)


def print_page(html: str, path: Path) -> None:
    """Print a page to the PDF file `path`, replacing it atomically.

    Raises NotReadyError without Chromium, if it fails, or if the file cannot be written.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="closloop-pdf-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        page, printed = folder / "page.html", folder / "page.pdf"
        page.write_text(html, encoding="utf-8")
        argv = printing_command(browser, page, printed, folder / "profile")
        try:
            process = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S)
            messages = process.stderr.strip().splitlines()
        except subprocess.TimeoutExpired:
            messages = [f"it took over {_LIMIT_S} s"]
        if not printed.is_file():
            reason = messages[-1] if messages else "it gave no reason"
            raise NotReadyError(
                f"{browser} printed nothing: {reason}",
                "open the page in a browser and print it there",
            )
        try:
            with whole_file(path) as partial:
                shutil.copyfile(printed, partial)
        except OSError as error:
            raise unwritable(path, error, "make room there or make it writable") from error


def printing_command(browser: str, page: Path, printed: Path, profile: Path) -> list[str]:
    """Return the command that prints a page, with its own profile and without network access."""
    return [
        browser,
        "--headless",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        # Chromium's sandbox does not work as root
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        f"--user-data-dir={profile}",
        "--no-pdf-header-footer",
        f"--print-to-pdf={printed}",
        page.as_uri(),
    ]
