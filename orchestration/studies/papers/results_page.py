"""The results page in Markdown: the answer, then a section per table and figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from orchestration.analysis.paper_metrics import PAPER_METRICS, PaperUnit
from orchestration.analysis.statistics import Estimate, PairedDifference
from orchestration.analysis.words import NOTHING, quantity
from orchestration.model.units import format_rate
from orchestration.studies.papers.claims import ClaimsFile, Section
from orchestration.studies.papers.results import (
    BEST_DCQCN,
    BEST_STATIC,
    PLACEBO,
    ClaimResult,
    Condition,
    SectionResult,
    evaluate_claim,
    evaluate_section,
    measure_campaign,
)

# Shares closer to 0 than this are shown as 0, without a sign.
_NOTHING_SHARE = 5e-5
_RIVALS = {
    BEST_STATIC: "the best static setting",
    BEST_DCQCN: "DCQCN with the best parameters",
    PLACEBO: "the placebo",
}


def amount(value: float, unit: PaperUnit) -> str:
    """Return a value with its unit and three significant digits: `398Gbps`, `12.6KB`, `2.84`."""
    if unit == "share":
        return quantity(0.0 if abs(value) < _NOTHING_SHARE else value, unit)
    if unit != "bps":
        return quantity(value, unit)
    if not math.isfinite(value):
        return NOTHING
    digits = max(0, 2 - math.floor(math.log10(abs(value))) % 3) if value else 0
    return format_rate(round(value), digits)


def estimate_text(estimate: Estimate, unit: PaperUnit) -> str:
    """Return `2.84 ±0.10`: the mean and half of its interval."""
    text = amount(estimate.mean, unit)
    half = (estimate.high - estimate.low) / 2
    return f"{text} ±{amount(half, unit)}" if half > 0 else text


def relative(share: float) -> str:
    """Return `-12.6%`."""
    text = f"{100 * share:+.1f}%"
    return "0.0%" if text in ("+0.0%", "-0.0%") else text


def difference_text(difference: PairedDifference, unit: PaperUnit) -> str:
    """Return `-12.6% [-15.0% to -9.8%]`; differences of shares are in points.

    The interval is in the metric's unit if there is no relative one, which happens if the other
    mean is not significantly different from 0.
    """
    if not difference.n or not math.isfinite(difference.mean):
        return NOTHING
    if unit == "share":
        points = [100 * x for x in (difference.mean, difference.low, difference.high)]
        bounds = f" [{points[1]:+.2f} to {points[2]:+.2f}]" if math.isfinite(points[1]) else ""
        return f"{points[0]:+.2f}{bounds} points"
    if math.isfinite(difference.relative_low):
        bounds = f"{relative(difference.relative_low)} to {relative(difference.relative_high)}"
        return f"{relative(difference.relative)} [{bounds}]"
    text = relative(difference.relative) if math.isfinite(difference.relative) else ""
    if math.isfinite(difference.low) or not text:
        sign = "+" if difference.mean > 0 else ""
        text = f"{text}, {sign}{amount(difference.mean, unit)}".removeprefix(", ")
    if math.isfinite(difference.low):
        text += f" [{amount(difference.low, unit)} to {amount(difference.high, unit)}]"
    return text


def claim_text(result: ClaimResult) -> str:
    """Return the measurements for a claim: every condition or, if many, the extremes."""
    claim, rows = result.claim, result.findings
    if not rows:
        return "not run"
    unit = PAPER_METRICS[claim.metric].unit
    if claim.direction == "value":
        return "; ".join(
            (f"{condition.label}: " if len(rows) > 1 else "")
            + estimate_text(condition.estimate(claim.arm, claim.metric), unit)
            for condition, _, _ in rows
        )
    pairs = [(condition.label, diff) for condition, diff, _ in rows if diff is not None]
    if len(pairs) == 1:
        return f"{difference_text(pairs[0][1], unit)}, {pairs[0][1].n} seeds"
    ordered = sorted(pairs, key=lambda pair: (pair[1].relative, pair[0]))
    shown = ordered if len(ordered) <= 3 else [ordered[0], ordered[-1]]
    text = "; ".join(f"{label}: {difference_text(diff, unit)}" for label, diff in shown)
    held = sum(finding != "no" for _, _, finding in rows)
    word = "the same" if claim.direction == "same" else f"{claim.direction} beyond chance"
    return f"{word} in {held} of {len(rows)} conditions; {text}"


def against_yardsticks(results: Iterable[SectionResult]) -> list[str]:
    """Return one sentence per pair of a learned tuner and a yardstick that ran in these sections.

    Each condition counts once, by the first metric of its section.
    """
    counts: dict[tuple[str, str], Counter[str]] = {}
    labels: dict[str, None] = {}
    for result in results:
        metric = PAPER_METRICS[result.section.metrics[0]]
        for condition, arm, rival in product(result.conditions, result.section.learned, _RIVALS):
            difference = condition.difference(arm, rival, metric.key)
            if difference.n >= 2:
                found = _against(difference, metric.better)
                counts.setdefault((arm, rival), Counter())[found] += 1
                labels[metric.label] = None
    what = next(iter(labels)) if len(labels) == 1 else "the first figure of each table"
    return [_sentence(arm, _RIVALS[rival], what, count) for (arm, rival), count in counts.items()]


def _against(difference: PairedDifference, better: str) -> str:
    if difference.low <= 0 <= difference.high:
        return "even"
    return "better" if (difference.high < 0) == (better == "lower") else "worse"


def _sentence(arm: str, rival: str, metric: str, counts: Counter[str]) -> str:
    total = sum(counts.values())
    where = "in the one condition" if total == 1 else f"in {counts['better']} of {total} conditions"
    rest = []
    if counts["worse"]:
        rest.append(f"worse in {counts['worse']}")
    if counts["even"]:
        rest.append(f"not to be told from it in {counts['even']}")
    tail = f" ({', '.join(rest)})" if rest else ""
    if counts["better"]:
        return f"`{arm}` beats {rival} in {metric} {where}{tail}."
    return f"**`{arm}` does not beat {rival}** in {metric} under any condition{tail}."


_VERDICTS = ("reproduced", "partly", "not reproduced", "no data")
_LINE = "<br>"

_HEAD = """\
# Results: what came out of the papers

