"""The part of the page on one section: its claims, then a table for each condition."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from orchestration.analysis.metrics import METRICS
from orchestration.analysis.quantiles import MIN_BEYOND
from orchestration.core.capabilities import capabilities
from orchestration.papers.claims import Section
from orchestration.papers.condition import Condition, order_transports
from orchestration.papers.page_data import amount, difference_text, estimate_text
from orchestration.papers.results import SectionResult
from orchestration.papers.summary_tables import (
    baseline_sentence,
    baselines,
    claim_text,
    detectable_text,
    verdict_text,
)
from orchestration.papers.verdicts import ClaimResult, likely_cause
from orchestration.render.markdown import rows_table
from orchestration.render.numbers import NOTHING, percent


def section_part(result: SectionResult, claims: Sequence[ClaimResult]) -> Iterator[str]:
    """Yield the part of a section; `claims` are its claims."""
    section = result.section
    yield f"## {section.paper}: {section.title}\n"
    yield f"{section.setting.strip()}\n"
    yield f"{_run_summary(result)}\n"
    if claims:
        yield _claim_table(claims)
    noted = [item.claim for item in claims if item.claim.notes.strip()]
    yield from (f"- {claim.text}: {' '.join(claim.notes.split())}" for claim in noted)
    if noted:
        yield ""
    sentences = [baseline_sentence(row) for row in baselines(section.paper, [result])]
    if sentences:
        metric = METRICS[section.metrics[0]].label
        yield f"By {metric}: {' '.join(sentences)}\n"
    for condition_label in dict.fromkeys(
        condition.label_without_transport for condition in result.conditions
    ):
        here = {
            c.transport: c
            for c in result.conditions
            if c.label_without_transport == condition_label
        }
        yield _table(result, [here[transport] for transport in order_transports(set(here))])


def _claim_table(claims: Sequence[ClaimResult]) -> str:
    """Return the section's claims, a row for each transport."""
    several = any(transport for result in claims for transport in result.by_transport)
    rows = [
        [
            result.claim.text,
            result.claim.says,
            *([transport.upper() or NOTHING] if several else []),
            claim_text(result, transport),
            detectable_text(result, transport),
            verdict_text(judged),
            likely_cause(result, transport) or NOTHING,
        ]
        for result in claims
        for transport, judged in result.by_transport.items()
    ]
    column = ["transport"] if several else []
    heads = ["claim", "the paper", *column, "measured (paired, 95 %)", "detectable"]
    return rows_table([*heads, "verdict", "likely cause"], rows)


def _run_summary(result: SectionResult) -> str:
    section = result.section
    if not result.trials:
        return f"**Not run.** `closloop papers run {section.campaign}`"
    text = f"{result.trials} trials (`closloop papers run {section.campaign}`)"
    if result.invalid:
        text += f", {result.invalid} of them invalid and counted nowhere"
    if not all(capabilities(name).modes[0].is_linux for name in result.backends):
        text += f"; on the backend {' and '.join(result.backends)}, not in Linux"
    return f"{text}. Differences are from `{section.reference}`."


def _table(result: SectionResult, conditions: Sequence[Condition]) -> str:
    """Return the table of one condition, under each transport."""
    section = result.section
    several = any(condition.transport for condition in conditions)
    labels = [METRICS[key].label for key in section.metrics]
    rows = [
        [
            arm,
            *([condition.transport.upper() or NOTHING] if several else []),
            *(_cell(section, condition, arm, key) for key in section.metrics),
        ]
        for condition in conditions
        for arm in result.arms
    ]
    heads = ["", *(["transport"] if several else []), *labels]
    return f"### {conditions[0].label_without_transport} ({size_text(conditions)})\n\n{rows_table(heads, rows)}"


def size_text(conditions: Sequence[Condition]) -> str:
    """Return how many seeds there are, and the load where trials wrote it down."""
    parts = []
    for condition in conditions:
        count = condition.seeds
        text = f"{count} seed{'s' if count > 1 else ''}" if count else "not run"
        loads = [_load(condition, key) for key in ("offered_load", "delivered_load")]
        if all(map(math.isfinite, loads)):
            text += f", {100 * loads[0]:.1f} % offered, {100 * loads[1]:.1f} % delivered"
        parts.append((condition.transport.upper(), text))
    if len({text for _, text in parts}) == 1:
        return parts[0][1]
    return "; ".join(f"{transport}: {text}" for transport, text in parts)


def _load(condition: Condition, key: str) -> float:
    """Return the mean over all trials."""
    found = [
        repeat.figures.get(key, math.nan)
        for repeats in condition.repeats.values()
        for repeat in repeats.values()
    ]
    known = [value for value in found if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _cell(section: Section, condition: Condition, arm: str, key: str) -> str:
    unit = METRICS[key].unit
    few = condition.beyond(arm, key) if condition.repeats.get(arm) else None
    if few is not None and few < MIN_BEYOND:
        parts = [f"too few flows ({few} beyond)"]
    else:
        parts = [estimate_text(condition.estimate(arm, key), unit)]
        if arm != section.reference and not condition.has_too_few_flows((section.reference,), key):
            difference = condition.difference(arm, section.reference, key)
            if difference.n:
                parts.append(difference_text(difference, unit))
    printed = _printed(section, condition, key)
    if arm in printed:
        text = f"paper: {amount(printed[arm], unit)}"
        base = printed.get(section.reference)
        if base and arm != section.reference:
            text += f" ({percent(printed[arm] / base - 1)})"
        parts.append(text)
    return "\n".join(parts)


def _printed(section: Section, condition: Condition, key: str) -> Mapping[str, float]:
    """Return the paper's numbers by tuner; numbers without a condition apply to all."""
    for item in section.printed:
        when = item.when.items()
        if item.metric == key and all(condition.factors.get(k) == v for k, v in when):
            return item.arms
    return {}
