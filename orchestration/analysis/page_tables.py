"""The tables of the report's page, as HTML."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

from orchestration.analysis.load_tables import TITLE, load_caption, load_columns, load_rows
from orchestration.analysis.metrics import METRIC, SIZE_CLASSES
from orchestration.analysis.summary import Condition, Summary, Trial
from orchestration.analysis.tables import FLOWS_FOR_P99, SEVERITIES, flow_cells, measured_fabric
from orchestration.analysis.tables import findings as findings_of
from orchestration.analysis.tuner_differences import describe_difference
from orchestration.analysis.words import NOTHING, quantity, with_error
from orchestration.artifacts.findings import where
from orchestration.artifacts.load_fact import FACT
from orchestration.model.trial import TrialSpec, checkpoint_in

_Row = tuple[str, Sequence[str]]
_CC_FACT = "congestion_control"
# Times among the facts are of two clocks.
_SAID = {
    "wall_s": "wall time, s",
    "stages_s": "wall time by stage, s",
    "end_ns": "end of the trial, ns of its own time",
    "started_ns": "start of the trial, ns since 1970",
}


def html_table(heads: Sequence[str], rows: Iterable[_Row], numbers: int, caption: str = "") -> str:
    """Return a table of rows (class, HTML cells); the last `numbers` columns are right-aligned.

    A row with a single cell spans the table: a note below a row that phones show too.
    """
    first_number = len(heads) - numbers

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if place >= first_number else ''}>{text}</{tag}>"
            for place, text in enumerate(texts)
        )

    def row(klass: str, texts: Sequence[str]) -> str:
        if len(texts) == 1:
            wide = f'<td colspan="{len(heads)}"><div>{texts[0]}</div></td>'
            return f'<tr class="{klass}">{wide}</tr>'
        return f'<tr class="{klass}">{cells("td", texts)}</tr>'

    body = "\n".join(row(klass, texts) for klass, texts in rows)
    told = f'<p class="caption">{escape(caption)}</p>' if caption else ""
    return (
        # a scrolling area must be reachable by keyboard
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table: {heads[0]}">'
        f"<table><thead><tr>{cells('th', heads)}</tr></thead>"
        f"<tbody>\n{body}\n</tbody></table></div>{told}"
    )


def flow_table(condition: Condition) -> str:
    """Return slowdown and mean FCT by flow-size class."""
    rows = [
        (
            "",
            [
                escape(label),
                escape(arm.tuner),
                str(arm.flows[klass]),
                *(escape(cell) for cell in flow_cells(arm, klass)),
            ],
        )
        for klass, label in SIZE_CLASSES.items()
        for arm in condition.arms
        if arm.flows[klass]
    ]
    heads = ("flow size", "tuner", "flows", "median", "p95", "p99", "mean FCT")
    caption = (
        "Slowdown and FCT, mean over repeats ± half of the 95% interval (Student's t, one value a "
        f"repeat); flows: in the smallest repeat; * fewer than {FLOWS_FOR_P99} of them, so that "
        "p99 is close to the largest value."
    )
    return html_table(heads, rows, 5, caption)


def comparison_table(condition: Condition) -> str:
    """Return the paired comparisons against the baseline."""
    several = len(condition.arms) > 2
    rows = [
        (
            "",
            [
                escape(METRIC[item.metric].label),
                *([escape(item.tuner)] if several else []),
                f"<b>{escape(item.verdict)}</b>" if item.real else escape(item.verdict),
                escape(describe_difference(item)),
                p_value(item.p_holm),
                p_value(item.difference.p_sign_flip),
            ],
        )
        for item in condition.comparisons
    ]
    first = condition.comparisons[0]
    tuner = ["tuner"] if several else []
    heads = ("metric", *tuner, "verdict", "difference [95% CI]", "p, Holm", "p, sign flip")
    pairs = max(item.difference.n for item in condition.comparisons)
    floor = condition.look.p_value(2.0 ** (1 - pairs))
    against = f"against {first.baseline}" if several else f"{first.tuner} against {first.baseline}"
    tests = (
        f"p, Holm: paired t-test corrected for {first.family} comparisons; below 0.05 is called "
        "real. p, sign flip: exact permutation test, uncorrected, which needs no normal "
        f"differences and cannot go below {floor:.3f} with these repeats."
        if first.family
        else "One pair has no p-value."
    )
    caption = f"Paired by seed, {against}. {tests}"
    return html_table(heads, rows, 0, caption)


def p_value(p: float) -> str:
    """Return a p-value as HTML."""
    if math.isnan(p):
        return NOTHING
    return "&lt;0.001" if p < 0.001 else f"{p:.3f}"


def fabric_table(condition: Condition) -> str:
    """Return the metrics of the switch ports, and name those not measured."""
    known, lacking = measured_fabric(condition.arms)
    rows = [
        (
            "",
            [
                escape(METRIC[key].label),
                *(with_error(arm.estimates[key], METRIC[key].unit) for arm in condition.arms),
            ],
        )
        for key in known
    ]
    note = f'<p class="note">{escape(lacking)}</p>' if lacking else ""
    if not rows:
        return note
    heads = ("queues and links", *(escape(arm.tuner) for arm in condition.arms))
    spans = condition.queue_spans
    caption = (
        f"{escape(spans)} All else: " if spans else "All switch ports, "
    ) + "while flows arrived; mean over repeats ± half of the 95% interval."
    return html_table(heads, rows, len(condition.arms), caption) + note


def load_html(condition: Condition) -> str:
    """Return load by pattern; "" if there is nothing to tell."""
    rows = [("", [escape(name), *cells]) for name, cells in load_rows(condition)]
    if not rows:
        return ""
    heads = [escape(head) for head in load_columns(condition)]
    caption = f"{TITLE}: {load_caption(condition)}."
    return html_table(("load", *heads), rows, len(heads), caption)


def stamp_table(summary: Summary) -> str:
    """Return all trials with their verdicts; findings of several trials are said once, above."""
    total = len(summary.trials)
    several = [
        (severity, told)
        for severity in SEVERITIES
        for told in findings_of(summary, severity)
        if len(told.trials) > 1
    ]
    common = {told.text for _, told in several}
    rows: list[_Row] = []
    for trial in summary.trials:
        cells = [
            f"<code>{escape(trial.id)}</code>{_parent(trial)}",
            escape(trial.tuner) + _network(trial),
            str(trial.spec.repeat),
            "valid" if trial.stamp.valid else '<b class="invalid">invalid</b>',
        ]
        findings = _findings(trial, common)
        rows.append(("with-more" if findings else "", cells))
        if findings:
            rows.append(("more", [findings]))
    checked = Counter(name for trial in summary.trials for name in trial.stamp.checked)
    listed = ", ".join(
        name if count == len(summary.trials) else f"{name} (in {count} trials)"
        for name, count in checked.items()
    )
    note = f"Checked: {listed}." if listed else ""
    said = "".join(
        f'<li><span class="{severity}">{escape(where(told.trials, total))}: {severity}: '
        f"{escape(told.text)}</span></li>"
        for severity, told in several
    )
    listed_once = f'<ul class="findings">{said}</ul>' if said else ""
    return listed_once + html_table(("trial", "tuner", "repeat", "stamp"), rows, 0, note)


def _network(trial: Trial) -> str:
    name = checkpoint_in(trial.spec)
    return f"<br>network <code>{escape(name)}</code>" if name else ""


def _parent(trial: Trial) -> str:
    parent = trial.spec.parent
    return f"<br>replays <code>{escape(parent)}</code>" if parent else ""


def _findings(trial: Trial, common: Collection[str]) -> str:
    """Return a trial's own findings: those that are not said of several trials above."""
    return "<br>".join(
        f'<span class="{reason.severity}">{reason.severity}: {escape(reason.text)}</span>'
        for reason in trial.stamp.reasons
        if reason.text not in common
    )