Written by `closloop papers results` from run folders alone; [papers.md](../papers.md) says how to
run the campaigns. By hand are only the papers' own numbers and the notes on causes.
Figures inside the notes and the trained networks are of before
[decision 34](../decisions/0034-one-band-of-fq.md), which made small flows faster. The campaigns
repeat themselves to the bit ([decision 36](../decisions/0036-to-the-bit.md)): with five seeds a
verdict that hangs on a p99 of mice still changes with the draws, as two did in the last run.
"""

_HOW_TO_READ = """\
## How to read it

A figure is the mean over repeats (seeds) with half of its 95 % interval, Student's t. A difference
is of the tuner from the reference, paired by seed, in percent of the reference's mean, with its
95 % interval (Fieller's); intervals are not corrected for the number of comparisons on this page.
Where a campaign's repeats are adaptive, intervals are those of the look at which a condition
stopped, which hold over all looks.
Seeds of training are of another stream than these. *best-static* is the best of a grid of static
settings, chosen by mean slowdown on other seeds; *placebo* is the same loop with random actions.
In RL-CC's sections congestion controls are compared, and *best-dcqcn* has the best parameters of a
grid, chosen by power (goodput by RTT inflation) on other seeds.

A claim is **reproduced** if under every condition the interval excludes 0 in the claimed direction
and reaches the least change that the paper claims, and, where the paper says "up to", if it reaches
half of that somewhere; **not reproduced** if no condition shows the direction; else **partly**. A
claim that two are the same holds where the interval lies inside the paper's own difference.

Queues are the mean and standard deviation over all samples, every 100 us while flows arrive, of all
switch ports, or of the ports to the receiver where the table says so. Throughput is payload that
switches sent to hosts in that time. Transport is Linux DCTCP over Linux' switches here (`fabric:
linux`, which the networks were trained on too), DCQCN in the papers of GraphCC, ACC and PET; times
and hosts are scaled as each section says.

RL-CC's sections have RoCE NICs over our own fabric. There goodput, RTT and Jain's index are of the
flows that last, in the part of the trial that counts; goodput is acknowledged payload by the
receivers' line rates, a lost packet one that a switch dropped.
"""


def build_page(
    file: ClaimsFile, results: Mapping[str, SectionResult], claims: Sequence[ClaimResult]
) -> str:
    """Return the page of all sections of `file`; `results` are keyed by section id."""
    lines = [_HEAD, *_answer(file, results, claims), _HOW_TO_READ]
    for section in file.sections:
        mine = [result for result in claims if result.claim.section == section.id]
        lines += _section(results[section.id], mine)
    return "\n".join(lines).rstrip() + "\n"


def _answer(
    file: ClaimsFile, results: Mapping[str, SectionResult], claims: Sequence[ClaimResult]
) -> Iterator[str]:
    headlines = [result for result in claims if result.claim.headline]
    yield "## The answer\n"
    yield f"{tally_text([result.verdict for result in headlines])}\n"
    yield from _claim_table(headlines, file)
    sentences = [
        f"- {paper}'s experiments: {sentence}"
        for paper in dict.fromkeys(section.paper for section in file.sections)
        for sentence in against_yardsticks(
            results[section.id] for section in file.sections if section.paper == paper
        )
    ]
    if sentences:
        yield "Against the best fixed setting and against chance:\n"
        yield "\n".join(sentences) + "\n"


def tally_text(verdicts: Sequence[str]) -> str:
    """Return the sentence on the verdicts of all headlines."""
    counts = Counter(verdicts)
    words = {"no data": "without data", "partly": "partly reproduced"}
    parts = [f"{counts[v]} {words.get(v, v)}" for v in _VERDICTS if counts[v]]
    return f"Of the papers' {len(verdicts)} headlines: {', '.join(parts) or 'none'}."


def _claim_table(claims: Sequence[ClaimResult], file: ClaimsFile | None = None) -> Iterator[str]:
    """Yield the table of claims; with `file`, a column names each claim's paper."""
    if not claims:
        return
    yield ("| paper " if file else "") + "| claim | the paper | measured (paired, 95 %) | verdict |"
    yield ("| --- " if file else "") + "| --- | --- | --- | --- |"
    for result in claims:
        claim = result.claim
        paper = f"| {file.section(claim.section).paper} " if file else ""
        measured = claim_text(result)
        yield f"{paper}| {claim.text} | {claim.says} | {measured} | **{result.verdict}** |"
    yield ""


def _section(result: SectionResult, claims: Sequence[ClaimResult]) -> Iterator[str]:
    section = result.section
    yield f"## {section.paper}: {section.title}\n"
    yield f"{section.setting.strip()}\n"
    yield f"{_standing(result)}\n"
    yield from _claim_table(claims)
    noted = [item.claim for item in claims if item.claim.notes.strip()]
    yield from (f"- {claim.text}: {' '.join(claim.notes.split())}" for claim in noted)
    if noted:
        yield ""
    sentences = against_yardsticks([result])
    if sentences:
        yield " ".join(sentences) + "\n"
    for condition in result.conditions:
        yield from _table(result, condition)


def _standing(result: SectionResult) -> str:
    section = result.section
    if not result.trials:
        return f"**Not run.** `closloop papers run {section.campaign}`"
    text = f"{result.trials} trials (`closloop papers run {section.campaign}`)"
    if result.invalid:
        text += f", {result.invalid} of them invalid and counted nowhere"
    if result.backends != ("emulated",):
        text += f"; on the backend {' and '.join(result.backends)}, not in Linux"
    return f"{text}. Differences are from `{section.reference}`."


def _table(result: SectionResult, condition: Condition) -> Iterator[str]:
    section = result.section
    count = condition.seeds
    seeds = f"{count} seed{'s' if count > 1 else ''}" if count else "not run"
    yield f"### {condition.label} ({seeds})\n"
    labels = [PAPER_METRICS[key].label for key in section.metrics]
    yield f"| | {' | '.join(labels)} |"
    yield "| --- " * (1 + len(labels)) + "|"
    for arm in result.arms:
        cells = [_cell(section, condition, arm, key) for key in section.metrics]
        yield f"| {arm} | {' | '.join(cells)} |"
    yield ""


def _cell(section: Section, condition: Condition, arm: str, key: str) -> str:
    unit = PAPER_METRICS[key].unit
    parts = [estimate_text(condition.estimate(arm, key), unit)]
    if arm != section.reference:
        difference = condition.difference(arm, section.reference, key)
        if difference.n:
            parts.append(difference_text(difference, unit))
    printed = _printed(section, condition, key)
    if arm in printed:
        text = f"paper: {amount(printed[arm], unit)}"
        base = printed.get(section.reference)
        if base and arm != section.reference:
            text += f" ({relative(printed[arm] / base - 1)})"
        parts.append(text)
    return _LINE.join(parts)


def _printed(section: Section, condition: Condition, key: str) -> Mapping[str, float]:
    """Return the paper's numbers by tuner; numbers without a condition apply to all."""
    for item in section.printed:
        when = item.when.items()
        if item.metric == key and all(condition.factors.get(k) == v for k, v in when):
            return item.arms
    return {}


def results_page(
    file: ClaimsFile,
    runs: Path,
    phase: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> str:
    """Return the page for the campaign folders under `runs`, which may be missing.

    `phase` is called with the campaign being read, `progress` with its trials read and in all. The
    same folders give the same page. Raises InputError for a file that cannot be read.
    """
    results = {}
    for campaign in dict.fromkeys(section.campaign for section in file.sections):
        phase(f"reading {campaign}")
        trials = measure_campaign(runs / campaign, progress)
        for section in file.sections:
            if section.campaign == campaign:
                results[section.id] = evaluate_section(section, trials)
    claims = [evaluate_claim(claim, results[claim.section]) for claim in file.claims]
    return build_page(file, results, claims)
