"""The report's tables, as the page and the terminal show them.

FCT is a flow's completion time; slowdown is the FCT divided by that of the same flow on an idle
path.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from orchestration.analysis.arm_differences import Comparison, describe_difference
from orchestration.analysis.load import Load
from orchestration.analysis.metrics import (
    DEVICES,
    FABRIC,
    METRICS,
    SIZE_CLASSES,
    fct_key,
    slowdown_key,
)
from orchestration.analysis.statistics import t_interval
from orchestration.analysis.summary import Arm, Condition, Summary, Trial
from orchestration.core.trial import TrialSpec, checkpoint_in
from orchestration.core.units import format_duration
from orchestration.render.numbers import count, p_value, quantity, with_error
from orchestration.render.page import Items
from orchestration.render.table import (
    Column,
    Row,
    Span,
    Style,
    Table,
    Text,
    code,
    joined,
    strong,
    table,
)
from orchestration.results.reader import LOAD_FACT
from orchestration.results.stamp import GroupedText, Severity, grouped_texts, where

SEVERITIES: tuple[Severity, ...] = ("invalid", "warning")
STYLES: dict[Severity, Style] = {"invalid": "bad", "warning": "warning"}
# With fewer flows than this, the p99 is close to the maximum.
FLOWS_FOR_P99 = 100
# Less discarded load than this share of the delivered load is not shown: ports' counters cannot
# distinguish the TCP options of acknowledgements from payload.
_NOTICEABLE = 0.005
_TOTAL = "all patterns"
_CC_FACT = "congestion_control"
# What facts are called in tables. Their times are of two clocks: of the wall and of the trial.
_FACT_LABELS = {
    "wall_s": "wall time, s",
    "stages_s": "wall time by stage, s",
    "end_ns": "end of the trial, ns of its own time",
    "started_ns": "start of the trial, ns since 1970",
    "engine_hash": "packet engine, hash of its source",
    "engine_compiler": "packet engine, compiler",
    "engine_abi": "packet engine, version of its interface",
}


# The backends' names of how a queue's length becomes a probability.
_MARKING_LABELS = {
    "straight_line_on": "from 0 at kmin in a straight line to pmax at kmax, over",
    "Linux_RED_on": "that of Linux' RED, over",
    "farthest_from_the_straight_line": "its largest distance from a straight line is",
}
_MARKED_PACKETS = {
    ", arrivals": ", for packets that arrive",
    ", departures": ", for packets that leave",
}


def flow_table(condition: Condition) -> Table:
    """Return slowdown quantiles and mean FCT of each arm, by flow-size class."""
    rows = []
    for klass, label in SIZE_CLASSES.items():
        arms = [arm for arm in condition.arms if arm.flows[klass]]
        for arm in arms:
            few = "*" if arm.flows[klass] < FLOWS_FOR_P99 else ""
            p50, p95, p99 = (arm.estimates[slowdown_key(q, klass)] for q in ("p50", "p95", "p99"))
            tail = f"{with_error(p99, 'ratio')}{few}"
            fct = arm.estimates[fct_key(klass)]
            row = (label, arm.name, arm.flows[klass], p50, p95, tail, fct)
            rows.append(Row(row, section=arm is arms[0]))
    columns = [Column("flow size"), Column("arm"), Column("flows", figures=True, detail=True)]
    columns += [Column(name, figures=True, unit="ratio") for name in ("median", "p95", "p99")]
    caption = (
        "Slowdown is a flow's completion time (FCT) divided by its FCT on an idle path. Each "
        "repeat gives one value; shown is the mean over repeats ± the half-width of its 95% "
        "interval (Student's t)."
    )
    if condition.comparisons:
        caption += (
            " Overlapping intervals here do not mean that arms are alike: the test is the table "
            "of paired differences."
        )
    if any("*" in str(row.cells[5]) for row in rows):
        caption += (
            f" *: fewer than {FLOWS_FOR_P99} flows in a repeat, so that p99 is close to the "
            "largest value."
        )
    return Table([*columns, Column("mean FCT", figures=True, unit="ns")], rows, caption=caption)


def comparison_table(condition: Condition) -> Table:
    """Return the paired comparisons against the baseline."""
    several = len(condition.arms) > 2
    rows = [
        Row(
            [
                (METRICS[item.metric].label, Span(" (judges)", "faint") if item.judged else ""),
                *([item.arm] if several else []),
                strong(item.verdict) if item.real else item.verdict,
                describe_difference(item),
                p_value(item.p_holm),
                p_value(item.difference.p_sign_flip),
            ]
        )
        for item in condition.comparisons
    ]
    first, last = condition.comparisons[0], condition.comparisons[-1]
    columns = [
        Column("metric"),
        *([Column("arm")] if several else []),
        Column("verdict", wraps=True),
        Column("difference [95% CI]"),
        Column("p, Holm", detail=True),
        Column("p, sign flip", detail=True),
    ]
    pairs = max(item.difference.n for item in condition.comparisons)
    floor = condition.interim.p_value(2.0 ** (1 - pairs))
    arm = "each arm" if several else first.arm
    tests = (
        f"p, Holm: paired t-test with Holm's correction{_families(first, last)}; the verdict "
        "gives differences with p < 0.05, and (Holm) marks those that are below 0.05 only "
        "without the correction. p, sign flip: exact permutation test, uncorrected; it does not "
        f"assume normal differences, and cannot be below {floor:.3f} with {pairs} pairs."
        if first.family
        else "One pair has no p-value."
    )
    caption = f"Differences of {arm} from {first.baseline}, paired by seed ({_pairs(pairs)}). "
    return Table(columns, rows, caption=caption + tests)


def placebo_table(condition: Condition) -> Table | None:
    """Return learned tuners against their placebo and the best static setting; None without any."""
    rows = [
        Row(
            [
                item.arm,
                item.baseline,
                METRICS[item.metric].label,
                strong(item.verdict) if item.real else item.verdict,
                describe_difference(item),
                p_value(item.p_holm),
            ]
        )
        for item in condition.baselines
    ]
    if not rows:
        return None
    heads = ("learned tuner", "against", "metric", "verdict", "difference [95% CI]", "p, Holm")
    caption = (
        "A placebo sets the values of the learned tuner as often, but at random: only what beats "
        "it has used what it saw."
    )
    return Table([Column(head) for head in heads], rows, caption=caption)


def _families(first: Comparison, last: Comparison) -> str:
    """Return what is corrected together: judged comparisons, and exploratory ones."""
    judged = f" for {count(first.family, 'comparison')} by what judges" if first.judged else ""
    rest = f" for {count(last.family, 'exploratory one')}" if not last.judged else ""
    return " and, apart from them,".join(filter(None, (judged, rest)))


def _pairs(pairs: int) -> str:
    return count(pairs, "pair")


def fabric_table(condition: Condition) -> tuple[Table | None, str]:
    """Return the metrics of queues, links, NICs and buffers, and a sentence on what is missing.

    The sentence names metrics of queues and links only, which every trial should have.
    """
    fabric = _measured(condition.arms, FABRIC)
    rest = [*DEVICES, *(metric.key for metric in METRICS.own)]
    known = [*fabric, *_measured(condition.arms, rest)]
    lacking = [METRICS[key].label for key in FABRIC if key not in fabric]
    missing = f"Not measured: {'; '.join(lacking)}." if lacking else ""
    missing = missing if fabric else "No metric of queues and links was measured."
    if not known:
        return None, missing
    rows = [
        [
            metric.label,
            *(with_error(arm.estimates[metric.key], metric.unit) for arm in condition.arms),
        ]
        for metric in map(METRICS.__getitem__, known)
    ]
    spans = condition.queue_spans
    caption = f"{spans} All other values are" if spans else "Over all switch ports,"
    caption += " while flows arrived: mean over repeats ± half-width of its 95% interval."
    arms = [arm.name for arm in condition.arms]
    return table(("queues and links",), arms, rows, caption=caption), missing


def _measured(arms: Sequence[Arm], keys: Sequence[str]) -> list[str]:
    return [key for key in keys if any(math.isfinite(arm.estimates[key].mean) for arm in arms)]


def marking_text(condition: Condition) -> str:
    """Return how the arms' queues mark packets, equal parts once; "" if that is not known.

    The backend's fact `red` is one text, or a mapping of names to texts.
    """
    facts = {arm.name: fact for arm in condition.arms if (fact := _marking_fact(arm))}
    names = dict.fromkeys(name for fact in facts.values() for name in fact)
    text = "; ".join(_marking_clause(name, facts) for name in names)
    return f"Marking probability: {text}." if text else ""


def _marking_fact(arm: Arm) -> dict[str, str]:
    for trial in arm.valid:
        fact = trial.facts.get("red")
        if isinstance(fact, dict):
            return {str(name): str(value) for name, value in fact.items()}
        if fact:
            return {"": str(fact)}
    return {}


def _marking_clause(name: str, facts: Mapping[str, Mapping[str, str]]) -> str:
    values = {arm: fact[name] for arm, fact in facts.items() if name in fact}
    distinct = set(values.values())
    text = ", ".join(f"{value} ({arm})" for arm, value in values.items())
    text = distinct.pop() if len(distinct) == 1 else text
    for short, full in _MARKED_PACKETS.items():
        text = text.replace(short, full)
    label = _MARKING_LABELS.get(name, f"{name.replace('_', ' ')}:" if name else "")
    return f"{label} {text}".strip()


def load_table(condition: Condition) -> Table | None:
    """Return offered and delivered load by traffic pattern, None if unknown.

    With several patterns there is a row for all of them together. Discarded load has columns if it
    is noticeable.
    """
    arms = [arm for arm in condition.arms if arm.valid]
    loads = [trial.metrics.load for arm in arms for trial in arm.valid]
    names = list(dict.fromkeys(name for load in loads for name in load.patterns))
    if not names:
        return None
    wasted = any(
        load.total.discarded_bytes > _NOTICEABLE * np.nan_to_num(load.total.delivered_bytes)
        for load in loads
    )
    amounts = ("delivered", "discarded") if wasted else ("delivered",)
    rows = []
    for name in [*names, _TOTAL] if len(names) > 1 else names:
        cells = [_mean_load(arms[0], name, "offered")]
        for amount in amounts:
            cells += [_mean_load(arm, name, amount) if arm.valid else "" for arm in condition.arms]
        rows.append([name, *cells])
    heads = [f"{amount}, {arm.name}" for amount in amounts for arm in condition.arms]
    begin_ns, end_ns = loads[0].measured_ns
    end = format_duration(end_ns)
    span = f"from {format_duration(begin_ns)} to {end}" if begin_ns else f"in the first {end}"
    caption = (
        f"Load {span}, as a share of the hosts' line rates: mean over repeats ± half-width of its "
        "95% interval. Offered: payload of the flows that start in this time. Delivered: payload "
        "that receivers accept in this time."
    )
    if wasted:
        caption += (
            " Discarded: payload that arrives twice, or arrives out of order and is not kept."
        )
    if any(math.isnan(load.total.offered_bytes) for load in loads):
        caption += " Flows that last as long as the trial offer no finite amount."
    return table(("load",), ("offered", *heads), rows, caption=caption)


def _mean_load(arm: Arm, name: str, amount: str) -> str:
    """Return the mean share of a pattern's offered, delivered or discarded load, in text."""
    nothing = Load(math.nan, math.nan, math.nan, 1.0)
    loads = [trial.metrics.load for trial in arm.valid]
    parts = [load.total if name == _TOTAL else load.patterns.get(name, nothing) for load in loads]
    return with_error(t_interval([part.share(amount) for part in parts]), "share")


