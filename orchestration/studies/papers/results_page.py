"""The results page: the answer first, then a section for each table and figure. Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from orchestration.analysis.paper_metrics import PAPER_METRICS
from orchestration.studies.papers.claims import ClaimsFile, Section
from orchestration.studies.papers.results import Condition, SectionResult
from orchestration.studies.papers.verdicts import ClaimResult
from orchestration.studies.papers.words import (
    against_yardsticks,
    amount,
    claim_text,
    difference_text,
    estimate_text,
    relative,
)

_VERDICTS = ("reproduced", "partly", "not reproduced", "no data")
_LINE = "<br>"

_HEAD = """\
# Results: what came out of the papers

Written by `closloop papers results` from run folders alone; [papers.md](papers.md) says how to run
the campaigns. By hand are only the papers' own numbers and the notes on causes.
Figures inside the notes and the trained networks are of before
[decision 34](decisions/0034-one-band-of-fq.md), which made small flows faster. The campaigns repeat
themselves to the bit ([decision 36](decisions/0036-to-the-bit.md)): with five seeds a verdict that
hangs on a p99 of mice still changes with the draws, as two did when they were last run.
"""

_HOW_TO_READ = """\
## How to read it

A figure is the mean over repeats (seeds) with half of its 95 % interval, Student's t. A difference
is of the tuner from the reference, paired by seed, in percent of the reference's mean, with its
95 % interval (Fieller's); intervals are not corrected for the number of comparisons on this page.
Seeds of training are of another stream than these. *best-static* is the best of a grid of static
settings, chosen by mean slowdown on other seeds; *placebo* is the same loop with random actions.

A claim is **reproduced** if under every condition the interval excludes 0 in the claimed direction
and reaches the least change that the paper claims, and, where the paper says "up to", if it reaches
half of that somewhere; **not reproduced** if no condition shows the direction; else **partly**. A
claim that two are the same holds where the interval lies inside the paper's own difference.

Queues are the mean and standard deviation over all samples, every 100 us while flows arrive, of all
switch ports, or of the ports to the receiver where the table says so. Throughput is payload that
switches sent to hosts in that time. Transport is Linux DCTCP here, DCQCN in the papers; times and
hosts are scaled as each section says.
"""


def build_page(
    file: ClaimsFile, results: Mapping[str, SectionResult], claims: Sequence[ClaimResult]
) -> str:
    """Return the page of all sections of `file`, `results` by their ids."""
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
    yield f"Of the papers' {_tally(headlines)}\n"
    yield from _claim_table(headlines, file)
    sentences = [
        f"- {paper}'s experiments: {sentence}"
        for paper in dict.fromkeys(section.paper for section in file.sections)
        for sentence in against_yardsticks(
            results[section.id] for section in file.sections if section.paper == paper
        )
    ]
    if sentences:
        yield "Against the best static setting and against chance:\n"
        yield "\n".join(sentences) + "\n"


def _tally(claims: Sequence[ClaimResult]) -> str:
    counts: Counter[str] = Counter(result.verdict for result in claims)
    words = {"no data": "without data", "partly": "partly reproduced"}
    parts = [f"{counts[v]} {words.get(v, v)}" for v in _VERDICTS if counts[v]]
    return f"{len(claims)} headlines: {', '.join(parts) or 'none'}."


def _claim_table(claims: Sequence[ClaimResult], file: ClaimsFile | None = None) -> Iterator[str]:
    """Yield the table of claims; with `file` it says of which paper each is."""
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
    """Return the paper's numbers by tuner; those without a condition are of all."""
    for item in section.printed:
        when = item.when.items()
        if item.metric == key and all(condition.factors.get(k) == v for k, v in when):
            return item.arms
    return {}