def provenance_table(summary: Summary) -> str:
    """Return what the trials ran on: each value once, with a count if trials differ."""
    values: dict[str, Counter[str]] = {}
    for trial in summary.trials:
        told = {**settings_told(trial.spec, trial.facts), **trial.versions}
        told |= plain_facts(trial.facts)
        for key, value in told.items():
            values.setdefault(key, Counter())[value] += 1
    rows = [
        ("wraps", [escape(key), _counted(counter, len(summary.trials))])
        for key, counter in values.items()
    ]
    note = "All settings of each trial are in its folder: trial.json and testbed.json."
    return html_table(("what", "value"), rows, 0, note)


def settings_told(spec: TrialSpec, facts: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a trial that pages show first."""
    return {
        "testbed": spec.testbed,
        "backend": spec.backend,
        # for an import this is a fact: its spec comes from no campaign
        "congestion control": str(facts.get(_CC_FACT, spec.host.congestion_control)),
        "sampling period": quantity(spec.sample_period_ns, "ns"),
    }


def plain_facts(facts: Mapping[str, object]) -> dict[str, str]:
    """Return the facts that fit a cell; those of a group are named `group: name`."""
    plain = {}
    for key, value in facts.items():
        if key in (_CC_FACT, FACT):  # shown among the settings, and in a table of its own
            continue
        items = value.items() if isinstance(value, dict) else [("", value)]
        for name, item in items:
            if isinstance(item, str | int | float):
                said = _SAID.get(key, key)
                label = f"{said}: {name}" if name else said
                plain[label] = f"{item:.6g}" if isinstance(item, float) else str(item)
    return plain


def _counted(counter: Counter[str], total: int) -> str:
    if len(counter) == 1 and counter.total() == total:
        return f"<code>{escape(next(iter(counter)))}</code>"
    if len(counter) > 4:
        return f"{len(counter)} different values{_range(counter)}"
    return ", ".join(
        f"<code>{escape(value)}</code> ({count} of {total} trials)"
        for value, count in counter.items()
    )


def _range(values: Iterable[str]) -> str:
    """Return the range of numbers, "" for texts."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return ""
    return f", {min(numbers):.6g} to {max(numbers):.6g}"
