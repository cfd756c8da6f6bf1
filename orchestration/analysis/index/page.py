"""An index over runs, as blocks for a terminal and as a page in the reports' style."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.analysis.index.entries import Entry
from orchestration.render.html import page_html
from orchestration.render.page import Block, Page, Paragraph
from orchestration.render.table import Column, Row, Span, Table, Text, joined

# Per run: the rest is in its report, and in index.json.
_MOST_HEADLINES, _MOST_WARNINGS = 4, 3

Shown = Sequence[tuple[Entry, str]]


def index_page(title: str, shown: Shown, data: str) -> str:
    """Return the page; `data` is its JSON file's name.

    Beside each entry is its report's path as seen from the page, "" if it has none.
    """
    about = (
        "A difference is that of the means, paired by seed, with its 95% interval; real: paired "
        "t-test, p below 0.05 after Holm's correction for all comparisons of a condition. Times "
        "are in UTC, of the last trial's end. The same for a program: ",
        Span(data, link=data),
        ".",
    )
    opening = [Paragraph(standing(shown), "ok" if _sound(shown) else "bad")]
    blocks: list[Block] = [index_table(shown), Paragraph(about, "caption")]
    return page_html(Page(title, "closloop report · an index of runs", opening, blocks))


def index_blocks(title: str, shown: Shown) -> list[Block]:
    """Return the index for a terminal."""
    return [Paragraph(f"{title}: {standing(shown)}", "ok"), index_table(shown)]


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


def index_table(shown: Shown) -> Table:
    """Return a row a run, below it what it asks, its headline and what is wrong."""
    rows = [
        Row(
            [
                Span(entry.name, "strong", report),
                Span(entry.trials, "" if entry.sound else "bad"),
                ", ".join(entry.testbeds),
                ", ".join(entry.backends),
                ", ".join(f"Linux {kernel}" for kernel in entry.kernels),
                ", ".join(entry.versions),
                entry.when,
            ],
            note=_more(entry),
        )
        for entry, report in shown
    ]
    details = ("testbed", "kernel", "closloop")
    heads = ("run", "trials", "testbed", "backend", "kernel", "closloop", "ended, UTC")
    return Table([Column(head, detail=head in details) for head in heads], rows)


def _more(entry: Entry) -> Text:
    """Return what a run asks, its headline and what is wrong."""
    parts: list[Text] = [Span(entry.problem, "bad")] if entry.problem else []
    parts += [f"asks: {entry.question}"] if entry.tuners else []
    parts += [f"• {said}" for said in _said(entry)]
    failed = list(entry.failed.items())[:_MOST_WARNINGS]
    parts += [Span(f"failed {trial}: {why}", "bad") for trial, why in failed]
    for said in entry.warnings[:_MOST_WARNINGS]:
        parts.append(Span(said, "bad" if said.startswith("invalid") else "warning"))
    more = max(0, len(entry.warnings) - _MOST_WARNINGS)
    more += max(0, len(entry.failed) - _MOST_WARNINGS)
    return joined([*parts, f"and {more} more findings" if more else ""])


def _said(entry: Entry) -> list[str]:
    """Return the headline, as sentences: the first comparisons, and how many more there are."""
    sentences = [headline.sentence for headline in entry.shown] or list(entry.alone)
    more = len(sentences) - _MOST_HEADLINES
    rest = [f"and {more} more in its report"] if more > 0 else []
    return [*sentences[:_MOST_HEADLINES], *rest]
