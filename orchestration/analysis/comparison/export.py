"""A comparison as JSON-ready data, for programs: `closloop compare --json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from orchestration.analysis.comparison import sentences
from orchestration.analysis.comparison.judge import Judged
from orchestration.analysis.comparison.places import Places
from orchestration.analysis.comparison.reading import Run
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.analysis.comparison.speed import Speed
from orchestration.analysis.export import plain

COMPARISON_FORMAT = 1


def comparisons_to_json(comparisons: Sequence[RunComparison]) -> dict[str, Any]:
    """Return comparisons as JSON-ready data; what is not a number is null. Units are in keys."""
    data = plain(
        {
            "format": COMPARISON_FORMAT,
            "comparisons": [_comparison(comparison) for comparison in comparisons],
        }
    )
    assert isinstance(data, dict)
    return data


def _comparison(comparison: RunComparison) -> dict[str, Any]:
    return {
        "verdict": comparison.verdict,
        "answer": sentences.answer(comparison),
        "a": _run(comparison.a),
        "b": _run(comparison.b),
        "margins": dataclasses.asdict(comparison.margins),
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
    return {
        "label": cell.label,
        "paired_by": cell.how,
        "pairs": [
            {
                "a": pair.a.trial.spec.id,
                "b": pair.b.trial.spec.id,
                "flows_in_both": pair.paired.common if pair.paired else None,
                "flows_only_in_a": pair.paired.only_a if pair.paired else None,
                "flows_only_in_b": pair.paired.only_b if pair.paired else None,
                "parted_ns": pair.parting.parted_ns if pair.parting else None,
            }
            for pair in cell.pairs
        ],
        "metrics": [_judged(item) for item in cell.judged],
        "not_compared": [{"metric": metric.key, "only_in": side} for metric, side in cell.left_out],
        "parting": {"sentences": sentences.parting(cell), **_places(cell.places)},
        "causes": [{**dataclasses.asdict(c), "score": c.score} for c in cell.causes],
    }


def _judged(item: Judged) -> dict[str, Any]:
    return {
        "metric": item.metric.key,
        "label": item.metric.label,
        "unit": item.metric.unit,
        "a": item.a,
        "b": item.b,
        **dataclasses.asdict(item.interval),
        "margin": item.margin,
        "allowed": item.allowed,
        "p_zero_holm": item.p_zero,
        "p_beyond_margin": item.p_beyond,
        "verdict": item.verdict,
        "repeats_needed": item.repeats,
        "pairs": item.n,
    }


def _places(places: Places) -> dict[str, Any]:
    return {
        "sizes": [dataclasses.asdict(group) for group in places.sizes],
        "ports": [dataclasses.asdict(gap) for gap in places.ports],
        "parted_ns": places.parted_ns,
        "parted_at": places.parted_at,
        "apart_ns": places.apart_ns,
        "apart_bytes": places.apart_bytes,
    }


def _speed(speed: Speed) -> dict[str, Any]:
    return {
        **dataclasses.asdict(speed),
        "packet_hops_per_wall_s": speed.per_wall_s,
        "packet_hops_per_run_s": speed.per_run_s,
    }
