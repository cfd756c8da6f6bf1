"""The page of a fidelity run: the figures first, then each scenario's verdicts and causes."""

from __future__ import annotations

from collections.abc import Mapping

from orchestration.analysis.comparison import sentences
from orchestration.analysis.comparison.equivalence import EQUIVALENT
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.studies.fidelity.figures import Figure, figures

_CAUSES = 4
_HEAD = """\
# Fidelity: {a} against {b}

Written by `closloop fidelity`, which runs `examples/fidelity` on both backends: the same testbed,
the same flows, the same thresholds, {repeats} seeds each, paired. A is {a}, B is {b}.
"""
_TITLES = {
    "idle-path": "An idle path",
    "one-flow": "One flow alone",
    "incast": "16 senders to one receiver",
    "websearch": "WebSearch at 60 %",
}


def fidelity_page(found: Mapping[str, RunComparison], notes: str) -> str:
    """Return the page in Markdown. `notes` is text of people's own on causes, or ""."""
    first = next(iter(found.values()))
    pairs = max(len(cell.pairs) for comparison in found.values() for cell in comparison.cells)
    lines = [_HEAD.format(a=first.a.backend, b=first.b.backend, repeats=pairs)]
    lines += _figures(figures(found), first.a.backend, first.b.backend)
    if notes:
        lines += ["", notes.strip()]
    for name, comparison in found.items():
        lines += ["", f"## {_TITLES.get(name, name)}", "", sentences.answer(comparison)]
        for cell in comparison.cells:
            lines += _cell(cell)
        lines += ["", *(f"- {line}" for line in sentences.speeds(comparison))]
        lines += [f"- {note}" for note in comparison.notes]
    judged = [item.metric for item in first.judged]
    lines += ["", "## How verdicts are made", ""]
    lines.append(sentences.margins_note(judged, first.margins.default))
    lines.append("The number of metrics differs by scenario; [compare.md](compare.md) says more.")
    lines.append("Causes are ranked from what both trials recorded: suspects, not proof.")
    return "\n".join(lines) + "\n"


def _figures(rows: list[Figure], a: str, b: str) -> list[str]:
    words = {True: "holds", False: "**does not hold**", None: ""}
    table = [f"| | {a} | {b} | B against A | wanted | |", "| --- | --- | --- | --- | --- | --- |"]
    table += [
        f"| {row.what} | {row.a} | {row.b} | {row.difference} | {row.wanted} | {words[row.holds]} |"
        for row in rows
    ]
    return table


def _cell(cell: ComparedCell) -> list[str]:
    lines = ["", "| metric | A | B | B - A [95 %] | margin | verdict |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for item in cell.judged:
        a, b = sentences.values(item)
        said = item.verdict if item.verdict == EQUIVALENT else f"**{item.verdict}**"
        needs = sentences.needs(item)
        lines.append(
            f"| {item.metric.label} | {a} | {b} | {sentences.difference(item)} | "
            f"{sentences.allowed(item)} | {needs or said} |"
        )
    lines += ["", *(f"- {said}" for said in sentences.parting(cell))]
    if cell.causes:
        lines += ["", "Likely causes, the likeliest first:", ""]
        lines += [
            f"{number}. {cause.what}: {cause.a} and {cause.b}. {cause.why}"
            for number, cause in enumerate(cell.causes[:_CAUSES], start=1)
        ]
    return lines
