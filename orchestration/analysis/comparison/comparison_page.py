"""The comparison as one self-contained HTML page: verdicts, then places and causes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from orchestration.analysis.comparison import figures, sentences
from orchestration.analysis.comparison.causes import ORDER
from orchestration.analysis.comparison.equivalence import DIFFERENT
from orchestration.analysis.comparison.judge import Judged
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.analysis.document import Pictures, html_document, replace_file
from orchestration.analysis.figure_style import Picture, colours_of
from orchestration.analysis.page_tables import html_table, p_value, plain_facts, settings_told
from orchestration.analysis.words import NOTHING, quantity
from orchestration.artifacts.reader import TrialResult

_COLOURS = colours_of(["A", "B"])


def write_comparison(comparisons: Sequence[RunComparison], path: Path) -> None:
    """Write the page to `path` atomically. Raises NotReadyError if that is impossible."""
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
    items = "".join(f"<li>{escape(said)}</li>" for said in sentences.parting(cell))
    parts = [
        "<section>",
        f"<h2>{escape(cell.label)}</h2>" if len(comparison.cells) > 1 else "<h3>Verdicts</h3>",
        f'<p class="caption">{escape(f"{sentences.pairs(cell)} of trials, {cell.how}")}.</p>',
        verdict_table(cell, comparison),
        pictures.grid([figures.forest(cell, _COLOURS["B"])], wide=True),
        "<h3>Where they part</h3>",
        f"<ul>{items}</ul>" if items else "",
    ]
    flows = [figures.slowdown_cdf(cell, _COLOURS), *figures.by_size(cell, _COLOURS)]
    queues = [figures.queue_ccdf(cell, _COLOURS), figures.ports(cell, _COLOURS)]
    parts += [_grid(pictures, flows), _grid(pictures, queues)]
    parts.append(_grid(pictures, [figures.timelines(cell, _COLOURS)]))
    parts += ["<h3>Likely causes</h3>", cause_table(cell), "</section>"]
    return parts


def _grid(pictures: Pictures, drawn: Sequence[Picture | None]) -> str:
    known = [picture for picture in drawn if picture is not None]
    return pictures.grid(known, wide=True) if known else ""


def verdict_table(cell: ComparedCell, comparison: RunComparison) -> str:
    """Return the table of all metrics: difference, interval, margin, verdict."""
    rows = [
        (
            "",
            [
                escape(item.metric.label),
                *(escape(value) for value in sentences.values(item)),
                escape(sentences.difference(item)),
                escape(sentences.allowed(item)),
                _verdict(item),
                p_value(item.p_zero),
                p_value(item.p_beyond),
            ],
        )
        for item in cell.judged
    ]
    rows += [
        ("", [escape(metric.label), *[""] * 4, f"not compared: only {side} has it", "", ""])
        for metric, side in cell.left_out
    ]
    heads = ("metric", "A", "B", "B − A [95% CI]", "margin", "verdict", "p, zero", "p, margin")
    note = sentences.margins_note(comparison)
    about_p = (
        "p, zero: that there is no difference, after Holm's correction. p, margin: that it is the "
        "margin or more; below 0.05 it is equivalent."
    )
    return html_table(heads, rows, 0, f"{note} {about_p}")


def _verdict(item: Judged) -> str:
    if item.verdict == DIFFERENT:
        return f"<b>{item.verdict}</b>"
    lacking = sentences.needs(item)
    return f"{item.verdict}, {escape(lacking)}" if lacking else item.verdict


def cause_table(cell: ComparedCell) -> str:
    """Return the settings that differ, in the order in which they act."""
    if not cell.causes:
        return "<p>No recorded setting differs: what differs is chance, or is not recorded.</p>"
    differ = sum(item.verdict == DIFFERENT for item in cell.judged)
    rows = [
        row
        for place, cause in enumerate(cell.causes, start=1)
        for row in (
            (
                "with-more codes",
                [
                    str(place),
                    escape(cause.what),
                    f"<code>{escape(cause.a)}</code>",
                    f"<code>{escape(cause.b)}</code>",
                    f"{cause.could_explain} of {differ}",
                ],
            ),
            ("more", [f"{escape(cause.why)}; would move {escape(', '.join(cause.moves))}"]),
        )
    ]
    heads = ("", "setting", "A", "B", "could move")
    note = (
        f"Suspects from what both trials of the first pair recorded, no proof. {ORDER} Could "
        "move: how many of the metrics that are different. To prove one, change it alone."
    )
    return html_table(heads, rows, 0, note)


def speed_table(comparison: RunComparison) -> str:
    """Return packet-hops per wall second of both runs, or a sentence if neither counted any."""
    if not (comparison.speed_a.packet_hops or comparison.speed_b.packet_hops):
        return "<p>Neither run counted packets.</p>"
    rows = []
    for run, speed in (
        (comparison.a, comparison.speed_a),
        (comparison.b, comparison.speed_b),
    ):
        known = [
            f"{value:,.0f}" if value else NOTHING
            for value in (speed.packet_hops, speed.per_wall_s, speed.per_run_s)
        ]
        wall = quantity(speed.wall_s * 1e9, "ns") if speed.wall_s else NOTHING
        name = f"{run.letter}, {run.backend}"
        rows.append(("", [escape(name), str(speed.trials), known[0], wall, *known[1:]]))
    heads = (
        "run", "trials", "packet-hops", "wall time", "packet-hops a wall second",
        "of traffic alone",
    )  # fmt: skip
    return html_table(heads, rows, 5)


def provenance_table(comparison: RunComparison) -> str:
    """Return the provenance of the first pair side by side, differing entries first."""
    pair = comparison.cells[0].pairs[0]
    first, second = _told(pair.a.trial), _told(pair.b.trial)
    keys = [key for key in {**first, **second} if {first.get(key), second.get(key)} != {NOTHING}]
    keys.sort(key=lambda key: first.get(key) == second.get(key))
    rows = [
        (
            "wraps",
            [
                escape(key),
                f"<code>{escape(first.get(key, NOTHING))}</code>",
                _marked(second.get(key, NOTHING), differs=first.get(key) != second.get(key)),
            ],
        )
        for key in keys
    ]
    note = "The first pair; what differs comes first. All settings are in the trials' folders."
    return html_table(("what", "A", "B"), rows, 0, note)


def _marked(value: str, *, differs: bool) -> str:
    code = f"<code>{escape(value)}</code>"
    return f"<b>{code}</b>" if differs else code


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
