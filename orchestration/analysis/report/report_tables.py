"""The report's tables, as the page and the terminal show them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

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
from orchestration.analysis.tuner_differences import describe_difference
from orchestration.core.trial import TrialSpec, checkpoint_in
from orchestration.core.units import format_duration
from orchestration.render.numbers import p_value, quantity, with_error
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
# A share of what was delivered: ports do not tell options of acknowledgements from payload.
_NOTICEABLE = 0.005
_TOTAL = "all patterns"
_CC_FACT = "congestion_control"
# Times among the facts are of two clocks.
_SAID = {
    "wall_s": "wall time, s",
    "stages_s": "wall time by stage, s",
    "end_ns": "end of the trial, ns of its own time",
    "started_ns": "start of the trial, ns since 1970",
}


def flow_table(condition: Condition) -> Table:
    """Return slowdown and mean FCT by flow-size class."""
    rows = []
    for klass, label in SIZE_CLASSES.items():
        arms = [arm for arm in condition.arms if arm.flows[klass]]
        for arm in arms:
            few = "*" if arm.flows[klass] < FLOWS_FOR_P99 else ""
            p50, p95, p99 = (arm.estimates[slowdown_key(q, klass)] for q in ("p50", "p95", "p99"))
            tail = f"{with_error(p99, 'ratio')}{few}"
            fct = arm.estimates[fct_key(klass)]
            row = (label, arm.tuner, arm.flows[klass], p50, p95, tail, fct)
            rows.append(Row(row, section=arm is arms[0]))
    columns = [Column("flow size"), Column("tuner"), Column("flows", figures=True, detail=True)]
    columns += [Column(name, figures=True, unit="ratio") for name in ("median", "p95", "p99")]
    return Table(
        [*columns, Column("mean FCT", figures=True, unit="ns")],
        rows,
        caption="Slowdown (FCT / ideal FCT) and FCT, mean over repeats ± half of the 95% interval "
        f"(Student's t, one value a repeat); * fewer than {FLOWS_FOR_P99} flows in a repeat, so "
        "that p99 is close to the largest value.",
    )


def comparison_table(condition: Condition) -> Table:
    """Return the paired comparisons against the baseline."""
    several = len(condition.arms) > 2
    rows = [
        Row(
            [
                METRICS[item.metric].label,
                *([item.tuner] if several else []),
                strong(item.verdict) if item.real else item.verdict,
                describe_difference(item),
                p_value(item.p_holm),
                p_value(item.difference.p_sign_flip),
            ]
        )
        for item in condition.comparisons
    ]
    first = condition.comparisons[0]
    columns = [
        Column("metric"),
        *([Column("tuner")] if several else []),
        Column("verdict", wraps=True),
        Column("difference [95% CI]"),
        Column("p, Holm", detail=True),
        Column("p, sign flip", detail=True),
    ]
    pairs = max(item.difference.n for item in condition.comparisons)
    floor = condition.interim.p_value(2.0 ** (1 - pairs))
    against = f"against {first.baseline}" if several else f"{first.tuner} against {first.baseline}"
    tests = (
        f"p, Holm: paired t-test corrected for {first.family} comparisons; below 0.05 is called "
        "real. p, sign flip: exact permutation test, uncorrected, which needs no normal "
        f"differences and cannot go below {floor:.3f} with these repeats."
        if first.family
        else "One pair has no p-value."
    )
    return Table(columns, rows, caption=f"Paired by seed, {against}. {tests}")


def fabric_table(condition: Condition) -> tuple[Table | None, str]:
    """Return the metrics of queues, links, NICs and buffers, and what was not measured.

    Only of queues and links every trial should have all.
    """
    fabric = _measured(condition.arms, FABRIC)
    rest = [*DEVICES, *(metric.key for metric in METRICS.own)]
    known = [*fabric, *_measured(condition.arms, rest)]
    lacking = [METRICS[key].label for key in FABRIC if key not in fabric]
    said = f"Not measured: {'; '.join(lacking)}." if lacking else ""
    said = said if fabric else "Nothing was measured of queues and links."
    if not known:
        return None, said
    rows = [
        [
            metric.label,
            *(with_error(arm.estimates[metric.key], metric.unit) for arm in condition.arms),
        ]
        for metric in map(METRICS.__getitem__, known)
    ]
    spans = condition.queue_spans
    caption = f"{spans} All else: " if spans else "All switch ports, "
    caption += "while flows arrived; mean over repeats ± half of the 95% interval."
    tuners = [arm.tuner for arm in condition.arms]
    return table(("queues and links",), tuners, rows, caption=caption), said


def _measured(arms: Sequence[Arm], keys: Sequence[str]) -> list[str]:
    return [key for key in keys if any(math.isfinite(arm.estimates[key].mean) for arm in arms)]


def marking_text(condition: Condition) -> str:
    """Return the tuners' marking laws, shared parts once, as a sentence; "" if none is known.

    The backend's fact `red` is one text, or a mapping of names to texts.
    """
    laws = {arm.tuner: law for arm in condition.arms if (law := _law(arm))}
    names = dict.fromkeys(name for law in laws.values() for name in law)
    text = "; ".join(_law_text(name, laws) for name in names)
    return f"Marking law: {text}" if text else ""


def _law(arm: Arm) -> dict[str, str]:
    for trial in arm.valid:
        law = trial.facts.get("red")
        if isinstance(law, dict):
            return {str(name).replace("_", " "): str(value) for name, value in law.items()}
        if law:
            return {"": str(law)}
    return {}


def _law_text(name: str, laws: dict[str, dict[str, str]]) -> str:
    values = {tuner: law[name] for tuner, law in laws.items() if name in law}
    one = set(values.values())
    text = one.pop() if len(one) == 1 else ", ".join(f"{v} ({k})" for k, v in values.items())
    return f"{name}: {text}" if name else text


def load_table(condition: Condition) -> Table | None:
    """Return offered and delivered load by pattern, None if unknown.

    A single pattern has no row beside that of all. What receivers discarded is told if noticeable.
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
    told = ("delivered", "discarded") if wasted else ("delivered",)
    rows = []
    for name in [*names, _TOTAL] if len(names) > 1 else names:
        cells = [_mean_load(arms[0], name, "offered")]
        for what in told:
            cells += [_mean_load(arm, name, what) if arm.valid else "" for arm in condition.arms]
        rows.append([name, *cells])
    heads = [f"{what}, {arm.tuner}" for what in told for arm in condition.arms]
    begin_ns, end_ns = loads[0].measured_ns
    end = format_duration(end_ns)
    span = f"from {format_duration(begin_ns)} to {end}" if begin_ns else f"of the first {end}"
    caption = (
        f"Load, share of the hosts' line rates: payload {span}: of the flows that start then, and "
        "what receivers accept then"
    )
    if wasted:
        caption += "; discarded is what arrives twice, or out of order and is not kept"
    if any(math.isnan(load.total.offered_bytes) for load in loads):
        caption += "; flows that last as long as the trial offer no finite amount"
    return table(("load",), ("offered", *heads), rows, caption=f"{caption}.")


