"""The comparison as blocks, for a terminal and a page: verdicts, then places and causes."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.analysis.comparison import figures, sentences
from orchestration.analysis.comparison.causes import ORDER
from orchestration.analysis.comparison.equivalence import DIFFERENT
from orchestration.analysis.comparison.judge import Judged
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.analysis.report.report_tables import plain_facts, settings_told
from orchestration.render.figure_style import colours_of
from orchestration.render.html import page_html
from orchestration.render.numbers import NOTHING, p_value, quantity
from orchestration.render.page import (
    Block,
    Heading,
    Items,
    Key,
    Page,
    Paragraph,
    Pictures,
    Section,
)
from orchestration.render.table import Column, Row, Span, Table, Text, code, strong
from orchestration.results.reader import TrialResult

_COLOURS = colours_of(["A", "B"])
_ABOUT_P = (
    "p, zero: that there is no difference, after Holm's correction. p, margin: that it is the "
    "margin or more; below 0.05 it is equivalent."
)


def comparison_blocks(comparisons: Sequence[RunComparison]) -> list[Block]:
    """Return the output of `closloop compare`."""
    blocks: list[Block] = []
    for comparison in comparisons:
        blocks += [
            Paragraph(sentences.answer(comparison), "ok"),
            Paragraph(f"{comparison.a.name} is the reference; {comparison.b.name}"),
            *_compared(comparison, drawn=False),
        ]
    return blocks


def comparison_page(comparisons: Sequence[RunComparison]) -> str:
    """Return the whole page."""
    reference, several = comparisons[0].a, len(comparisons) > 1
    names = [f"{run.b.folder.resolve().name} on {run.b.backend}" for run in comparisons]
    said = [
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
        [Items(said, "answers"), Key(colours)],
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
        rest += [Heading("Left out, or to know"), Items(comparison.notes)]
    if drawn:
        rest += [Heading("Made with"), provenance_table(comparison)]
    return [*blocks, Section(rest)]


def _cell(cell: ComparedCell, comparison: RunComparison, *, drawn: bool) -> list[Block]:
    about = f"{sentences.pairs(cell)} of trials, {cell.how}."
    note = f"{sentences.margins_note(comparison)} {_ABOUT_P}"
    causes = cause_table(cell)
    drawings = _pictures(cell) if drawn else []
    return [
        Paragraph(about, "caption"),
        verdict_table(cell),
        Paragraph(note, "caption"),
        *drawings[:1],
        Heading("Where they part"),
        Items(sentences.parting(cell)),
        *drawings[1:],
        Heading("Likely causes"),
        causes
        or Paragraph("No recorded setting differs: what differs is chance, or is not recorded."),
    ]


def _pictures(cell: ComparedCell) -> list[Pictures]:
    return [
        Pictures([figures.forest(cell, _COLOURS["B"])]),
        Pictures([figures.slowdown_cdf(cell, _COLOURS), *figures.by_size(cell, _COLOURS)]),
        Pictures([figures.queue_ccdf(cell, _COLOURS), figures.ports(cell, _COLOURS)]),
        Pictures([figures.timelines(cell, _COLOURS)]),
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
        for item in cell.judged
    ]
    rows += [
        Row([metric.short_label, *[""] * 4, f"not compared: only {side} has it", "", ""])
        for metric, side in cell.left_out
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


def _verdict(item: Judged) -> Text:
    if item.verdict == DIFFERENT:
        return strong(item.verdict)
    lacking = sentences.needs(item)
    return f"{item.verdict}, {lacking}" if lacking else item.verdict


def cause_table(cell: ComparedCell) -> Table | None:
    """Return the settings that differ, in the order in which they act; None if none does."""
    differ = sum(item.verdict == DIFFERENT for item in cell.judged)
    rows = [
        Row(
            [
                f"{place}. {cause.what}",
                code(cause.a),
                code(cause.b),
                f"{cause.could_explain} of {differ}",
            ],
            note=f"{cause.why}; would move {', '.join(cause.moves)}",
        )
        for place, cause in enumerate(cell.causes, start=1)
    ]
    names = Column("A", wraps=True), Column("B", wraps=True)
    columns = [Column("setting", wraps=True), *names, Column("could move")]
    note = (
        f"Suspects from what both trials of the first pair recorded, no proof. {ORDER} Could "
        "move: how many of the metrics that are different. To prove one, change it alone."
    )
    return Table(columns, rows, caption=note) if rows else None


def provenance_table(comparison: RunComparison) -> Table:
    """Return the provenance of the first pair side by side, differing entries first."""
    pair = comparison.cells[0].pairs[0]
    first, second = _told(pair.a.trial), _told(pair.b.trial)
    keys = [key for key in {**first, **second} if {first.get(key), second.get(key)} != {NOTHING}]
    keys.sort(key=lambda key: first.get(key) == second.get(key))
    rows = []
    for key in keys:
        a, b = first.get(key, NOTHING), second.get(key, NOTHING)
        rows.append(Row([key, code(a), code(b) if a == b else Span(b, "strong")]))
    note = "The first pair; what differs comes first. All settings are in the trials' folders."
    columns = [Column("what"), Column("A", wraps=True), Column("B", wraps=True)]
    return Table(columns, rows, caption=note)


def _told(trial: TrialResult) -> dict[str, str]:
    spec = trial.spec
    return {
        "trial": spec.id,
        **settings_told(spec, trial.facts),
        "parent": spec.parent or NOTHING,
        "minimum RTO": quantity(spec.host.min_rto_ns, "ns"),
        "stamp's findings": "; ".join(reason.code for reason in trial.stamp.reasons) or "none",
        **trial.versions,
        **plain_facts(trial.facts),
    }
