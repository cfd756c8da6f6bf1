"""The comparison as one HTML page that opens offline: the verdicts first, then where and why."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from orchestration.analysis.comparison import figures, place_figures, sentences
from orchestration.analysis.comparison.page_tables import (
    cause_table,
    provenance_table,
    speed_table,
    verdict_table,
)
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.analysis.document import Pictures, html_document, replace_file
from orchestration.analysis.figure_style import Picture, colours_of

_COLOURS = colours_of(["A", "B"])


def write_comparison(comparisons: Sequence[RunComparison], path: Path) -> None:
    """Write the page to `path`, replacing it whole. Raises NotReadyError if that is impossible."""
    replace_file(path, build_comparison(comparisons))


def build_comparison(comparisons: Sequence[RunComparison]) -> str:
    """Return the whole page."""
    pictures = Pictures()
    parts = _head(comparisons)
    for comparison in comparisons:
        parts += _comparison(comparison, pictures, several=len(comparisons) > 1)
    parts.append(pictures.script())
    names = [comparisons[0].a, *(comparison.b for comparison in comparisons)]
    title = " against ".join(run.folder.resolve().name for run in names)
    return html_document(f"{title} · closloop", "\n".join(parts))


def _head(comparisons: Sequence[RunComparison]) -> list[str]:
    reference, several = comparisons[0].a, len(comparisons) > 1
    names = [f"{run.b.folder.resolve().name} on {run.b.backend}" for run in comparisons]
    title = f"{reference.folder.resolve().name} on {reference.backend}, and {', '.join(names)}"
    items = "".join(
        f"<li>{escape(f'{run.b.letter}: ' if several else '')}{escape(sentences.answer(run))}</li>"
        for run in comparisons
    )
    keys = {"A": reference.name, "B": "each other run" if several else comparisons[0].b.name}
    key = "".join(
        f'<span style="--colour:{_COLOURS[letter]}">{escape(name)}</span>'
        for letter, name in keys.items()
    )
    return [
        '<header><p class="kicker">closloop compare</p>',
        f"<h1>{escape(title)}</h1>",
        f'<ul class="answers">{items}</ul>',
        f'<div class="key">{key}</div></header>',
    ]


def _comparison(comparison: RunComparison, pictures: Pictures, *, several: bool) -> list[str]:
    parts = []
    if several:
        parts.append(f"<h2>{escape(comparison.b.name)}, against {escape(comparison.a.name)}</h2>")
    for cell in comparison.cells:
        parts += _cell(cell, comparison, pictures)
    parts += ["<section><h3>Speed</h3>", speed_table(comparison)]
    parts += [f'<p class="caption">{escape(line)}</p>' for line in sentences.speeds(comparison)[2:]]
    if comparison.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
        parts.append(f"<h3>Left out, or to know</h3><ul>{items}</ul>")
    parts += ["<h3>Made with</h3>", provenance_table(comparison), "</section>"]
    return parts


def _cell(cell: ComparedCell, comparison: RunComparison, pictures: Pictures) -> list[str]:
    count = len(cell.pairs)
    pairs = f"{count} {'pair' if count == 1 else 'pairs'} of trials, {cell.how}"
    items = "".join(f"<li>{escape(said)}</li>" for said in sentences.parting(cell))
    parts = [
        "<section>",
        f"<h2>{escape(cell.label)}</h2>" if len(comparison.cells) > 1 else "<h3>Verdicts</h3>",
        f'<p class="caption">{escape(pairs)}.</p>',
        verdict_table(cell, comparison),
        pictures.grid([figures.forest(cell, _COLOURS["B"])], wide=True),
        "<h3>Where they part</h3>",
        f"<ul>{items}</ul>" if items else "",
    ]
    flows = [figures.slowdown_cdf(cell, _COLOURS), *figures.by_size(cell, _COLOURS)]
    queues = [figures.queue_ccdf(cell, _COLOURS), place_figures.ports(cell, _COLOURS)]
    parts += [_grid(pictures, flows), _grid(pictures, queues)]
    parts.append(_grid(pictures, [place_figures.timelines(cell, _COLOURS)]))
    parts += ["<h3>Likely causes</h3>", cause_table(cell), "</section>"]
    return parts


def _grid(pictures: Pictures, drawn: Sequence[Picture | None]) -> str:
    known = [picture for picture in drawn if picture is not None]
    return pictures.grid(known, wide=True) if known else ""
