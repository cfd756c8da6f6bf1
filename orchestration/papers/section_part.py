"""The part of the results page about one section: its claims, then a table for each condition."""

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
    """Yield the lines of a section's part of the page; `claims` are the results of its claims."""
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
    by_label: dict[str, dict[str, Condition]] = {}
    for condition in result.conditions:
        by_transport = by_label.setdefault(condition.label_without_transport, {})
        by_transport[condition.transport] = condition
    for label, by_transport in by_label.items():
        transports = order_transports(set(by_transport))
        yield _table(result, label, [by_transport[transport] for transport in transports])


def _claim_table(claims: Sequence[ClaimResult]) -> str:
    """Return a table of the section's claims, with a row for each claim and transport."""
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
    """Return how many trials there are, of which campaign, and what they are compared with."""
    section = result.section
    if not result.trials:
        return f"**Not run.** `closloop papers run {section.campaign}`"
    text = f"{result.trials} trials (`closloop papers run {section.campaign}`)"
    if result.invalid:
        text += f", {result.invalid} of them invalid and not counted"
    if not all(capabilities(name).modes[0].is_linux for name in result.backends):
        text += f"; on the backend {' and '.join(result.backends)}, not in Linux"
    return f"{text}. Differences are from `{section.reference}`."


def _table(result: SectionResult, label: str, conditions: Sequence[Condition]) -> str:
    """Return the table of one condition; `conditions` are that condition under each transport."""
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
    return f"### {label} ({size_text(conditions)})\n\n{rows_table(heads, rows)}"


def size_text(conditions: Sequence[Condition]) -> str:
    """Return the number of seeds, and the offered and delivered load where trials recorded it."""
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
    """Return the mean of a load over all trials; NaN if none has it."""
    values = [
        repeat.metrics.get(key, math.nan)
        for repeats in condition.repeats.values()
        for repeat in repeats.values()
    ]
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _cell(section: Section, condition: Condition, arm: str, key: str) -> str:
    """Return an arm's value, its difference from the reference, and what the paper prints."""
    unit = METRICS[key].unit
    beyond = condition.flows_beyond(arm, key) if condition.repeats.get(arm) else None
    if beyond is not None and beyond < MIN_BEYOND:
        parts = [f"too few flows ({beyond} beyond)"]
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
    """Return the paper's numbers for a condition by arm; {} if it prints none.

    Numbers without a condition of their own apply to all.
    """
    for item in section.printed:
        when = item.when.items()
        if item.metric == key and all(condition.factors.get(k) == v for k, v in when):
            return item.arms
    return {}
