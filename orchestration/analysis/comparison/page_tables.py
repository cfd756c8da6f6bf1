"""The tables of a comparison's page, as HTML."""

from __future__ import annotations

from html import escape

from orchestration.analysis.comparison import sentences
from orchestration.analysis.comparison.equivalence import DIFFERENT
from orchestration.analysis.comparison.judge import Judged
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.analysis.page_tables import html_table, p_value, plain_facts, settings_told
from orchestration.analysis.words import NOTHING, quantity
from orchestration.artifacts.reader import TrialResult


def verdict_table(cell: ComparedCell, comparison: RunComparison) -> str:
    """Return every metric with its difference, interval, margin and verdict."""
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
    note = sentences.margins_note(
        [item.metric for item in comparison.judged], comparison.margins.default
    )
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
    """Return the settings that differ, the likeliest cause first."""
    if not cell.causes:
        return "<p>No recorded setting differs: what differs is chance, or is not recorded.</p>"
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
                    f"{cause.effect:.2f} × {cause.fit:.2f}",
                ],
            ),
            ("more", [f"{escape(cause.why)}; would move {escape(', '.join(cause.moves))}"]),
        )
    ]
    heads = ("", "setting", "A", "B", "effect × fit")
    note = (
        "Suspects from what both trials of the first pair recorded, no proof. Effect: a rough "
        "guess of how much the setting moves, from how much it differs. Fit: how well what it "
        "moves is what differs (F-measure). Their product ranks. To prove one, change it alone."
    )
    return html_table(heads, rows, 0, note)


def speed_table(comparison: RunComparison) -> str:
    """Return packet-hops per wall second of both runs; a sentence where neither counted any."""
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
    """Return what the first pair was made with, side by side; what differs comes first."""
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
