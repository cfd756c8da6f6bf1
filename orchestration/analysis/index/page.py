"""An index over runs: as a page in the reports' style, and as a table for 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from rich.console import Group, RenderableType
from rich.text import Text

from orchestration.analysis.document import html_document
from orchestration.analysis.index.entries import Entry
from orchestration.analysis.page_tables import html_table
from orchestration.analysis.tables import plain_table

# Per run: the rest is in its report, and in index.json.
_MOST_HEADLINES, _MOST_WARNINGS = 4, 3

Shown = Sequence[tuple[Entry, str]]


def index_page(title: str, shown: Shown, data: str) -> str:
    """Return the page; `data` is its JSON file's name.

    Beside each entry is its report's path as seen from the page, "" if it has none.
    """
    body = [
        '<a class="skip" href="#content">Skip to the runs</a>',
        '<header><p class="kicker">closloop report · an index of runs</p>',
        f"<h1>{escape(title)}</h1>",
        f'<p class="standing {"ok" if _sound(shown) else "bad"}">{escape(standing(shown))}</p>',
        '</header><main id="content">',
        _table(shown),
        '<p class="caption">A difference is that of the means, paired by seed, with its 95% '
        "interval; real: paired t-test, p below 0.05 after Holm's correction for all comparisons "
        "of a condition. Times are in UTC, of the last trial's end. The same for a program: "
        f'<a href="{escape(quote(data))}">{escape(data)}</a>.</p></main>',
    ]
    return html_document(f"{title} · closloop", "\n".join(body), pictures=False)


def index_tables(title: str, shown: Shown) -> Group:
    """Return the index for a terminal."""
    parts: list[RenderableType] = [Text(f"{title}: {standing(shown)}", style="bold")]
    table = plain_table("")
    for heading in ("run", "trials", "backend", "ended, UTC"):
        table.add_column(heading, overflow="fold")
    for entry, _ in shown:
        style = "" if entry.sound else "yellow"
        table.add_row(entry.name, entry.trials, ", ".join(entry.backends), entry.when, style=style)
    parts.append(table)
    for entry, _ in shown:
        parts.append(Text(f"{entry.name}: {entry.question if entry.tuners else entry.problem}"))
        parts += [Text(f"• {said}") for said in _said(entry)]
    return Group(*parts)


def standing(shown: Shown) -> str:
    """Return how many runs and trials there are, and whether all is well."""
    entries = [entry for entry, _ in shown]
    runs = f"{len(entries)} run{'s' * (len(entries) != 1)}"
    done = f"{sum(entry.finished for entry in entries):,} trials done"
    wrong = [
        f"{count:,} {word}"
        for count, word in (
            (sum(entry.invalid for entry in entries), "invalid"),
            (sum(len(entry.failed) for entry in entries), "failed"),
            (sum(entry.missing for entry in entries), "not run"),
        )
        if count
    ]
    return f"{runs}, {done}{', ' + ', '.join(wrong) if wrong else ', all valid'}."


def _sound(shown: Shown) -> bool:
    return all(entry.sound for entry, _ in shown)


def _table(shown: Shown) -> str:
    rows = []
    for entry, report in shown:
        name = f"<b>{escape(entry.name)}</b>"
        if report:
            name = f'<a href="{escape(quote(report))}">{name}</a>'
        trials = escape(entry.trials)
        cells = [
            name,
            trials if entry.sound else f'<span class="invalid">{trials}</span>',
            escape(", ".join(entry.testbeds)),
            escape(", ".join(entry.backends)),
            escape(", ".join(f"Linux {kernel}" for kernel in entry.kernels)),
            escape(", ".join(entry.versions)),
            escape(entry.when),
        ]
        rows.append(("with-more", cells))
        rows.append(("more", [_more(entry)]))
    heads = ("run", "trials", "testbed", "backend", "kernel", "closloop", "ended, UTC")
    return html_table(heads, rows, 0)


def _more(entry: Entry) -> str:
    """Return what a run asks, its headline and what is wrong, as HTML."""
    parts = []
    if entry.problem:
        parts.append(f'<span class="invalid">{escape(entry.problem)}</span>')
    if entry.tuners:
        parts.append(f"asks: {escape(entry.question)}")
    parts += [f"• {escape(said)}" for said in _said(entry)]
    for trial, why in list(entry.failed.items())[:_MOST_WARNINGS]:
        parts.append(f'<span class="invalid">failed {escape(trial)}: {escape(why)}</span>')
    parts += [
        f'<span class="{said.partition(" ")[0]}">{escape(said)}</span>'
        for said in entry.warnings[:_MOST_WARNINGS]
    ]
    more = max(0, len(entry.warnings) - _MOST_WARNINGS)
    more += max(0, len(entry.failed) - _MOST_WARNINGS)
    parts += [f"and {more} more findings"] if more else []
    return "<br>".join(parts)


def _said(entry: Entry) -> list[str]:
    """Return the headline, as sentences: the first comparisons, and how many more there are."""
    sentences = [headline.sentence for headline in entry.shown] or list(entry.alone)
    more = len(sentences) - _MOST_HEADLINES
    rest = [f"and {more} more in its report"] if more > 0 else []
    return [*sentences[:_MOST_HEADLINES], *rest]