def findings(summary: Summary, severity: Severity) -> list[GroupedText]:
    """Return all findings of a severity, each once with the trials that have it."""
    return grouped_texts(
        {
            trial.id: [item.text for item in summary.reasons(trial) if item.severity == severity]
            for trial in summary.trials
        }
    )


def findings_table(summary: Summary) -> Table | None:
    """Return the stamps' findings, and which trials have them; None without findings."""
    total = len(summary.trials)
    rows: list[Sequence[Text]] = []
    for severity in SEVERITIES:
        for finding in findings(summary, severity):
            also = ""
            if finding.similar:
                also = f"; the same with other figures {where(finding.similar, total)}"
            text = Span(f"{severity}: {finding.text}{also}", STYLES[severity])
            rows.append([where(finding.trials, total), text])
    title = "Findings of the validity checks"
    return table(("trials", "finding"), (), rows, title) if rows else None


def stamp_tables(summary: Summary) -> tuple[Items, Table]:
    """Return the findings of several trials, each once, and a table of all trials.

    The table has each trial's verdict, and the findings that no other trial has.
    """
    total = len(summary.trials)
    several = {
        finding.text: Span(
            f"{where(finding.trials, total)}: {severity}: {finding.text}", STYLES[severity]
        )
        for severity in SEVERITIES
        for finding in findings(summary, severity)
        if len(finding.trials) > 1
    }
    checked = Counter(name for trial in summary.trials for name in trial.stamp.checked)
    listed = ", ".join(
        name if count == total else f"{name} (in {count} trials)" for name, count in checked.items()
    )
    rows = [
        Row(
            [
                _named(trial.id, "replays", trial.spec.parent or ""),
                _named(trial.arm, "network", checkpoint_in(trial.spec) or "", name_is_code=False),
                str(trial.spec.repeat),
                "valid" if trial.stamp.valid else Span("invalid", "bad"),
            ],
            note=_own_findings(summary, trial, several),
        )
        for trial in summary.trials
    ]
    note = f"Checked: {listed}." if listed else ""
    heads = ("trial", "arm", "repeat", "stamp")
    return Items(list(several.values()), "findings"), table(heads, (), rows, caption=note)


