"""A comparison as JSON-ready data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestration.analysis.comparison import sentences
from orchestration.analysis.comparison.judge import Judged
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.analysis.comparison.runs import Run
from orchestration.analysis.comparison.trials import PairFigures, Speed
from orchestration.render.json import plain

COMPARISON_FORMAT = 2


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
        "label": item.metric.short_label,
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
