"""The results page in Markdown: headroom, the answer, then a section per table and figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from orchestration.analysis.metrics import METRICS, TUNING_HEADROOM_METRICS
from orchestration.analysis.quantiles import MIN_BEYOND
from orchestration.core.outputs import check_outputs
from orchestration.papers import verdicts
from orchestration.papers.claims import ClaimsFile, load_claims, read_former_page
from orchestration.papers.condition import order_transports
from orchestration.papers.headroom_map import headroom_svg
from orchestration.papers.page_data import Caution, PageData, read_data, renew_sections, to_json
from orchestration.papers.results import (
    MeasuredTrial,
    SectionResult,
    evaluate_section,
    read_measured_trials,
)
from orchestration.papers.section_part import section_part
from orchestration.papers.summary_tables import (
    arms_of,
    arms_table,
    baseline_table,
    baselines,
    headline,
    headline_tables,
    verdict_counts_text,
)
from orchestration.papers.tuning_headroom import (
    MIN_HEADROOM,
    TuningHeadroom,
    headroom_of_paper,
    headroom_verdict,
)
from orchestration.papers.verdicts import CAUSES, ClaimResult, evaluate_claim
from orchestration.render.markdown import rows_table
from orchestration.render.numbers import NOTHING, percent_span
from orchestration.results.reader import recorded_files

INTRODUCTION = f"""\
Headroom is what any tuner can win: by how much the single best static setting (`best-static`) is
above the best static setting of each condition (`oracle`), paired by seed, with its 95 % interval.
Both are searched for on other seeds than these. So headroom may come out negative: then the setting
chosen for a condition alone is no better there than the one for all. Where it is below
{100 * MIN_HEADROOM:.0f} % there is nothing to learn. A tuner's *share* of it is the part of the way from
`best-static` (0 %) to the oracle (100 %) that the tuner goes; below 0 % it is worse than the static
setting. It is not told where headroom is not above 0 beyond chance. *All together* is the mean over
conditions.
"""


def headroom_part(rows: Sequence[TuningHeadroom], picture: str) -> Iterator[str]:
    """Yield the part of the page; `picture` is the name of its file, beside the page."""
    yield "## Headroom\n"
    if not rows:
        yield "No campaign has both `best-static` and `oracle`: headroom is not known.\n"
        return
    yield INTRODUCTION
    yield f"![Headroom by condition, and where each tuner lies]({picture})\n"
    yield f"{_summary(rows)}\n"
    yield _whole_table(rows)
    yield from _condition_tables(rows)


def _summary(rows: Sequence[TuningHeadroom]) -> str:
    """Return one sentence a metric: under how many conditions there is something to learn."""
    sentences = []
    for metric in TUNING_HEADROOM_METRICS:
        known = [
            row
            for row in rows
            if row.metric == metric and row.condition_label and math.isfinite(row.headroom[0])
        ]
        too_few_flows = sum(
            row.metric == metric and bool(row.condition_label) and row.too_few_flows for row in rows
        )
        if not known:
            sentences.append(f"- By {METRICS[metric].short_label} nothing is known: too few flows.")
            continue
        nothing = sum(row.headroom[0] < MIN_HEADROOM for row in known)
        negative = sum(row.headroom[2] < 0 for row in known)
        text = f"- By {METRICS[metric].short_label} there is "
        text += "**nothing to learn**" if nothing == len(known) else "nothing to learn"
        text += f" under {nothing} of {len(known)} conditions"
        if too_few_flows:
            text += f", and {too_few_flows} more have too few flows"
        if negative:
            text += f"; headroom is negative beyond chance under {negative}"
        maximum = max(known, key=lambda row: row.headroom[0])
        where = f"`{maximum.condition_label}`" + (
            f", {maximum.transport.upper()}" if maximum.transport else ""
        )
        sentences.append(f"{text}. The most is {percent_span(*maximum.headroom)} ({where}).")
    return "\n".join(sentences)


def _cell(row: TuningHeadroom | None) -> str:
    if row is None:
        return NOTHING
    if row.too_few_flows:
        return "too few flows"
    return f"{percent_span(*row.headroom)}\n{headroom_verdict(row.headroom)}"


def _transports(rows: Sequence[TuningHeadroom]) -> tuple[str, ...]:
    return order_transports({row.transport for row in rows})


def _whole_table(rows: Sequence[TuningHeadroom]) -> str:
    together = [row for row in rows if not row.condition_label]
    cells: dict[tuple[str, str], dict[str, TuningHeadroom]] = {}
    for row in together:
        cells.setdefault((row.paper, row.transport), {})[row.metric] = row
    papers, order = list(dict.fromkeys(paper for paper, _ in cells)), _transports(together)
    keys = sorted(cells, key=lambda key: (papers.index(key[0]), order.index(key[1])))
    heads = (
        "all together",
        "transport",
        *(METRICS[metric].short_label for metric in TUNING_HEADROOM_METRICS),
    )
    return rows_table(
        heads,
        [
            [
                paper,
                transport.upper() or NOTHING,
                *(_cell(cells[key].get(m)) for m in TUNING_HEADROOM_METRICS),
            ]
            for key in keys
            for paper, transport in [key]
        ],
    )


def _condition_tables(rows: Sequence[TuningHeadroom]) -> Iterator[str]:
    """Yield a table a paper: headroom by condition, and shares of that in the first metric."""
    for paper in dict.fromkeys(row.paper for row in rows):
        mine = [row for row in rows if row.paper == paper]
        arms = list(
            dict.fromkeys(
                p.arm for row in mine if row.metric == TUNING_HEADROOM_METRICS[0] for p in row.arms
            )
        )
        yield f"### {paper}: headroom by condition, and the share of it in mean slowdown\n"
        heads = [
            "condition",
            *(f"headroom, {METRICS[m].short_label}" for m in TUNING_HEADROOM_METRICS),
            *arms,
        ]
        keys = dict.fromkeys((row.condition_label, row.transport) for row in mine)
        order = _transports(mine)
        condition_labels = list(dict.fromkeys(condition_label for condition_label, _ in keys))
        cells = []
        for condition_label, transport in sorted(
            keys, key=lambda k: (condition_labels.index(k[0]), order.index(k[1]))
        ):
            here = {
                r.metric: r
                for r in mine
                if (r.condition_label, r.transport) == (condition_label, transport)
            }
            label = ", ".join(filter(None, (condition_label or "all together", transport.upper())))
            first = here.get(TUNING_HEADROOM_METRICS[0])
            shares = (
                {p.arm: percent_span(*p.share, sign="", digits=0) for p in first.arms}
                if first
                else {}
            )
            told = [shares.get(arm, NOTHING) for arm in arms]
            cells.append(
                [label, *(_cell(here.get(metric)) for metric in TUNING_HEADROOM_METRICS), *told]
            )
        yield rows_table(heads, cells)


_HEAD = """\
# Results: what came out of the papers