def _named(name: str, word: str, other: str, *, name_is_code: bool = True) -> Text:
    first = code(name) if name_is_code else Span(name)
    return (first, f"\n{word} ", code(other)) if other else first


def _own_findings(summary: Summary, trial: Trial, common: Collection[str]) -> Text:
    """Return a trial's findings without those in `common`, which several trials have."""
    return joined(
        Span(f"{reason.severity}: {reason.text}", STYLES[reason.severity])
        for reason in summary.reasons(trial)
        if reason.text not in common
    )


def provenance_table(summary: Summary) -> Table:
    """Return what the trials ran on: each value once, with a count if trials differ."""
    values: dict[str, Counter[str]] = {}
    for trial in summary.trials:
        entries = {**first_settings(trial.spec, trial.facts), **trial.versions}
        entries |= plain_facts(trial.facts)
        for key, value in entries.items():
            values.setdefault(key, Counter())[value] += 1
    rows = [Row([key, _counted(counts, len(summary.trials))]) for key, counts in values.items()]
    note = "All settings of each trial are in its folder: trial.json and testbed.json."
    return Table([Column("what"), Column("value", wraps=True)], rows, caption=note)


def first_settings(spec: TrialSpec, facts: Mapping[str, object]) -> dict[str, str]:
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
        if key in (_CC_FACT, LOAD_FACT):  # shown among the settings, and in a table of its own
            continue
        items = value.items() if isinstance(value, dict) else [("", value)]
        for name, item in items:
            if isinstance(item, str | int | float):
                label = _FACT_LABELS.get(key, key)
                label = f"{label}: {name}" if name else label
                plain[label] = f"{item:.6g}" if isinstance(item, float) else str(item)
    return plain


def _counted(counter: Counter[str], total: int) -> Text:
    if len(counter) == 1 and counter.total() == total:
        return code(next(iter(counter)))
    if len(counter) > 4:
        return f"{len(counter)} different values{_range(counter)}"
    return joined(
        ((code(value), f" ({count} of {total} trials)") for value, count in counter.items()), ", "
    )


def _range(values: Iterable[str]) -> str:
    """Return the range of numbers, "" for texts."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return ""
    return f", {min(numbers):.6g} to {max(numbers):.6g}"
