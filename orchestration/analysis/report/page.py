"""The report as one HTML file that opens offline: style, plotly.js and figures are inside."""

from __future__ import annotations

from html import escape
from pathlib import Path

from orchestration.analysis import figures, queue_figures
from orchestration.analysis.answer import answers, standing
from orchestration.analysis.document import Pictures, html_document, replace_file
from orchestration.analysis.figure_style import Colours, colours_of
from orchestration.analysis.marking import marking_law
from orchestration.analysis.metrics import QUANTILES, fct_key
from orchestration.analysis.page_tables import (
    comparison_table,
    fabric_table,
    flow_table,
    provenance_table,
    stamp_table,
)
from orchestration.analysis.summary import Condition, Summary
from orchestration.analysis.timeline import busiest_queues

# Of all timelines together, so that a big campaign's page stays a few megabytes.
_TIMELINE_POINTS = 60_000


def write_page(summary: Summary, path: Path) -> None:
    """Write the page to `path`, replacing it whole. Raises NotReadyError if that is impossible."""
    replace_file(path, build_page(summary))


def build_page(summary: Summary) -> str:
    """Return the whole page. Raises InputError for a table that cannot be read."""
    page = _Page(summary)
    body = "\n".join([*page.head(), *page.conditions(), *page.trials(), page.pictures.script()])
    return html_document(f"{summary.campaign} · closloop", body)


class _Page:
    """The parts of the page, top to bottom."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._colours: Colours = colours_of(summary.tuners)
        self.pictures = Pictures()
        series = max(1, 2 * sum(len(condition.arms) for condition in summary.conditions))
        self._points = min(1_500, max(100, _TIMELINE_POINTS // series))

    def head(self) -> list[str]:
        summary = self._summary
        testbeds = ", ".join(sorted({trial.spec.testbed for trial in summary.trials}))
        backends = ", ".join(sorted({trial.spec.backend for trial in summary.trials}))
        chips = "".join(
            f'<span style="--colour:{self._colours[tuner]}">{escape(tuner)}</span>'
            for tuner in summary.tuners
        )
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in answers(summary))
        verdict = "bad" if summary.invalid else "ok"
        return [
            f'<header><p class="kicker">closloop report · testbed {escape(testbeds)} · '
            f"backend {escape(backends)}</p>",
            f"<h1>{escape(summary.campaign)}</h1>",
            *(f'<p class="kicker">replays {escape(parent)}</p>' for parent in summary.parents),
            f'<ul class="answers">{items}</ul>',
            f'<p class="standing {verdict}">{escape(standing(summary))}</p>',
            f'<div class="key">{chips}</div></header>',
        ]

    def conditions(self) -> list[str]:
        parts = []
        several = len(self._summary.conditions) > 1
        for condition in self._summary.conditions:
            parts.append("<section>")
            if several:
                parts.append(f"<h2>{escape(condition.label)}</h2>")
            if any(arm.valid for arm in condition.arms):
                parts += self._condition(condition)
            else:
                parts.append("<p>No trial is valid here, so there is nothing to show.</p>")
            parts.append("</section>")
        return parts

    def _condition(self, condition: Condition) -> list[str]:
        parts = []
        if condition.comparisons:
            parts.append("<h3>What differs</h3>")
            tuners = dict.fromkeys(item.tuner for item in condition.comparisons)
            forests = [
                figures.differences(
                    [item for item in condition.comparisons if item.tuner == tuner], self._colours
                )
                for tuner in tuners
            ]
            parts += [self.pictures.grid(forests, wide=True), comparison_table(condition)]
        parts += self._flows(condition)
        parts += self._queues(condition)
        parts += self._links(condition)
        return parts

    def _flows(self, condition: Condition) -> list[str]:
        curves = [
            figures.slowdown_by_size(condition, quantile, self._colours)
            for quantile in range(len(QUANTILES))
        ]
        fct = figures.repeats(condition, fct_key("all"), "Mean FCT: {}", self._colours)
        return [
            "<h3>FCT slowdown by flow size</h3>",
            '<p class="caption">Slowdown is the flow completion time over the time that the flow '
            "takes alone at line rate, headers and base RTT counted. Each point stands for about a "
            "tenth of all flows, up to the size written below it. Band: 95% bootstrap interval "
            "over repeats and flows.</p>",
            self.pictures.grid(curves),
            flow_table(condition),
            self.pictures.grid([fct], wide=True),
            '<p class="caption">Circles: one repeat each, same seed joined by a line. Diamond '
            "and bar: mean over repeats with its 95% interval. Crosses: invalid, not "
            "averaged.</p>",
        ]

    def _queues(self, condition: Condition) -> list[str]:
        pictures = [queue_figures.queue_distribution(condition, self._colours)]
        pictures += [
            queue_figures.queue_timeline(queue, self._colours)
            for queue in busiest_queues(condition, self._points)
        ]
        return ["<h3>Queues</h3>", self.pictures.grid(pictures, wide=True)]

    def _links(self, condition: Condition) -> list[str]:
        titles = {
            "marked_share": "Packets marked CE: {}",
            "utilisation_hosts": "Links to hosts are busy {}",
            "utilisation_fabric": "Links between switches are busy {}",
        }
        pictures = [
            figures.repeats(condition, key, title, self._colours) for key, title in titles.items()
        ]
        law = marking_law(condition)
        parts = ["<h3>Marking and utilisation</h3>", self.pictures.grid(pictures)]
        if law:
            parts.append(f'<p class="caption">Marking law: {escape(law)}</p>')
        return [*parts, fabric_table(condition)]

    def trials(self) -> list[str]:
        return [
            "<section><h2>Can it be trusted?</h2>",
            '<p class="caption">Every trial is judged by what it recorded. One finding of severity '
            "invalid keeps it out of every figure above.</p>",
            stamp_table(self._summary),
            "<h3>Made with</h3>",
            provenance_table(self._summary),
            "</section>",
        ]
