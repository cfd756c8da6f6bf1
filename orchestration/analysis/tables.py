"""The output of `closloop report`: tables for 80 columns, or JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestration.analysis.answer import answers, marking_law, standing
from orchestration.analysis.device_metrics import BUFFER_METRICS, NIC_METRICS
from orchestration.analysis.load import to_json as load_to_json
from orchestration.analysis.load_tables import load_table
from orchestration.analysis.metrics import (
    METRIC,
    METRICS,
    QUANTILES,
    SIZE_CLASSES,
    fct_key,
    slowdown_key,
)
from orchestration.analysis.sequential import Look
from orchestration.analysis.summary import Arm, Condition, Summary, Trial
from orchestration.analysis.tuner_differences import describe_difference
from orchestration.analysis.words import with_error
from orchestration.artifacts.findings import Told, said_once, where
from orchestration.artifacts.stamp import Severity

EXPORT_FORMAT = 1
SEVERITIES: tuple[Severity, ...] = ("invalid", "warning")
# With fewer flows than this, the p99 is close to the maximum.
FLOWS_FOR_P99 = 100

FABRIC_METRICS = (
    "queue_mean_bytes",
    "queue_p99_bytes",
    "queue_max_bytes",
    "queue_busiest_bytes",
    "marked_share",
    "utilisation_hosts",
    "utilisation_fabric",
    "utilisation_max",
    "dropped_packets",
    "retransmits",
)


def report_tables(summary: Summary) -> Group:
    """Return the output of `closloop report`."""
    parts: list[RenderableType] = [Text(f"{summary.campaign}: {standing(summary)}", style="bold")]
    parts += [Text(f"replays {parent}") for parent in summary.parents]
    parts += [Text(f"• {sentence}") for sentence in answers(summary)]
    for condition in summary.conditions:
        parts.append(Text(""))
        if len(summary.conditions) > 1:
            parts.append(Text(condition.label, style="bold underline"))
        if said := condition.look.in_words:
            parts.append(Text(said))
        parts.append(_flows(condition))
        if condition.comparisons:
            parts += [Text(""), _comparisons(condition)]
        load = load_table(condition, plain_table(""))
        parts += [Text(""), load] if load else []
        parts += [Text(""), _fabric(condition)]
    parts += _stamps(summary)
    return Group(*parts)


def plain_table(title: str, caption: str = "") -> Table:
    """Return an empty table in the terminal's common style."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )


def _flows(condition: Condition) -> Table:
    table = plain_table(
        "Flow completion: slowdown = FCT / ideal FCT",
        f"mean over repeats ± half of its 95% interval; * fewer than {FLOWS_FOR_P99} flows in a "
        "repeat, p99 is close to the largest value",
    )
    table.add_column("flow size", no_wrap=True)
    table.add_column("tuner", overflow="fold")
    for heading in ("median", "p95", "p99", "mean FCT"):
        table.add_column(heading, justify="right")
    for klass, label in SIZE_CLASSES.items():
        for arm in condition.arms:
            if arm.flows[klass]:
                table.add_row(label, arm.tuner, *flow_cells(arm, klass))
                label = ""
        table.add_section()
    return table


def flow_cells(arm: Arm, klass: str) -> list[str]:
    """Return median, p95, p99 slowdown and mean FCT of a flow-size class, as text."""
    cells = [
        with_error(arm.estimates[slowdown_key(statistic, klass)], "ratio")
        for statistic in ("p50", "p95", "p99")
    ]
    if arm.flows[klass] < FLOWS_FOR_P99:
        cells[2] += "*"
    return [*cells, with_error(arm.estimates[fct_key(klass)], "ns")]


def _comparisons(condition: Condition) -> Table:
    baseline, family = condition.comparisons[0].baseline, condition.comparisons[0].family
    several = len(condition.arms) > 2
    table = plain_table(
        f"Paired by seed, against {baseline}",
        f"real: paired t-test, p < 0.05 after Holm's correction for {family} comparisons"
        if family
        else "",
    )
    table.add_column("metric")
    if several:
        table.add_column("tuner", overflow="fold")
    table.add_column("difference [95% CI]")
    table.add_column("verdict")
    for comparison in condition.comparisons:
        row = [METRIC[comparison.metric].label, describe_difference(comparison), comparison.verdict]
        if several:
            row.insert(1, comparison.tuner)
        table.add_row(*row, style="bold" if comparison.real else "")
    return table


def measured(arms: Sequence[Arm], keys: Sequence[str]) -> list[str]:
    """Return the metrics for which some tuner has a value."""
    return [key for key in keys if any(math.isfinite(arm.estimates[key].mean) for arm in arms)]


def measured_fabric(arms: Sequence[Arm]) -> tuple[list[str], str]:
    """Return the metrics of queues, links, NICs and buffers that have values, and what lacks one.

    Only of queues and links every trial should have all.
    """
    fabric = measured(arms, FABRIC_METRICS)
    known = [*fabric, *measured(arms, (*NIC_METRICS, *BUFFER_METRICS))]
    if not fabric:
        return known, "Nothing was measured of queues and links."
    lacking = [METRIC[key].label for key in FABRIC_METRICS if key not in fabric]
    return known, f"Not measured: {'; '.join(lacking)}." if lacking else ""


def _fabric(condition: Condition) -> RenderableType:
    law = marking_law(condition)
    known, lacking = measured_fabric(condition.arms)
    spans = condition.queue_spans
    said = [spans, lacking, f"Marking law: {law}" if law else ""]
    if not known:
        return Text(lacking)
    title = "Queues and links" + ("" if spans else ", while flows arrived")
    table = plain_table(title, "\n".join(filter(None, said)))
    table.add_column("")
    for arm in condition.arms:
        table.add_column(arm.tuner, justify="right", overflow="fold")
    for key in known:
        metric = METRIC[key]
        cells = [with_error(arm.estimates[key], metric.unit) for arm in condition.arms]
        table.add_row(metric.label, *cells)
    return table


def _stamps(summary: Summary) -> list[RenderableType]:
    told = [(severity, told) for severity in SEVERITIES for told in findings(summary, severity)]
    if not told:
        return []
    table = plain_table("What the stamps say")
    table.add_column("trials", overflow="fold", ratio=1)
    table.add_column("finding", ratio=2)
    total = len(summary.trials)
    for severity, one in told:
        style = "red" if severity == "invalid" else "yellow"
        also = f"; likewise with other figures {where(one.alike, total)}" if one.alike else ""
        finding = Text(f"{severity}: {one.text}{also}", style=style)
        table.add_row(where(one.trials, total), finding)
    return [Text(""), table]


def findings(summary: Summary, severity: Severity) -> list[Told]:
    """Return what the stamps say of a severity, once where it is of several trials."""
    return said_once(
        {
            trial.id: [item.text for item in trial.stamp.reasons if item.severity == severity]
            for trial in summary.trials
        }
    )


def summary_to_json(summary: Summary) -> dict[str, Any]:
    """Return the report as JSON-ready data. NaN becomes null; keys include units."""
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


def plain(value: Any) -> Any:
    """Return nested data for JSON: dataclasses become objects, NaN becomes None."""
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