def _mean_load(arm: Arm, name: str, what: str) -> str:
    nothing = Load(math.nan, math.nan, math.nan, 1.0)
    loads = [trial.metrics.load for trial in arm.valid]
    parts = [load.total if name == _TOTAL else load.patterns.get(name, nothing) for load in loads]
    return with_error(t_interval([part.share(what) for part in parts]), "share")


def findings(summary: Summary, severity: Severity) -> list[GroupedText]:
    """Return what the stamps say of a severity, once where it is of several trials."""
    return grouped_texts(
        {
            trial.id: [item.text for item in trial.stamp.reasons if item.severity == severity]
            for trial in summary.trials
        }
    )


def findings_table(summary: Summary) -> Table | None:
    """Return what the stamps say, and of which trials; None if they find nothing."""
    total = len(summary.trials)
    rows: list[Sequence[Text]] = []
    for severity in SEVERITIES:
        for one in findings(summary, severity):
            also = (
                f"; likewise with other figures {where(one.similar, total)}" if one.similar else ""
            )
            said = Span(f"{severity}: {one.text}{also}", STYLES[severity])
            rows.append([where(one.trials, total), said])
    return table(("trials", "finding"), (), rows, "What the stamps say") if rows else None


def stamp_tables(summary: Summary) -> tuple[Items, Table]:
    """Return the findings of several trials, said once, and all trials with their verdicts."""
    total = len(summary.trials)
    several = {
        told.text: Span(f"{where(told.trials, total)}: {severity}: {told.text}", STYLES[severity])
        for severity in SEVERITIES
        for told in findings(summary, severity)
        if len(told.trials) > 1
    }
    checked = Counter(name for trial in summary.trials for name in trial.stamp.checked)
    listed = ", ".join(
        name if count == total else f"{name} (in {count} trials)" for name, count in checked.items()
    )
    rows = [
        Row(
            [
                _named(trial.id, "replays", trial.spec.parent or ""),
                _named(trial.tuner, "network", checkpoint_in(trial.spec) or "", name_is_code=False),
                str(trial.spec.repeat),
                "valid" if trial.stamp.valid else Span("invalid", "bad"),
            ],
            note=_own_findings(trial, several),
        )
        for trial in summary.trials
    ]
    note = f"Checked: {listed}." if listed else ""
    heads = ("trial", "tuner", "repeat", "stamp")
    return Items(list(several.values()), "findings"), table(heads, (), rows, caption=note)


def _named(name: str, word: str, other: str, *, name_is_code: bool = True) -> Text:
    first = code(name) if name_is_code else Span(name)
    return (first, f"\n{word} ", code(other)) if other else first


def _own_findings(trial: Trial, common: Collection[str]) -> Text:
    """Return a trial's own findings: those that are not said of several trials."""
    return joined(
        Span(f"{reason.severity}: {reason.text}", STYLES[reason.severity])
        for reason in trial.stamp.reasons
        if reason.text not in common
    )


def provenance_table(summary: Summary) -> Table:
    """Return what the trials ran on: each value once, with a count if trials differ."""
    values: dict[str, Counter[str]] = {}
    for trial in summary.trials:
        told = {**first_settings(trial.spec, trial.facts), **trial.versions}
        told |= plain_facts(trial.facts)
        for key, value in told.items():
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
                said = _SAID.get(key, key)
                label = f"{said}: {name}" if name else said
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
