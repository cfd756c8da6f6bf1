"""The report as one self-contained HTML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from orchestration.analysis.answer import validity_text
from orchestration.analysis.metrics import METRICS, QUANTILES, fct_key
from orchestration.analysis.report import differences, queue_figures, slowdowns
from orchestration.analysis.report.actions import actions_over_queues
from orchestration.analysis.report.buffers import buffer_figures
from orchestration.analysis.report.differences import convergence
from orchestration.analysis.report.explanation import (
    explanation_table,
    explanation_title,
    goodput_table,
)
from orchestration.analysis.report.fabric import fabric_heatmap, pause_figure, uplink_figure
from orchestration.analysis.report.first_screen import condition_scorecard, first_screen
from orchestration.analysis.report.nics import nics_over_time, rate_figure
from orchestration.analysis.report.queue_figures import busiest_queues
from orchestration.analysis.report.repeats import repeats
from orchestration.analysis.report.report_tables import (
    comparison_table,
    fabric_table,
    flow_table,
    load_table,
    marking_text,
    placebo_table,
    provenance_table,
    stamp_tables,
)
from orchestration.analysis.report.selection import (
    MAX_ARMS,
    ShownRepeat,
    shown_arms,
    shown_repeat,
)
from orchestration.analysis.report.throughputs import throughput_figure
from orchestration.analysis.summary import Condition, Summary
from orchestration.core.load_balancing import ECMP
from orchestration.render.figure_style import Colours, colours_of
from orchestration.render.html import Rendered, render
from orchestration.render.page import (
    Block,
    CaptionedFigure,
    FigureGrid,
    Fold,
    Heading,
    Key,
    Links,
    Page,
    Paragraph,
    Section,
)

# Points and bins of all figures of a kind together: they limit a big campaign's page to a few
# megabytes.
_TIMELINE_POINTS, _HEATMAP_BINS = 40_000, 2_000

# Called with the conditions drawn and the conditions in all.
Progress = Callable[[int, int], None]


def build_page(summary: Summary) -> str:
    """Return the whole page. Raises InputError for a table that cannot be read."""
    return build_report(summary).html


def build_report(summary: Summary, progress: Progress = lambda done, total: None) -> Rendered:
    """Return the page with its data. Raises InputError for a table that cannot be read."""
    return render(_Report(summary).page(progress))


class _Report:
    """The parts of the page, top to bottom."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._several = len(summary.conditions) > 1
        self._colours: Colours = colours_of(summary.arms)
        drawn = max(1, sum(len(shown_arms(condition)) for condition in summary.conditions))
        self._points = min(1_500, max(100, _TIMELINE_POINTS // (2 * drawn)))
        self._bins = min(120, max(30, _HEATMAP_BINS // drawn))

    def page(self, progress: Progress) -> Page:
        summary = self._summary
        replayed = [Paragraph(f"replays {parent}", "kicker") for parent in summary.parents]
        opening: list[Block] = [*replayed, *first_screen(summary), self._key()]
        if self._several:
            names = [condition.label for condition in summary.conditions]
            anchors = {name: f"condition-{number}" for number, name in enumerate(names)}
            opening.append(Links({**anchors, "Are the trials valid?": "trust"}))
        return Page(
            opening=opening,
            blocks=[*self.conditions(progress), self.trials()],
            title=summary.campaign,
        )

    def _key(self) -> Key:
        arms = self._summary.arms
        more = len(arms) - MAX_ARMS
        shown = {arm: self._colours[arm] for arm in arms[:MAX_ARMS]}
        return Key(shown, f"and {more} more" if more > 0 else "")

    def conditions(self, progress: Progress) -> list[Block]:
        parts: list[Block] = []
        total = len(self._summary.conditions)
        for number, condition in enumerate(self._summary.conditions):
            progress(number, total)
            blocks: list[Block] = [Heading(condition.label, 2)] if self._several else []
            if any(arm.valid for arm in condition.arms):
                blocks += self._condition(condition)
            else:
                blocks.append(Paragraph("No trial is valid here, so there is nothing to show."))
            parts.append(Section(blocks, f"condition-{number}"))
        progress(total, total)
        return parts

    def _condition(self, condition: Condition) -> list[Block]:
        arms = [arm for arm in condition.arms if arm.valid]
        shown = shown_repeat(condition)
        parts: list[Block] = []
        if self._several and (card := condition_scorecard(condition, self._summary)):
            parts.append(card)
        if len(arms) > MAX_ARMS:
            few = (
                f"Figures show {MAX_ARMS} of {len(arms)} arms: the baseline and those with the "
                "lowest mean FCTs. Tables show all."
            )
            parts.append(Paragraph(few, "note"))
        why = explanation_title(condition, self._summary)
        parts.append(Fold(why, self._explanation(condition, shown), is_open=not self._several))
        if condition.comparisons:
            primary = convergence(condition, self._summary.judge[0], self._colours)
            compared: list[Block] = [
                Paragraph(condition.interim.in_words, "note"),
                comparison_table(condition),
                *filter(None, [placebo_table(condition)]),
                *self._differences(condition),
                *self._part(condition, "Are there enough repeats?", [primary]),
            ]
            parts.append(Fold("All metrics, with tests", compared))
        if any(arm.flows["all"] for arm in arms):
            parts.append(Fold("Flows by size", self._flows(condition)))
        parts.append(Fold("Queues, buffers and links", self._queues(condition, shown)))
        return parts

    def _explanation(self, condition: Condition, shown: ShownRepeat | None) -> list[Block]:
        """Return what explains the result: counters, goodput, loads, the busiest queue and port."""
        tables = [explanation_table(condition), goodput_table(condition), load_table(condition)]
        queues = busiest_queues(shown, self._points) if shown else []
        lines = [queue_figures.queue_timeline(queue, self._colours) for queue in queues[:1]]
        sent = [throughput_figure(shown, self._points, self._colours)] if shown else []
        return [self._grid(condition, [*lines, *sent]), *filter(None, tables)]

    def _differences(self, condition: Condition) -> list[Block]:
        names = dict.fromkeys(item.arm for item in condition.comparisons)
        shown = {arm.name for arm in shown_arms(condition)}
        forests = [
            differences.differences(
                [item for item in condition.comparisons if item.arm == arm], self._colours
            )
            for arm in names
            if arm in shown
        ]
        keys = self._summary.judge
        pairs = [differences.pairs(condition, key, self._colours) for key in keys]
        return [self._grid(condition, forests), self._grid(condition, pairs)]

    def _flows(self, condition: Condition) -> list[Block]:
        curves = [
            slowdowns.slowdown_by_size(condition, quantile, self._colours)
            for quantile in range(len(QUANTILES))
        ]
        distributions = [
            slowdowns.cdf(condition, "slowdown", self._colours),
            slowdowns.cdf(condition, "fct_ns", self._colours),
        ]
        times = slowdowns.fct_by_size(condition, self._colours)
        fct = repeats(condition, fct_key("all"), self._colours)
        about = (
            "Slowdown is a flow's completion time (FCT) divided by its FCT on an idle path: alone, "
            "at line rate, with headers and base RTT. Each point stands for about a tenth of all "
            "flows, up to the size written below it."
        )
        return [
            Paragraph(about, "caption"),
            self._grid(condition, curves, wide=False),
            flow_table(condition),
            Heading("All flows"),
            self._grid(condition, distributions),
            self._grid(condition, [times, fct]),
        ]

    def _queues(self, condition: Condition, shown: ShownRepeat | None) -> list[Block]:
        parts: list[Block] = []
        distribution = queue_figures.queue_distribution(condition, self._colours)
        queues = busiest_queues(shown, self._points) if shown else []
        lines = [queue_figures.queue_timeline(queue, self._colours) for queue in queues]
        parts.append(self._grid(condition, [distribution, *lines]))
        if shown is None or not shown.sampled:
            parts.append(Paragraph("No queue was sampled over time.", "note"))
            return [*parts, *self._links(condition)]
        acted = actions_over_queues(shown, self._points, self._colours)
        fabric = fabric_heatmap(shown, self._bins, self._colours)
        return [
            *parts,
            *self._part(condition, "Threshold actions", acted),
            *self._part(condition, "The fabric over time", [fabric]),
            *self._paths(condition, shown),
            *self._buffers(condition, shown),
            *self._hosts(condition, shown),
            *self._links(condition),
        ]

    def _paths(self, condition: Condition, shown: ShownRepeat) -> list[Block]:
        """Show how paths were chosen, if a trial used another load balancing than ECMP."""
        if all(trial.spec.load_balancing == ECMP for trial in self._summary.trials):
            return []
        keys = ("uplink_imbalance", "out_of_order_share", "reroutes_per_flow")
        drawn = self._grid(condition, [uplink_figure(shown, self._colours)])
        return [Heading("Paths, reordering, reroutes"), drawn, self._repeats(condition, keys)]

    def _buffers(self, condition: Condition, shown: ShownRepeat) -> list[Block]:
        held = buffer_figures(shown, self._points, self._bins, self._colours)
        parts = self._part(condition, "Shared buffers", held)
        if parts:
            parts.append(self._repeats(condition, ("buffer_max_bytes", "headroom_max_bytes")))
        if paused := pause_figure(shown, self._colours):
            counted = repeats(condition, "pauses_sent", self._colours)
            parts += self._part(condition, "PFC pauses: who stopped whom", [paused, counted])
        return parts

    def _hosts(self, condition: Condition, shown: ShownRepeat) -> list[Block]:
        drawn = [draw(shown, self._bins, self._colours) for draw in (rate_figure, nics_over_time)]
        parts = self._part(condition, "RoCE NICs: CNPs, rates, round trips", drawn)
        keys = ("cnps", "rate_mean_bps", "rtt_p99_ns")
        return [*parts, self._repeats(condition, keys)] if parts else []

    def _links(self, condition: Condition) -> list[Block]:
        keys = ("marked_share", "utilisation_hosts", "utilisation_fabric")
        own = [metric.key for metric in METRICS.own]
        fabric, missing = fabric_table(condition)
        figures = self._repeats(condition, [*keys, *own])
        parts: list[Block] = []
        if any(figures.figures):
            parts += [Heading("Marking and utilisation"), figures]
        parts.append(Paragraph(marking_text(condition), "caption"))
        return [*parts, *([fabric] if fabric else []), Paragraph(missing, "note")]

    def _repeats(self, condition: Condition, keys: Sequence[str]) -> FigureGrid:
        figures = [repeats(condition, key, self._colours) for key in keys]
        return self._grid(condition, figures, wide=False)

    def _part(
        self, condition: Condition, heading: str, figures: Sequence[CaptionedFigure | None]
    ) -> list[Block]:
        """Return pictures below a heading, nothing without pictures."""
        return [Heading(heading), self._grid(condition, figures)] if any(figures) else []

    def _grid(
        self, condition: Condition, figures: Sequence[CaptionedFigure | None], *, wide: bool = True
    ) -> FigureGrid:
        # only characters that any file system accepts
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", condition.label).strip("-").lower() or "condition"
        return FigureGrid(figures, wide, f"{slug}-" if self._several else "")

    def trials(self) -> Fold:
        about = (
            "Every trial is checked by what it recorded. A trial with a finding of severity "
            "'invalid' is excluded from all figures above."
        )
        blocks: list[Block] = [
            Paragraph(validity_text(self._summary), "bad" if self._summary.invalid else "ok"),
            Paragraph(about, "caption"),
            *stamp_tables(self._summary),
            Heading("Software and settings"),
            provenance_table(self._summary),
        ]
        void = len(self._summary.invalid) == len(self._summary.trials)
        title = "Can it be trusted? Stamps, versions, settings"
        return Fold(title, [Section(blocks, "trust")], is_open=void)
