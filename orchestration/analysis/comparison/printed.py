"""The output of `closloop compare`: tables for 80 columns, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestration.analysis.comparison import sentences
from orchestration.analysis.comparison.causes import ORDER, Cause
from orchestration.analysis.comparison.equivalence import DIFFERENT, EQUIVALENT
from orchestration.analysis.comparison.judge import Judged
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.analysis.comparison.runs import Run
from orchestration.analysis.comparison.trials import PairFigures, Speed
from orchestration.analysis.metrics import SIZE_CLASSES
from orchestration.analysis.tables import plain, plain_table

_STYLES = {DIFFERENT: "bold", EQUIVALENT: "dim"}
# How many causes fit on a terminal.
CAUSES = 8
COMPARISON_FORMAT = 2


def comparison_tables(comparisons: Sequence[RunComparison]) -> Group:
    """Return the output of `closloop compare`."""
    parts: list[RenderableType] = []
    for comparison in comparisons:
        if parts:
            parts.append(Text(""))
        parts += _told(comparison)
    return Group(*parts)


def _told(comparison: RunComparison) -> list[RenderableType]:
    a, b = comparison.a, comparison.b
    parts: list[RenderableType] = [
        Text(sentences.answer(comparison), style="bold"),
        Text(f"{a.name} is the reference; {b.name}"),
    ]
    for cell in comparison.cells:
        parts += [Text(""), _metrics(cell, comparison)]
        parts += [Text(f"• {said}") for said in sentences.parting(cell)]
        if cell.causes:
            parts += [Text(""), _causes(cell.causes)]
    parts.append(Text("Speed", style="bold"))
    parts += [Text(f"• {line}") for line in sentences.speeds(comparison)]
    if comparison.notes:
        parts += [Text(""), Text("Left out, or to know", style="bold")]
        parts += [Text(f"• {note}") for note in comparison.notes]
    return parts


def _metrics(cell: ComparedCell, comparison: RunComparison) -> Table:
    table = plain_table(
        f"{cell.label}: {sentences.pairs(cell)}, {cell.how}", sentences.margins_note(comparison)
    )
    table.add_column("metric", overflow="fold")
    table.add_column("A", justify="right", no_wrap=True)
    table.add_column("B", justify="right", no_wrap=True)
    table.add_column("B - A [95%]", no_wrap=True)
    table.add_column("verdict")
    for item in cell.judged:
        metric = item.metric
        table.add_row(
            metric.label if metric.klass == "all" else f"  {SIZE_CLASSES[metric.klass]}",
            *sentences.values(item),
            sentences.difference(item),
            sentences.needs(item) or item.verdict,
            style=_STYLES.get(item.verdict, ""),
        )
    for metric, side in cell.left_out:
        table.add_row(metric.label, "", "", "", f"only in {side}")
    return table


def _causes(causes: Sequence[Cause]) -> Table:
    more = len(causes) - CAUSES
    table = plain_table(
        "Likely causes, from what both recorded; suspects, no proof",
        ORDER + (f" {more} more on the page and in --json." if more > 0 else ""),
    )
    for heading, ratio in (("setting", 2), ("A", 2), ("B", 2)):
        table.add_column(heading, overflow="fold", ratio=ratio)
    table.add_column("moves", ratio=2)
    table.add_column("why", ratio=4)
    for cause in causes[:CAUSES]:
        table.add_row(cause.what, cause.a, cause.b, ", ".join(cause.moves), cause.why)
    return table


def comparisons_to_json(comparisons: Sequence[RunComparison]) -> dict[str, Any]:
    """Return comparisons as JSON-ready data. NaN becomes null; keys include units."""
    found = [_comparison(comparison) for comparison in comparisons]
    return {"format": COMPARISON_FORMAT, "comparisons": plain(found)}


def _comparison(comparison: RunComparison) -> dict[str, Any]:
    return {
        "verdict": comparison.verdict,
        "answer": sentences.answer(comparison),
        "a": _run(comparison.a),
        "b": _run(comparison.b),
        "margins": comparison.margins,
        "cells": [_cell(cell) for cell in comparison.cells],
        "speed": {"a": _speed(comparison.speed_a), "b": _speed(comparison.speed_b)},
        "notes": comparison.notes,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "backend": run.backend,
        "trials": [trial.spec.id for trial in run.trials],
        "invalid": [trial.spec.id for trial in run.invalid],
    }


def _cell(cell: ComparedCell) -> dict[str, Any]:
    places = ("sizes", "ports", "parted_ns", "parted_at", "apart_ns", "apart_bytes")
    return {
        "label": cell.label,
        "paired_by": cell.how,
        "pairs": [_pair(pair) for pair in cell.pairs],
        "metrics": [_judged(item) for item in cell.judged],
        "not_compared": [{"metric": metric.key, "only_in": side} for metric, side in cell.left_out],
        "parting": {
            "sentences": sentences.parting(cell),
            **{name: getattr(cell.places, name) for name in places},
        },
        "causes": cell.causes,
    }


def _pair(pair: PairFigures) -> dict[str, Any]:
    paired, parting = pair.paired, pair.parting
    return {
        "a": pair.a.trial.spec.id,
        "b": pair.b.trial.spec.id,
        "flows_in_both": paired.common if paired else None,
        "flows_only_in_a": paired.only_a if paired else None,
        "flows_only_in_b": paired.only_b if paired else None,
        "parted_ns": parting.parted_ns if parting else None,
    }


def _judged(item: Judged) -> dict[str, Any]:
    return {
        "metric": item.metric.key,
        "label": item.metric.label,
        "unit": item.metric.unit,
        "a": item.a,
        "b": item.b,
        **vars(item.interval),
        "margin": item.margin,
        "allowed": item.allowed,
        "p_zero_holm": item.p_zero,
        "p_beyond_margin": item.p_beyond,
        "verdict": item.verdict,
        "identical": item.identical,
        "repeats_needed": item.repeats,
        "pairs": item.n,
    }


def _speed(speed: Speed) -> dict[str, Any]:
    return {
        **vars(speed),
        "packet_hops_per_wall_s": speed.per_wall_s,
        "packet_hops_per_run_s": speed.per_run_s,
    }