Written by `closloop papers results` from run folders alone; [papers.md](../papers.md) says how to
run the campaigns. By hand are only the papers' own numbers, and the notes on how a setting differs
from its paper's. On one kernel the campaigns repeat themselves to the bit
([decision 36](../decisions/0036-one-seed-is-one-result.md)).
"""

_HOW_TO_READ = f"""\
## How to read it

A figure is the mean over repeats (seeds) with half of its 95 % interval, Student's t. A difference
is of the tuner from the reference, paired by seed, in percent of the reference's mean, with its 95
% interval (Fieller's); intervals are not corrected for the number of comparisons on this page.
Where a campaign's repeats are adaptive, intervals are those of the look at which a condition
stopped, which hold over all looks. Seeds of training are of another stream than these. Where a
learned tuner's networks take turns over the repeats, its figures are over training seeds too: the
interval is a hierarchical bootstrap, which draws networks, then repeats within each (Davison and
Hinkley 1997, section 3.8;
Saravanan et al. 2020), widened for few networks and never narrower than Student's. A tail is the
quantile of all repeats' flows together, with a bootstrap that draws repeats; with fewer than
{MIN_BEYOND} flows beyond it, it is not printed. The loads beside a condition are what was
offered and what receivers accepted, in percent of the hosts' line rates.

*best-static* is the best single static setting for all conditions and *oracle* the best one for
each, both searched for on other seeds; a *placebo* is its tuner's own loop and actions, drawn at
random. In RL-CC's sections congestion controls are compared, and *best-dcqcn* has the best
parameters of a grid, chosen by power (goodput by RTT inflation) on other seeds.

{verdicts.RULE}
{CAUSES}
Queues are the mean and standard deviation over all samples
while flows arrive, of all switch ports, or of the ports to the receiver where the table says so.
Throughput is payload that switches sent to hosts in that time, also what is sent again or
thrown away. DCTCP is Linux', DCQCN
is of RoCE NICs with PFC, as in the papers of GraphCC, ACC and PET, both over our own fabric; times
and hosts are scaled as each section says.

RL-CC's sections have RoCE NICs over our own fabric. There goodput, RTT and Jain's index are of the
flows that last, in the part of the trial that counts; goodput is acknowledged payload by the
receivers' line rates, a lost packet one that a switch dropped.
"""


def opening(data: PageData, picture: str) -> str:
    """Return the page up to its second part: headroom, arms, the answer."""
    lines = [_HEAD, *_cautions(data), *headroom_part(data.headroom, picture)]
    if data.arms:
        lines += ["### The arms\n", arms_table(data.arms)]
    lines += ["## The answer\n", f"{verdict_counts_text(data.headlines)}\n"]
    lines += headline_tables(data.headlines)
    if data.baselines:
        lines += [
            "### Against the best fixed setting and against chance\n",
            "Conditions in which a tuner is better or worse beyond chance, by the first figure of\n"
            "each table. Its placebo has its actions and its period, and draws at random.\n",
            baseline_table(data.baselines),
        ]
    return "\n".join(lines) + "\n"


def _cautions(data: PageData) -> Iterator[str]:
    """Yield what the results rest on that is to be made anew, each with its papers."""
    papers: dict[str, dict[str, None]] = {}
    for caution in data.cautions:
        papers.setdefault(caution.text, {})[caution.paper] = None
    for text, whose in papers.items():
        yield f"**To be made anew** ({', '.join(whose)}): {text}.\n"


def results_page(
    file: ClaimsFile,
    runs: Path,
    phase: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> tuple[PageData, str]:
    """Return what the page opens with, and the rest of it, of the campaign folders under `runs`.

    Folders may be missing. `phase` is called with what is being done, `progress` with how much of
    it is done and in all. The same folders give the same page. Raises InputError for a file that
    cannot be read.
    """
    measured: dict[str, tuple[MeasuredTrial, ...]] = {}
    results = {}
    for campaign in dict.fromkeys(section.campaign for section in file.sections):
        phase(f"reading {campaign}")
        measured[campaign] = read_measured_trials(runs / campaign, progress)
        for section in file.sections:
            if section.campaign == campaign:
                results[section.id] = evaluate_section(section, measured[campaign])
    phase("judging claims")
    claims = []
    for number, claim in enumerate(file.claims):
        claims.append(evaluate_claim(claim, results[claim.section]))
        progress(number + 1, len(file.claims))
    phase("measuring headroom")
    data = _data(file, results, claims, measured)
    phase("writing tables")
    lines = [_HOW_TO_READ]
    for number, section in enumerate(file.sections):
        progress(number, len(file.sections))
        mine = [result for result in claims if result.claim.section == section.id]
        lines += section_part(results[section.id], mine)
    return data, "\n".join(lines).rstrip() + "\n"


def _data(
    file: ClaimsFile,
    results: Mapping[str, SectionResult],
    claims: Sequence[ClaimResult],
    measured: Mapping[str, tuple[MeasuredTrial, ...]],
) -> PageData:
    found: dict[str, list[Any]] = {field.name: [] for field in fields(PageData)}
    for paper in file.papers:
        sections = [section for section in file.sections if section.paper == paper]
        campaigns = dict.fromkeys(section.campaign for section in sections)
        parts = [
            ([s for s in sections if s.campaign == campaign], measured[campaign])
            for campaign in campaigns
        ]
        own = [results[section.id] for section in sections]
        ids = {section.id for section in sections}
        mine = [one for one in claims if one.claim.headline and one.claim.section in ids]
        texts = (text for _, trials in parts for one in trials for text in one.cautions)
        found["headroom"] += headroom_of_paper(paper, parts)
        found["arms"] += arms_of(paper, own)
        found["headlines"] += [headline(result, paper) for result in mine]
        found["baselines"] += baselines(paper, own)
        found["cautions"] += [Caution(paper, text) for text in dict.fromkeys(texts)]
    return PageData(**{name: tuple(rows) for name, rows in found.items()})


def page_files(
    runs: Path,
    output: Path,
    claims: Path | None,
    paper: str,
    phase: Callable[[str], None],
    step: Callable[[int, int], None],
) -> dict[Path, tuple[str, str]]:
    """Return what is written of the runs, with what it is: the page, its data, its picture.

    With `paper`, the parts of the page `output` that are of other papers stay. Raises InputError
    for claims or a former page that cannot be read, and for a page that is one of the inputs.
    """
    data_file = output.with_suffix(".json")
    picture_file = output.with_name(f"{output.stem}-headroom.svg")
    reads = [*([claims] if claims else []), *recorded_files([runs])]
    check_outputs([output, data_file, picture_file], reads)
    file = load_claims(claims)
    former = read_former_page(file, paper, output) if paper else ""
    kept = read_data(data_file) if paper else None
    data, rest = results_page(file, runs, phase, step)
    if kept is not None:
        data = data.merged_into(kept, file.papers, paper)
    text = opening(data, picture_file.name) + rest
    files = {
        output: ("page", renew_sections(former, text, paper) if paper else text),
        data_file: ("data", to_json(data)),
    }
    drawn = headroom_svg(data.headroom)
    return {**files, picture_file: ("picture", drawn)} if drawn else files
