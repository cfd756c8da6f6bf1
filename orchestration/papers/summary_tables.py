"""The tables and sentences that sum up the claims: headlines with verdicts, baselines, arms.

A headline is a claim that the first table of the results page shows. The baselines of a learned arm
are the best static setting and its own placebo.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from orchestration.analysis.metrics import METRICS
from orchestration.analysis.statistics import PairedDifference
from orchestration.core.condition import BEST_STATIC, ORACLE
from orchestration.papers.condition import order_transports, reference_mean
from orchestration.papers.page_data import (
    Arm,
    Baseline,
    Headline,
    HeadlineCell,
    amount,
    difference_text,
    estimate_text,
)
from orchestration.papers.results import (
    BEST_DCQCN,
    RULE_TUNERS,
    SectionResult,
    is_placebo,
    placebo_of,
)
from orchestration.papers.verdicts import VERDICTS, ClaimResult, Judgement, likely_cause
from orchestration.render.markdown import rows_table
from orchestration.render.numbers import NOTHING
from orchestration.render.table import Span, Text, code, joined, strong

_SHOWN_CONDITIONS = 3
STATIC_RIVALS = {
    BEST_STATIC: "the best static setting",
    BEST_DCQCN: "DCQCN with the best parameters",
}


def claim_text(result: ClaimResult, transport: str) -> str:
    """Return the measurements for a claim: of every condition, or of the extremes of many."""
    claim, judged = result.claim, result.by_transport[transport]
    rows = judged.rows
    few = f"{judged.skipped} condition{'s' if judged.skipped > 1 else ''} with too few flows"
    if not rows:
        return few if judged.skipped else "not run"
    unit = METRICS[claim.metric].unit
    pairs = [(row.label, row.difference) for row in rows if row.difference is not None]
    if claim.direction == "value":
        text = "; ".join(
            (f"{row.label}: " if len(rows) > 1 else "") + estimate_text(row.estimate, unit)
            for row in rows
            if row.estimate is not None
        )
    elif len(pairs) == 1:
        text = f"{difference_text(pairs[0][1], unit)}, {pairs[0][1].n} seeds"
    else:
        ordered = sorted(pairs, key=lambda pair: (pair[1].relative, pair[0]))
        shown = ordered if len(ordered) <= _SHOWN_CONDITIONS else [ordered[0], ordered[-1]]
        text = "; ".join(f"{label}: {difference_text(diff, unit)}" for label, diff in shown)
        held = sum(row.outcome != "no" for row in rows)
        word = "the same" if claim.direction == "same" else f"{claim.direction} beyond chance"
        text = f"{word} in {held} of {len(rows)} conditions; {text}"
    return f"{text}; {few}" if judged.skipped else text


def detectable_text(result: ClaimResult, transport: str) -> str:
    """Return the range of minimum detectable effects: `3.1%`, or `2.00 points to 3.10 points`."""
    claim = result.claim
    unit = METRICS[claim.metric].unit
    rows = result.by_transport[transport].rows
    # in the metric's unit or relative, as the differences themselves are shown
    in_unit = claim.direction == "value" or unit == "share"
    effects = [
        row.detectable
        / (1.0 if in_unit or row.difference is None else abs(reference_mean(row.difference)))
        for row in rows
    ]
    known = sorted(effect for effect in effects if math.isfinite(effect))
    if not known:
        return "–"

    def text(effect: float) -> str:
        if claim.direction == "value":
            return amount(effect, unit)
        return f"{100 * effect:.2f} points" if unit == "share" else f"{100 * effect:.1f}%"

    ends = dict.fromkeys((text(known[0]), text(known[-1])))
    return " to ".join(ends)


def verdict_text(judged: Judgement) -> Text:
    """Return the verdict in bold; for `not by learning` with the placebo that passes, too."""
    if judged.verdict == "not by learning":
        return strong(judged.verdict), " (", code(judged.placebo), " passes too)"
    return strong(judged.verdict)


def headline(result: ClaimResult, paper: str) -> Headline:
    """Return a claim as a row of the first table."""
    cells = {}
    for transport, judged in result.by_transport.items():
        measured = claim_text(result, transport)
        if judged.rows:
            measured += f"; detectable: {detectable_text(result, transport)}"
        cells[transport] = HeadlineCell(judged.verdict, measured, likely_cause(result, transport))
    return Headline(paper, result.claim.text, result.claim.says, cells)


def headline_tables(rows: Sequence[Headline]) -> Iterator[str]:
    """Yield a table of the headlines of papers that compare transports, and one of the others."""
    by_paper: dict[str, list[Headline]] = {}
    for row in rows:
        by_paper.setdefault(row.paper, []).append(row)
    compared = {
        paper for paper, own in by_paper.items() if any(key for row in own for key in row.cells)
    }
    for chosen in (
        [p for p in by_paper if p in compared],
        [p for p in by_paper if p not in compared],
    ):
        if chosen:
            yield _headline_table([row for paper in chosen for row in by_paper[paper]])


def _headline_table(rows: Sequence[Headline]) -> str:
    transports = order_transports({key for row in rows for key in row.cells if key}) or ("",)
    table = []
    for row in rows:
        cells = [row.cells.get(name, HeadlineCell("no data", "not run")) for name in transports]
        texts = [joined((strong(cell.verdict), cell.measured)) for cell in cells]
        cause = _cause_text(dict(zip(transports, cells, strict=True)))
        table.append([row.paper, row.text, row.says, *texts, cause])
    labels = [name.upper() or "verdict" for name in transports]
    return rows_table(("paper", "claim", "the paper", *labels, "likely cause"), table)


def _cause_text(cells: dict[str, HeadlineCell]) -> str:
    """Return the likely causes by transport, or the only one."""
    causes = {name: cell.cause for name, cell in cells.items() if cell.cause}
    if len(set(causes.values())) == 1 and len(causes) == len(cells):
        return next(iter(causes.values()))
    return "\n".join(f"{name.upper()}: {cause}" for name, cause in causes.items()) or NOTHING


def verdict_counts_text(rows: Sequence[Headline]) -> str:
    """Return a sentence for each transport: how many headlines have which verdict."""
    words = {"no data": "without data", "partly": "partly reproduced"}
    sentences: list[str] = []
    transports = order_transports({key for row in rows for key in row.cells}) or ("",)
    for transport in sorted(transports, key=lambda name: not name):
        counts = Counter(row.cells[transport].verdict for row in rows if transport in row.cells)
        parts = [f"{counts[v]} {words.get(v, v)}" for v in VERDICTS if counts[v]]
        under = f" under {transport.upper()}" if transport else ""
        other = " other" if sentences and not transport else ""
        noun = "headline" if counts.total() == 1 else "headlines"
        verdicts = ", ".join(parts) or "none"
        sentences.append(f"Of the papers'{other} {counts.total()} {noun}{under}: {verdicts}.")
    return "\n".join(sentences)


def baselines(paper: str, results: Iterable[SectionResult]) -> list[Baseline]:
    """Return how each learned arm compares with the best static setting and with its own placebo.

    Each condition counts once, by the first metric of its section, although several sections may
    show the same trials by that metric. Conditions with too few flows for it do not count.
    """
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    counted = set()
    for result in results:
        metric = METRICS[result.section.metrics[0]]
        for condition in result.conditions:
            key = (result.section.campaign, metric.key, condition.label)
            if key in counted:
                continue
            counted.add(key)
            ran = tuple(condition.repeats)
            for arm in result.section.learned:
                for rival in (*STATIC_RIVALS, placebo_of(result.section, arm, ran)):
                    if condition.has_too_few_flows((arm, rival), metric.key):
                        continue
                    difference = condition.difference(arm, rival, metric.key)
                    if difference.n >= 2:
                        outcomes = counts.setdefault((condition.transport, arm, rival), Counter())
                        outcomes[_against(difference, metric.better)] += 1
    transports = order_transports({transport for transport, _, _ in counts})
    ordered = sorted(counts.items(), key=lambda item: transports.index(item[0][0]))
    return [
        Baseline(paper, *compared, better=n["better"], worse=n["worse"], even=n["even"])
        for compared, n in ordered
    ]


def _against(difference: PairedDifference, better: str) -> str:
    if difference.low <= 0 <= difference.high:
        return "even"
    return "better" if (difference.high < 0) == (better == "lower") else "worse"


def baseline_table(rows: Sequence[Baseline]) -> str:
    """Return a table: in how many conditions a learned arm is better or worse than each rival."""
    found: dict[tuple[str, str, str], dict[bool, Baseline]] = {}
    for row in rows:
        key = (row.paper, row.transport, row.arm)
        found.setdefault(key, {})[row.rival in STATIC_RIVALS] = row
    heads = ("paper", "transport", "tuner", "the best fixed setting", "its placebo")
    cells = [
        [paper, transport.upper() or NOTHING, code(arm)]
        + [_count_text(rivals.get(static)) for static in (True, False)]
        for (paper, transport, arm), rivals in found.items()
    ]
    return rows_table(heads, cells)


def _count_text(row: Baseline | None) -> Text:
    if row is None:
        return "not run"
    total = row.better + row.worse + row.even
    text = Span(
        f"better in {row.better} of {total}, worse in {row.worse}", "" if row.better else "strong"
    )
    return text if row.rival in STATIC_RIVALS else (text, " (", code(row.rival), ")")


def baseline_sentence(row: Baseline) -> str:
    """Return how an arm compares with one of its baselines, as a sentence."""
    rival = STATIC_RIVALS.get(row.rival, f"its placebo, `{row.rival}`,")
    total = row.better + row.worse + row.even
    under = f" with {row.transport.upper()}" if row.transport else ""
    rest = [f"worse in {row.worse}"] if row.worse else []
    rest += [f"not distinguishable from it in {row.even}"] if row.even else []
    tail = f" ({', '.join(rest)})" if rest else ""
    if row.better:
        where = "in the one condition" if total == 1 else f"in {row.better} of {total} conditions"
        return f"`{row.arm}` beats {rival} {where}{under}{tail}."
    return f"**`{row.arm}` does not beat {rival.rstrip(',')}** under any condition{under}{tail}."


_KINDS = {
    BEST_STATIC: "the single best static setting of all conditions",
    BEST_DCQCN: "DCQCN with the best parameters",
    ORACLE: "the best static setting of each condition",
}


def arms_of(paper: str, results: Sequence[SectionResult]) -> list[Arm]:
    """Return the learned arms, placebos and baselines; trials that sections share count once."""
    learned = {arm for result in results for arm in result.section.learned}
    found: dict[str, tuple[set[str], set[tuple[object, ...]]]] = {}
    for result in results:
        for condition in result.conditions:
            factors = tuple(sorted((key, str(level)) for key, level in condition.factors.items()))
            for arm, repeats in condition.repeats.items():
                networks, trials = found.setdefault(arm, (set(), set()))
                networks |= {repeat.checkpoint for repeat in repeats.values()} - {""}
                trials |= {(result.section.campaign, factors, seed) for seed in repeats}
    return [
        Arm(paper, arm, _kind(arm, learned), len(found[arm][0]), len(found[arm][1]))
        for arm in sorted(found, key=lambda name: _rank(name, learned))
        if _kind(arm, learned)
    ]


def _kind(arm: str, learned: set[str]) -> str:
    if arm in _KINDS:
        return _KINDS[arm]
    if is_placebo(arm):
        return "random actions in the same loop"
    if arm in RULE_TUNERS:
        return "a rule that adapts, without learning"
    return "learned" if arm in learned else ""


def _rank(arm: str, learned: set[str]) -> tuple[int, str]:
    kinds = [
        arm in learned,
        is_placebo(arm),
        arm == BEST_STATIC,
        arm == ORACLE,
        arm in RULE_TUNERS,
        True,
    ]
    return kinds.index(True), arm


def arms_table(rows: Sequence[Arm]) -> str:
    """Return the table of arms, with one row for each name in all papers together."""
    names = list(dict.fromkeys(row.arm for row in rows))
    kinds = list(dict.fromkeys(row.kind for row in rows))
    table = []
    for name in sorted(names, key=lambda n: kinds.index(next(r.kind for r in rows if r.arm == n))):
        own = [row for row in rows if row.arm == name]
        papers = ", ".join(dict.fromkeys(row.paper for row in own))
        networks = max(row.networks for row in own) or NOTHING
        trials = sum(row.trials for row in own)
        table.append([code(name), own[0].kind, papers, networks, trials])
    return rows_table(("arm", "what it is", "papers", "networks", "trials"), table)
