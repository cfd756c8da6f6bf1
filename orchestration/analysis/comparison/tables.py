"""The comparison in the terminal: tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestration.analysis.comparison import sentences
from orchestration.analysis.comparison.cause_rules import Cause
from orchestration.analysis.comparison.equivalence import DIFFERENT, EQUIVALENT
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.analysis.metrics import SIZE_CLASSES
from orchestration.analysis.tables import plain_table

_STYLES = {DIFFERENT: "bold", EQUIVALENT: "dim"}
# Causes that a terminal has room for.
CAUSES = 5


def comparison_tables(comparisons: Sequence[RunComparison]) -> Group:
    """Return what `closloop compare` prints."""
    parts: list[RenderableType] = []
    for comparison in comparisons:
        if parts:
            parts.append(Text(""))
        parts += _comparison(comparison)
    return Group(*parts)


def _comparison(comparison: RunComparison) -> list[RenderableType]:
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
    pairs = len(cell.pairs)
    table = plain_table(
        f"{cell.label}: {pairs} {'pair' if pairs == 1 else 'pairs'}, {cell.how}",
        sentences.margins_note(
            [item.metric for item in comparison.judged], comparison.margins.default
        ),
    )
    table.add_column("metric", overflow="fold")
    table.add_column("A", justify="right", no_wrap=True)
    table.add_column("B", justify="right", no_wrap=True)
    table.add_column("B - A [95%]", no_wrap=True)
    table.add_column("verdict")
    for item in cell.judged:
        metric = item.metric
        label = metric.label if metric.klass == "all" else f"  {SIZE_CLASSES[metric.klass]}"
        table.add_row(
            label,
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
        f"{more} more on the page and in --json" if more > 0 else "",
    )
    table.add_column("setting", overflow="fold", ratio=2)
    table.add_column("A", overflow="fold", ratio=2)
    table.add_column("B", overflow="fold", ratio=2)
    table.add_column("moves", ratio=2)
    table.add_column("why", ratio=4)
    for cause in causes[:CAUSES]:
        table.add_row(cause.what, cause.a, cause.b, ", ".join(cause.moves), cause.why)
    return table
