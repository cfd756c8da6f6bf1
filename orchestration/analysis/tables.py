"""The output of `closloop report`: blocks for a terminal, or JSON."""

from __future__ import annotations

from typing import Any

from orchestration.analysis.answer import answers, standing
from orchestration.analysis.load import to_json as load_to_json
from orchestration.analysis.metrics import METRICS, QUANTILES
from orchestration.analysis.report.report_tables import (
    comparison_table,
    fabric_table,
    findings_table,
    flow_table,
    load_table,
    marking_text,
)
from orchestration.analysis.sequential import Look
from orchestration.analysis.summary import Arm, Condition, Summary, Trial
from orchestration.render.json import plain
from orchestration.render.page import Block, Heading, Items, Paragraph

EXPORT_FORMAT = 1


def report_blocks(summary: Summary) -> list[Block]:
    """Return the output of `closloop report`."""
    blocks: list[Block] = [Paragraph(f"{summary.campaign}: {standing(summary)}", "ok")]
    blocks += [Paragraph(f"replays {parent}") for parent in summary.parents]
    blocks.append(Items(answers(summary)))
    for condition in summary.conditions:
        fabric, lacking = fabric_table(condition)
        parts = [
            Heading(condition.label) if len(summary.conditions) > 1 else None,
            Paragraph(condition.look.in_words),
            flow_table(condition),
            comparison_table(condition) if condition.comparisons else None,
            load_table(condition),
            fabric,
            Paragraph(lacking),
            Paragraph(marking_text(condition)) if fabric else None,
        ]
        blocks += [part for part in parts if part is not None]
    found = findings_table(summary)
    return [*blocks, found] if found else blocks


def summary_to_json(summary: Summary) -> dict[str, Any]:
    """Return the report as JSON-ready data. NaN becomes null; keys include units."""
    return {
        "format": EXPORT_FORMAT,
        "campaign": summary.campaign,
        "baseline": summary.baseline,
        "standing": standing(summary),
        "answers": answers(summary),
        "metrics": [
            {name: getattr(metric, name) for name in ("key", "label", "unit", "compared")}
            for metric in METRICS.report
        ],
        "conditions": plain([_condition(condition) for condition in summary.conditions]),
        "trials": plain([_trial(trial) for trial in summary.trials]),
    }


def _condition(condition: Condition) -> dict[str, Any]:
    return {
        "label": condition.label,
        "factors": condition.factors,
        "queue_spans": condition.queue_spans,
        "tuners": [_arm(arm) for arm in condition.arms],
        "comparisons": condition.comparisons,
        "look": _look(condition.look),
    }


def _look(look: Look) -> dict[str, Any] | None:
    """Return the look at which intervals are read, None if there is one only."""
    names = ("repeats", "number", "of", "level")
    return {name: getattr(look, name) for name in names} if look.planned else None


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
        "load": load_to_json(trial.metrics.load),
    }
