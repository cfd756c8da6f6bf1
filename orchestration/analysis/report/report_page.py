"""The report as one self-contained HTML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from orchestration.analysis.answer import answers, marking_law, standing
from orchestration.analysis.document import Pictures, html_document, replace_file
from orchestration.analysis.figure_style import Colours, Picture, colours_of
from orchestration.analysis.metrics import QUANTILES, fct_key, slowdown_key
from orchestration.analysis.page_tables import (
    comparison_table,
    fabric_table,
    flow_table,
    load_html,
    provenance_table,
    stamp_table,
)
from orchestration.analysis.report import differences, queue_figures, slowdowns
from orchestration.analysis.report.actions import acted_queues, actions_over_queue
from orchestration.analysis.report.buffers import buffer_map, fullest_buffer, shared_buffers
from orchestration.analysis.report.convergence import convergence
from orchestration.analysis.report.heatmap import fabric_grids, fabric_heatmap
from orchestration.analysis.report.nics import host_grids, rate_picture
from orchestration.analysis.report.nics_over_time import nic_timelines, nics_over_time
from orchestration.analysis.report.paths import uplink_packets, uplink_picture
from orchestration.analysis.report.pauses import pause_picture, paused_pairs
from orchestration.analysis.report.repeats import repeats
from orchestration.analysis.report.shown import (
    MOST_TUNERS,
    ShownRepeat,
    shown_arms,
    shown_repeat,
)
from orchestration.analysis.report.timeline import busiest_queues
from orchestration.analysis.summary import Condition, Summary
from orchestration.model.load_balancing import ECMP

# Totals over all pictures of a kind, which limit the page of a big campaign to a few megabytes.
_TIMELINE_POINTS, _HEATMAP_SPANS = 40_000, 2_000
_HEADLINES = (fct_key("all"), slowdown_key("p99", "all"))

# Called with the conditions drawn and the conditions in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Report:
    """The page, and the data of its pictures as CSV, by file name."""

    html: str
    csv: dict[str, str]


def write_page(summary: Summary, path: Path) -> None:
    """Write the page to `path`, replacing it whole. Raises NotReadyError if that is impossible."""
    replace_file(path, build_page(summary))


def build_page(summary: Summary) -> str:
    """Return the whole page. Raises InputError for a table that cannot be read."""
    return build_report(summary).html


def build_report(summary: Summary, progress: Progress = lambda done, total: None) -> Report:
    """Return the page with its data. Raises InputError for a table that cannot be read."""
    page = _Page(summary)
    parts = [*page.head(), *page.conditions(progress), *page.trials(), page.pictures.script()]
    html = html_document(f"{summary.campaign} · closloop", "\n".join(parts))
    return Report(html, dict(page.pictures.tables))


class _Page:
    """The parts of the page, top to bottom."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._several = len(summary.conditions) > 1
        self._colours: Colours = colours_of(summary.tuners)
        self.pictures = Pictures()
        drawn = max(1, sum(len(shown_arms(condition)) for condition in summary.conditions))
        self._points = min(1_500, max(100, _TIMELINE_POINTS // (2 * drawn)))
        self._spans = min(120, max(30, _HEATMAP_SPANS // drawn))

    def head(self) -> list[str]:
        summary = self._summary
        testbeds = ", ".join(sorted({trial.spec.testbed for trial in summary.trials}))
        backends = ", ".join(sorted({trial.spec.backend for trial in summary.trials}))
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in answers(summary))
        verdict = "bad" if summary.invalid else "ok"
        return [
            '<a class="skip" href="#content">Skip to the figures</a>',
            f'<header><p class="kicker">closloop report · testbed {escape(testbeds)} · '
            f"backend {escape(backends)}</p>",
            f"<h1>{escape(summary.campaign)}</h1>",
            *(f'<p class="kicker">replays {escape(parent)}</p>' for parent in summary.parents),
            f'<ul class="answers">{items}</ul>',
            f'<p class="standing {verdict}">{escape(standing(summary))}</p>',
            f"{self._key()}{self._contents()}</header>",
            '<main id="content">',
        ]

    def _key(self) -> str:
        """Return which colour is which tuner."""
        chips = "".join(
            f'<span style="--colour:{self._colours[tuner]}">{escape(tuner)}</span>'
            for tuner in self._summary.tuners[:MOST_TUNERS]
        )
        more = len(self._summary.tuners) - MOST_TUNERS
        return f'<div class="key">{chips}{f"and {more} more" if more > 0 else ""}</div>'

    def _contents(self) -> str:
        """Return links to the conditions, where there are several, and to what follows them."""
        if not self._several:
            return ""
        links = [
            f'<a href="#condition-{place}">{escape(condition.label)}</a>'
            for place, condition in enumerate(self._summary.conditions)
        ]
        links.append('<a href="#trust">Can it be trusted?</a>')
        return f'<nav aria-label="Contents">{"".join(links)}</nav>'

    def conditions(self, progress: Progress) -> list[str]:
        parts = []
        total = len(self._summary.conditions)
        for place, condition in enumerate(self._summary.conditions):
            progress(place, total)
            parts.append(f'<section id="condition-{place}">')
            if self._several:
                parts.append(f"<h2>{escape(condition.label)}</h2>")
            if any(arm.valid for arm in condition.arms):
                parts += self._condition(condition)
            else:
                parts.append("<p>No trial is valid here, so there is nothing to show.</p>")
            parts.append("</section>")
        progress(total, total)
        return parts

    def _condition(self, condition: Condition) -> list[str]:
        arms = [arm for arm in condition.arms if arm.valid]
        parts = []
        if said := condition.look.in_words:
            parts.append(f'<p class="note">{escape(said)}</p>')
        if len(arms) > MOST_TUNERS:
            parts.append(
                f'<p class="note">Pictures show {MOST_TUNERS} of {len(arms)} tuners: the baseline '
                "and the lowest mean FCTs. Tables have all.</p>"
            )
        if condition.comparisons:
            parts += ["<h3>What differs</h3>", *self._differences(condition)]
            parts.append(comparison_table(condition))
        headline = convergence(condition, _HEADLINES[0], self._colours)
        if headline:
            parts += ["<h3>Are there enough repeats?</h3>", self._grid(condition, [headline])]
        parts += self._flows(condition) if any(arm.flows["all"] for arm in arms) else []
        parts += self._queues(condition)
        parts += self._links(condition)
        return parts

    def _differences(self, condition: Condition) -> list[str]:
        names = dict.fromkeys(item.tuner for item in condition.comparisons)
        shown = {arm.tuner for arm in shown_arms(condition)}
        forests = [
            differences.differences(
                [item for item in condition.comparisons if item.tuner == tuner], self._colours
            )
            for tuner in names
            if tuner in shown
        ]
        pairs = [differences.pairs(condition, key, self._colours) for key in _HEADLINES]
        return [self._grid(condition, forests), self._grid(condition, pairs)]

    def _flows(self, condition: Condition) -> list[str]:
        curves = [
            slowdowns.slowdown_by_size(condition, quantile, self._colours)
            for quantile in range(len(QUANTILES))
        ]
        distributions = [
            slowdowns.slowdown_cdf(condition, self._colours),
            slowdowns.fct_cdf(condition, self._colours),
        ]
        times = slowdowns.fct_by_size(condition, self._colours)
        fct = repeats(condition, fct_key("all"), "Mean FCT: {}", self._colours)
        return [
            "<h3>FCT slowdown by flow size</h3>",
            '<p class="caption">Slowdown is the flow completion time over the time that the flow '
            "takes alone at line rate, headers and base RTT counted. Each point stands for about a "
            "tenth of all flows, up to the size written below it.</p>",
            self._grid(condition, curves, wide=False),
            flow_table(condition),
            load_html(condition),
            "<h3>All flows</h3>",
            self._grid(condition, distributions),
            self._grid(condition, [times, fct]),
        ]

    def _queues(self, condition: Condition) -> list[str]:
        parts = ["<h3>Queues</h3>"]
        distribution = queue_figures.queue_distribution(condition, self._colours)
        shown = shown_repeat(condition)
        queues = busiest_queues(shown, self._points) if shown else []
        lines = [queue_figures.queue_timeline(queue, self._colours) for queue in queues]
        parts.append(self._grid(condition, [distribution, *lines]))
        if shown is None or not shown.sampled:
            parts.append('<p class="note">No queue was sampled over time.</p>')
            return parts
        acted = acted_queues(shown, self._points)
        if acted:
            pictures = [actions_over_queue(queue, self._colours) for queue in acted]
            parts += ["<h3>Threshold actions</h3>", self._grid(condition, pictures)]
        grids = fabric_grids(shown, self._spans)
        if grids:
            picture = fabric_heatmap(grids, self._colours)
            parts += ["<h3>The fabric over time</h3>", self._grid(condition, [picture])]
        parts += self._paths(condition, shown)
        parts += self._buffers(condition, shown)
        parts += self._hosts(condition, shown)
        return parts

    def _paths(self, condition: Condition, shown: ShownRepeat) -> list[str]:
        """Show how paths were chosen, if a trial of the campaign has another way than ECMP."""
        if all(trial.spec.load_balancing == ECMP for trial in self._summary.trials):
            return []
        found = uplink_packets(shown)
        titles = {
            "uplink_imbalance": "Busiest uplink of a switch, over the mean: {}",
            "out_of_order_share": "Packets out of order: {}",
            "reroutes_per_flow": "Reroutes of a flow: {}",
        }
        pictures = [uplink_picture(found, self._colours)] if found else []
        parts = ["<h3>Paths, reordering, reroutes</h3>", self._grid(condition, pictures)]
        return [*parts, self._repeats(condition, titles)]

    def _buffers(self, condition: Condition, shown: ShownRepeat) -> list[str]:
        parts = []
        held = shared_buffers(shown)
        pictures: list[Picture | None]
        if held:
            pictures = [
                fullest_buffer(held, self._colours, self._points),
                buffer_map(held, self._colours, self._spans),
            ]
            parts += ["<h3>Shared buffers</h3>", self._grid(condition, pictures)]
            titles = {
                "buffer_max_bytes": "The fullest buffer held {}",
                "headroom_max_bytes": "Most headroom in use at a switch: {}",
            }
            parts.append(self._repeats(condition, titles))
        paused = paused_pairs(shown)
        if paused:
            counted = repeats(condition, "pauses_sent", "Pauses: {}", self._colours)
            pictures = [pause_picture(paused, self._colours), counted]
            parts += ["<h3>Who stops whom</h3>", self._grid(condition, pictures)]
        return parts

    def _hosts(self, condition: Condition, shown: ShownRepeat) -> list[str]:
        grids = host_grids(shown, self._spans)
        timelines = nic_timelines(shown, self._spans)
        pictures = [rate_picture(grids, self._colours)] if grids else []
        pictures += [nics_over_time(timelines, self._colours)] if timelines else []
        if not pictures:
            return []
        titles = {
            "cnps": "CNPs: {}",
            "rate_mean_bps": "A host with flows may send {}",
            "rtt_p99_ns": "1% of round trips take longer than {}",
        }
        parts = ["<h3>RoCE NICs: notifications, rates, round trips</h3>"]
        return [*parts, self._grid(condition, pictures), self._repeats(condition, titles)]

    def _repeats(self, condition: Condition, titles: Mapping[str, str]) -> str:
        pictures = [repeats(condition, key, title, self._colours) for key, title in titles.items()]
        return self._grid(condition, pictures, wide=False)

    def _links(self, condition: Condition) -> list[str]:
        titles = {
            "marked_share": "Packets marked CE: {}",
            "utilisation_hosts": "Links to hosts are busy {}",
            "utilisation_fabric": "Links between switches are busy {}",
        }
        law = marking_law(condition)
        parts = []
        if pictures := self._repeats(condition, titles):
            parts += ["<h3>Marking and utilisation</h3>", pictures]
        if law:
            parts.append(f'<p class="caption">Marking law: {escape(law)}</p>')
        return [*parts, fabric_table(condition)]

    def _grid(
        self, condition: Condition, pictures: Sequence[Picture | None], *, wide: bool = True
    ) -> str:
        known = [picture for picture in pictures if picture is not None]
        prefix = f"{_slug(condition.label)}-" if self._several else ""
        return self.pictures.grid(known, wide=wide, prefix=prefix) if known else ""

    def trials(self) -> list[str]:
        return [
            '<section id="trust"><h2>Can it be trusted?</h2>',
            '<p class="caption">Every trial is judged by what it recorded. One finding of severity '
            "invalid keeps it out of every figure above.</p>",
            stamp_table(self._summary),
            "<h3>Made with</h3>",
            provenance_table(self._summary),
            "</section></main>",
        ]


def _slug(label: str) -> str:
    """Return a name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-").lower() or "condition"
