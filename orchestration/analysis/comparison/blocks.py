"""The comparison as blocks for a terminal and a page, and as JSON-ready data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestration.analysis.comparison import figures, sentences
from orchestration.analysis.comparison.causes import ORDER
from orchestration.analysis.comparison.equivalence import DIFFERENT
from orchestration.analysis.comparison.hypothesis_tests import MetricVerdict
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.analysis.comparison.runs import Run
from orchestration.analysis.comparison.trials import PairMetrics
from orchestration.analysis.report.report_tables import first_settings, plain_facts
from orchestration.render.figure_style import colours_of
from orchestration.render.html import page_html
from orchestration.render.json import plain
from orchestration.render.numbers import NOTHING, p_value, quantity
from orchestration.render.page import (
    Block,
    FigureGrid,
    Heading,
    Items,
    Key,
    Page,
    Paragraph,
    Section,
)
from orchestration.render.table import Column, Row, Table, Text, code, strong
from orchestration.results.reader import TrialResult

_COLOURS = colours_of(["A", "B"])
_ABOUT_P = (
    "p, zero: p-value of no difference, after Holm's correction. p, margin: p-value of a "
    "difference of the margin or more; below 0.05 the metric is equivalent."
)


def comparison_blocks(comparisons: Sequence[RunComparison]) -> list[Block]:
    """Return the output of `closloop compare`."""
    blocks: list[Block] = []
    for comparison in comparisons:
        blocks += [
            Paragraph(sentences.answer(comparison), "ok"),
            Paragraph(
                f"The reference is {comparison.a.name}. Compared with it: {comparison.b.name}."
            ),
            *_compared(comparison, drawn=False),
        ]
    return blocks


def comparison_page(comparisons: Sequence[RunComparison]) -> str:
    """Return the whole page."""
    reference, several = comparisons[0].a, len(comparisons) > 1
    names = [f"{run.b.folder.resolve().name} on {run.b.backend}" for run in comparisons]
    answers = [
        f"{run.b.letter}: {sentences.answer(run)}" if several else sentences.answer(run)
        for run in comparisons
    ]
    others = "each other run" if several else comparisons[0].b.name
    colours = {reference.name: _COLOURS["A"], others: _COLOURS["B"]}
    blocks: list[Block] = []
    for comparison in comparisons:
        if several:
            title = f"{comparison.b.name}, against {comparison.a.name}"
            blocks.append(Heading(title, 2))
        blocks += _compared(comparison, drawn=True)
    folders = [reference, *(comparison.b for comparison in comparisons)]
    page = Page(
        f"{reference.folder.resolve().name} on {reference.backend}, and {', '.join(names)}",
        "closloop compare",
        [Items(answers, "answers"), Key(colours)],
        blocks,
        " against ".join(run.folder.resolve().name for run in folders),
    )
    return page_html(page)


def _compared(comparison: RunComparison, *, drawn: bool) -> list[Block]:
    several = len(comparison.cells) > 1
    blocks: list[Block] = []
    for cell in comparison.cells:
        title = Heading(cell.label, 2) if several else Heading("Verdicts")
        blocks.append(Section([title, *_cell(cell, comparison, drawn=drawn)]))
    rest: list[Block] = [Heading("Speed"), Items(sentences.speeds(comparison))]
    if comparison.notes:
        rest += [Heading("Excluded data and caveats"), Items(comparison.notes)]
    if drawn:
        rest += [Heading("Software and settings"), provenance_table(comparison)]
    return [*blocks, Section(rest)]


def _cell(cell: ComparedCell, comparison: RunComparison, *, drawn: bool) -> list[Block]:
    about = f"{sentences.pairs(cell)} of trials, paired by {cell.paired_by}."
    note = f"{sentences.margins_note(comparison)} {_ABOUT_P}"
    causes = cause_table(cell)
    drawings = _figure_grids(cell) if drawn else []
    return [
        Paragraph(about, "caption"),
        verdict_table(cell),
        Paragraph(note, "caption"),
        *drawings[:1],
        Heading("Where the runs differ"),
        Items(sentences.divergence_sentences(cell)),
        *drawings[1:],
        Heading("Likely causes"),
        causes
        or Paragraph(
            "No recorded setting differs. Any difference is due to chance, or to something that is "
            "not recorded."
        ),
    ]


def _figure_grids(cell: ComparedCell) -> list[FigureGrid]:
    return [
        FigureGrid([figures.forest(cell, _COLOURS["B"])]),
        FigureGrid([figures.slowdown_cdf(cell, _COLOURS), *figures.by_size(cell, _COLOURS)]),
        FigureGrid([figures.queue_ccdf(cell, _COLOURS), figures.ports(cell, _COLOURS)]),
        FigureGrid([figures.timelines(cell, _COLOURS)]),
    ]


def verdict_table(cell: ComparedCell) -> Table:
    """Return the table of all metrics: difference, interval, margin, verdict."""
    rows = [
        Row(
            [
                item.metric.short_label,
                *sentences.values(item),
                sentences.difference(item),
                sentences.allowed(item),
                _verdict(item),
                p_value(item.p_zero),
                p_value(item.p_beyond),
            ]
        )
        for item in cell.metrics
    ]
    rows += [
        Row([metric.short_label, *[""] * 4, f"not compared: only {side} has it", "", ""])
        for metric, side in cell.not_compared
    ]
    columns = [
        Column("metric"),
        Column("A", figures=True),
        Column("B", figures=True),
        Column("B − A [95% CI]"),
        Column("margin", detail=True),
        Column("verdict"),
        Column("p, zero", detail=True),
        Column("p, margin", detail=True),
    ]
    return Table(columns, rows)


def _verdict(item: MetricVerdict) -> Text:
    if item.verdict == DIFFERENT:
        return strong(item.verdict)
    lacking = sentences.needs(item)
    return f"{item.verdict}, {lacking}" if lacking else item.verdict


def cause_table(cell: ComparedCell) -> Table | None:
    """Return the settings that differ, in the order in which they act; None if there are none."""
    differ = sum(item.verdict == DIFFERENT for item in cell.metrics)
    rows = [
        Row(
            [
                f"{number}. {cause.what}",
                code(cause.a),
                code(cause.b),
                f"{cause.could_explain} of {differ}" if differ else NOTHING,
            ],
            note=f"{cause.why}; affects {', '.join(cause.moves)}",
        )
        for number, cause in enumerate(cell.causes, start=1)
    ]
    names = Column("A", wraps=True), Column("B", wraps=True)
    columns = [Column("setting", wraps=True), *names, Column("could explain")]
    note = (
        "These recorded settings differ between the two trials of the first pair. Each is a "
        f"possible cause, and none is proven: to prove one, change it alone. {ORDER} 'Could "
        "explain' counts the metrics called different that the setting can affect."
    )
    return Table(columns, rows, caption=note) if rows else None


def provenance_table(comparison: RunComparison) -> Table:
    """Return the provenance of the first pair side by side, differing entries first."""
    pair = comparison.cells[0].pairs[0]
    first, second = _provenance(pair.a.trial), _provenance(pair.b.trial)
    keys = [key for key in {**first, **second} if {first.get(key), second.get(key)} != {NOTHING}]
    keys.sort(key=lambda key: first.get(key) == second.get(key))
    both = [(key, first.get(key, NOTHING), second.get(key, NOTHING)) for key in keys]
    rows = [Row([key, code(a), code(b) if a == b else strong(b)]) for key, a, b in both]
    note = (
        "Settings of the first pair of trials; those that differ come first. All settings are in "
        "the trials' folders."
    )
    columns = [Column("what"), Column("A", wraps=True), Column("B", wraps=True)]
    return Table(columns, rows, caption=note)


def _provenance(trial: TrialResult) -> dict[str, str]:
    spec = trial.spec
    return {
        "trial": spec.id,
        **first_settings(spec, trial.facts),
        "parent": spec.parent or NOTHING,
        "minimum RTO": quantity(spec.host.min_rto_ns, "ns"),
        "stamp's findings": "; ".join(reason.code for reason in trial.stamp.reasons) or "none",
        **trial.versions,
        **plain_facts(trial.facts),
    }


COMPARISON_FORMAT = 2


def comparisons_to_json(comparisons: Sequence[RunComparison]) -> dict[str, Any]:
    """Return comparisons as JSON-ready data. NaN becomes null; keys include units."""
    every = [_comparison(comparison) for comparison in comparisons]
    return {"format": COMPARISON_FORMAT, "comparisons": plain(every)}


def _comparison(comparison: RunComparison) -> dict[str, Any]:
    return {
        "verdict": comparison.verdict,
        "answer": sentences.answer(comparison),
        "a": _run(comparison.a),
        "b": _run(comparison.b),
        "margins": comparison.margins,
        "cells": [_cell_json(cell) for cell in comparison.cells],
        "speed": {
            side: {
                **vars(speed),
                "packet_hops_per_wall_s": speed.per_wall_s,
                "packet_hops_per_run_s": speed.per_run_s,
            }
            for side, speed in (("a", comparison.speed_a), ("b", comparison.speed_b))
        },
        "notes": comparison.notes,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "backend": run.backend,
        "trials": [trial.spec.id for trial in run.trials],
        "invalid": [trial.spec.id for trial in run.invalid],
    }


def _cell_json(cell: ComparedCell) -> dict[str, Any]:
    subgroups = cell.subgroups
    return {
        "label": cell.label,
        "paired_by": cell.paired_by,
        "pairs": [_pair(pair) for pair in cell.pairs],
        "metrics": [_metric_json(item) for item in cell.metrics],
        "not_compared": [
            {"metric": metric.key, "only_in": side} for metric, side in cell.not_compared
        ],
        "parting": {
            "sentences": sentences.divergence_sentences(cell),
            "sizes": subgroups.sizes,
            "ports": subgroups.ports,
            "parted_ns": subgroups.diverged_ns,
            "parted_at": subgroups.diverged_at,
            "apart_ns": subgroups.apart_ns,
            "apart_bytes": subgroups.apart_bytes,
        },
        "causes": cell.causes,
    }


def _pair(pair: PairMetrics) -> dict[str, Any]:
    paired, divergence = pair.paired, pair.divergence
    return {
        "a": pair.a.trial.spec.id,
        "b": pair.b.trial.spec.id,
        "flows_in_both": paired.common if paired else None,
        "flows_only_in_a": paired.only_a if paired else None,
        "flows_only_in_b": paired.only_b if paired else None,
        "parted_ns": divergence.diverged_ns if divergence else None,
    }


def _metric_json(item: MetricVerdict) -> dict[str, Any]:
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
